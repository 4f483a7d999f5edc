//! A disk of the client's that can lose its power: ext4 in a file, by way of a loop device.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::cleanup::{CleanupItem, register, unregister};
use crate::error::{BenchError, ErrorContext};
use crate::tool::{tool, wait_until};

const DISK_BYTES: u64 = 1 << 30;

/// Unmounted and let go when dropped; whoever has files on it must have ended before.
pub(super) struct ClientDisk {
    root: PathBuf,
    image: PathBuf,
    device: String,
}

impl ClientDisk {
    /// A new disk, its file and mount in `directory` under names with this number: one before it may have
    /// left its own.
    pub(super) fn new(directory: &Path, number: u32) -> Result<ClientDisk, BenchError> {
        let root = directory.join(format!("disk-{number}"));
        let image = root.with_extension("image");
        fs::create_dir(&root)
            .and_then(|()| File::create_new(&image))
            .and_then(|file| file.set_len(DISK_BYTES))
            .context("make a disk of the client's")?;
        let path = image.display().to_string();
        tool("mkfs.ext4", &["-q", "-F", &path])?;
        let device = tool("losetup", &["--find", "--show", &path])?;
        let disk = ClientDisk { root, image, device };
        register(CleanupItem::Mount(disk.root.clone()));
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
        wait_until("nobody uses the client's disk", || {
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
        unregister(&CleanupItem::Mount(self.root.clone()));
        // What remains is removed with the site; a round after this one needs the room.
        let _ = fs::remove_dir(&self.root);
        let _ = fs::remove_file(&self.image);
    }
}
