//! The machine of a test: an image, attached and mounted devices, and their cleanup.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netram_attach::{
    AttachMethod, AttachRecord, AttachRequest, DeviceUser, ProcessIdentity, Registry, ReleaseOutcome,
    ServerHealth, ServerSource, VolumeAttachment, attach,
};
use rustix::process::Signal;

use crate::device::cache::SERVE;

/// Timeout of everything that is not itself under test; the machine may be slow and busy.
const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(5);
/// Timeout of tools, in seconds.
const TOOL_PATIENCE: &str = "150";

const NAME: &str = "test";

/// Directories and devices of one test.
pub(crate) struct Machine {
    directory: tempfile::TempDir,
    registry: Registry,
    attached: Option<VolumeAttachment>,
    /// The server of a device whose supervisor is gone.
    left: Option<ProcessIdentity>,
}

/// A mounted file system; dropping it unmounts it, lazily if necessary.
pub(crate) struct Mounted {
    at: PathBuf,
    mounted: bool,
    server: ProcessIdentity,
}

impl Machine {
    /// An image of `bytes` zeros. `Err`: what this machine lacks.
    pub(crate) fn new(bytes: u64) -> Result<Machine, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("this is not root".into());
        }
        for path in ["/dev/fuse", "/dev/loop-control"] {
            let opened = File::options().read(true).write(true).open(path);
            opened.map_err(|error| format!("{path}: {error}"))?;
        }
        let fuse = rustix::mount::fsopen("fuse", rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC);
        fuse.map_err(|errno| format!("mounting FUSE: {errno}"))?;
        tool("mkfs.ext4", &["-V"])?;
        has_loop_device()?;
        has_ext4()?;
        let directory = tempfile::Builder::new().prefix("netram-attach-").tempdir();
        let directory = directory.map_err(|error| error.to_string())?;
        let registry = Registry::new(&directory.path().join("run"), &directory.path().join("dev"));
        let machine = Machine {
            directory,
            registry,
            attached: None,
            left: None,
        };
        let image = File::create(machine.image()).and_then(|file| file.set_len(bytes));
        image.map_err(|error| error.to_string())?;
        fs::create_dir(machine.mount_point()).map_err(|error| error.to_string())?;
        Ok(machine)
    }

    pub(crate) fn image(&self) -> PathBuf {
        self.directory.path().join("image")
    }

    fn mount_point(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    /// Attaches the image, or returns why that failed.
    pub(crate) fn try_attach(&mut self, block_bytes: u32) -> Result<(), String> {
        let volume = self.image();
        let claim = self.registry.claim(NAME, &volume);
        let request = AttachRequest {
            volume,
            block_bytes,
            read_only: false,
            method: AttachMethod::Fuse,
            // The test's disk forgets unflushed writes.
            restart: false,
            hung_after: None,
        };
        let worker = std::env::current_exe().expect("this test has a path");
        let mut server = Command::new(worker);
        server
            .args(["--exact", "device::server", "--nocapture", "--test-threads", "1"])
            .env(SERVE, self.image())
            .stderr(log(self.directory.path()));
        let claim = claim.map_err(|error| error.to_string())?;
        let attached =
            attach(claim, &request, ServerSource::Start(server)).map_err(|error| error.to_string())?;
        self.attached = Some(attached);
        Ok(())
    }

    pub(crate) fn attach(&mut self, block_bytes: u32) {
        // A process that is just being started elsewhere may have the lock's file for a moment.
        let mut refused = String::new();
        until("the image is attached", || {
            refused = self.try_attach(block_bytes).err().unwrap_or_default();
            assert!(
                refused.is_empty() || refused.contains("already") || refused.contains("being attached"),
                "{refused}"
            );
            refused.is_empty()
        });
    }

    pub(crate) fn record(&self) -> AttachRecord {
        self.attached
            .as_ref()
            .expect("the volume is attached")
            .record()
            .clone()
    }

    pub(crate) fn device(&self) -> PathBuf {
        self.record().device
    }

    /// Number of flushes so far.
    pub(crate) fn flushes(&self) -> u64 {
        let counted = fs::metadata(self.image().with_extension("flushes"));
        counted.map_or(0, |file| file.len())
    }

    /// Detaches the device, or returns its users.
    pub(crate) fn try_detach(&mut self) -> Result<(), Vec<DeviceUser>> {
        match self.release() {
            ReleaseOutcome::Flushing(_) => unreachable!("flushing was waited for"),
            ReleaseOutcome::Detaching(mut going) => {
                let mut ended = None;
                until("the server ends", || {
                    ended = going.ended(Instant::now()).expect("the server is our child");
                    ended.is_some()
                });
                assert!(
                    ended.is_some_and(|status| status.success()),
                    "{ended:?}: {}",
                    self.log()
                );
                Ok(())
            }
            ReleaseOutcome::InUse(attached, users) => {
                self.attached = Some(*attached);
                Err(users)
            }
        }
    }

    /// Releases the device, and waits for the outcome.
    fn release(&mut self) -> ReleaseOutcome {
        let mut release = None;
        until("the release has an outcome", || {
            match self.attached.take().expect("the volume is attached").release() {
                ReleaseOutcome::Flushing(attached) => self.attached = Some(*attached),
                known => release = Some(known),
            }
            release.is_some()
        });
        release.expect("the outcome was waited for")
    }

    /// Begins to release the device, which waits for written data.
    pub(crate) fn begin_to_detach(&mut self) {
        match self.attached.take().expect("the volume is attached").release() {
            ReleaseOutcome::Flushing(attached) => self.attached = Some(*attached),
            ReleaseOutcome::Detaching(_) => panic!("no data is left to write: {}", self.log()),
            ReleaseOutcome::InUse(_, users) => panic!("the device is in use: {users:?}"),
        }
    }

    pub(crate) fn detach(&mut self) {
        // A program that scans new disks may have the device for a moment.
        until("the device is released", || self.try_detach().is_ok());
    }

    /// Drops the supervisor without a message. Returns the device and the server's process, which remain.
    pub(crate) fn leave(&mut self) -> (PathBuf, ProcessIdentity) {
        let record = self.record();
        self.attached = None;
        self.left = Some(record.server);
        (record.device, record.server)
    }

    pub(crate) fn signal_server(&self, signal: Signal) {
        let sent = self.record().server.signal(signal);
        assert!(sent.expect("the signal is sent"), "the server is gone");
    }

    /// Returns once no thread of the server runs. A signal takes a moment to arrive, during which the server
    /// would answer.
    pub(crate) fn stop_server(&self) {
        self.signal_server(Signal::STOP);
        let threads = PathBuf::from(format!("/proc/{}/task", self.record().server.id));
        let is_stopped = |thread: PathBuf| {
            let line = fs::read_to_string(thread.join("stat")).unwrap_or_default();
            // The name before it may contain spaces and brackets.
            line.rsplit_once(") ")
                .is_some_and(|(_, state)| state.starts_with('T'))
        };
        until("the server has stopped", || {
            let mut entries = fs::read_dir(&threads).expect("the server's threads").flatten();
            entries.all(|thread| is_stopped(thread.path()))
        });
    }

    pub(crate) fn kill_server(&self) {
        self.signal_server(Signal::KILL);
    }

    /// The supervisor notices that its server was killed, and gives up the device.
    pub(crate) fn wait_for_loss(&mut self) {
        let mut attached = self.attached.take().expect("the volume is attached");
        let mut ended = None;
        until("the server's end is noticed", || {
            let serving = attached.look(Instant::now()).expect("the server is our child");
            ended = match serving {
                ServerHealth::Exited(status) => Some(status),
                ServerHealth::Healthy | ServerHealth::Waiting => None,
            };
            ended.is_some()
        });
        assert!(ended.is_some_and(|status| !status.success()));
        attached.abandon();
    }

    pub(crate) fn make_ext4(&self) {
        let device = self.device().display().to_string();
        tool("mkfs.ext4", &["-q", "-F", &device]).expect("mkfs failed");
    }

    /// Checks the unmounted file system, which must need no repair.
    pub(crate) fn check_ext4(&self) {
        let device = self.device().display().to_string();
        tool("fsck.ext4", &["-f", "-n", &device]).expect("the file system is damaged");
    }

    pub(crate) fn mount(&self) -> Mounted {
        let (device, at) = (self.device().display().to_string(), self.mount_point());
        tool("mount", &["-t", "ext4", &device, &at.display().to_string()]).expect("mount failed");
        Mounted {
            at,
            mounted: true,
            server: self.record().server,
        }
    }

    /// Number of running servers of this machine's image.
    pub(crate) fn servers(&self) -> usize {
        let image = format!("{SERVE}={}\0", self.image().display());
        let processes = fs::read_dir("/proc").expect("/proc is there").flatten();
        processes
            .filter_map(|process| fs::read(process.path().join("environ")).ok())
            .filter(|environment| String::from_utf8_lossy(environment).contains(&image))
            .count()
    }

    /// Path of the link to the device.
    pub(crate) fn link(&self) -> PathBuf {
        self.directory.path().join("dev").join(NAME)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let attached = self.attached.as_ref().map(|attached| attached.record().server);
        // Ends every request with an error, so that no process hangs on the device of a failed test.
        attached.into_iter().chain(self.left).for_each(kill);
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "server log: {}", self.log());
        }
    }
}

impl Mounted {
    pub(crate) fn at(&self) -> &Path {
        &self.at
    }

    pub(crate) fn unmount(mut self) {
        let at = self.at.display().to_string();
        until("the file system is unused", || tool("umount", &[&at]).is_ok());
        self.mounted = false;
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted {
            // A stuck server would block the unmount for ever, so it is killed first.
            kill(self.server);
            let _ = tool("umount", &["--lazy", &self.at.display().to_string()]);
        }
    }
}

fn kill(server: ProcessIdentity) {
    // It may have ended a moment ago; another process with its id is left alone.
    let _ = server.signal(Signal::KILL);
}

/// In a container the driver may exist without its devices.
fn has_loop_device() -> Result<(), String> {
    let free = tool("losetup", &["--find"])?;
    // A program may have created a plain file there by copying an image.
    let kind = fs::metadata(&free)
        .map_err(|error| format!("{free}: {error}"))?
        .file_type();
    if !kind.is_block_device() {
        return Err(format!("{free} is not a block device"));
    }
    let opened = File::options().read(true).write(true).open(&free);
    opened.map(drop).map_err(|error| format!("{free}: {error}"))
}

fn has_ext4() -> Result<(), String> {
    let known = || {
        let listed = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        listed.lines().any(|line| line.trim() == "ext4")
    };
    // Ext4 may be a module that was not needed yet.
    match known() || tool("modprobe", &["ext4"]).is_ok() && known() {
        true => Ok(()),
        false => Err("this kernel has no ext4".into()),
    }
}

fn log(directory: &Path) -> File {
    let file = File::options()
        .create(true)
        .append(true)
        .open(directory.join("log"));
    file.expect("cannot create the log file")
}

/// Waits until `condition` holds; panics after a timeout.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} until {what}, in vain"
        );
        std::thread::sleep(PAUSE);
    }
}

/// Runs a tool to its end, with a timeout. Returns its output, or why it failed.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> Result<String, String> {
    let run = Command::new("timeout")
        .args(["--signal=KILL", TOOL_PATIENCE, program])
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = run.map_err(|error| format!("timeout {program}: {error}"))?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat())
        .trim()
        .to_owned();
    match output.status.success() {
        true => Ok(said),
        false => Err(format!(
            "{program} {}: {}: {said}",
            arguments.join(" "),
            output.status
        )),
    }
}

/// Prints that a test did not run.
pub(crate) fn skipped(test: &str, missing: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}
