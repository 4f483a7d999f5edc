//! A disk that can lose power: ext4 on a loop device, whose image is copied at that moment. Bytes that ext4
//! had not written by then are missing in the copy, which is mounted in place of the first.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};

use super::finish;

/// A disk in a file, with ext4.
pub struct LoopDisk {
    /// Mount point of its file system.
    pub at: PathBuf,
    image: PathBuf,
    lives: u32,
}

impl LoopDisk {
    /// A disk of the default size. `None`, with a printed reason, if there are no loop devices here.
    pub fn new(directory: &Path) -> Option<LoopDisk> {
        LoopDisk::of_mib(directory, 96)
    }

    /// A disk of `mib` MiB.
    pub fn of_mib(directory: &Path, mib: u64) -> Option<LoopDisk> {
        let disk = LoopDisk {
            at: directory.join("disk"),
            image: directory.join("image-0"),
            lives: 0,
        };
        fs::create_dir(&disk.at).unwrap();
        File::create(&disk.image).unwrap().set_len(mib << 20).unwrap();
        let made = finish(Command::new("mkfs.ext4").arg("-q").arg(&disk.image));
        assert_eq!(made.code, 0, "{}", made.err);
        let mounted = disk.mount();
        match mounted {
            Ok(()) => Some(disk),
            Err(reason) => {
                super::skipped(format_args!("no loop device can be mounted here: {reason}"));
                None
            }
        }
    }

    fn mount(&self) -> Result<(), String> {
        let ran = finish(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&self.image)
                .arg(&self.at),
        );
        if ran.code == 0 { Ok(()) } else { Err(ran.err) }
    }

    /// Cuts the power: bytes that have not reached the platter are lost.
    pub fn power_off(&mut self) {
        self.lives += 1;
        let copy = self.image.with_file_name(format!("image-{}", self.lives));
        // Sparse copying skips blocks that were never written.
        let mut copying = Command::new("cp");
        copying.arg("--sparse=always").arg(&self.image).arg(&copy);
        let copied = finish(&mut copying);
        assert_eq!(copied.code, 0, "{}", copied.err);
        unmount(&self.at, UnmountFlags::DETACH).unwrap();
        fs::remove_file(&self.image).unwrap();
        self.image = copy;
        self.mount().unwrap();
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
    }
}
