//! The FUSE file system, mounted nowhere.
//!
//! It is made by the kernel's newer calls (Linux 5.2), which give a mount as a descriptor. Nobody finds it by
//! a path, `/proc/mounts` does not list it, nothing has to be unmounted, and it ends with the last file that
//! is open in it.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};

const CONTROL: &str = "/dev/fuse";

/// A mount that has no place, and the kernel's end of the conversation with whoever serves it.
#[derive(Debug)]
pub(crate) struct DetachedMount {
    /// Requests come from here, answers go there.
    pub(crate) control: OwnedFd,
    /// The mount. It is gone once this and every file opened in it is.
    pub(crate) root: OwnedFd,
}

impl DetachedMount {
    /// Mounts a FUSE file system whose root is a directory of root's.
    pub(crate) fn new() -> io::Result<DetachedMount> {
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open(CONTROL)
            .map_err(|error| {
                let sentence =
                    format!("{CONTROL}: {error}; it needs root and the kernel's FUSE (`modprobe fuse`)");
                io::Error::new(error.kind(), sentence)
            })?;
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "source", "netram")?;
        let descriptor = control.as_raw_fd().to_string();
        for (key, value) in [
            ("fd", descriptor.as_str()),
            ("rootmode", "40700"),
            ("user_id", "0"),
            ("group_id", "0"),
        ] {
            fsconfig_set_string(&context, key, value)?;
        }
        fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NOATIME;
        let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(DetachedMount {
            control: control.into(),
            root,
        })
    }
}
