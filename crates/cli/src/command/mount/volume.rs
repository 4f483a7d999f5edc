//! `netram mount DIR --on VOLUME`: the volume attached, its file system mounted; unmounted and detached in
//! the end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use netram_attach::AttachRecord;
use signal_hook::iterator::Signals;

use crate::command::volume::registry;
use crate::output;

/// This program, whatever has become of its file.
const SELF: &str = "/proc/self/exe";
/// How often it is looked whether somebody has unmounted it.
const LOOK: Duration = Duration::from_millis(200);
/// File systems that are made here: those whose `mkfs` needs but a flag to say nothing.
pub(super) const FORMATS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// A volume's file system, mounted.
#[derive(Debug)]
pub(crate) struct VolumeMount {
    dir: PathBuf,
    volume: PathBuf,
    record: AttachRecord,
}

/// Whether it is a volume that is meant.
pub(super) fn is_volume(on: &Path) -> bool {
    on.join("image").exists()
}

impl VolumeMount {
    /// Attaches `volume`, unless it is attached, and mounts what is on it at `dir`; makes a file system on it
    /// before if `format` says so.
    pub(super) fn begin(dir: &Path, volume: &Path, format: Option<&str>) -> Result<VolumeMount> {
        let canonical = |path: &Path| path.canonicalize().with_context(|| path.display().to_string());
        let (dir, volume) = (canonical(dir)?, canonical(volume)?);
        if !dir.is_dir() {
            bail!("{} is no directory", dir.display());
        }
        let there = registry().find(&volume)?.filter(|entry| entry.alive);
        if let Some(entry) = there {
            return VolumeMount::resume(dir, volume, entry.record);
        }
        if source_of(&dir).is_some() {
            bail!("something is mounted on {}: unmount that first", dir.display());
        }
        if std::fs::read_dir(&dir)?.next().is_some() {
            bail!(
                "{0} is not empty, and what is in it would be hidden: move it away, and into {0} once the volume is mounted",
                dir.display()
            );
        }
        run(Command::new(SELF).args(["disk", "attach"]).arg(&volume))?;
        let entry = registry().find(&volume)?.context("it was detached at once")?;
        let mounted = VolumeMount {
            dir,
            volume,
            record: entry.record,
        };
        match mounted.mount(format) {
            Ok(()) => Ok(mounted),
            Err(error) => {
                // Nobody has it mounted; that it stays attached would be told by the next try.
                let _ = mounted.detach();
                Err(error)
            }
        }
    }

    /// Whoever had it mounted was killed, and its device lives on; or somebody else has attached it.
    fn resume(dir: PathBuf, volume: PathBuf, record: AttachRecord) -> Result<VolumeMount> {
        let device = record.device.display().to_string();
        match source_of(&dir) {
            Some(source) if source == device => (),
            _ => bail!(
                "{} is attached already, as {device}: mount that, or `netram disk detach {}` first",
                volume.display(),
                record.name
            ),
        }
        output::remark(format_args!(
            "{} was mounted already: whoever had mounted it was killed",
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

    /// What is served, in a line.
    pub(super) fn device(&self) -> &Path {
        &self.record.device
    }

    /// Waits until somebody has unmounted it, or unmounts it when a signal says so; then the volume is
    /// detached.
    pub(super) fn wait(self, mut signals: Signals) -> Result<()> {
        let device = self.record.device.display().to_string();
        while source_of(&self.dir).is_some_and(|source| source == device) {
            std::thread::sleep(LOOK);
            if signals.pending().next().is_some()
                && let Err(error) = run(Command::new("umount").arg(&self.dir))
            {
                tracing::warn!(error = format_args!("{error:#}"), "it stays mounted");
            }
        }
        self.detach()
    }

    fn detach(&self) -> Result<()> {
        run(Command::new(SELF).args(["disk", "detach"]).arg(&self.record.name))
    }
}

/// Unmounts a volume's file system; whoever has it mounted detaches the volume, and if nobody does, this.
/// `false`: no volume of netram is there.
pub(super) fn unmount(dir: &Path, patience: Duration) -> Result<bool> {
    // What netram mounts of a journal has no device.
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
    // A few looks for whoever has it mounted, if that lives.
    for _ in 0..10 {
        std::thread::sleep(LOOK);
        if !alive()? {
            return Ok(true);
        }
    }
    let detached = run(Command::new(SELF)
        .args(["disk", "detach"])
        .arg(&entry.record.name));
    while alive()? {
        if std::time::Instant::now() > until {
            return detached.map(|()| true);
        }
        std::thread::sleep(LOOK);
    }
    Ok(true)
}

/// What is mounted at a directory, topmost.
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

/// The kind of file system on a device.
fn file_system_on(device: &Path) -> Result<Option<String>> {
    let probed = Command::new("blkid")
        .args(["--probe", "--match-tag", "TYPE", "--output", "value"])
        .arg(device)
        .output()
        .context("looking for a file system with blkid")?;
    let said = String::from_utf8_lossy(&probed.stdout).trim().to_owned();
    match probed.status.code() {
        Some(0) if !said.is_empty() => Ok(Some(said)),
        // It has found nothing that it knows.
        Some(0 | 2) => Ok(None),
        _ => bail!(
            "blkid cannot look at {}: {}",
            device.display(),
            String::from_utf8_lossy(&probed.stderr).trim()
        ),
    }
}

/// Runs a command to its end; an error has what it said.
fn run(command: &mut Command) -> Result<()> {
    let ran = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {}", command.get_program().display()))?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    // Ours begins with our name.
    let said = said.strip_prefix("netram: ").unwrap_or(&said).to_owned();
    bail!(said)
}
