//! `netram journal delete`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_journal::forget::ForgetList;
use netram_journal::{JournalInspector, JournalPaths};
use netram_store::StoreSettings;
use netram_transport::NetAddress;
use netram_volume::Volume;
use serde_json::json;

use super::super::lender;
use crate::options::UsageError;
use crate::output;

/// Delete a journal, or the log of recoverable memory
///
/// Log, segment table and settings are removed; segments stay as they are. There is no
/// way back: what was committed and has not been applied to the segments is lost.
/// Refused while it is open. Its lenders are told that they may free its memory; those
/// that are away are told later.
///
/// Refused, too, if it was not closed, as after a crash: its lenders may alone have its
/// newest commits. `--force` gives these up. A copy of a journal that is still wanted is
/// removed with `rm -r`: lenders cannot tell the two apart.
///
///   netram journal delete /var/lib/bank/journal --key-file /etc/netram/key --yes
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct DeleteJournal {
    /// The journal's directory, or its log file
    dir: PathBuf,
    /// A lender that may have something of it, besides those in its settings and its last members
    #[arg(long = "lender", value_name = "ADDR")]
    lenders: Vec<NetAddress>,
    /// The cluster key's file; without it the one that its settings name
    #[arg(long, value_name = "FILE", env = "NETRAM_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// This is meant
    #[arg(long)]
    yes: bool,
    /// Lenders free also what the log lacks: this is no copy, and nobody wants its newest commits
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl DeleteJournal {
    pub(super) fn run(self) -> Result<ExitCode> {
        // A link to it is no other journal, and what it is part of lies around the journal itself.
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
                "this would destroy {what} in {}; say --yes if it is meant",
                self.dir.display()
            );
            return Err(UsageError(sentence).into());
        }
        // Should they not be readable, the members of the view are told all the same.
        let settings = StoreSettings::load(&place.settings()).unwrap_or_default();
        let key_file = self.key_file.or(settings.key_file);
        let lenders = [self.lenders, settings.lenders].concat();
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

/// The journal of a volume or a database goes with that.
fn refuse_part(journal: &Path) -> Result<()> {
    let Some(parent) = journal.parent() else {
        return Ok(());
    };
    let command = if Volume::inspect(parent).is_ok() {
        "netram disk delete"
    } else if parent.to_str().is_some_and(|name| name.ends_with("-netram")) {
        "netram sqlite release"
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
