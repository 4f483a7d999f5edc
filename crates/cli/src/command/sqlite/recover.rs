//! `netram sqlite recover`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_sqlite::DatabasePaths;
use serde_json::json;

use crate::output;

/// Recover a database under netram that no program has open
///
/// What journals and lenders hold is written to the database's file. After a crash of the
/// machine the first program that opens the database does this anyway. The command is for
/// checking that it works, for a disk that lost its newest bytes while the machine went on, and
/// for lenders that are lost for good (--accept-loss).
///
/// If it cannot be proven that nothing acknowledged is missing, it is refused, with the lenders
/// that must answer.
///
///   netram sqlite recover app.db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RecoverDatabase {
    /// The database's file
    database: PathBuf,
    /// Go on even if acknowledged commits may be missing
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RecoverDatabase {
    pub(super) fn run(self) -> Result<ExitCode> {
        let place = DatabasePaths::of(&self.database)?;
        let again = netram_sqlite::recover_database(&place, self.accept_loss)?;
        match self.json {
            true => output::json(&json!({
                "database": place.path(),
                "records": again.records,
                "bytes": again.bytes,
            }))?,
            false => output::line(format_args!(
                "{}: {} recovered, {}",
                place.path().display(),
                output::count(again.records, "record"),
                output::bytes(again.bytes)
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
