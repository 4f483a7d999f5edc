//! A disk of the client's that can lose its power: ext4 in a file, by way of a loop device.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::error::{BenchError, Context};
use crate::leftovers::{Leftover, forget, remember};
use crate::tool::{tool, until};

const BYTES: u64 = 1 << 30;

/// Unmounted and let go when dropped; whoever has files on it must have ended before.
pub(super) struct ClientDisk {
    root: PathBuf,
    image: PathBuf,
    device: String,
}

impl ClientDisk {
    /// A new disk, its file and mount in `folder` under names with this number: one before it may have left its own.
    pub(super) fn new(folder: &Path, number: u32) -> Result<ClientDisk, BenchError> {
        let root = folder.join(format!("disk-{number}"));
        let image = root.with_extension("image");
        fs::create_dir(&root)
            .and_then(|()| File::create_new(&image))
            .and_then(|file| file.set_len(BYTES))
            .context("make a disk of the client's")?;
        let path = image.display().to_string();
        tool("mkfs.ext4", &["-q", "-F", &path])?;
        let device = tool("losetup", &["--find", "--show", &path])?;
        let disk = ClientDisk { root, image, device };
        remember(Leftover::Mount(disk.root.clone()));
        disk.mount()?;
        Ok(disk)
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    fn mount(&self) -> Result<(), BenchError> {
        tool("mount", &[&self.device, &self.root.display().to_string()]).map(drop)
    }

    /// Cuts the power, as far as the file system can tell: what was not synced is gone, what comes now fails.
    pub(super) fn cut(&self) -> Result<(), BenchError> {
        // Aborts ext4's journal without writing it out.
        let root = self.root.display().to_string();
        tool("mount", &["-o", "remount,abort", &root]).map(drop)
    }

    /// Mounts it again after a cut.
    pub(super) fn power_on(&self) -> Result<(), BenchError> {
        let root = self.root.display().to_string();
        until("nobody uses the client's disk", || {
            Ok(tool("umount", &[&root]).is_ok())
        })?;
        self.mount()
    }
}

impl Drop for ClientDisk {
    fn drop(&mut self) {
        let root = self.root.display().to_string();
        // Of a measurement that failed: somebody may still have a file open.
        if tool("umount", &[&root]).is_err() {
            let _ = tool("umount", &["--lazy", &root]);
        }
        let _ = tool("losetup", &["--detach", &self.device]);
        forget(&Leftover::Mount(self.root.clone()));
        // What remains is removed with the site; a round after this one needs the room.
        let _ = fs::remove_dir(&self.root);
        let _ = fs::remove_file(&self.image);
    }
}
