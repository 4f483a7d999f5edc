//! Descriptors of a directory for the servers that continue its mount, opened before anything is mounted over
//! it.
//!
//! Each leads below the mount without any right. Each is an open file of its own, to which the kernel reports
//! a failed write of that disk once, by `syncfs`, if it happened after the opening; it does not matter who
//! else was told. A server that dies while it takes over may have been told and have told nobody. Its
//! descriptor is then closed, and the next server gets another.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::error::MountError;
use crate::mount_point::{detach, is_mounted, is_unresponsive, resolve};
use crate::open_directory::OpenDirectory;

/// The descriptors that are left, oldest first.
#[derive(Debug)]
pub struct BackingHandles {
    left: VecDeque<OpenDirectory>,
    count: usize,
}

impl BackingHandles {
    /// Opens a directory that is not mounted `count` times. A mount whose server is gone is taken off first.
    ///
    /// # Errors
    ///
    /// [`MountError::Mounted`] while it is mounted, [`MountError::NoDirectory`] if it cannot be opened.
    pub fn open(dir: &Path, count: usize) -> Result<BackingHandles, MountError> {
        assert!(count > 0, "a server needs a descriptor");
        let dir = resolve(dir)?;
        take_off_dead(&dir)?;
        let open = || {
            OpenDirectory::at(&dir).map_err(|source| MountError::NoDirectory {
                dir: dir.clone(),
                source,
            })
        };
        Ok(BackingHandles {
            left: (0..count).map(|_| open()).collect::<Result<_, _>>()?,
            count,
        })
    }

    /// The descriptor for the next server: the oldest. It stays here, too.
    ///
    /// # Errors
    ///
    /// None is left, or this process has no more descriptors.
    pub fn next(&self) -> io::Result<OwnedFd> {
        let oldest = self.left.front().ok_or_else(|| {
            io::Error::other("too many servers ended before one could say that the disk has everything")
        })?;
        oldest.handle()
    }

    /// The server that got the last one has ended, and may have been told of a failed write.
    pub fn on_ended(&mut self) {
        self.left.pop_front();
    }

    /// The server that got the last one has synced the disk, and continues. Opens as many as are missing.
    pub fn on_synced(&mut self) {
        while self.left.len() < self.count {
            // Those that are left do.
            let Some(Ok(another)) = self.left.front().map(OpenDirectory::again) else {
                return;
            };
            self.left.push_back(another);
        }
    }
}

/// Takes off a mount whose server is gone.
///
/// # Errors
///
/// [`MountError::Mounted`] if its server lives.
pub(crate) fn take_off_dead(dir: &Path) -> Result<(), MountError> {
    match is_mounted(dir) {
        true if is_unresponsive(dir) => detach(dir),
        true => Err(MountError::Mounted {
            dir: dir.to_path_buf(),
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::fstat;

    use super::*;

    #[test]
    fn a_descriptor_that_may_be_spent_is_given_to_no_other_server() {
        let directory = tempfile::tempdir().unwrap();
        let mut handles = BackingHandles::open(directory.path(), 2).unwrap();
        let of_directory = fstat(handles.next().unwrap()).unwrap().st_ino;
        let (first, second) = (offset_of(&handles, 7), offset_of(&handles, 0));
        assert_eq!((first, second), (0, 7), "both are the same open file");
        handles.on_ended();
        assert_eq!(offset_of(&handles, 0), 0, "it is another open file");
        handles.on_synced();
        handles.on_ended();
        assert_eq!(fstat(handles.next().unwrap()).unwrap().st_ino, of_directory);
        handles.on_ended();
        assert!(handles.next().is_err());
    }

    /// The position of the open file, which all descriptors of it share; moves it to `to`.
    fn offset_of(handles: &BackingHandles, to: u64) -> u64 {
        let next = handles.next().unwrap();
        let before = rustix::fs::tell(&next).unwrap();
        rustix::fs::seek(&next, rustix::fs::SeekFrom::Start(to)).unwrap();
        before
    }
}
