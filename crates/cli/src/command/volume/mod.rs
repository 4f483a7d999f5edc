//! `netram volume`: volumes and their block devices. A file for each subcommand; the process that has an
//! attached volume open is in [`server`].

mod attach;
mod check;
mod create;
mod delete;
mod detach;
mod device_server;
mod device_supervisor;
mod front_end;
mod grow;
mod list;
mod opener;
mod recover;
mod recovery_key;
mod rekey;
mod replicas;
mod restore;
mod resync;
mod serve;
pub(crate) mod server;
mod status;
mod takeover;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use netram_attach::Registry;
use netram_volume::VolumeCheck;
use serde_json::json;

use super::open_check;
use crate::output;

/// Create, attach and serve volumes: block devices whose writes are held in other machines' memory
///
/// A volume is a directory with a journal, an image, checksums and settings. The lenders that
/// hold its newest writes are named in its settings file (netram.toml) or in NETRAM_LENDERS.
///
///   netram volume create /var/lib/netram/db --size 20GiB
///   netram volume attach /var/lib/netram/db        # as /dev/netram/db
///   netram volume serve /var/lib/netram/db --listen unix:/run/db.nbd
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum VolumeCommand {
    Create(create::CreateVolume),
    List(list::ListVolumes),
    Status(status::ShowVolume),
    Attach(attach::AttachVolume),
    Detach(detach::DetachVolume),
    Serve(serve::ServeVolume),
    Grow(grow::GrowVolume),
    Check(check::CheckVolume),
    Resync(resync::ResyncVolume),
    Replicas(replicas::ListReplicas),
    Restore(restore::RestoreVolume),
    Rekey(rekey::RekeyVolume),
    Takeover(takeover::TakeOverVolume),
    Recover(recover::RecoverVolume),
    Delete(delete::DeleteVolume),
}

impl VolumeCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            VolumeCommand::Create(create) => create.run(),
            VolumeCommand::List(list) => list.run(),
            VolumeCommand::Status(status) => status.run(),
            VolumeCommand::Attach(attach) => attach.run(),
            VolumeCommand::Detach(detach) => detach.run(),
            VolumeCommand::Serve(serve) => serve.run(),
            VolumeCommand::Grow(grow) => grow.run(),
            VolumeCommand::Check(check) => check.run(),
            VolumeCommand::Resync(resync) => resync.run(),
            VolumeCommand::Replicas(replicas) => replicas.run(),
            VolumeCommand::Restore(restore) => restore.run(),
            VolumeCommand::Rekey(rekey) => rekey.run(),
            VolumeCommand::Takeover(takeover) => takeover.run(),
            VolumeCommand::Recover(recover) => recover.run(),
            VolumeCommand::Delete(delete) => delete.run(),
        }
    }
}

/// Returns the directories of records of attachments and of links to devices. `NETRAM_VOLUME_RUN` puts both
/// elsewhere.
pub(super) fn registry() -> Registry {
    let elsewhere = std::env::var_os("NETRAM_VOLUME_RUN").filter(|directory| !directory.is_empty());
    match elsewhere.map(PathBuf::from) {
        Some(directory) => Registry::new(&directory, &directory.join("dev")),
        None => Registry::new(Path::new("/run/netram-volume"), Path::new("/dev/netram")),
    }
}

/// The journals of volumes that are attached: directory, kind, and volume.
pub(super) fn journal_uses() -> Vec<(PathBuf, &'static str, PathBuf)> {
    // Only root may read what is attached. For others they are journals.
    let entries = registry().entries().unwrap_or_default().into_iter();
    let attached = entries
        .filter(|entry| entry.alive)
        .map(|entry| entry.record.volume);
    attached
        .map(|volume| {
            (
                netram_volume::VolumePaths::at(&volume).journal(),
                "volume",
                volume,
            )
        })
        .collect()
}

/// Returns a volume's absolute path, without links.
fn absolute(volume: &Path) -> Result<PathBuf> {
    volume.canonicalize().with_context(|| {
        format!(
            "there is no volume {}; `netram volume create` makes one",
            volume.display()
        )
    })
}

/// Refuses a volume that is attached; the message says as what device.
fn refuse_attached(volume: &Path) -> Result<()> {
    match registry().find(volume)?.filter(|entry| entry.alive) {
        None => Ok(()),
        Some(entry) => bail!(
            "{} is attached, as {}; `netram volume detach {}` first",
            volume.display(),
            entry.record.device.display(),
            entry.record.name
        ),
    }
}

/// Prints the outcome of a `--check`.
fn end_check(volume: &Path, found: &VolumeCheck, as_json: bool) -> Result<ExitCode> {
    let refusal = found
        .refusal
        .as_ref()
        .map(|refusal| refusal as &dyn std::error::Error);
    match (&found.journal, as_json) {
        (journal, true) => output::json(&json!({
            "volume": volume,
            "would_succeed": refusal.is_none(),
            "refusal": refusal.map(ToString::to_string),
            "journal": journal.as_ref().map(open_check::as_json),
        }))?,
        (Some(journal), false) => open_check::print_check(journal)?,
        (None, false) => (),
    }
    open_check::end_check(refusal, as_json)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn need_root(what: &str) -> Result<()> {
    match is_root() {
        true => Ok(()),
        false => bail!("{what} needs root, because it makes a block device; run it with sudo"),
    }
}
