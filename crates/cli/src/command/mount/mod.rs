//! `netram mount`: directories whose synced files lenders hold. A file for each subcommand; volumes are in
//! [`volume`], and the record of what is mounted is in [`record`].

mod attach;
mod detach;
mod list;
mod record;
mod recover;
pub(crate) mod server;
mod status;
pub(crate) mod supervisor;
mod table;
mod volume;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use netram_mount::DirectoryRecovery;

use crate::output;

/// Mount directories whose synced files are held in other machines' memory
///
/// For the log of any program, such as a database: a write followed by a sync of a file in the
/// directory waits for lenders instead of the disk. The program is not changed.
///
///   netram mount attach /var/lib/postgresql/15/main/pg_wal --on /var/lib/netram/wal --background \
///       --lender tcp://10.0.0.2:7420 --lender tcp://10.0.0.3:7420
///   netram mount list
///   netram mount detach /var/lib/postgresql/15/main/pg_wal
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
#[allow(clippy::large_enum_variant, reason = "one value a process")]
pub enum MountCommand {
    Attach(attach::AttachDirectory),
    List(list::ListMounts),
    Status(status::ShowMount),
    Detach(detach::DetachDirectory),
    Recover(recover::RecoverDirectory),
}

impl MountCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            MountCommand::Attach(attach) => attach.run(),
            MountCommand::List(list) => list.run(),
            MountCommand::Status(status) => status.run(),
            MountCommand::Detach(detach) => detach.run(),
            MountCommand::Recover(recover) => recover.run(),
        }
    }
}

/// The journals of mounted directories: directory, kind, and mounted directory.
pub(crate) fn journal_uses() -> Vec<(PathBuf, &'static str, PathBuf)> {
    // Without the kernel's table they are shown as journals.
    let mounts = table::mounted().unwrap_or_default().into_iter();
    let used = mounts.filter_map(|mount| match mount.on {
        table::MountBase::Journal(journal) => Some((journal?, "mount", mount.dir)),
        table::MountBase::Volume { .. } => None,
    });
    used.collect()
}

/// The journal or the volume on which the directory `path` is mounted; `None` if it is no mounted directory
/// of netram's.
pub(crate) fn mounted_on(path: &Path) -> Result<Option<PathBuf>> {
    let Ok(dir) = path.canonicalize() else {
        return Ok(None);
    };
    let mount = table::mounted()?.into_iter().rev().find(|mount| mount.dir == dir);
    match mount.map(|mount| mount.on) {
        Some(table::MountBase::Journal(Some(journal))) => Ok(Some(journal)),
        Some(table::MountBase::Journal(None)) => anyhow::bail!(
            "{} is mounted, and its journal is known only to the user who mounted it; try it as that user",
            dir.display()
        ),
        Some(table::MountBase::Volume { volume, .. }) => Ok(Some(volume)),
        None => Ok(None),
    }
}

/// Most unrecorded files that are named; of more only the number is shown.
const UNRECORDED_NAMED_MAX: usize = 20;

fn path_texts(paths: &[Vec<u8>]) -> Vec<String> {
    paths.iter().map(|path| path.escape_ascii().to_string()).collect()
}

/// Prints files whose bytes only the disk has: these may be older, or fewer, than what was written last.
fn report_unrecorded(dir: &Path, again: &DirectoryRecovery) {
    let files = &again.unrecorded;
    if files.is_empty() {
        return;
    }
    output::remark(format_args!(
        "{} in the journal, and may lack what was written last; check:",
        output::counted(files.len() as u64, "new file is not", "new files are not")
    ));
    for path in files.iter().take(UNRECORDED_NAMED_MAX) {
        output::remark(format_args!("  {}/{}", dir.display(), path.escape_ascii()));
    }
    if let Some(more @ 1..) = files.len().checked_sub(UNRECORDED_NAMED_MAX) {
        output::remark(format_args!("  and {more} more"));
    }
}
