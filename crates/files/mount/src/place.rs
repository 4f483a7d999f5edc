//! Putting the file system over the directory, and taking it off.
//!
//! Root does both by descriptor: between a check of a path and its use, the path's owner could replace a
//! component by a link, and the mount would cover a directory of root's. Other users mount through
//! `fusermount3`, which does that for them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use fuser::{BackgroundSession, Config, Filesystem, Session, SessionACL};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, unmount,
};
use rustix::process::{getgid, getuid};

use crate::open_directory::{OpenDirectory, path_of};

/// Serves `face` over the open directory, as root.
pub(crate) fn mount_over<F: Filesystem + Send + 'static>(
    directory: &OpenDirectory,
    face: F,
    source: &str,
    config: Config,
) -> io::Result<BackgroundSession> {
    let control = File::options().read(true).write(true).open("/dev/fuse")?;
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let mode = format!("{:o}", fstat(directory)?.st_mode);
    for (key, value) in [
        ("source", source),
        ("fd", &control.as_raw_fd().to_string()),
        ("rootmode", &mode),
        ("user_id", &getuid().to_string()),
        ("group_id", &getgid().to_string()),
    ] {
        fsconfig_set_string(&context, key, value)?;
    }
    for flag in ["default_permissions", "allow_other"] {
        fsconfig_set_flag(&context, flag)?;
    }
    fsconfig_create(&context)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let mounted = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    drop(context);
    let session = Session::from_fd(face, OwnedFd::from(control), SessionACL::All, config)?.spawn()?;
    let to_descriptors = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    match move_mount(mounted.as_fd(), "", directory, "", to_descriptors) {
        Ok(()) => Ok(session),
        Err(errno) => {
            // The session's threads end with the last descriptor of the mount.
            drop(mounted);
            let _ = session.join();
            Err(errno.into())
        }
    }
}

/// Unmounts what covers `dir`, whose parent is opened without following links.
pub(crate) fn unmount_at(dir: &Path, flags: UnmountFlags) -> Result<(), Errno> {
    let flags = flags | UnmountFlags::NOFOLLOW;
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else {
        return unmount(dir, flags);
    };
    match OpenDirectory::at(parent) {
        // The directory itself stays closed: an open mount is in use.
        Ok(parent) => unmount(path_of(&parent.as_fd()).join(name), flags),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}
