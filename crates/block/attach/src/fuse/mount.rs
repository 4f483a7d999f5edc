//! Mount of the FUSE file system without a mount point.
//!
//! The mount uses the kernel's newer system calls (Linux 5.2), which return a mount as a descriptor. No path
//! leads to it, `/proc/mounts` does not list it, it need not be unmounted, and it ends with the last file
//! that is open in it.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};

const CONTROL: &str = "/dev/fuse";

/// A mount without a mount point, and the kernel's end of the session with its server.
#[derive(Debug)]
pub(crate) struct DetachedMount {
    /// Requests are read from here, and replies written to it.
    pub(crate) control: OwnedFd,
    /// The mount. It ends with this descriptor and every file opened in it.
    pub(crate) root: OwnedFd,
}

impl DetachedMount {
    /// Mounts a FUSE file system whose root directory belongs to root.
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
