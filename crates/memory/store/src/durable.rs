//! Files that are there whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Makes a file with these bytes, durable with its name. One that is there stays, and is
/// [`io::ErrorKind::AlreadyExists`].
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, RenameFlags::NOREPLACE)
}

/// The same, in the place of the one that is there.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write(path, bytes, RenameFlags::empty())
}

/// Makes names in a directory durable.
pub fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

fn write(path: &Path, bytes: &[u8], flags: RenameFlags) -> io::Result<()> {
    let new = unfinished(path);
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        Ok(renameat_with(CWD, &new, CWD, path, flags)?)
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    sync(path.parent().unwrap_or(Path::new(".")))
}

/// Where a file is before it has its name. Of this process alone: another one may be about the same.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = OsString::from(path.as_os_str());
    name.push(format!(".{}", std::process::id()));
    name.into()
}
