//! An open directory and the names below it.
//!
//! A path below it is resolved by the kernel (`openat2`) and leads neither out of the directory nor through a
//! symbolic link. System calls that take a name resolve the directories before it themselves, and would
//! follow links there. They get the open parent and the last component instead.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;

/// An open directory.
#[derive(Debug)]
pub(crate) struct OpenDirectory(OwnedFd);

/// Directory of a name: the open directory itself, or one below it.
pub(crate) enum ParentDirectory<'a> {
    Own(BorrowedFd<'a>),
    Below(OwnedFd),
}

impl AsFd for ParentDirectory<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ParentDirectory::Own(directory) => *directory,
            ParentDirectory::Below(directory) => directory.as_fd(),
        }
    }
}

impl From<OwnedFd> for OpenDirectory {
    fn from(directory: OwnedFd) -> OpenDirectory {
        OpenDirectory(directory)
    }
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Path for system calls: `.` for the directory itself.
pub(crate) fn system_path(path: &[u8]) -> &Path {
    let path = if path.is_empty() { b"." } else { path };
    Path::new(OsStr::from_bytes(path))
}

/// Path in `/proc` of an open file. It names exactly this file, whatever becomes of the file's names, and is
/// valid while the file is open.
pub(crate) fn path_of(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

impl OpenDirectory {
    /// Opens the directory at a path without symbolic links.
    pub(crate) fn at(path: &Path) -> io::Result<OpenDirectory> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        Ok(OpenDirectory(opened?))
    }

    /// Another descriptor of the same open file.
    pub(crate) fn handle(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Opens the directory once more, whatever is mounted over it.
    pub(crate) fn again(&self) -> io::Result<OpenDirectory> {
        Ok(self.directory(b"")?)
    }

    /// Opens a directory below this one, on the same file system.
    pub(crate) fn directory(&self, path: &[u8]) -> Result<OpenDirectory, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        openat2(&self.0, system_path(path), flags, Mode::empty(), resolve).map(OpenDirectory)
    }

    /// Opens what a path below this directory names.
    pub(crate) fn open(&self, path: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat2(&self.0, system_path(path), flags, mode, resolve)
    }

    /// Opens the directory that has the last component of `path`, and returns that component.
    pub(crate) fn parent_of<'a>(&self, path: &'a [u8]) -> Result<(ParentDirectory<'_>, &'a Path), Errno> {
        let Some(slash) = path.iter().rposition(|byte| *byte == b'/') else {
            return Ok((ParentDirectory::Own(self.0.as_fd()), system_path(path)));
        };
        let (parent, name) = (&path[..slash], &path[slash + 1..]);
        // Another name would be resolved on from here.
        if matches!(name, b"" | b"." | b"..") {
            return Err(Errno::INVAL);
        }
        let parent = self.open(parent, OFlags::PATH | OFlags::DIRECTORY, Mode::empty())?;
        Ok((ParentDirectory::Below(parent), system_path(name)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Only some calls were made by `openat2`; the others followed a link in the middle of a path.
    #[test]
    fn no_name_leads_through_a_link_or_out_of_the_directory() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path().canonicalize().unwrap();
        for name in ["dir", "dir/below", "else"] {
            fs::create_dir(place.join(name)).unwrap();
        }
        fs::write(place.join("else/canary"), "").unwrap();
        symlink("../else", place.join("dir/link")).unwrap();
        symlink("dir", place.join("alias")).unwrap();
        let directory = OpenDirectory::at(&place.join("dir")).unwrap();
        assert!(OpenDirectory::at(&place.join("alias")).is_err());
        assert!(OpenDirectory::at(&place.join("alias/below")).is_err());
        for path in ["link/canary", "../else/canary", "below/../link/canary"] {
            let path = path.as_bytes();
            assert!(directory.parent_of(path).is_err(), "{path:?}");
            assert!(directory.open(path, OFlags::RDONLY, Mode::empty()).is_err());
        }
        assert!(directory.directory(b"link").is_err());
        assert!(directory.open(b"link", OFlags::RDONLY, Mode::empty()).is_err());
        assert!(directory.parent_of(b"below/..").is_err());
        let (_, name) = directory.parent_of(b"below/new").unwrap();
        assert_eq!(name, Path::new("new"));
    }
}
