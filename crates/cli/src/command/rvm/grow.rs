//! `netram rvm grow`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_journal::Journal;
use serde_json::json;

use super::inspection::existing;
use crate::options::SizeArg;
use crate::output;

/// Make a log larger
///
/// No program may have it open. The log is recovered first and applied to its segments, for
/// which lenders are asked if its last program did not close it (those of LOG.toml or
/// NETRAM_LENDERS). A crash at any moment leaves either the old log or the new one. A log cannot
/// be made smaller.
///
///   netram rvm grow bank.log --size 256MiB
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct GrowLog {
    /// The log's file, or the directory that holds all of it
    log: PathBuf,
    /// Bytes of the larger log
    #[arg(long, value_name = "SIZE")]
    size: SizeArg,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl GrowLog {
    pub(super) fn run(self) -> Result<ExitCode> {
        let what = || format!("growing {}", self.log.display());
        let home = existing(&self.log)?;
        let settings = home.settings().with_context(what)?;
        let opened = home.open(&settings).with_context(what)?;
        opened.memory.truncate().with_context(what)?;
        let closed = opened.memory.close().map_err(|(error, _)| error);
        closed.with_context(what)?.close().with_context(what)?;
        let config = settings.journal_config().with_context(what)?;
        let grown = Journal::grow(home.path(), &config, self.size.0).with_context(what)?;
        if self.json {
            output::json(&json!({ "before": grown.before, "after": grown.after }))?;
        } else {
            output::line(match grown.before == grown.after {
                true => format!("the log already has {}", output::bytes(grown.after)),
                false => format!(
                    "the log now has {}; it had {}",
                    output::bytes(grown.after),
                    output::bytes(grown.before)
                ),
            })?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
