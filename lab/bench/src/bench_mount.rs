//! A directory mounted by `netram mount` in its own process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use netram_transport::NetAddress;

use crate::child::ChildProcess;
use crate::cleanup::{CleanupItem, register, unmount, unregister};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;
use crate::tool::wait_until;

/// A mounted directory. If it is dropped without [`BenchMount::end`], as after an error, it is unmounted
/// although processes may use it.
#[derive(Debug)]
pub(crate) struct BenchMount {
    dir: PathBuf,
    journal: PathBuf,
    program: PathBuf,
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
        std::fs::create_dir(&dir).context("make a directory")?;
        register(CleanupItem::Mount(dir.clone()));
        let mut mount = BenchMount {
            dir,
            journal: journal.into(),
            program: site.program().to_owned(),
            server: None,
        };
        let text = |path: &Path| path.display().to_string();
        let words = [
            "mount",
            "attach",
            &text(&mount.dir),
            "--on",
            &text(&mount.journal),
            "--lender",
            &lender.to_string(),
            "--key-file",
            &text(site.key_file()),
            "--one-domain",
            "--with-parent",
            "--modelled-sync-us",
            &slower_us.to_string(),
        ];
        let mut server = ChildProcess::start(site.program(), words, "mount", site.directory())?;
        server.ready("mounted ")?;
        mount.server = Some(server);
        Ok(mount)
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
        if let Some(server) = self.server.take() {
            server.kill();
            // No process serves the mount any more.
            let _ = unmount(&self.dir);
            unregister(&CleanupItem::Mount(self.dir.clone()));
        }
        // The site's removal takes whatever remains.
        let _ = std::fs::remove_dir_all(&self.journal);
    }
}
