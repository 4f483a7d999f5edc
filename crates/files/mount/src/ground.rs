//! A folder that is taken: its files go one level down, where nobody looks for them.
//!
//! ```text
//! DIR/.netram/home      which journal has what is newest of them
//! DIR/.netram/stamp     how far that journal is in the files
//! DIR/.netram/taken     all files are beneath: whatever else is in DIR then, somebody has put there
//! DIR/.netram/files/    the files
//! DIR/NETRAM-READ-ME    for who looks and misses them
//! ```
//!
//! So a program that is started while the folder is not mounted finds nothing, instead of files that the journal is ahead of. Where the file system has the
//! flag, the empty folder is immutable as well: not even root makes new ones there. Both are undone when the folder is given back.
//!
//! Each step may be cut off: without `taken` the files are on their way in or out, the journal is empty, and taking or giving back goes on from there.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use netram_store::durable;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

const HOLD: &str = ".netram";
const NOTE: &str = "NETRAM-READ-ME";
/// What a file system's own folder is called.
const LOST_AND_FOUND: &str = "lost+found";

/// Whether no file may be called so that is in the folder itself: it could not be given back.
pub(crate) fn is_kept(name: &OsStr) -> bool {
    [HOLD, NOTE, LOST_AND_FOUND].iter().any(|kept| name == *kept)
}

/// A folder, and where its files are while it is taken.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    dir: PathBuf,
}

/// Why a folder is not taken.
#[derive(Debug, thiserror::Error)]
pub enum GroundError {
    /// It is another journal's.
    #[error("{} is held by the journal {}; mount it on that, or `netram recover` it first", .dir.display(), .journal.display())]
    OtherJournal {
        /// The folder.
        dir: PathBuf,
        /// Its journal.
        journal: PathBuf,
    },
    /// Something was put there while it was not mounted.
    #[error("{} was put there while {} was not mounted, whose newest files are elsewhere; move it away, and try again", .path.display(), .dir.display())]
    Stranger {
        /// The folder.
        dir: PathBuf,
        /// What it is.
        path: PathBuf,
    },
    /// It is not taken.
    #[error("{} is not held by netram: its files are all there", .dir.display())]
    Free {
        /// The folder.
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

fn at(path: &Path) -> impl FnOnce(io::Error) -> GroundError {
    let path = path.to_path_buf();
    move |source| GroundError::Io { path, source }
}

impl Ground {
    pub(crate) fn at(dir: &Path) -> Ground {
        Ground {
            dir: dir.to_path_buf(),
        }
    }

    fn hold(&self) -> PathBuf {
        self.dir.join(HOLD)
    }

    /// Where the files are while it is taken.
    pub(crate) fn files(&self) -> PathBuf {
        self.hold().join("files")
    }

    fn marker(&self) -> PathBuf {
        self.hold().join("taken")
    }

    fn journal_file(&self) -> PathBuf {
        self.hold().join("home")
    }

    /// How far its journal is in the files.
    pub(crate) fn stamp(&self) -> PathBuf {
        self.hold().join("stamp")
    }

    /// Whether any of it is still there.
    pub(crate) fn is_taken(&self) -> bool {
        self.hold().exists()
    }

    /// Which journal has it.
    pub(crate) fn journal(&self) -> Result<PathBuf, GroundError> {
        let path = self.journal_file();
        match fs::read(&path) {
            Ok(bytes) => Ok(PathBuf::from(OsStr::from_bytes(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(GroundError::Free {
                dir: self.dir.clone(),
            }),
            Err(error) => Err(at(&path)(error)),
        }
    }

    /// Takes it for this journal, or goes on with that.
    pub(crate) fn take(&self, journal: &Path) -> Result<(), GroundError> {
        match self.is_of(journal) {
            Err(GroundError::Free { .. }) => self.begin(journal)?,
            known => known?,
        }
        if self.marker().exists() {
            return self.is_untouched();
        }
        self.immutable(false);
        self.move_all(&self.dir, &self.files())?;
        self.resemble(&self.files(), &self.dir)?;
        let note = self.dir.join(NOTE);
        let text = format!(
            "netram holds the files of this folder, and the newest of what is in them is in the journal {}.\n\
             `netram recover {}` brings all of it back here; `netram mount` goes on with them.\n",
            journal.display(),
            self.dir.display()
        );
        fs::write(&note, text).map_err(at(&note))?;
        let marker = self.marker();
        File::create(&marker)
            .and_then(|file| file.sync_all())
            .map_err(at(&marker))?;
        sync(&self.hold())?;
        sync(&self.dir)?;
        self.immutable(true);
        Ok(())
    }

    fn begin(&self, journal: &Path) -> Result<(), GroundError> {
        let files = self.files();
        let mut private = DirBuilder::new();
        private.mode(0o700).recursive(true);
        private.create(&files).map_err(at(&files))?;
        let path = self.journal_file();
        match durable::create(&path, journal.as_os_str().as_bytes()) {
            // Somebody else has begun to take it in this moment.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return self.is_of(journal),
            made => made.map_err(at(&path))?,
        }
        sync(&self.dir)
    }

    fn is_of(&self, journal: &Path) -> Result<(), GroundError> {
        match self.journal()? {
            other if other == journal => Ok(()),
            other => Err(GroundError::OtherJournal {
                dir: self.dir.clone(),
                journal: other,
            }),
        }
    }

    /// Gives everything back: what is beneath has all there is.
    pub(crate) fn give_back(&self) -> Result<(), GroundError> {
        let marker = self.marker();
        self.immutable(false);
        forgive(fs::remove_file(&marker)).map_err(at(&marker))?;
        sync(&self.hold())?;
        if self.files().exists() {
            self.resemble(&self.dir, &self.files())?;
            self.move_all(&self.files(), &self.dir)?;
        }
        let note = self.dir.join(NOTE);
        forgive(fs::remove_file(&note)).map_err(at(&note))?;
        // One by one: whatever else is there is not ours to remove.
        let (files, journal, hold) = (self.files(), self.journal_file(), self.hold());
        forgive(fs::remove_dir(&files)).map_err(at(&files))?;
        let stamp = self.stamp();
        forgive(fs::remove_file(&stamp)).map_err(at(&stamp))?;
        forgive(fs::remove_file(&journal)).map_err(at(&journal))?;
        fs::remove_dir(&hold).map_err(at(&hold))?;
        sync(&self.dir)
    }

    fn is_untouched(&self) -> Result<(), GroundError> {
        match self.theirs(&self.dir)?.into_iter().next() {
            Some(name) => Err(GroundError::Stranger {
                path: self.dir.join(name),
                dir: self.dir.clone(),
            }),
            None => Ok(()),
        }
    }

    /// What is in a folder and is not netram's, nor the file system's.
    fn theirs(&self, folder: &Path) -> Result<Vec<OsString>, GroundError> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder).map_err(at(folder))? {
            let name = entry.map_err(at(folder))?.file_name();
            if folder != self.dir || !is_kept(&name) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn move_all(&self, from: &Path, to: &Path) -> Result<(), GroundError> {
        for name in self.theirs(from)? {
            let (old, new) = (from.join(&name), to.join(&name));
            if new.symlink_metadata().is_ok() {
                let dir = self.dir.clone();
                return Err(GroundError::Stranger { dir, path: new });
            }
            fs::rename(&old, &new).map_err(at(&old))?;
        }
        sync(to)?;
        sync(from)
    }

    /// The one folder gets permissions and owner of the other.
    fn resemble(&self, folder: &Path, model: &Path) -> Result<(), GroundError> {
        let (there, model) = (
            fs::metadata(folder).map_err(at(folder))?,
            fs::metadata(model).map_err(at(model))?,
        );
        if (there.uid(), there.gid()) != (model.uid(), model.gid()) {
            chown(folder, Some(model.uid()), Some(model.gid())).map_err(at(folder))?;
        }
        let mode = Permissions::from_mode(model.mode() & 0o7777);
        fs::set_permissions(folder, mode).map_err(at(folder))
    }

    /// As far as file system and rights allow: without it the files are hidden all the same.
    fn immutable(&self, on: bool) {
        let set = || -> io::Result<()> {
            let folder = File::open(&self.dir)?;
            let mut flags = ioctl_getflags(&folder)?;
            if flags.contains(IFlags::IMMUTABLE) != on {
                flags.set(IFlags::IMMUTABLE, on);
                ioctl_setflags(&folder, flags)?;
            }
            Ok(())
        };
        if let Err(error) = set() {
            tracing::debug!(folder = %self.dir.display(), %error, on, "immutable could not be set");
        }
    }
}

fn forgive(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn sync(folder: &Path) -> Result<(), GroundError> {
    durable::sync(folder).map_err(at(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, Ground) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a"), b"1").unwrap();
        fs::create_dir(folder.path().join("d")).unwrap();
        let ground = Ground::at(folder.path());
        (folder, ground)
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
    fn a_folder_that_is_taken_is_empty_and_given_back_as_it_was() {
        let (folder, ground) = folder();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o750)).unwrap();
        assert!(matches!(ground.journal(), Err(GroundError::Free { .. })));
        let journal = Path::new("/the/journal");
        ground.take(journal).unwrap();
        assert_eq!(names(folder.path()), [HOLD, NOTE]);
        assert_eq!(names(&ground.files()), ["a", "d"]);
        assert_eq!(fs::metadata(ground.files()).unwrap().mode() & 0o777, 0o750);
        assert_eq!(ground.journal().unwrap(), journal);
        ground.take(journal).unwrap();
        let refused = ground.take(Path::new("/another")).unwrap_err();
        assert!(matches!(refused, GroundError::OtherJournal { .. }));
        ground.give_back().unwrap();
        assert_eq!(names(folder.path()), ["a", "d"]);
    }

    #[test]
    fn one_that_was_taken_by_half_is_taken_wholly() {
        let (folder, ground) = folder();
        let journal = Path::new("/the/journal");
        ground.begin(journal).unwrap();
        fs::rename(folder.path().join("a"), ground.files().join("a")).unwrap();
        ground.take(journal).unwrap();
        assert_eq!(names(&ground.files()), ["a", "d"]);
        // Given back by half.
        ground.immutable(false);
        fs::remove_file(ground.marker()).unwrap();
        fs::rename(ground.files().join("d"), folder.path().join("d")).unwrap();
        ground.take(journal).unwrap();
        assert_eq!(names(&ground.files()), ["a", "d"]);
        ground.give_back().unwrap();
        assert_eq!(names(folder.path()), ["a", "d"]);
    }

    #[test]
    fn a_folder_is_one_journals_whoever_comes_at_the_same_time() {
        let (_folder, ground) = folder();
        let (first, second) = (Path::new("/first"), Path::new("/second"));
        ground.begin(first).unwrap();
        // Had not seen it a moment before.
        assert!(matches!(
            ground.begin(second),
            Err(GroundError::OtherJournal { .. })
        ));
        ground.begin(first).unwrap();
        assert_eq!(ground.journal().unwrap(), first);
    }

    #[test]
    fn what_somebody_puts_there_meanwhile_is_refused_by_its_name() {
        let (folder, ground) = folder();
        ground.take(Path::new("/the/journal")).unwrap();
        ground.immutable(false);
        fs::write(folder.path().join("000001"), b"").unwrap();
        let refused = ground.take(Path::new("/the/journal")).unwrap_err();
        assert!(refused.to_string().contains("000001"), "{refused}");
    }
}
