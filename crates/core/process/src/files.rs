//! Opening files in directories that another user may be able to write.
//!
//! A file of netram's has a name that anybody can guess. Its last component is therefore never a symbolic
//! link, and its kind and owner are looked at on the open file, before a byte of it changes. Root opens only
//! files of root's: a file of another user is opened by a process with that user's rights
//! ([`crate::rights`]).

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, RawMode, openat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::rights::is_roots;

/// Permissions of a file that only its owner may read or write.
pub const PRIVATE: u32 = 0o600;
/// Error of the system for a file that is open for writing elsewhere or may not be changed.
const EPERM: i32 = 1;

/// Use that is made of an opened file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// The file is read.
    Read,
    /// The file is read and written.
    Write,
    /// The file is read and written, and is one of the user's own: it may have more than one name, and unless
    /// this process is root's, a symbolic link may lead to it.
    WriteLinked,
}

/// Why a file is not opened. Nothing was changed.
#[derive(Debug)]
pub enum FileRefusal {
    /// The system refused.
    System(io::Error),
    /// The name is a symbolic link.
    Link,
    /// The file is a directory, a pipe, a device or a socket.
    NotRegular,
    /// This process is root's, and the file belongs to this user.
    Foreign(u32),
    /// This process is root's, and the file has more than one name: the other may be anywhere.
    ManyNames(u64),
}

impl FileRefusal {
    /// The system's number for this error.
    pub fn errno(&self) -> i32 {
        match self {
            FileRefusal::System(error) => error.raw_os_error().unwrap_or(EPERM),
            FileRefusal::Link => Errno::LOOP.raw_os_error(),
            FileRefusal::NotRegular | FileRefusal::Foreign(_) | FileRefusal::ManyNames(_) => EPERM,
        }
    }
}

impl fmt::Display for FileRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileRefusal::System(error) => error.fmt(out),
            FileRefusal::Link => out.write_str(
                "it is a symbolic link, and netram follows none here: put the file itself in its place",
            ),
            FileRefusal::NotRegular => out.write_str("it is not a regular file"),
            FileRefusal::Foreign(user) => write!(
                out,
                "it belongs to user {user}, and root uses only files of root's: run the program as that user, or chown the file to root"
            ),
            FileRefusal::ManyNames(names) => write!(
                out,
                "it has {names} names, and root writes only to a file with one: remove the others, or copy it"
            ),
        }
    }
}

impl std::error::Error for FileRefusal {}

impl From<FileRefusal> for io::Error {
    fn from(refusal: FileRefusal) -> io::Error {
        match refusal {
            FileRefusal::System(error) => error,
            refusal => io::Error::new(io::ErrorKind::PermissionDenied, refusal),
        }
    }
}

impl From<Errno> for FileRefusal {
    fn from(errno: Errno) -> FileRefusal {
        FileRefusal::System(errno.into())
    }
}

/// Opens an existing regular file. Its length and bytes are as they were.
///
/// # Errors
///
/// One [`FileRefusal`] a reason.
pub fn open(path: &Path, access: FileAccess) -> Result<File, FileRefusal> {
    open_with(path, access, OFlags::empty(), 0)
}

/// Opens a regular file for reading and writing, or creates it with this mode. An existing one keeps its
/// length and bytes.
///
/// # Errors
///
/// One [`FileRefusal`] a reason.
pub fn open_or_create(path: &Path, mode: u32) -> Result<File, FileRefusal> {
    open_with(path, FileAccess::Write, OFlags::CREATE, mode)
}

/// Creates a file with this mode, open for reading and writing. Any file of that name stays, links included.
///
/// # Errors
///
/// The system's error; [`io::ErrorKind::AlreadyExists`] if there is a file of that name.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, path, flags, Mode::from_raw_mode(mode as RawMode))?.into())
}

/// Reads a whole file, or refuses it if it has more than `bytes_max`.
///
/// # Errors
///
/// One [`FileRefusal`] a reason.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, FileRefusal> {
    let mut bytes = Vec::new();
    let file = open(path, FileAccess::Read)?;
    file.take(bytes_max.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(FileRefusal::System)?;
    match bytes.len() as u64 > bytes_max {
        true => Err(FileRefusal::System(io::ErrorKind::FileTooLarge.into())),
        false => Ok(bytes),
    }
}

fn open_with(path: &Path, access: FileAccess, more: OFlags, mode: u32) -> Result<File, FileRefusal> {
    let how = match access {
        FileAccess::Read => OFlags::RDONLY,
        FileAccess::Write | FileAccess::WriteLinked => OFlags::RDWR,
    };
    let links = match access {
        FileAccess::WriteLinked if !geteuid().is_root() => OFlags::empty(),
        _ => OFlags::NOFOLLOW,
    };
    // Without `NONBLOCK` a pipe of that name would wait for its other end.
    let flags = how | more | links | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match openat(CWD, path, flags, Mode::from_raw_mode(mode as RawMode)) {
        Ok(file) => {
            let file = File::from(file);
            check(&file, access)?;
            Ok(file)
        }
        // Also said of a loop of links on the way; then the last component cannot be looked at.
        Err(Errno::LOOP) if path.symlink_metadata().is_ok() => Err(FileRefusal::Link),
        Err(errno) => Err(errno.into()),
    }
}

/// Checks kind, owner and number of names of an open file.
///
/// # Errors
///
/// One [`FileRefusal`] a reason.
pub fn check(file: &File, access: FileAccess) -> Result<(), FileRefusal> {
    let found = file.metadata().map_err(FileRefusal::System)?;
    if !found.is_file() {
        return Err(FileRefusal::NotRegular);
    }
    if !geteuid().is_root() {
        return Ok(());
    }
    if !is_roots(found.uid()) {
        return Err(FileRefusal::Foreign(found.uid()));
    }
    match found.nlink() {
        names @ 2.. if access == FileAccess::Write => Err(FileRefusal::ManyNames(names)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// The lock of a journal was opened through a link, and emptied: root's own files could be.
    #[test]
    fn a_link_is_neither_opened_nor_created_through() {
        let directory = tempfile::tempdir().unwrap();
        let (canary, link) = (directory.path().join("canary"), directory.path().join("lock"));
        fs::write(&canary, "as it was").unwrap();
        symlink(&canary, &link).unwrap();
        for access in [FileAccess::Read, FileAccess::Write] {
            assert!(matches!(open(&link, access), Err(FileRefusal::Link)));
        }
        assert!(matches!(open_or_create(&link, PRIVATE), Err(FileRefusal::Link)));
        assert!(create_new(&link, PRIVATE).is_err());
        let nowhere = directory.path().join("nowhere");
        let dangling = directory.path().join("dangling");
        symlink(&nowhere, &dangling).unwrap();
        assert!(open_or_create(&dangling, PRIVATE).is_err() && create_new(&dangling, PRIVATE).is_err());
        assert!(!nowhere.exists());
        assert_eq!(fs::read(&canary).unwrap(), b"as it was");
    }

    #[test]
    fn a_pipe_is_refused_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("lock");
        rustix::fs::mknodat(CWD, &pipe, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(matches!(
            open(&pipe, FileAccess::Write),
            Err(FileRefusal::NotRegular)
        ));
        assert!(matches!(
            open_or_create(&pipe, PRIVATE),
            Err(FileRefusal::NotRegular)
        ));
    }

    #[test]
    fn a_created_file_has_its_mode_and_an_existing_one_its_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        open_or_create(&path, PRIVATE).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "12").unwrap();
        open_or_create(&path, PRIVATE).unwrap();
        assert_eq!(read(&path, 2).unwrap(), b"12");
        assert!(matches!(read(&path, 1), Err(FileRefusal::System(_))));
        assert!(create_new(&path, PRIVATE).is_err());
    }

    #[test]
    fn root_opens_no_file_of_another_user_and_writes_none_with_two_names() {
        if !geteuid().is_root() {
            eprintln!("\nSKIPPED: giving files away needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let (ours, theirs) = (directory.path().join("ours"), directory.path().join("theirs"));
        for path in [&ours, &theirs] {
            fs::write(path, "1").unwrap();
        }
        chown(&theirs, Some(12_345), None).unwrap();
        assert!(matches!(
            open(&theirs, FileAccess::Read),
            Err(FileRefusal::Foreign(12_345))
        ));
        open(&ours, FileAccess::Write).unwrap();
        fs::hard_link(&ours, directory.path().join("second")).unwrap();
        open(&ours, FileAccess::Read).unwrap();
        assert!(matches!(
            open(&ours, FileAccess::Write),
            Err(FileRefusal::ManyNames(2))
        ));
    }
}
