//! The file systems that are put on a device, and how their own checkers are asked.

use std::path::Path;

use crate::users::process::{has, tool};

/// A kind of file system.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FileSystem {
    Ext4,
    Xfs,
    Btrfs,
}

impl FileSystem {
    pub(crate) fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    /// `Err`: what this machine lacks for it.
    pub(crate) fn can(self) -> Result<(), String> {
        for program in match self {
            FileSystem::Ext4 => ["mkfs.ext4", "fsck.ext4"],
            FileSystem::Xfs => ["mkfs.xfs", "xfs_repair"],
            FileSystem::Btrfs => ["mkfs.btrfs", "btrfs"],
        } {
            has(program)?;
        }
        // The kernel may have it as a module that was never loaded.
        let name = self.name();
        let known = format!("grep -qw {name} /proc/filesystems || modprobe {name}");
        tool("sh", &["-c", &known])
            .map(drop)
            .map_err(|_| format!("this kernel has no {name}"))
    }

    pub(crate) fn make(self, device: &str) {
        match self {
            FileSystem::Ext4 => tool("mkfs.ext4", &["-q", "-F", device]),
            FileSystem::Xfs => tool("mkfs.xfs", &["-q", "-f", device]),
            FileSystem::Btrfs => tool("mkfs.btrfs", &["-q", "-f", device]),
        }
        .unwrap();
    }

    /// Mounts it so that freed blocks are discarded at once, which the volume must handle too.
    pub(crate) fn mount(self, device: &str, directory: &Path) {
        let options = match self {
            // Another mount namespace of this machine may still hold the one before, which was killed.
            FileSystem::Xfs => "discard,nouuid",
            FileSystem::Ext4 | FileSystem::Btrfs => "discard",
        };
        let directory = directory.to_str().unwrap();
        tool("mount", &["-t", self.name(), "-o", options, device, directory]).unwrap();
    }

    /// After it has replayed its journal it must be clean.
    pub(crate) fn check(self, device: &str, directory: &Path) {
        self.mount(device, directory);
        tool("umount", &[directory.to_str().unwrap()]).unwrap();
        match self {
            FileSystem::Ext4 => tool("fsck.ext4", &["-f", "-n", device]),
            FileSystem::Xfs => tool("xfs_repair", &["-n", device]),
            FileSystem::Btrfs => tool("btrfs", &["check", "--readonly", "--check-data-csum", device]),
        }
        .unwrap();
    }
}
