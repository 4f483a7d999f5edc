//! `netram mount status`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_journal::JournalInspector;
use netram_store::Store;
use serde_json::json;

use super::table::{MountBase, mounted, resolved};
use crate::command::journal::{members_hold, view_as_json};
use crate::output;

/// Show a mounted directory: its journal's positions, what is not on the disk yet, its lenders
///
/// Nothing is changed and no lender is asked. It also works for a directory that is not mounted
/// now because the machine or netram stopped.
///
///   netram mount status /var/lib/postgresql/15/main/pg_wal
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowMount {
    /// The directory
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ShowMount {
    pub(super) fn run(self) -> Result<ExitCode> {
        let dir = resolved(&self.dir)?;
        let mount = mounted()?.into_iter().rev().find(|mount| mount.dir == dir);
        let (is_mounted, journal) = match mount.map(|mount| mount.on) {
            Some(MountBase::Journal(Some(journal))) => (true, journal),
            Some(MountBase::Journal(None)) => bail!(
                "{} is mounted, and its journal is known only to the user who mounted it; try it as that user",
                dir.display()
            ),
            Some(MountBase::Volume { volume, .. }) => bail!(
                "{} is the file system of a volume: see `netram volume status {}`",
                dir.display(),
                volume.display()
            ),
            None => (false, netram_mount::journal_of(&dir)?),
        };
        let what = || format!("looking at the journal {}", journal.display());
        let inspect = JournalInspector::open(&journal).with_context(what)?;
        self.show(&dir, &journal, is_mounted, &inspect)?;
        Ok(ExitCode::SUCCESS)
    }

    fn show(&self, dir: &Path, journal: &Path, is_mounted: bool, inspect: &JournalInspector) -> Result<()> {
        let (superblock, view) = (inspect.superblock(), inspect.view());
        let (head, stable) = (superblock.head.lsn, superblock.stable);
        let scan = inspect.verify(&mut |_| true).scan;
        let end = scan.end.lsn;
        let not_in_files = end.since(head);
        let not_on_disk = end.0.saturating_sub(stable.0);
        let lenders: Vec<String> = match Store::at(journal).settings() {
            Ok(settings) => settings.lender_names(),
            Err(_) => Vec::new(),
        };
        if self.json {
            return output::json(&json!({
                "directory": dir,
                "mounted": is_mounted,
                "journal": journal,
                "id": superblock.journal.to_string(),
                "in_use": inspect.in_use(),
                "capacity": inspect.capacity(),
                "head": head.0,
                "stable": stable.0,
                "end": end.0,
                "records": scan.records,
                "not_in_files_bytes": not_in_files,
                "not_on_disk_bytes": not_on_disk,
                "lenders": lenders,
                "view": view_as_json(view),
            }));
        }
        let state = match (is_mounted, inspect.in_use()) {
            (true, true) => "mounted",
            (true, false) => {
                "mounted, but the process that served it is gone: `netram mount detach`, then attach it again"
            }
            (false, true) => "not mounted, but a process has its journal open",
            (false, false) => {
                "not mounted: `netram mount attach` or `netram mount recover` brings its files back"
            }
        };
        output::line(format_args!("directory  {}, {state}", dir.display()))?;
        output::line(format_args!(
            "journal    {}, {} of {} in use",
            journal.display(),
            output::bytes(not_in_files),
            output::bytes(inspect.capacity())
        ))?;
        output::line(format_args!("position   LSN {head} to {end}"))?;
        output::line(format_args!(
            "pending    {} ({}) not in the files yet, of which at most {} are not on the disk",
            output::count(scan.records, "record"),
            output::bytes(not_in_files),
            output::bytes(not_on_disk)
        ))?;
        match lenders.is_empty() {
            true => output::line("lenders    none in the settings: syncs wait for this disk")?,
            false => output::line(format_args!("lenders    {}", lenders.join(", ")))?,
        }
        for member in &view.members {
            output::line(format_args!(
                "member     {} (power domain `{}`), {}",
                member.address,
                member.domain,
                members_hold(view, "syncs")
            ))?;
        }
        Ok(())
    }
}
