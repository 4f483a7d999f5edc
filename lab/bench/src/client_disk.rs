//! A client's disk that can lose power: ext4 in a file behind a loop device.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::cleanup::{CleanupItem, register, unregister};
use crate::error::{BenchError, ErrorContext};
use crate::tool::{tool, wait_until};

const DISK_BYTES: u64 = 1 << 30;

/// An ext4 file system on a loop device, unmounted and detached when dropped. Processes with files on it must
/// have ended before.
pub(crate) struct ClientDisk {
    root: PathBuf,
    image: PathBuf,
    device: String,
}

impl ClientDisk {
    /// Creates a disk. The names of its file and mount point in `directory` carry `number`, because an
    /// earlier disk may have left its own.
    pub(crate) fn new(directory: &Path, number: u32) -> Result<ClientDisk, BenchError> {
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

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn mount(&self) -> Result<(), BenchError> {
        tool("mount", &[&self.device, &self.root.display().to_string()]).map(drop)
    }

    /// Cuts the power, as far as the file system can tell: unsynced data is gone, later calls fail.
    pub(crate) fn cut(&self) -> Result<(), BenchError> {
        // Aborts ext4's journal without writing it out.
        let root = self.root.display().to_string();
        tool("mount", &["-o", "remount,abort", &root]).map(drop)
    }

    /// Mounts it again after a power cut.
    pub(crate) fn power_on(&self) -> Result<(), BenchError> {
        let root = self.root.display().to_string();
        wait_until("no process uses the client's disk", || {
            Ok(tool("umount", &[&root]).is_ok())
        })?;
        // A process in another namespace of mounts may have it a moment longer. Mounted before that ends, it
        // would still be the disk that was cut, which takes no writes.
        let device = self.device.trim_start_matches("/dev/");
        let used = Path::new("/proc/fs/ext4").join(device);
        wait_until("no other namespace has the client's disk mounted", || {
            Ok(!used.exists())
        })?;
        self.mount()
    }
}

impl Drop for ClientDisk {
    fn drop(&mut self) {
        let root = self.root.display().to_string();
        // After a failed measurement a process may still have a file open.
        if tool("umount", &[&root]).is_err() {
            let _ = tool("umount", &["--lazy", &root]);
        }
        let _ = tool("losetup", &["--detach", &self.device]);
        unregister(&CleanupItem::Mount(self.root.clone()));
        // The site's removal takes whatever remains. A later round needs the space now.
        let _ = fs::remove_dir(&self.root);
        let _ = fs::remove_file(&self.image);
    }
}
