//! The private directory of a taken one: opened once, checked, and used by descriptor.
//!
//! Whoever owns the taken directory can give the private one another name and make their own in its place.
//! So it counts only if it belongs to the user of this process, who alone can write to it. Its files are then
//! out of everybody else's reach, whatever becomes of its name.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, RenameFlags, fstat, fsync, openat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::backing_directory::BackingDirectoryError;
use crate::open_directory::OpenDirectory;

/// Suffix of a file that has no name yet.
const UNFINISHED: &str = ".new";
/// Maximum bytes of a file here: a path, or a stamp.
const FILE_BYTES_MAX: u64 = 8192;

/// A private directory that belongs to this process's user.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    directory: OpenDirectory,
    path: PathBuf,
}

impl PrivateDirectory {
    /// Opens the private directory of `taken`. `None`: there is none.
    ///
    /// # Errors
    ///
    /// [`BackingDirectoryError::NotPrivate`] for one of another user, or one that others can use.
    pub(crate) fn open(
        taken: &OpenDirectory,
        name: &str,
        path: PathBuf,
    ) -> Result<Option<PrivateDirectory>, BackingDirectoryError> {
        let directory = match taken.directory(name.as_bytes()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => {
                return Err(BackingDirectoryError::NotPrivate {
                    path,
                    reason: "is not a directory of this file system".to_owned(),
                });
            }
            Err(errno) => {
                let source = errno.into();
                return Err(BackingDirectoryError::Io { path, source });
            }
        };
        let found = fstat(&directory).map_err(|errno| BackingDirectoryError::Io {
            path: path.clone(),
            source: errno.into(),
        })?;
        let (user, mode) = (geteuid().as_raw(), found.st_mode & 0o7777);
        let reason = match () {
            () if found.st_uid != user => {
                format!("belongs to user {}, and you are user {user}", found.st_uid)
            }
            () if mode & 0o077 != 0 => format!("can be used by others (mode {mode:04o})"),
            () => return Ok(Some(PrivateDirectory { directory, path })),
        };
        Err(BackingDirectoryError::NotPrivate { path, reason })
    }

    /// Path of a file, for messages.
    pub(crate) fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Path of the directory, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a directory in it. `None`: there is none.
    pub(crate) fn directory(&self, name: &str) -> io::Result<Option<OpenDirectory>> {
        match self.directory.directory(name.as_bytes()) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes an empty directory in it, for this user only, unless there is one.
    pub(crate) fn make_directory(&self, name: &str) -> io::Result<OpenDirectory> {
        match rustix::fs::mkdirat(&self.directory, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => (),
            Err(errno) => return Err(errno.into()),
        }
        Ok(self.directory.directory(name.as_bytes())?)
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Reads a file. `None`: there is none.
    pub(crate) fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match self.directory.open(name.as_bytes(), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let found = file.metadata()?;
        if !found.is_file() || found.uid() != geteuid().as_raw() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it is not a regular file of this user",
            ));
        }
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// Creates a file with these bytes durably; [`io::ErrorKind::AlreadyExists`] if there is one.
    pub(crate) fn create(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.write(name, bytes, RenameFlags::NOREPLACE).map(drop)
    }

    /// Writes a file durably, in place of one that exists. Returns it, open for writing.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<File> {
        self.write(name, bytes, RenameFlags::empty())
    }

    fn write(&self, name: &str, bytes: &[u8], flags: RenameFlags) -> io::Result<File> {
        // Unique to this process, because another one may be taking the directory, too.
        let new = format!("{name}.{}{UNFINISHED}", std::process::id());
        self.remove(&new)?;
        let create = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&self.directory, &*new, create, Mode::RUSR | Mode::WUSR)?);
        let written = file
            .write_all(bytes)
            .and_then(|()| file.sync_all())
            .and_then(|()| {
                Ok(renameat_with(
                    &self.directory,
                    &*new,
                    &self.directory,
                    name,
                    flags,
                )?)
            });
        if let Err(error) = written {
            let _ = self.remove(&new);
            return Err(error);
        }
        self.sync()?;
        Ok(file)
    }

    /// Removes a file; a missing one is not an error.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        self.unlink(name, AtFlags::empty())
    }

    /// Removes what processes that were killed had not written to its end.
    pub(crate) fn remove_unfinished(&self) -> io::Result<()> {
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy();
            if name.ends_with(UNFINISHED) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Removes an empty directory; a missing one is not an error.
    pub(crate) fn remove_directory(&self, name: &str) -> io::Result<()> {
        self.unlink(name, AtFlags::REMOVEDIR)
    }

    fn unlink(&self, name: &str, flags: AtFlags) -> io::Result<()> {
        match unlinkat(&self.directory, name, flags) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes the names in the directory durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(fsync(self.directory.as_fd())?)
    }
}
