//! A taken directory: its files move one level down, into a private directory.
//!
//! ```text
//! DIR/.netram/home      path of the journal that has the newest changes of them
//! DIR/.netram/stamp     the journal's progress as applied to the files
//! DIR/.netram/taken     all files have been moved: anything else in DIR was added since
//! DIR/.netram/files/    the files
//! DIR/NETRAM-READ-ME    explains where the files are
//! ```
//!
//! A program started while the directory is not mounted therefore finds no files, instead of files older than
//! the journal. Where the file system supports it, the empty directory is also set immutable, so that not
//! even root adds files. Giving the directory back undoes both.
//!
//! A crash between any two steps is harmless. Without `taken`, the files are being moved in or out and the
//! journal is empty; taking or giving back then continues.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use netram_journal::durable;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

const PRIVATE_DIR: &str = ".netram";
const NOTE: &str = "NETRAM-READ-ME";
/// Directory that ext4 keeps in a file system's root.
const LOST_AND_FOUND: &str = "lost+found";

/// Whether a name in the mounted directory itself is reserved: such a file could not be given back.
pub(crate) fn is_reserved(name: &OsStr) -> bool {
    [PRIVATE_DIR, NOTE, LOST_AND_FOUND]
        .iter()
        .any(|kept| name == *kept)
}

/// A directory and the place of its files while it is taken.
#[derive(Clone, Debug)]
pub(crate) struct BackingDirectory {
    dir: PathBuf,
}

/// Why a directory cannot be taken or given back.
#[derive(Debug, thiserror::Error)]
pub enum BackingDirectoryError {
    /// The directory belongs to another journal.
    #[error("{} belongs to the journal {}; mount it with that journal, or run `netram mount recover` on it first", .dir.display(), .journal.display())]
    OtherJournal {
        /// The mounted directory.
        dir: PathBuf,
        /// Journal that the directory belongs to.
        journal: PathBuf,
    },
    /// A file was added while the directory was not mounted.
    #[error("{} was added while {} was not mounted; move it away and try again", .path.display(), .dir.display())]
    ForeignFile {
        /// The mounted directory.
        dir: PathBuf,
        /// The added file.
        path: PathBuf,
    },
    /// The directory is not taken.
    #[error("{} is not a netram directory: its files are all in place", .dir.display())]
    NotTaken {
        /// The directory.
        dir: PathBuf,
    },
    /// A system call failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// File that was being made, moved or read.
        path: PathBuf,
        /// Error that the system returned.
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

    /// Place of the files while the directory is taken.
    pub(crate) fn files(&self) -> PathBuf {
        self.private_dir().join("files")
    }

    fn marker(&self) -> PathBuf {
        self.private_dir().join("taken")
    }

    fn journal_file(&self) -> PathBuf {
        self.private_dir().join("home")
    }

    /// File with the journal's progress.
    pub(crate) fn stamp(&self) -> PathBuf {
        self.private_dir().join("stamp")
    }

    /// Whether the private directory exists, complete or not.
    pub(crate) fn is_taken(&self) -> bool {
        self.private_dir().exists()
    }

    /// Path of the journal that the directory belongs to.
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

    /// Takes the directory for a journal, or continues an interrupted attempt.
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
        let note = self.dir.join(NOTE);
        let text = format!(
            "netram has moved this directory's files away. Their newest changes are in the journal {}.\n\
             Run `netram mount recover {}` to put the files back here, or `netram mount` to use them again.\n",
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
        // Before `home` makes the directory taken: giving back copies the attributes the other way.
        self.copy_attributes(&files, &self.dir).inspect_err(|_| {
            let _ = fs::remove_dir(&files).and_then(|()| fs::remove_dir(self.private_dir()));
        })?;
        sync(&files)?;
        let path = self.journal_file();
        match durable::create(&path, journal.as_os_str().as_bytes()) {
            // Another process began to take the directory at the same moment.
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

    /// Moves all files back; the backing directory must be up to date.
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
        // Remove single files: anything else in the private directory is not netram's.
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

    /// Entries of a directory that belong neither to netram nor to the file system.
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

    /// Copies permissions and owner of `model` to `directory`.
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

    /// Sets or clears the immutable flag, if file system and permissions allow. The files are hidden without
    /// it too.
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
            tracing::debug!(directory = %self.dir.display(), %error, on, "the directory's immutable flag could not be changed");
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

    /// The take ended before any file was moved.
    #[test]
    fn a_directory_given_back_after_half_a_take_has_its_own_permissions() {
        let (directory, ground) = directory();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o751)).unwrap();
        ground.begin(Path::new("/the/journal")).unwrap();
        ground.give_back().unwrap();
        assert_eq!(names(directory.path()), ["a", "d"]);
        assert_eq!(fs::metadata(directory.path()).unwrap().mode() & 0o777, 0o751);
    }

    #[test]
    fn a_taken_directory_is_empty_and_is_given_back_unchanged() {
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
    fn an_interrupted_move_is_completed() {
        let (directory, ground) = directory();
        let journal = Path::new("/the/journal");
        ground.begin(journal).unwrap();
        fs::rename(directory.path().join("a"), ground.files().join("a")).unwrap();
        ground.take(journal).unwrap();
        assert_eq!(names(&ground.files()), ["a", "d"]);
        // Giving back was interrupted.
        ground.immutable(false);
        fs::remove_file(ground.marker()).unwrap();
        fs::rename(ground.files().join("d"), directory.path().join("d")).unwrap();
        ground.take(journal).unwrap();
        assert_eq!(names(&ground.files()), ["a", "d"]);
        ground.give_back().unwrap();
        assert_eq!(names(directory.path()), ["a", "d"]);
    }

    #[test]
    fn a_directory_belongs_to_one_of_two_simultaneous_journals() {
        let (_directory, ground) = directory();
        let (first, second) = (Path::new("/first"), Path::new("/second"));
        ground.begin(first).unwrap();
        // The second process had checked before the first one began.
        assert!(matches!(
            ground.begin(second),
            Err(BackingDirectoryError::OtherJournal { .. })
        ));
        ground.begin(first).unwrap();
        assert_eq!(ground.journal().unwrap(), first);
    }

    #[test]
    fn a_file_added_to_a_taken_directory_is_named_in_the_error() {
        let (directory, ground) = directory();
        ground.take(Path::new("/the/journal")).unwrap();
        ground.immutable(false);
        fs::write(directory.path().join("000001"), b"").unwrap();
        let refused = ground.take(Path::new("/the/journal")).unwrap_err();
        assert!(refused.to_string().contains("000001"), "{refused}");
    }
}
