//! `netram volume detach`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use indicatif::ProgressBar;
use netram_attach::{AttachEntry, AttachRecord, ProcessIdentity, Registry};
use rustix::process::Signal;
use serde_json::json;

use super::device_supervisor::sentence;
use super::{need_root, registry};
use crate::options::DurationArg;
use crate::output;

/// Time between two checks whether the volume is closed.
const LOOK: Duration = Duration::from_millis(20);

/// Take a volume's block device away
///
/// Refused while the device is mounted, used as swap, or part of another device. Returns when
/// everything is written and the volume is closed.
///
///   umount /srv/db
///   netram volume detach db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct DetachVolume {
    /// The volume's directory, its name, or its device
    what: PathBuf,
    /// How long to wait until the volume is closed
    #[arg(long, value_name = "TIME", default_value = "5m")]
    timeout: DurationArg,
    /// Kill the serving process even if the device is in use. Programs that use it get errors;
    /// nothing that was flushed is lost
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl DetachVolume {
    pub(super) fn run(self) -> Result<ExitCode> {
        need_root("detaching a volume")?;
        let registry = registry();
        let entry = registry.find(&self.what)?.ok_or_else(|| {
            anyhow!(
                "nothing is attached as {}; `netram volume list` shows what is",
                self.what.display()
            )
        })?;
        if !entry.alive {
            return self.forget(&registry, &entry);
        }
        let users = netram_attach::users(&entry.record.device);
        if !users.is_empty() && !self.force {
            bail!(
                "{} is {}: end that first",
                entry.record.device.display(),
                sentence(&users)
            );
        }
        match self.force {
            true => {
                // The supervisor kills its server, starts no other, and ends.
                signal(entry.record.supervisor, Signal::QUIT)?;
            }
            false => signal(entry.record.supervisor, Signal::TERM)?,
        }
        self.wait_while(&entry, &registry, || registry.is_alive(&entry.record))?;
        match self.json {
            true => output::json(&json!({ "detached": entry.record }))?,
            false => output::line(format_args!("{} is detached", entry.record.volume.display()))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Ends an attachment whose supervisor was killed: the device is gone, or ends with its last user.
    fn forget(&self, registry: &Registry, entry: &AttachEntry) -> Result<ExitCode> {
        let AttachRecord {
            name, device, server, ..
        } = &entry.record;
        // Asked first: once it fails, a ublk device is gone, even if it is mounted.
        let users = netram_attach::users(device);
        let device = device.display();
        if self.force {
            signal(*server, Signal::KILL)?;
        } else if server.is_alive() && !users.is_empty() {
            // The record stays: if the server is killed too, only the record says which device must fail.
            bail!(
                "the supervisor of {device} was killed, and its server goes on while the device is {}: end that first",
                sentence(&users)
            );
        }
        self.wait_while(entry, registry, || server.is_alive())?;
        netram_attach::fail(&entry.record)?;
        if !registry.forget(name)? {
            bail!("{name} is being attached or detached at this moment; try again when that is done");
        }
        output::remark(format_args!(
            "the supervisor of {device} was killed; its record is removed"
        ));
        match users.as_slice() {
            [] => Ok(ExitCode::SUCCESS),
            users => bail!("{device} is still {}: it goes when that ends", sentence(users)),
        }
    }

    fn wait_while(&self, entry: &AttachEntry, registry: &Registry, is_open: impl Fn() -> bool) -> Result<()> {
        let progress = match output::is_watched() {
            true => ProgressBar::new_spinner().with_message("closing the volume"),
            false => ProgressBar::hidden(),
        };
        let deadline = Instant::now() + self.timeout.0;
        while is_open() {
            if Instant::now() > deadline {
                bail!(
                    "{} is not closed after {}; closing goes on in the background. {} may say why",
                    entry.record.volume.display(),
                    output::age(self.timeout.0),
                    registry.log(&entry.record.name).display()
                );
            }
            progress.tick();
            std::thread::sleep(LOOK);
        }
        progress.finish_and_clear();
        Ok(())
    }
}

/// Signals a process of an attachment, but not another one that has its number by now.
fn signal(process: ProcessIdentity, signal: Signal) -> Result<()> {
    // A process that is gone has done what was asked.
    process
        .signal(signal)
        .map(drop)
        .with_context(|| format!("signalling process {}", process.id))
}
