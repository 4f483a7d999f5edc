//! Changes of the file of clients on the disk: whole or not at all, one after the other.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use netram_process::files::{self, FileAccess, PRIVATE};
use rustix::fs::{FlockOperation, flock};

use crate::file::{ClientsFile, ClientsFileError};

/// Changes the file at `path`, which is created if there is none. Only one process at a time changes it, and
/// a crash leaves the old file or the new one. Owner and mode stay.
///
/// # Errors
/// The file cannot be read or written, it says something that cannot be, or `change` refuses.
pub fn change_file(
    path: &Path,
    change: impl FnOnce(&ClientsFile) -> Result<ClientsFile, ClientsFileError>,
) -> Result<ClientsFile, ClientsFileError> {
    let unwritable = |source| ClientsFileError::Unwritable {
        path: path.to_owned(),
        source,
    };
    let held = lock(path).map_err(unwritable)?;
    let changed = change(&ClientsFile::load(path)?)?;
    replace(path, &held, changed.text()).map_err(unwritable)?;
    Ok(changed)
}

/// Opens the file and locks it. A process that held the lock before has replaced the file: then the new one
/// is locked.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = match files::open(path, FileAccess::Write) {
            Err(files::FileRefusal::System(error)) if error.kind() == io::ErrorKind::NotFound => {
                match files::create_new(path, PRIVATE) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                    created => created?,
                }
            }
            opened => opened?,
        };
        flock(&file, FlockOperation::LockExclusive)?;
        let (locked, found) = (file.metadata()?, fs::symlink_metadata(path)?);
        if (locked.dev(), locked.ino()) == (found.dev(), found.ino()) {
            return Ok(file);
        }
    }
}

/// Puts a new file with this text in the place of the locked one.
fn replace(path: &Path, held: &File, text: &str) -> io::Result<()> {
    let (directory, new) = (parent(path), new_path(path));
    let old = held.metadata()?;
    // Left by a process that was killed; whoever holds the lock is alone.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let mut file = files::create_new(&new, PRIVATE)?;
    let made = file.metadata()?;
    if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
    }
    file.set_permissions(fs::Permissions::from_mode(old.mode() & 0o777))?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(directory)?.sync_all()
}

fn new_path(path: &Path) -> PathBuf {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    new.into()
}

fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use netram_proto::client::ClientLimits;

    fn add(path: &Path, name: &str) -> Result<ClientsFile, ClientsFileError> {
        change_file(path, |file| {
            file.add(name, &file.new_key(), &ClientLimits::default())
        })
    }

    #[test]
    fn a_new_file_is_private_and_a_changed_one_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients");
        add(&path, "a").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o400)).unwrap();
        add(&path, "b").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o400);
        assert_eq!(ClientsFile::load(&path).unwrap().clients().len(), 2);
        assert!(add(&path, "b").is_err());
        assert_eq!(ClientsFile::load(&path).unwrap().clients().len(), 2);
        assert!(!new_path(&path).exists());
    }

    #[test]
    fn changes_at_the_same_time_are_all_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("clients");
        std::thread::scope(|scope| {
            for at in 0..8 {
                let path = &path;
                scope.spawn(move || add(path, &format!("c{at}")).unwrap());
            }
        });
        assert_eq!(ClientsFile::load(&path).unwrap().clients().len(), 8);
    }
}
