//! `netram rvm apply`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use super::inspection::existing;
use crate::output;

/// Apply a log to its segments and close it
///
/// Does what a program does when it opens and closes the log: the log is recovered (lenders are
/// asked if its last program did not close it: those of LOG.toml or NETRAM_LENDERS), and its
/// transactions are written to the segments. Afterwards the segments' files are complete: they
/// can be copied, moved, or used with another log.
///
///   netram rvm apply bank.log
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ApplyLog {
    /// The log's file, or its directory; no program may have it open
    log: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ApplyLog {
    pub(super) fn run(self) -> Result<ExitCode> {
        let what = || format!("applying {}", self.log.display());
        let home = existing(&self.log)?;
        let settings = home.settings().with_context(what)?;
        let opened = home.open(&settings).with_context(what)?;
        let (transactions, bytes) = {
            let recovery = opened.memory.recovery();
            (recovery.transactions, recovery.bytes)
        };
        let closed = opened.memory.close().map_err(|(error, _)| error);
        closed.with_context(what)?.close().with_context(what)?;
        if self.json {
            output::json(&json!({ "transactions": transactions, "bytes": bytes }))?;
        } else {
            output::line(format!(
                "{} applied, {}; the log is closed",
                output::count(transactions, "transaction"),
                output::bytes(bytes)
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
