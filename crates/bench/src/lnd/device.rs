//! Block devices of this machine, and file systems on them. Whatever is made is taken away: by the guards, or, when a signal
//! ends the measurement, by [`crate::site::abandon`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netram_attach::{Attached, Registry, Release, Request, Way, attach};
use netram_proto::journal::CommitRule;
use serde::{Deserialize, Serialize};

use super::system::{MODELLED_SYNC_US, Network, System};
use super::{DEVICE_BYTES, World};
use crate::child::{PLAY, Role};
use crate::error::{BenchError, Context};
use crate::paper::stage::write_in_full;
use crate::site::{Site, forget_mount, remember_mount};
use crate::volume::serve::What;
use crate::volume::{Holders, Place};

/// How long a device may take to go: what it has is written first.
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK_BYTES: u32 = 4096;

/// Commands without which nothing can be measured.
const NEEDED: [&str; 5] = ["fio", "losetup", "mount", "umount", "mkfs.ext4"];
const DEVICES: [&str; 2] = ["/dev/fuse", "/dev/loop-control"];

/// The process that serves a device's file to the kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Server {
    what: What,
}

impl Server {
    pub(crate) fn run(&self) -> Result<(), BenchError> {
        netram_attach::serve(|| self.what.open()).context("serve a device")
    }
}

/// Whether devices can be made here; what is missing otherwise.
pub fn possible() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("it needs root".to_owned());
    }
    if let Some(missing) = DEVICES.into_iter().find(|path| !Path::new(path).exists()) {
        return Err(format!("there is no {missing}"));
    }
    match NEEDED.into_iter().find(|name| !is_here(name)) {
        Some(missing) => Err(format!("there is no `{missing}`")),
        None => Ok(()),
    }
}

/// Whether a command is in the path.
pub fn is_here(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// A block device.
#[derive(Debug)]
pub struct Attachment {
    path: PathBuf,
    /// `None` only when released.
    kind: Option<Kind>,
}

#[derive(Debug)]
enum Kind {
    /// A loop device on a file. It is detached already, and goes when nobody has it open any more, this process included.
    Loop { file: PathBuf, _held: File },
    /// Served by a process of ours.
    Served(Box<Attached>, Option<PathBuf>),
}

impl World<'_> {
    /// Gives a fresh system of this kind a device. A volume's place must outlive it.
    pub(super) fn attach(&self, system: System) -> Result<(Attachment, Option<Place>), BenchError> {
        let file = || -> Result<PathBuf, BenchError> {
            let path = self.site.folder().join(format!("disk-{}", self.site.number()));
            write_in_full(&path, DEVICE_BYTES)?;
            Ok(path)
        };
        match system {
            System::Disk => Ok((Attachment::of_disk(file()?)?, None)),
            System::Modelled => {
                let path = file()?;
                let what = What::File(path.clone(), MODELLED_SYNC_US);
                Ok((
                    Attachment::served(self.site, &path.clone(), what, Some(path))?,
                    None,
                ))
            }
            System::Volume { .. } => {
                let place = Place::new(self.site, DEVICE_BYTES, &self.holders(system, None))?;
                Ok((Attachment::of_volume(self.site, &place)?, Some(place)))
            }
        }
    }

    /// Who holds the writes of a volume of this kind.
    pub(super) fn holders(&self, system: System, stage_bytes: Option<u64>) -> Holders {
        let System::Volume { all, network } = system else {
            return Holders::default();
        };
        Holders {
            lenders: self.lenders.iter().map(|one| one.address().clone()).collect(),
            rule: Some(if all { CommitRule::All } else { CommitRule::Any }),
            group: self.group.clone().filter(|_| network == Network::Multicast),
            stage_bytes,
            ..Holders::default()
        }
    }
}

impl Attachment {
    /// A loop device on a file, past the page cache.
    fn of_disk(file: PathBuf) -> Result<Attachment, BenchError> {
        let name = file.to_string_lossy().into_owned();
        let said = run("losetup", &["--direct-io=on", "--find", "--show", &name])?;
        let path = PathBuf::from(said.trim());
        let held = File::open(&path).context("hold a loop device");
        run("losetup", &["--detach", said.trim()])?;
        Ok(Attachment {
            path,
            kind: Some(Kind::Loop { file, _held: held? }),
        })
    }

    /// A volume's.
    pub fn of_volume(site: &Site, place: &Place) -> Result<Attachment, BenchError> {
        Attachment::served(site, place.path(), What::Volume(place.path().to_owned()), None)
    }

    fn served(
        site: &Site,
        volume: &Path,
        what: What,
        file: Option<PathBuf>,
    ) -> Result<Attachment, BenchError> {
        let folder = site.folder().join("attached");
        let registry = Registry::new(&folder, &folder.join("dev"));
        let name = format!("bench-{}", site.number());
        let claim = registry.claim(&name, volume).context("claim a device's name")?;
        let role = serde_json::to_string(&Role::Attach(Server { what })).context("describe a role")?;
        let log = site.folder().join(format!("{name}.log"));
        let mut server = Command::new(site.program());
        server
            .args([PLAY, &role])
            .stderr(File::create(&log).context("make a log")?);
        let request = Request {
            volume: volume.to_path_buf(),
            block_bytes: BLOCK_BYTES,
            read_only: false,
            way: Way::Fuse,
            // Nobody here starts another.
            restart: false,
            hung_after: None,
        };
        let attached = attach(claim, &request, server).context("attach a device")?;
        Ok(Attachment {
            path: attached.record().device.clone(),
            kind: Some(Kind::Served(Box::new(attached), file)),
        })
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes it away, and waits until everything is written.
    pub fn release(mut self) -> Result<(), BenchError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), BenchError> {
        match self.kind.take() {
            None => Ok(()),
            Some(Kind::Loop { file, _held }) => std::fs::remove_file(file).context("remove a disk's file"),
            Some(Kind::Served(attached, file)) => {
                self.let_go(*attached)?;
                file.map_or(Ok(()), |file| {
                    std::fs::remove_file(file).context("remove a disk's file")
                })
            }
        }
    }

    /// Whoever looks at new devices may have this one open for a moment.
    fn let_go(&self, mut attached: Attached) -> Result<(), BenchError> {
        let deadline = Instant::now() + PATIENCE;
        let mut going = loop {
            match attached.release() {
                Release::Going(going) => break going,
                Release::InUse(still, _) => attached = *still,
            }
            if Instant::now() > deadline {
                return Err(BenchError::Asked(format!("{} stays in use", self.path.display())));
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        while going.ended().context("wait for a device's server")?.is_none() {
            if Instant::now() > deadline {
                return Err(BenchError::Asked(format!(
                    "the server of {} does not end",
                    self.path.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // After an error; there is nobody to tell of a second one.
        let _ = self.end();
    }
}

/// A fresh file system on a device.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    mounted: bool,
}

impl Mounted {
    /// Makes one and mounts it at a folder of the site.
    pub fn new(site: &Site, device: &Path, kind: &str) -> Result<Mounted, BenchError> {
        let path = site.folder().join(format!("mount-{}", site.number()));
        std::fs::create_dir(&path).context("make a mount point")?;
        let (device, text) = (device.to_string_lossy(), path.to_string_lossy());
        let quiet = if kind == "ext4" { "-F" } else { "-f" };
        run(&format!("mkfs.{kind}"), &["-q", quiet, &device])?;
        remember_mount(&path);
        let mounted = run("mount", &["-t", kind, &device, &text]);
        let guard = Mounted {
            path,
            mounted: mounted.is_ok(),
        };
        mounted.map(|_| guard)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it, written in full when it is first asked for.
    pub fn file(&self, bytes: u64) -> Result<PathBuf, BenchError> {
        let path = self.path.join("file");
        if !path.exists() {
            write_in_full(&path, bytes)?;
        }
        Ok(path)
    }

    /// Unmounts it.
    pub fn unmount(mut self) -> Result<(), BenchError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), BenchError> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        run("umount", &[&self.path.to_string_lossy()])?;
        forget_mount(&self.path);
        std::fs::remove_dir(&self.path).context("remove a mount point")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.end().is_err() {
            // Whoever still uses it keeps it; nobody new comes.
            let _ = run("umount", &["--lazy", &self.path.to_string_lossy()]);
            forget_mount(&self.path);
        }
    }
}

/// Runs a command; returns what it said.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<String, BenchError> {
    let what = || format!("run `{program} {}`", arguments.join(" "));
    let output = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context(what())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BenchError::Asked(format!("cannot {}: {said}", what())))
}
