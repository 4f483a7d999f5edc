//! `netram journal delete`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_journal::forget::ForgetList;
use netram_journal::settings::{JournalSettings, LenderName, SettingsFile};
use netram_journal::{JournalInspector, JournalPaths};
use netram_volume::Volume;
use serde_json::json;

use super::super::lender;
use crate::options::{LENDERS_VARIABLE, UsageError, named_addresses};
use crate::output;

/// Delete a journal, or the log of recoverable memory
///
/// Log, segment table and settings are removed; segments (the data files) stay. What was
/// committed and has not been applied to the segments yet is lost for good. The journal must
/// not be open. Its lenders are notified that they may free its memory; those that cannot be
/// reached are notified later.
///
/// A journal that was not closed, as after a crash, is refused: its lenders may have the only
/// copy of the newest commits. --force gives these up. To remove a copy of a journal that is
/// still in use, run `rm -r` instead: lenders cannot tell the two apart.
///
///   netram journal delete /var/lib/bank/journal --yes
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct DeleteJournal {
    /// The journal's directory, or its log file
    dir: PathBuf,
    /// Lender to notify, besides those in the settings and those that held its newest bytes;
    /// repeat it for several
    #[arg(long = "lender", value_name = "ADDRESS", env = LENDERS_VARIABLE, value_delimiter = ',')]
    lenders: Vec<LenderName>,
    /// File with the cluster key [default: the one that its settings name]
    #[arg(long, value_name = "FILE", env = "NETRAM_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Confirm that it is to be deleted
    #[arg(long)]
    yes: bool,
    /// Also give up what only lenders hold: this is not a copy, and its newest commits are not
    /// needed
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl DeleteJournal {
    pub(super) fn run(self) -> Result<ExitCode> {
        // A link leads to the journal itself, and so does the search for what it is part of.
        let dir = match self.dir.canonicalize() {
            Ok(dir) => dir,
            Err(_) => std::path::absolute(&self.dir)?,
        };
        let place = JournalPaths::at(&dir);
        refuse_part(&dir)?;
        if !self.yes {
            let what = match JournalInspector::open(&dir) {
                Ok(seen) => format!("the journal {}", seen.view().journal),
                Err(error) if !place.lock_file().exists() => return Err(error.into()),
                Err(_) => "what is left of a journal".to_owned(),
            };
            let sentence = format!(
                "this would destroy {what} in {}; confirm it with --yes",
                self.dir.display()
            );
            return Err(UsageError(sentence).into());
        }
        // If the settings cannot be read, the members of the view are notified all the same.
        let read = SettingsFile::read(&place.settings());
        let settings = read
            .and_then(|mut file| JournalSettings::take(&mut file))
            .unwrap_or_default();
        let key_file = self.key_file.or(settings.key_file);
        // With `auto` these are the lenders that openings found, whose addresses the journal keeps.
        let (_, named) = named_addresses(&self.lenders)?;
        let lenders = [named, settings.lenders].concat();
        let untold = place
            .delete(
                ForgetList::usual(),
                lender::windows(self.force),
                &lenders,
                key_file.as_deref(),
            )
            .with_context(|| format!("deleting {}", self.dir.display()))?;
        if self.json {
            let (away, keep) = lender::pending_forgets_json(&untold);
            output::json(
                &json!({ "deleted": self.dir, "lenders_to_be_told": away, "lenders_that_keep_bytes": keep }),
            )?;
        } else {
            output::line(format_args!("{} is deleted", self.dir.display()))?;
            lender::report_pending_forgets(&untold)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Refuses a journal that is part of a volume or a database, which has a command of its own.
fn refuse_part(journal: &Path) -> Result<()> {
    let Some(parent) = journal.parent() else {
        return Ok(());
    };
    let command = if Volume::inspect(parent).is_ok() {
        "netram volume delete"
    } else if parent.to_str().is_some_and(|name| name.ends_with("-netram")) {
        "netram sqlite detach"
    } else {
        return Ok(());
    };
    let sentence = format!(
        "{} is part of {}: use `{command}`",
        journal.display(),
        parent.display()
    );
    Err(UsageError(sentence).into())
}
