//! `netram disk`: volumes, and what makes block devices of them. A file a subcommand; the process that has an
//! attached volume open is in [`server`].

mod attach;
mod create;
mod delete;
mod detach;
mod device_supervisor;
mod grow;
mod list;
mod opener;
mod recover;
mod replicas;
mod restore;
mod resync;
mod scrub;
mod serve;
pub(crate) mod server;
mod show;
mod takeover;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use netram_attach::Registry;
use netram_volume::VolumeCheck;
use serde_json::json;

use super::check;
use crate::output;

/// Make, attach and serve volumes: block devices whose writes are in other machines' RAM at once
///
/// A volume is a directory: its journal, its image, checksums, settings. Lenders
/// are named in its settings file (netram.toml) or in NETRAM_LENDERS.
///
///   netram disk create /var/lib/netram/db --size 20GiB
///   netram disk attach /var/lib/netram/db        # as /dev/netram/db
///   netram disk serve /var/lib/netram/db --listen unix:/run/db.nbd
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum VolumeCommand {
    Create(create::CreateVolume),
    List(list::ListVolumes),
    Show(show::ShowVolume),
    Attach(attach::AttachVolume),
    Detach(detach::DetachVolume),
    Serve(serve::ServeVolume),
    Grow(grow::GrowVolume),
    Scrub(scrub::ScrubVolume),
    Resync(resync::ResyncVolume),
    Replicas(replicas::ListReplicas),
    Restore(restore::RestoreVolume),
    Takeover(takeover::TakeOverVolume),
    Recover(recover::RecoverVolume),
    Delete(delete::DeleteVolume),
}

impl VolumeCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            VolumeCommand::Create(create) => create.run(),
            VolumeCommand::List(list) => list.run(),
            VolumeCommand::Show(show) => show.run(),
            VolumeCommand::Attach(attach) => attach.run(),
            VolumeCommand::Detach(detach) => detach.run(),
            VolumeCommand::Serve(serve) => serve.run(),
            VolumeCommand::Grow(grow) => grow.run(),
            VolumeCommand::Scrub(scrub) => scrub.run(),
            VolumeCommand::Resync(resync) => resync.run(),
            VolumeCommand::Replicas(replicas) => replicas.run(),
            VolumeCommand::Restore(restore) => restore.run(),
            VolumeCommand::Takeover(takeover) => takeover.run(),
            VolumeCommand::Recover(recover) => recover.run(),
            VolumeCommand::Delete(delete) => delete.run(),
        }
    }
}

/// Where attachments are recorded, and where their links are. `NETRAM_DISK_RUN` puts both elsewhere.
pub(super) fn registry() -> Registry {
    let elsewhere = std::env::var_os("NETRAM_DISK_RUN").filter(|directory| !directory.is_empty());
    match elsewhere.map(PathBuf::from) {
        Some(directory) => Registry::new(&directory, &directory.join("dev")),
        None => Registry::new(Path::new("/run/netram-disk"), Path::new("/dev/netram")),
    }
}

/// The volume's path as every process sees it.
fn absolute(volume: &Path) -> Result<PathBuf> {
    volume.canonicalize().with_context(|| {
        format!(
            "there is no volume {}; `netram disk create` makes one",
            volume.display()
        )
    })
}

/// A volume that has a device is open elsewhere; the message says where.
fn refuse_attached(volume: &Path) -> Result<()> {
    match registry().find(volume)?.filter(|entry| entry.alive) {
        None => Ok(()),
        Some(entry) => bail!(
            "{} is attached, as {}; `netram disk detach {}` first",
            volume.display(),
            entry.record.device.display(),
            entry.record.name
        ),
    }
}

/// What a check of an opening or a take-over found.
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
            "journal": journal.as_ref().map(check::as_json),
        }))?,
        (Some(journal), false) => check::print_check(journal)?,
        (None, false) => (),
    }
    check::end_check(refusal, as_json)
}

fn need_root(what: &str) -> Result<()> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => bail!("{what} needs root: block devices belong to the kernel; run it with sudo"),
    }
}
