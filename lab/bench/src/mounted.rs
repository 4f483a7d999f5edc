//! A folder under `netram mount`, served by a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use netram_transport::Address;

use crate::child::Child;
use crate::error::{BenchError, Context};
use crate::leftovers::{Leftover, forget, remember, unmount};
use crate::site::Site;
use crate::tool::until;

/// A mounted folder. Dropped without [`Mount::end`], as after an error, it is unmounted whoever uses it.
#[derive(Debug)]
pub(crate) struct Mount {
    dir: PathBuf,
    journal: PathBuf,
    program: PathBuf,
    server: Option<Child>,
}

/// Why nothing can be mounted here.
pub(crate) fn possible() -> Result<(), String> {
    match rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() {
        true => Ok(()),
        false => Err("it needs root and /dev/fuse".to_owned()),
    }
}

impl Mount {
    /// Mounts a new folder whose syncs wait for one lender, or for a disk whose own take `slower_us` longer.
    pub(crate) fn begin(site: &Site, lender: &Address, slower_us: u32) -> Result<Mount, BenchError> {
        let dir = site.folder().join(format!("mounted-{}", site.number()));
        let mut journal = dir.clone().into_os_string();
        journal.push(".journal");
        std::fs::create_dir(&dir).context("make a folder")?;
        remember(Leftover::Mount(dir.clone()));
        let mut mount = Mount {
            dir,
            journal: journal.into(),
            program: site.program().to_owned(),
            server: None,
        };
        let text = |path: &Path| path.display().to_string();
        let words = [
            "mount",
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
        let mut server = Child::start(site.program(), words, "mount", site.folder())?;
        server.ready("mounted ")?;
        mount.server = Some(server);
        Ok(mount)
    }

    /// Where it is.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts it, and waits until everything is written and the folder given back.
    pub(crate) fn end(mut self) -> Result<(), BenchError> {
        let Some(mut server) = self.server.take() else {
            return Ok(());
        };
        let unmounted = Command::new(&self.program)
            .arg("unmount")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .status()
            .context("unmount a folder")?;
        if !unmounted.success() {
            return Err(server.failed("it could not be unmounted"));
        }
        forget(&Leftover::Mount(self.dir.clone()));
        // The folder is given back by now; closing the journal may take a slow disk a while.
        until("a mount's process ends", || Ok(server.ended()?.is_some()))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill();
            // Nobody answers there any more.
            let _ = unmount(&self.dir);
            forget(&Leftover::Mount(self.dir.clone()));
        }
        // What remains is removed with the site.
        let _ = std::fs::remove_dir_all(&self.journal);
    }
}
