//! `netram mount attach DIR --on VOLUME`: the volume is attached and its file system mounted; in the end it
//! is unmounted and the volume detached.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netram_attach::AttachRecord;
use signal_hook::iterator::Signals;

use crate::background::SELF;
use crate::command::volume::registry;
use crate::notify::{LoopPulse, ServiceNotifier, StopPatience};
use crate::output;
use crate::ups::UpsArgs;

/// Time between two checks whether it was unmounted.
const LOOK: Duration = Duration::from_millis(200);
/// File systems that can be made here.
pub(super) const FORMATS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// A volume's file system, mounted.
#[derive(Debug)]
pub(crate) struct VolumeMount {
    dir: PathBuf,
    volume: PathBuf,
    record: AttachRecord,
}

/// Whether the path is a volume, and not a journal.
pub(super) fn is_volume(on: &Path) -> bool {
    on.join("image").exists()
}

impl VolumeMount {
    /// Attaches `volume`, unless it is attached, and mounts its file system at `dir`; with `format`, makes
    /// that file system first.
    pub(super) fn begin(
        dir: &Path,
        volume: &Path,
        format: Option<&str>,
        ups: &UpsArgs,
    ) -> Result<VolumeMount> {
        let canonical = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
        let (dir, volume) = (canonical(dir)?, canonical(volume)?);
        if !dir.is_dir() {
            bail!("{} is not a directory", dir.display());
        }
        let there = registry().find(&volume)?.filter(|entry| entry.alive);
        if let Some(entry) = there {
            if !ups.arguments().is_empty() {
                output::remark(
                    "the volume is attached already: it watches the UPS that it was attached with, not --ups",
                );
            }
            return VolumeMount::resume(dir, volume, entry.record);
        }
        if source_of(&dir).is_some() {
            bail!("something is mounted on {}: unmount that first", dir.display());
        }
        if std::fs::read_dir(&dir)?.next().is_some() {
            bail!(
                "{0} is not empty, and its files would be hidden: move them away, and back into {0} once the volume is mounted",
                dir.display()
            );
        }
        run(Command::new(SELF)
            .args(["volume", "attach"])
            .args(ups.arguments())
            .arg(&volume))?;
        let entry = registry().find(&volume)?.context("it was detached at once")?;
        let mounted = VolumeMount {
            dir,
            volume,
            record: entry.record,
        };
        match mounted.mount(format) {
            Ok(()) => Ok(mounted),
            Err(error) => {
                // If it stays attached, the next attempt says so.
                let _ = mounted.detach();
                Err(error)
            }
        }
    }

    /// Goes on with an attached volume: the process that mounted it was killed, or another command attached
    /// it.
    fn resume(dir: PathBuf, volume: PathBuf, record: AttachRecord) -> Result<VolumeMount> {
        let device = record.device.display().to_string();
        match source_of(&dir) {
            Some(source) if source == device => (),
            _ => bail!(
                "{} is attached already, as {device}: mount that, or run `netram volume detach {}` first",
                volume.display(),
                record.name
            ),
        }
        output::remark(format_args!(
            "{} was mounted already: the process that had mounted it was killed",
            dir.display()
        ));
        Ok(VolumeMount { dir, volume, record })
    }

    fn mount(&self, format: Option<&str>) -> Result<()> {
        let device = &self.record.device;
        let found = file_system_on(device)?;
        match (found, format) {
            (None, None) => bail!(
                "there is no file system on {} yet: --format ext4 makes one",
                self.volume.display()
            ),
            (Some(found), Some(_)) => bail!(
                "there is a file system on {} already, {found}: without --format it is mounted as it is",
                self.volume.display()
            ),
            (None, Some(format)) => {
                let quiet = if format == "ext4" {
                    &["-q", "-F"][..]
                } else {
                    &["-q"]
                };
                run(Command::new(format!("mkfs.{format}")).args(quiet).arg(device))?;
            }
            (Some(_), None) => (),
        }
        run(Command::new("mount").arg(device).arg(&self.dir))
    }

    /// Returns the volume's device.
    pub(super) fn device(&self) -> &Path {
        &self.record.device
    }

    /// Waits until it is unmounted, or unmounts it on a signal; then detaches the volume.
    pub(super) fn wait(
        self,
        mut signals: Signals,
        pulse: &LoopPulse,
        notifier: &ServiceNotifier,
    ) -> Result<()> {
        let device = self.record.device.display().to_string();
        while source_of(&self.dir).is_some_and(|source| source == device) {
            std::thread::sleep(LOOK);
            pulse.beat("the volume's file system is mounted");
            if signals.pending().next().is_some()
                && let Err(error) = run(Command::new("umount").arg(&self.dir))
            {
                tracing::warn!(error = format_args!("{error:#}"), "the directory stays mounted");
            }
        }
        notifier.stopping("the volume is detached", StopPatience::Extend);
        self.detach()
    }

    fn detach(&self) -> Result<()> {
        run(Command::new(SELF)
            .args(["volume", "detach"])
            .arg(&self.record.name))
    }
}

/// Unmounts a volume's file system. The process that mounted it detaches the volume; if that is gone, this
/// does. Returns `false` if no volume of netram is mounted there.
pub(super) fn unmount(dir: &Path, patience: Duration) -> Result<bool> {
    // A directory on a journal has no device.
    let Some(source) = source_of(dir).filter(|source| source.starts_with("/dev/")) else {
        return Ok(false);
    };
    let Some(entry) = registry().find(Path::new(&source))? else {
        return Ok(false);
    };
    run(Command::new("umount").arg(dir))?;
    let until = std::time::Instant::now() + patience;
    let alive = || -> Result<bool> {
        let entry = registry().find(&entry.record.volume)?;
        Ok(entry.is_some_and(|entry| entry.alive))
    };
    // The process that mounted it, if it lives, needs a moment.
    for _ in 0..10 {
        std::thread::sleep(LOOK);
        if !alive()? {
            return Ok(true);
        }
    }
    let detached = run(Command::new(SELF)
        .args(["volume", "detach"])
        .arg(&entry.record.name));
    while alive()? {
        if std::time::Instant::now() > until {
            return detached.map(|()| true);
        }
        std::thread::sleep(LOOK);
    }
    Ok(true)
}

/// Returns the source of the topmost mount at a directory.
fn source_of(dir: &Path) -> Option<String> {
    let found = Command::new("findmnt")
        .args([
            "--noheadings",
            "--first-only",
            "--output",
            "SOURCE",
            "--mountpoint",
        ])
        .arg(dir)
        .output()
        .ok()?;
    let said = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    (found.status.success() && !said.is_empty()).then_some(said)
}

/// Returns the kind of file system on a device.
fn file_system_on(device: &Path) -> Result<Option<String>> {
    let probed = Command::new("blkid")
        .args(["--probe", "--match-tag", "TYPE", "--output", "value"])
        .arg(device)
        .output()
        .context("looking for a file system with blkid")?;
    let said = String::from_utf8_lossy(&probed.stdout).trim().to_owned();
    match probed.status.code() {
        Some(0) if !said.is_empty() => Ok(Some(said)),
        // It found no file system that it knows.
        Some(0 | 2) => Ok(None),
        _ => bail!(
            "blkid cannot look at {}: {}",
            device.display(),
            String::from_utf8_lossy(&probed.stderr).trim()
        ),
    }
}

/// Runs a command to its end. The error is what it wrote to standard error.
fn run(command: &mut Command) -> Result<()> {
    let ran = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {}", command.get_program().display()))?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    // Errors of this program begin with its name.
    let said = said.strip_prefix("netram: ").unwrap_or(&said).to_owned();
    bail!(said)
}
