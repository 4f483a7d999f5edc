//! `netram mount recover`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Args;
use netram_journal::JournalInspector;
use serde_json::json;

use super::{path_texts, report_unrecorded};
use crate::output;

/// Recover a directory that was mounted when the machine or netram stopped
///
/// What the journal and its lenders hold is written to the files, and the directory has its
/// files as before `netram mount attach`. If it cannot be proven that nothing acknowledged is
/// missing, it is refused, with the lenders that must answer; --accept-loss goes on without them.
///
///   netram mount recover /var/lib/postgresql/15/main/pg_wal
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RecoverDirectory {
    /// The directory
    dir: PathBuf,
    /// Go on even if acknowledged writes may be missing
    #[arg(long)]
    accept_loss: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RecoverDirectory {
    pub(super) fn run(self) -> Result<ExitCode> {
        let is_taken = netram_mount::journal_of(&self.dir).is_ok();
        if !is_taken && JournalInspector::open(&self.dir).is_ok() {
            bail!(
                "{} is a journal: name the directory that was mounted on it",
                self.dir.display()
            );
        }
        let again = netram_mount::recover(&self.dir, self.accept_loss)?;
        report_unrecorded(&self.dir, &again);
        match self.json {
            true => output::json(&json!({
                "directory": self.dir,
                "records": again.records,
                "bytes": again.bytes,
                "made": again.created,
                "removed": again.removed,
                "renamed": again.renamed,
                "unrecorded": path_texts(&again.unrecorded),
            }))?,
            false => output::line(format_args!(
                "{}: {} recovered, {} in files",
                self.dir.display(),
                output::count(again.records, "record"),
                output::bytes(again.bytes)
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
