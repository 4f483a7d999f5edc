//! A directory mounted by `netram mount` in its own process.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use netram_transport::NetAddress;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::child::ChildProcess;
use crate::cleanup::{CleanupItem, register, unmount, unregister};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;
use crate::tool::wait_until;

/// Whether the kernel may send FUSE's requests by io_uring.
const IO_URING_ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";

/// A mounted directory. If it is dropped without [`BenchMount::end`], as after an error, it is unmounted
/// although processes may use it.
#[derive(Debug)]
pub(crate) struct BenchMount {
    dir: PathBuf,
    journal: PathBuf,
    program: PathBuf,
    /// Directory of its processes' messages.
    logs: PathBuf,
    /// Arguments of its processes, without lenders: these are in the journal after the first start.
    words: Vec<String>,
    server: Option<ChildProcess>,
}

/// Checks whether this machine can mount; the error is the reason why not.
pub(crate) fn possible() -> Result<(), String> {
    match rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() {
        true => Ok(()),
        false => Err("it needs root and /dev/fuse".to_owned()),
    }
}

impl BenchMount {
    /// Mounts a new directory whose syncs wait for one lender, or for a disk whose syncs take `slower_us`
    /// longer.
    pub(crate) fn begin(
        site: &Testbed,
        lender: &NetAddress,
        slower_us: u32,
    ) -> Result<BenchMount, BenchError> {
        let dir = site.directory().join(format!("mounted-{}", site.number()));
        let mut journal = dir.clone().into_os_string();
        journal.push(".journal");
        BenchMount::begin_at(site, dir, journal.into(), lender, slower_us, &[])
    }

    /// The same with requests by io_uring. The error is the reason why this kernel has none.
    pub(crate) fn begin_by_io_uring(
        site: &Testbed,
        lender: &NetAddress,
    ) -> Result<Result<BenchMount, String>, BenchError> {
        let enabled = std::fs::read_to_string(IO_URING_ENABLED);
        if !enabled.is_ok_and(|said| said.trim() == "Y") {
            return Ok(Err(format!("{IO_URING_ENABLED} is not Y")));
        }
        let dir = site.directory().join(format!("mounted-{}", site.number()));
        let mut journal = dir.clone().into_os_string();
        journal.push(".journal");
        BenchMount::begin_at(site, dir, journal.into(), lender, 0, &["--io-uring"]).map(Ok)
    }

    /// The same with the journal in a given directory, which may be on another disk.
    pub(crate) fn begin_on(
        site: &Testbed,
        journal: PathBuf,
        lender: &NetAddress,
    ) -> Result<BenchMount, BenchError> {
        let dir = site.directory().join(format!("mounted-{}", site.number()));
        BenchMount::begin_at(site, dir, journal, lender, 0, &[])
    }

    fn begin_at(
        site: &Testbed,
        dir: PathBuf,
        journal: PathBuf,
        lender: &NetAddress,
        slower_us: u32,
        more: &[&str],
    ) -> Result<BenchMount, BenchError> {
        std::fs::create_dir(&dir).context("make a directory")?;
        register(CleanupItem::Mount(dir.clone()));
        let text = |path: &Path| path.display().to_string();
        let words = [
            "mount",
            "attach",
            &text(&dir),
            "--on",
            &text(&journal),
            "--key-file",
            &text(site.key_file()),
            "--one-domain",
            "--with-parent",
            "--modelled-sync-us",
            &slower_us.to_string(),
        ];
        let mut mount = BenchMount {
            words: words.iter().chain(more).map(|word| (*word).to_owned()).collect(),
            dir,
            journal,
            program: site.program().to_owned(),
            logs: site.directory().to_owned(),
            server: None,
        };
        mount.serve(&["--lender", &lender.to_string()])?;
        Ok(mount)
    }

    fn serve(&mut self, more: &[&str]) -> Result<(), BenchError> {
        let words = self.words.iter().map(String::as_str).chain(more.iter().copied());
        let mut server = ChildProcess::start(&self.program, words, "mount", &self.logs)?;
        server.ready("mounted ")?;
        self.server = Some(server);
        Ok(())
    }

    /// Kills all processes of the mount (SIGKILL), as a crash of the machine would, and removes the dead
    /// mount.
    pub(crate) fn crash(&mut self) {
        let Some(supervisor) = self.server.take() else {
            return;
        };
        let server = self.serving_process();
        // What it supervises ends with it, and still has the journal until then.
        supervisor.kill();
        if let Some(server) = server {
            let mut end = [PollFd::new(&server, PollFlags::IN)];
            let _ = retry_on_intr(|| poll(&mut end, None));
        }
        // The server may have done so already.
        let _ = unmount(&self.dir);
    }

    /// The process that has the journal open.
    fn serving_process(&self) -> Option<OwnedFd> {
        let lock = std::fs::read_to_string(self.journal.join("lock")).ok()?;
        pidfd_open(Pid::from_raw(lock.trim().parse().ok()?)?, PidfdFlags::empty()).ok()
    }

    /// Mounts the directory again after [`BenchMount::crash`].
    pub(crate) fn recover(&mut self) -> Result<(), BenchError> {
        self.serve(&[])
    }

    /// The mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts the directory and waits until everything is written and the directory is released.
    pub(crate) fn end(mut self) -> Result<(), BenchError> {
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        let unmounted = Command::new(&self.program)
            .args(["mount", "detach"])
            .arg(&self.dir)
            .stdin(Stdio::null())
            .status()
            .context("unmount a directory")?;
        if !unmounted.success() {
            return Err(server.log_error("it could not be unmounted"));
        }
        unregister(&CleanupItem::Mount(self.dir.clone()));
        // The directory is released by now; closing the journal may take a slow disk a while.
        wait_until("a mount's process ends", || Ok(server.exit_status()?.is_some()))
    }
}

impl Drop for BenchMount {
    fn drop(&mut self) {
        if self.server.is_some() {
            self.crash();
            unregister(&CleanupItem::Mount(self.dir.clone()));
        }
        // The site's removal takes whatever remains.
        let _ = std::fs::remove_dir_all(&self.journal);
    }
}
