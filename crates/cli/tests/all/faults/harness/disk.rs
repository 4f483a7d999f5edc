//! A small disk of its own: ext4 in a file, by way of a loop device. Needs root.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::process::{tool, until};

/// A file system of its own, unmounted and let go when dropped.
pub(crate) struct SmallDisk {
    root: PathBuf,
    device: String,
    mounted: bool,
}

impl SmallDisk {
    /// A new disk of `bytes`, its file and mount in the directory `at`. `Err`: what is missing to make one.
    pub(crate) fn new(at: &Path, bytes: u64) -> Result<SmallDisk, String> {
        let (image, root) = (at.join("disk.image"), at.join("disk"));
        let made = std::fs::create_dir(&root)
            .and_then(|()| std::fs::File::create_new(&image))
            .and_then(|file| file.set_len(bytes));
        made.map_err(|error| error.to_string())?;
        let image = image.display().to_string();
        tool("mkfs.ext4", &["-q", "-F", &image])?;
        let device = tool("losetup", &["--find", "--show", &image])?;
        let mut disk = SmallDisk {
            root,
            device,
            mounted: false,
        };
        disk.mount()?;
        Ok(disk)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn mount(&mut self) -> Result<(), String> {
        let root = self.root.display().to_string();
        tool("mount", &[&self.device, &root])?;
        self.mounted = true;
        Ok(())
    }

    /// Cuts the power, as far as the file system can tell: unsynced data is lost, and later writes fail.
    pub(crate) fn cut(&self) {
        let root = self.root.display().to_string();
        // Aborts ext4's journal without writing it out, as its shutdown call without a log flush does.
        tool("mount", &["-o", "remount,abort", &root]).expect("ext4 gives up when told to");
    }

    /// Mounts the disk again after a cut. No file may be open.
    pub(crate) fn power_on(&mut self) {
        self.unmount();
        self.mount().expect("a disk that was cut mounts again");
    }

    /// Takes all space but a few blocks; returns the file that has it.
    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.root.join("filler");
        let mut file = std::fs::File::create(&path).expect("the disk takes a name");
        for bytes in [1 << 20, 1 << 12] {
            let zeros = vec![1; bytes];
            while file.write_all(&zeros).and_then(|()| file.sync_data()).is_ok() {}
        }
        path
    }

    fn unmount(&mut self) {
        let root = self.root.display().to_string();
        until("nobody uses the small disk", || tool("umount", &[&root]).is_ok());
        // A process of another test may have it in its own mount namespace for a moment. Mounted again before
        // that ends, it would still be the disk that was cut.
        let device = self.device.trim_start_matches("/dev/");
        let used = Path::new("/proc/fs/ext4").join(device);
        until("nobody else has the small disk mounted", || !used.exists());
        self.mounted = false;
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let root = self.root.display().to_string();
        if self.mounted && tool("umount", &[&root]).is_err() {
            // A test that failed may have left a process on it for a moment.
            let _ = tool("umount", &["--lazy", &root]);
        }
        let _ = tool("losetup", &["--detach", &self.device]);
    }
}
