//! `netram sqlite detach`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_sqlite::DatabasePaths;

use crate::command::lender;
use crate::output;

/// Take a database away from netram: its file is complete, and back in its place
///
/// No program may have it open.
///
///   netram sqlite detach app.db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct DetachDatabase {
    /// The database's file
    database: PathBuf,
    /// Go on even if acknowledged commits may be missing
    #[arg(long)]
    accept_loss: bool,
}

impl DetachDatabase {
    pub(super) fn run(self) -> Result<ExitCode> {
        let place = DatabasePaths::of(&self.database)?;
        let untold = netram_sqlite::release(&place, self.accept_loss)?;
        output::line(format_args!(
            "{} is an ordinary database again",
            place.path().display()
        ))?;
        lender::report_pending_forgets(&untold)?;
        Ok(ExitCode::SUCCESS)
    }
}
