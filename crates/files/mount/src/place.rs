//! Putting the file system over the directory, and taking it off.
//!
//! Root does both by descriptor: between a check of a path and its use, the path's owner could replace a
//! component by a link, and the mount would cover a directory of root's. Other users mount through
//! `fusermount3`, which does that for them.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use netram_fuse::{
    AgreedSession, DetachedMount, FuseOptions, FuseService, FuseSession, MountAttrFlags, mount_by_helper,
};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, UnmountFlags, move_mount, unmount};

use crate::mount_point::detach;
use crate::open_directory::{OpenDirectory, path_of};

/// Serves a file system over the open directory, as root. `make`: what answers, once the handshake is done.
pub(crate) fn mount_over<S: FuseService>(
    directory: &OpenDirectory,
    source: &str,
    options: &FuseOptions,
    threads: usize,
    way: AnsweringWay,
    make: impl FnOnce(&AgreedSession) -> S,
) -> io::Result<FuseSession> {
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    let mode = fstat(directory)?.st_mode;
    let DetachedMount { device, root } =
        DetachedMount::new(source, mode, &["default_permissions"], attributes)?;
    let agreed = AgreedSession::begin(device, options)?;
    let service = Arc::new(make(&agreed));
    let session = answer(agreed, service, threads, way)?;
    let to_descriptors = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    match move_mount(root.as_fd(), "", directory, "", to_descriptors) {
        Ok(()) => Ok(session),
        Err(errno) => {
            // The session's threads end with the last descriptor of the mount.
            drop(root);
            session.join();
            Err(errno.into())
        }
    }
}

/// Serves a file system over `dir` by `fusermount3`, as another user. The kernel admits only that user.
pub(crate) fn mount_as_user<S: FuseService>(
    dir: &Path,
    source: &str,
    options: &FuseOptions,
    threads: usize,
    way: AnsweringWay,
    make: impl FnOnce(&AgreedSession) -> S,
) -> io::Result<FuseSession> {
    let names = [&format!("fsname={source}"), &format!("subtype={source}")];
    let flags = ["default_permissions", "nodev", "nosuid", "noatime"];
    let all: Vec<&str> = names.into_iter().map(String::as_str).chain(flags).collect();
    let device = mount_by_helper(dir, &all)?;
    let begun = AgreedSession::begin(device, options).and_then(|agreed| {
        let service = Arc::new(make(&agreed));
        answer(agreed, service, threads, way)
    });
    if begun.is_err()
        && let Err(error) = detach(dir)
    {
        tracing::warn!(directory = %dir.display(), %error, "a mount that nobody serves stays; take it off with `umount -l`");
    }
    begun
}

/// How threads get requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnsweringWay {
    /// From one end that all share, which another server can continue with.
    Shared,
    /// From an end each.
    Apart,
    /// By io_uring, from the queue of a core.
    Ring,
}

/// Begins to answer.
fn answer(
    agreed: AgreedSession,
    service: Arc<impl FuseService>,
    threads: usize,
    way: AnsweringWay,
) -> io::Result<FuseSession> {
    match way {
        AnsweringWay::Ring => agreed.serve_by_ring(service, threads),
        AnsweringWay::Shared if agreed.agreement().can_be_taken_over() => agreed.serve(service, threads),
        AnsweringWay::Shared | AnsweringWay::Apart => agreed.serve_apart(service, threads),
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
