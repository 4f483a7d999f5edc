//! Disks that can lose power, or fail a write: ext4 on a loop device. At a power cut the image is copied.
//! Bytes that ext4 had not written by then are missing in the copy, which is mounted in place of the first.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

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

/// ext4 on a loop device whose image is on a file system of memory, which can be full: then a block that was
/// not written before fails in the device, and others do not.
pub struct FailingDisk {
    memory: PathBuf,
    /// Mount point of its file system.
    pub at: PathBuf,
    image: PathBuf,
    /// All of it is in there, and goes with it once it is not mounted.
    _directory: TempDir,
}

impl FailingDisk {
    /// A disk of 32 MiB. `None`, with a printed reason, if none can be made here.
    pub fn new() -> Option<FailingDisk> {
        FailingDisk::make()
            .inspect_err(|why| super::skipped(format_args!("no disk can be made that fails: {why}")))
            .ok()
    }

    fn make() -> Result<FailingDisk, String> {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let disk = FailingDisk {
            memory: directory.path().join("memory"),
            at: directory.path().join("disk"),
            image: directory.path().join("memory/image"),
            _directory: directory,
        };
        fs::create_dir(&disk.memory).unwrap();
        fs::create_dir(&disk.at).unwrap();
        let mut mount = Command::new("mount");
        does(
            mount
                .args(["-t", "tmpfs", "-o", "size=40m", "tmpfs"])
                .arg(&disk.memory),
        )?;
        fs::write(&disk.image, vec![0; 32 << 20]).unwrap();
        let mut make = Command::new("mkfs.ext4");
        does(
            make.args(["-q", "-b", "4096", "-O", "^has_journal"])
                .arg(&disk.image),
        )?;
        does(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&disk.image)
                .arg(&disk.at),
        )?;
        Ok(disk)
    }

    /// From now on it fails to write to blocks that are free now.
    pub fn fail(&self) -> Result<(), String> {
        does(&mut Command::new("sync"))?;
        does(Command::new("fstrim").arg(&self.at))?;
        let mut filler = File::create(self.memory.join("filler")).unwrap();
        while filler.write_all(&[7; 4096]).is_ok() {}
        Ok(())
    }

    pub fn mend(&self) {
        fs::remove_file(self.memory.join("filler")).unwrap();
    }

    /// Cuts the power: what the disk has not written by now is lost.
    pub fn power_off(&self) {
        let copy = self.at.with_file_name("copy");
        let copied = Command::new("cp")
            .arg("--sparse=always")
            .arg(&self.image)
            .arg(&copy)
            .status();
        assert!(copied.unwrap().success());
        // Without a journal the file system counts its free blocks anew. It ends with 1 where it has mended
        // something.
        let mended = Command::new("e2fsck").arg("-fy").arg(&copy).output().unwrap();
        assert!(mended.status.code().is_some_and(|code| code < 2), "{mended:?}");
        unmount(&self.at, UnmountFlags::DETACH).unwrap();
        does(
            Command::new("mount")
                .args(["-o", "loop"])
                .arg(&copy)
                .arg(&self.at),
        )
        .unwrap();
    }
}

impl Drop for FailingDisk {
    fn drop(&mut self) {
        let _ = unmount(&self.at, UnmountFlags::DETACH);
        let _ = unmount(&self.memory, UnmountFlags::DETACH);
    }
}

fn does(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(error.to_string()),
    }
}
