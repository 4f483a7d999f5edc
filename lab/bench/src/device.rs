//! Block devices of this machine, and file systems on them. Their guards remove them, or
//! [`crate::cleanup::abandon`] does when a signal ends the measurement.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use netram_attach::{
    AttachMethod, AttachRequest, Registry, ReleaseOutcome, ServerSource, VolumeAttachment, attach,
};
use serde::{Deserialize, Serialize};

use crate::child::{ChildJob, PART, role_argument};
use crate::cleanup::{CleanupItem, register, unregister};
use crate::error::{BenchError, ErrorContext};
use crate::namespaces::NamespacePair;
use crate::paper::testbed::write_in_full;
use crate::testbed::Testbed;
use crate::tool::tool as run;
use crate::volume::serve::DeviceSource;

/// Time within which a device must be released; its data is written first.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(60);
const BLOCK_BYTES: u32 = 4096;

/// Commands that every measurement needs.
const COMMANDS_NEEDED: [&str; 5] = ["fio", "losetup", "mount", "umount", "mkfs.ext4"];
const DEVICES: [&str; 2] = ["/dev/fuse", "/dev/loop-control"];

/// Job of a process that serves a device's file to the kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceServeJob {
    what: DeviceSource,
}

impl ChildJob for DeviceServeJob {
    const ROLE: &'static str = "Attach";

    fn run(&self) -> Result<(), BenchError> {
        netram_attach::serve(|| self.what.open()).context("serve a device")
    }
}

/// Checks whether devices can be created here; the error names what is missing.
///
/// # Errors
///
/// Fails with the name of a missing command or permission.
pub fn possible() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("it needs root".to_owned());
    }
    if let Some(missing) = DEVICES.into_iter().find(|path| !Path::new(path).exists()) {
        return Err(format!("there is no {missing}"));
    }
    match COMMANDS_NEEDED.into_iter().find(|name| !is_here(name)) {
        Some(missing) => Err(format!("there is no `{missing}`")),
        None => Ok(()),
    }
}

/// Whether a command is in the path.
pub fn is_here(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// A block device.
#[derive(Debug)]
pub struct BlockDevice {
    path: PathBuf,
    /// `None` only after the release.
    kind: Option<DeviceBacking>,
}

#[derive(Debug)]
enum DeviceBacking {
    /// A loop device on a file. It is detached already, and disappears when no process, including this one,
    /// has it open.
    Loop { file: PathBuf, _held: File },
    /// A device served by a child process.
    Served(Box<VolumeAttachment>, Option<PathBuf>),
}

impl BlockDevice {
    /// A loop device on a new file, without the page cache.
    pub(super) fn of_disk(site: &Testbed, bytes: u64) -> Result<BlockDevice, BenchError> {
        let file = new_file(site, bytes)?;
        let name = file.to_string_lossy().into_owned();
        let said = run("losetup", &["--direct-io=on", "--find", "--show", &name])?;
        let path = PathBuf::from(said.trim());
        let held = File::open(&path).context("hold a loop device");
        run("losetup", &["--detach", said.trim()])?;
        Ok(BlockDevice {
            path,
            kind: Some(DeviceBacking::Loop { file, _held: held? }),
        })
    }

    /// A new file with slower syncs, attached as volumes are.
    pub(super) fn of_modelled_disk(
        site: &Testbed,
        bytes: u64,
        sync_us: u32,
    ) -> Result<BlockDevice, BenchError> {
        let file = new_file(site, bytes)?;
        let what = DeviceSource::File(file.clone(), sync_us);
        BlockDevice::served(site, &file.clone(), what, Some(file), None)
    }

    /// A new file with slower requests, attached as volumes are.
    pub(crate) fn of_slow_disk(
        site: &Testbed,
        bytes: u64,
        request_us: u32,
    ) -> Result<BlockDevice, BenchError> {
        let file = new_file(site, bytes)?;
        let what = DeviceSource::SlowFile(file.clone(), request_us);
        BlockDevice::served(site, &file.clone(), what, Some(file), None)
    }

    /// The volume in a directory, served from the client's side of `network` if there is one.
    pub(crate) fn of_volume(
        site: &Testbed,
        volume: &Path,
        what: DeviceSource,
        network: Option<&NamespacePair>,
    ) -> Result<BlockDevice, BenchError> {
        BlockDevice::served(site, volume, what, None, network)
    }

    fn served(
        site: &Testbed,
        volume: &Path,
        what: DeviceSource,
        file: Option<PathBuf>,
        network: Option<&NamespacePair>,
    ) -> Result<BlockDevice, BenchError> {
        let directory = site.directory().join("attached");
        let registry = Registry::new(&directory, &directory.join("dev"));
        let name = format!("bench-{}", site.number());
        let claim = registry.claim(&name, volume).context("claim a device's name")?;
        let role = role_argument(&DeviceServeJob { what })?;
        let log = site.directory().join(format!("{name}.log"));
        let mut server = match network {
            Some(network) => network.on_client(site.program()),
            None => Command::new(site.program()),
        };
        server
            .args([PART, &role])
            .stderr(File::create(&log).context("make a log")?);
        let request = AttachRequest {
            volume: volume.to_path_buf(),
            block_bytes: BLOCK_BYTES,
            read_only: false,
            method: AttachMethod::Fuse,
            // The measurement does not restart a server.
            restart: false,
            hung_after: None,
        };
        let attached = attach(claim, &request, ServerSource::Start(server)).context("attach a device")?;
        Ok(BlockDevice {
            path: attached.record().device.clone(),
            kind: Some(DeviceBacking::Served(Box::new(attached), file)),
        })
    }

    /// Path of the device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the device, and waits until everything is written.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot be detached, or is still in use after a minute.
    pub fn release(mut self) -> Result<(), BenchError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), BenchError> {
        match self.kind.take() {
            None => Ok(()),
            Some(DeviceBacking::Loop { file, _held }) => {
                std::fs::remove_file(file).context("remove a disk's file")
            }
            Some(DeviceBacking::Served(attached, file)) => {
                self.detach_when_unused(*attached)?;
                file.map_or(Ok(()), |file| {
                    std::fs::remove_file(file).context("remove a disk's file")
                })
            }
        }
    }

    /// Detaches the device when it is unused: a process that inspects new devices may have it open for a
    /// moment.
    fn detach_when_unused(&self, mut attached: VolumeAttachment) -> Result<(), BenchError> {
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        let mut going = loop {
            match attached.release() {
                ReleaseOutcome::Detaching(going) => break going,
                ReleaseOutcome::Flushing(still) | ReleaseOutcome::InUse(still, _) => attached = *still,
            }
            if Instant::now() > deadline {
                return Err(BenchError::InvalidRequest(format!(
                    "{} is still in use",
                    self.path.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        while going
            .ended(Instant::now())
            .context("wait for a device's server")?
            .is_none()
        {
            if Instant::now() > deadline {
                return Err(BenchError::InvalidRequest(format!(
                    "the server of {} did not end",
                    self.path.display()
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// A disk's file with all its blocks written.
fn new_file(site: &Testbed, bytes: u64) -> Result<PathBuf, BenchError> {
    let path = site.directory().join(format!("disk-{}", site.number()));
    write_in_full(&path, bytes)?;
    Ok(path)
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        // After an error, a second one cannot be reported.
        let _ = self.end();
    }
}

/// A new file system on a device.
#[derive(Debug)]
pub struct TestFilesystem {
    path: PathBuf,
    mounted: bool,
}

impl TestFilesystem {
    /// Creates one and mounts it at a directory of the site.
    ///
    /// # Errors
    ///
    /// Fails if the file system cannot be created or mounted.
    pub fn new(site: &Testbed, device: &Path, kind: &str) -> Result<TestFilesystem, BenchError> {
        let path = site.directory().join(format!("mount-{}", site.number()));
        std::fs::create_dir(&path).context("make a mount point")?;
        let (device, text) = (device.to_string_lossy(), path.to_string_lossy());
        let quiet = if kind == "ext4" { "-F" } else { "-f" };
        run(&format!("mkfs.{kind}"), &["-q", quiet, &device])?;
        register(CleanupItem::Mount(path.clone()));
        let mounted = run("mount", &["-t", kind, &device, &text]);
        let guard = TestFilesystem {
            path,
            mounted: mounted.is_ok(),
        };
        mounted.map(|_| guard)
    }

    /// Mount point of the file system.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it, written in full on first use.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn file(&self, bytes: u64) -> Result<PathBuf, BenchError> {
        let path = self.path.join("file");
        if !path.exists() {
            write_in_full(&path, bytes)?;
        }
        Ok(path)
    }

    /// Unmounts the file system.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be unmounted.
    pub fn unmount(mut self) -> Result<(), BenchError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), BenchError> {
        if !std::mem::take(&mut self.mounted) {
            return Ok(());
        }
        run("umount", &[&self.path.to_string_lossy()])?;
        unregister(&CleanupItem::Mount(self.path.clone()));
        std::fs::remove_dir(&self.path).context("remove a mount point")
    }
}

impl Drop for TestFilesystem {
    fn drop(&mut self) {
        if self.end().is_err() {
            // Processes that still use it keep it; new ones cannot open it.
            let _ = run("umount", &["--lazy", &self.path.to_string_lossy()]);
            unregister(&CleanupItem::Mount(self.path.clone()));
        }
    }
}
