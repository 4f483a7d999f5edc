//! A mount by the kernel's newer system calls (Linux 5.2), which return it as a descriptor.
//!
//! No path leads to it, and `/proc/mounts` does not list it, until somebody moves it over a directory. Until
//! then it need not be unmounted: it ends with the last file that is open in it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

pub use rustix::mount::MountAttrFlags;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use rustix::process::{getgid, getuid};

use crate::device::FuseDevice;

/// A mount that is at no path, and the kernel's end of the session with its server.
#[derive(Debug)]
pub struct DetachedMount {
    /// Requests are read from here, and replies written to it.
    pub device: FuseDevice,
    /// The mount. It ends with this descriptor and every file opened in it.
    pub root: OwnedFd,
}

impl DetachedMount {
    /// Mounts a file system that all users may access, as root. `root_mode`: type and permissions of its root
    /// directory, as in stat(2). `flags`: further mount options of FUSE.
    ///
    /// # Errors
    ///
    /// The kernel has no FUSE, or this user may not mount.
    pub fn new(
        source: &str,
        root_mode: u32,
        flags: &[&str],
        attributes: MountAttrFlags,
    ) -> io::Result<DetachedMount> {
        let device = FuseDevice::open()?;
        let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let (user, group) = (getuid().to_string(), getgid().to_string());
        for (key, value) in [
            ("source", source),
            ("fd", &device.as_fd().as_raw_fd().to_string()),
            ("rootmode", &format!("{root_mode:o}")),
            ("user_id", &user),
            ("group_id", &group),
        ] {
            fsconfig_set_string(&context, key, value)?;
        }
        fsconfig_set_flag(&context, "allow_other")?;
        for flag in flags {
            fsconfig_set_flag(&context, *flag)?;
        }
        fsconfig_create(&context)?;
        let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        Ok(DetachedMount { device, root })
    }
}
