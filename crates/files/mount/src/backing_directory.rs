//! A directory that is taken: its files go one level down, where nobody looks for them.
//!
//! ```text
//! DIR/.netram/home      which journal has what is newest of them
//! DIR/.netram/stamp     how far that journal is in the files
//! DIR/.netram/taken     all files are beneath: whatever else is in DIR then, somebody has put there
//! DIR/.netram/files/    the files
//! DIR/NETRAM-READ-ME    for who looks and misses them
//! ```
//!
//! So a program that is started while the directory is not mounted finds nothing, instead of files that the
//! journal is ahead of. Where the file system has the flag, the empty directory is immutable as well: not
//! even root makes new ones there. Both are undone when the directory is given back.
//!
//! Each step may be cut off: without `taken` the files are on their way in or out, the journal is empty, and
//! taking or giving back goes on from there.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use netram_store::durable;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

const PRIVATE_DIR: &str = ".netram";
const NOTE: &str = "NETRAM-READ-ME";
/// What a file system's own directory is called.
const LOST_AND_FOUND: &str = "lost+found";

/// Whether no file may be called so that is in the directory itself: it could not be given back.
pub(crate) fn is_reserved(name: &OsStr) -> bool {
    [PRIVATE_DIR, NOTE, LOST_AND_FOUND]
        .iter()
        .any(|kept| name == *kept)
}

/// A directory, and where its files are while it is taken.
#[derive(Clone, Debug)]
pub(crate) struct BackingDirectory {
    dir: PathBuf,
}

/// Why a directory is not taken.
#[derive(Debug, thiserror::Error)]
pub enum BackingDirectoryError {
    /// It is another journal's.
    #[error("{} is held by the journal {}; mount it on that, or `netram recover` it first", .dir.display(), .journal.display())]
    OtherJournal {
        /// The directory.
        dir: PathBuf,
        /// Its journal.
        journal: PathBuf,
    },
    /// Something was put there while it was not mounted.
    #[error("{} was put there while {} was not mounted, whose newest files are elsewhere; move it away, and try again", .path.display(), .dir.display())]
    ForeignFile {
        /// The directory.
        dir: PathBuf,
        /// What it is.
        path: PathBuf,
    },
    /// It is not taken.
    #[error("{} is not held by netram: its files are all there", .dir.display())]
    NotTaken {
        /// The directory.
        dir: PathBuf,
    },
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// What was to be made, moved or read.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> BackingDirectoryError {
    let path = path.to_path_buf();
    move |source| BackingDirectoryError::Io { path, source }
}

impl BackingDirectory {
    pub(crate) fn at(dir: &Path) -> BackingDirectory {
        BackingDirectory {
            dir: dir.to_path_buf(),
        }
    }

    fn private_dir(&self) -> PathBuf {
        self.dir.join(PRIVATE_DIR)
    }

    /// Where the files are while it is taken.
    pub(crate) fn files(&self) -> PathBuf {
        self.private_dir().join("files")
    }

    fn marker(&self) -> PathBuf {
        self.private_dir().join("taken")
    }

    fn journal_file(&self) -> PathBuf {
        self.private_dir().join("home")
    }

    /// How far its journal is in the files.
    pub(crate) fn stamp(&self) -> PathBuf {
        self.private_dir().join("stamp")
    }

    /// Whether any of it is still there.
    pub(crate) fn is_taken(&self) -> bool {
        self.private_dir().exists()
    }

    /// Which journal has it.
    pub(crate) fn journal(&self) -> Result<PathBuf, BackingDirectoryError> {
        let path = self.journal_file();
        match fs::read(&path) {
            Ok(bytes) => Ok(PathBuf::from(OsStr::from_bytes(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(BackingDirectoryError::NotTaken {
                dir: self.dir.clone(),
            }),
            Err(error) => Err(at(&path)(error)),
        }
    }

    /// Takes it for this journal, or goes on with that.
    pub(crate) fn take(&self, journal: &Path) -> Result<(), BackingDirectoryError> {
        match self.check_owner(journal) {
            Err(BackingDirectoryError::NotTaken { .. }) => self.begin(journal)?,
            known => known?,
        }
        if self.marker().exists() {
            return self.check_untouched();
        }
        self.immutable(false);
        self.move_all(&self.dir, &self.files())?;
        self.copy_attributes(&self.files(), &self.dir)?;
        let note = self.dir.join(NOTE);
        let text = format!(
            "netram holds the files of this directory, and the newest of what is in them is in the journal {}.\n\
             `netram recover {}` brings all of it back here; `netram mount` goes on with them.\n",
            journal.display(),
            self.dir.display()
        );
        fs::write(&note, text).map_err(at(&note))?;
        let marker = self.marker();
        File::create(&marker)
            .and_then(|file| file.sync_all())
            .map_err(at(&marker))?;
        sync(&self.private_dir())?;
        sync(&self.dir)?;
        self.immutable(true);
        Ok(())
    }

    fn begin(&self, journal: &Path) -> Result<(), BackingDirectoryError> {
        let files = self.files();
        let mut private = DirBuilder::new();
        private.mode(0o700).recursive(true);
        private.create(&files).map_err(at(&files))?;
        let path = self.journal_file();
        match durable::create(&path, journal.as_os_str().as_bytes()) {
            // Somebody else has begun to take it in this moment.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return self.check_owner(journal),
            made => made.map_err(at(&path))?,
        }
        sync(&self.dir)
    }

    fn check_owner(&self, journal: &Path) -> Result<(), BackingDirectoryError> {
        match self.journal()? {
            other if other == journal => Ok(()),
            other => Err(BackingDirectoryError::OtherJournal {
                dir: self.dir.clone(),
                journal: other,
            }),
        }
    }

    /// Gives everything back: what is beneath has all there is.
    pub(crate) fn give_back(&self) -> Result<(), BackingDirectoryError> {
        let marker = self.marker();
        self.immutable(false);
        ignore_missing(fs::remove_file(&marker)).map_err(at(&marker))?;
        sync(&self.private_dir())?;
        if self.files().exists() {
            self.copy_attributes(&self.dir, &self.files())?;
            self.move_all(&self.files(), &self.dir)?;
        }
        let note = self.dir.join(NOTE);
        ignore_missing(fs::remove_file(&note)).map_err(at(&note))?;
        // One by one: whatever else is there is not ours to remove.
        let (files, journal, hold) = (self.files(), self.journal_file(), self.private_dir());
        ignore_missing(fs::remove_dir(&files)).map_err(at(&files))?;
        let stamp = self.stamp();
        ignore_missing(fs::remove_file(&stamp)).map_err(at(&stamp))?;
        ignore_missing(fs::remove_file(&journal)).map_err(at(&journal))?;
        fs::remove_dir(&hold).map_err(at(&hold))?;
        sync(&self.dir)
    }

    fn check_untouched(&self) -> Result<(), BackingDirectoryError> {
        match self.foreign_entries(&self.dir)?.into_iter().next() {
            Some(name) => Err(BackingDirectoryError::ForeignFile {
                path: self.dir.join(name),
                dir: self.dir.clone(),
            }),
            None => Ok(()),
        }
    }

    /// What is in a directory and is not netram's, nor the file system's.
    fn foreign_entries(&self, directory: &Path) -> Result<Vec<OsString>, BackingDirectoryError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory).map_err(at(directory))? {
            let name = entry.map_err(at(directory))?.file_name();
            if directory != self.dir || !is_reserved(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn move_all(&self, from: &Path, to: &Path) -> Result<(), BackingDirectoryError> {
        for name in self.foreign_entries(from)? {
            let (old, new) = (from.join(&name), to.join(&name));
            if new.symlink_metadata().is_ok() {
                let dir = self.dir.clone();
                return Err(BackingDirectoryError::ForeignFile { dir, path: new });
            }
            fs::rename(&old, &new).map_err(at(&old))?;
        }
        sync(to)?;
        sync(from)
    }

    /// The one directory gets permissions and owner of the other.
    fn copy_attributes(&self, directory: &Path, model: &Path) -> Result<(), BackingDirectoryError> {
        let (there, model) = (
            fs::metadata(directory).map_err(at(directory))?,
            fs::metadata(model).map_err(at(model))?,
        );
        if (there.uid(), there.gid()) != (model.uid(), model.gid()) {
            chown(directory, Some(model.uid()), Some(model.gid())).map_err(at(directory))?;
        }
        let mode = Permissions::from_mode(model.mode() & 0o7777);
        fs::set_permissions(directory, mode).map_err(at(directory))
    }

    /// As far as file system and rights allow: without it the files are hidden all the same.
    fn immutable(&self, on: bool) {
        let set = || -> io::Result<()> {
            let directory = File::open(&self.dir)?;
            let mut flags = ioctl_getflags(&directory)?;
            if flags.contains(IFlags::IMMUTABLE) != on {
                flags.set(IFlags::IMMUTABLE, on);
                ioctl_setflags(&directory, flags)?;
            }
            Ok(())
        };
        if let Err(error) = set() {
            tracing::debug!(directory = %self.dir.display(), %error, on, "immutable could not be set");
        }
    }
}

fn ignore_missing(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn sync(directory: &Path) -> Result<(), BackingDirectoryError> {
    durable::sync(directory).map_err(at(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> (tempfile::TempDir, BackingDirectory) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), b"1").unwrap();
        fs::create_dir(directory.path().join("d")).unwrap();
        let ground = BackingDirectory::at(directory.path());
        (directory, ground)
    }

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_that_is_taken_is_empty_and_given_back_as_it_was() {
        let (directory, ground) = directory();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o750)).unwrap();
        assert!(matches!(
            ground.journal(),
            Err(BackingDirectoryError::NotTaken { .. })
        ));
        let journal = Path::new("/the/journal");
        ground.take(journal).unwrap();
        assert_eq!(names(directory.path()), [PRIVATE_DIR, NOTE]);
        assert_eq!(names(&ground.files()), ["a", "d"]);
        assert_eq!(fs::metadata(ground.files()).unwrap().mode() & 0o777, 0o750);
        assert_eq!(ground.journal().unwrap(), journal);
        ground.take(journal).unwrap();
        let refused = ground.take(Path::new("/another")).unwrap_err();
        assert!(matches!(refused, BackingDirectoryError::OtherJournal { .. }));
        ground.give_back().unwrap();
        assert_eq!(names(directory.path()), ["a", "d"]);
    }

    #[test]
    fn one_that_was_taken_by_half_is_taken_wholly() {
        let (directory, ground) = directory();
        let journal = Path::new("/the/journal");
        ground.begin(journal).unwrap();
        fs::rename(directory.path().join("a"), ground.files().join("a")).unwrap();
        ground.take(journal).unwrap();
        assert_eq!(names(&ground.files()), ["a", "d"]);
        // Given back by half.
        ground.immutable(false);
        fs::remove_file(ground.marker()).unwrap();
        fs::rename(ground.files().join("d"), directory.path().join("d")).unwrap();
        ground.take(journal).unwrap();
        assert_eq!(names(&ground.files()), ["a", "d"]);
        ground.give_back().unwrap();
        assert_eq!(names(directory.path()), ["a", "d"]);
    }

    #[test]
    fn a_directory_is_one_journals_whoever_comes_at_the_same_time() {
        let (_directory, ground) = directory();
        let (first, second) = (Path::new("/first"), Path::new("/second"));
        ground.begin(first).unwrap();
        // Had not seen it a moment before.
        assert!(matches!(
            ground.begin(second),
            Err(BackingDirectoryError::OtherJournal { .. })
        ));
        ground.begin(first).unwrap();
        assert_eq!(ground.journal().unwrap(), first);
    }

    #[test]
    fn what_somebody_puts_there_meanwhile_is_refused_by_its_name() {
        let (directory, ground) = directory();
        ground.take(Path::new("/the/journal")).unwrap();
        ground.immutable(false);
        fs::write(directory.path().join("000001"), b"").unwrap();
        let refused = ground.take(Path::new("/the/journal")).unwrap_err();
        assert!(refused.to_string().contains("000001"), "{refused}");
    }
}
