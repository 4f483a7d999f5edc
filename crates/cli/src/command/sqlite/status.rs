//! `netram sqlite status`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_sqlite::{DatabasePaths, FileRole};
use serde_json::json;

use crate::output;

/// Show the state of a database under netram
///
/// Nothing is changed and no lender is asked.
///
///   netram sqlite status app.db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowDatabase {
    /// The database's file
    database: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ShowDatabase {
    pub(super) fn run(self) -> Result<ExitCode> {
        let place = DatabasePaths::of(&self.database)?;
        let look = netram_sqlite::database_status(&place)?;
        if self.json {
            output::json(&json!({
                "database": place.path(),
                "file": place.file(FileRole::Main),
                "settings": place.settings(),
                "open": look.open,
                "to_recover": look.to_recover,
                "seats": look.journal_slots,
                "seats_taken": look.slots_in_use,
            }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let stands = match (look.to_recover, look.open) {
            (true, _) => "was not closed: the next opening recovers it",
            (false, true) => "is open",
            (false, false) => "is closed",
        };
        output::line(format_args!("{} {stands}", place.path().display()))?;
        output::line(format_args!(
            "  file      {}",
            place.file(FileRole::Main).display()
        ))?;
        output::line(format_args!("  settings  {}", place.settings().display()))?;
        output::line(format_args!(
            "  journals  {} of {} in use",
            look.slots_in_use, look.journal_slots
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}
