//! Writing files atomically: after a crash a file is complete or absent.
//!
//! Only their owner may read them. The temporary name can be guessed, so a file of that name is removed, a
//! link among them, and never written to.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use netram_process::files::{PRIVATE, create_new};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Creates a file with these bytes durably, including its name. An existing file is kept, and the error is
/// [`io::ErrorKind::AlreadyExists`].
///
/// # Errors
///
/// The system's error; [`io::ErrorKind::AlreadyExists`] if the file exists.
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, RenameFlags::NOREPLACE)
}

/// Writes a file like [`create`], replacing an existing one.
///
/// # Errors
///
/// The system's error.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, RenameFlags::empty())
}

/// Makes the names in a directory durable.
///
/// # Errors
///
/// The system's error.
pub fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// The directory that has the file `path`. A bare name, whose parent is the empty path, is in the current
/// one.
pub fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

fn write(path: &Path, bytes: &[u8], flags: RenameFlags) -> io::Result<()> {
    let new = unfinished(path);
    let made = create_new(&new, PRIVATE).or_else(|error| match error.kind() {
        // A process of this number was killed while it wrote.
        io::ErrorKind::AlreadyExists => fs::remove_file(&new).and_then(|()| create_new(&new, PRIVATE)),
        _ => Err(error),
    });
    let written = made.and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(renameat_with(CWD, &new, CWD, path, flags)?)
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    sync(directory_of(path))
}

/// Temporary path of a file, unique to this process: another process may be writing the same file.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(format!(".{}", std::process::id()));
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// The temporary name was opened through a link, and what it led to was emptied.
    #[test]
    fn a_link_of_the_temporary_name_is_replaced_and_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (canary, path) = (directory.path().join("canary"), directory.path().join("catalog"));
        fs::write(&canary, "as it was").unwrap();
        symlink(&canary, unfinished(&path)).unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&canary).unwrap(), b"as it was");
        assert_eq!(fs::read(&path).unwrap(), b"new");
        let found = fs::symlink_metadata(&path).unwrap();
        assert!(found.is_file() && found.permissions().mode() & 0o777 == 0o600);
        assert!(unfinished(&path).symlink_metadata().is_err());
    }
}
