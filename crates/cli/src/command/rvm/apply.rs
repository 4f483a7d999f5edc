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
/// What its program would do when it starts and ends: the log is recovered
/// (lenders are asked if its last program did not close it: see LOG.toml,
/// NETRAM_LENDERS), its transactions are applied, and it is closed. Afterwards
/// the segments have everything: another log may have them, and all of it can be
/// moved.
///
///   netram rvm apply bank.log
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ApplyLog {
    /// The log, which no program may have open
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
                "{transactions} transactions applied, {}; the log is closed",
                output::bytes(bytes)
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
