//! `netram journal create`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::options::SizeArg;
use crate::output;

/// Create a journal
///
/// The log is allocated in full, so that a full disk cannot stop a commit later. An existing
/// directory is never touched.
///
///   netram journal create /var/lib/bank/journal --size 64MiB
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateJournal {
    /// The new directory
    dir: PathBuf,
    /// Bytes of the log: how much can be committed before the log must be truncated
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    size: SizeArg,
}

impl CreateJournal {
    pub(super) fn run(self) -> Result<ExitCode> {
        let id = netram_journal::Journal::create(&self.dir, self.size.0).context("creating a journal")?;
        output::line(format_args!(
            "journal {id} in {}, {}",
            self.dir.display(),
            output::bytes(self.size.0)
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
