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
//!
//! DIR may belong to a user while root takes it. So DIR is opened once, and everything else is done by
//! descriptor: a name that the user changes meanwhile leads root nowhere.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, IFlags, Mode, OFlags, RawMode, RenameFlags, Stat, fchmod, fchown, fstat, fsync,
    ioctl_getflags, ioctl_setflags, mkdirat, openat, renameat_with, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use crate::open_directory::OpenDirectory;
use crate::private_directory::PrivateDirectory;

const PRIVATE_DIR: &str = ".netram";
const NOTE: &str = "NETRAM-READ-ME";
/// Directory that ext4 keeps in a file system's root.
const LOST_AND_FOUND: &str = "lost+found";
const FILES: &str = "files";
const MARKER: &str = "taken";
const JOURNAL: &str = "home";
/// File with the journal's progress.
pub(crate) const STAMP: &str = "stamp";

/// Whether a name in the mounted directory itself is reserved: such a file could not be given back.
pub(crate) fn is_reserved(name: &OsStr) -> bool {
    [PRIVATE_DIR, NOTE, LOST_AND_FOUND]
        .iter()
        .any(|kept| name == *kept)
}

/// A directory, open, and the place of its files while it is taken.
#[derive(Debug)]
pub(crate) struct BackingDirectory {
    /// For messages.
    dir: PathBuf,
    directory: OpenDirectory,
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
    /// Another user has, or can change, what netram keeps of the directory.
    #[error("{} {reason}: only the user who mounted the directory may recover it; run the command as that user", .path.display())]
    NotPrivate {
        /// The file or directory of netram's.
        path: PathBuf,
        /// Kind, owner or mode that it has.
        reason: String,
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

fn at_errno(path: &Path) -> impl FnOnce(Errno) -> BackingDirectoryError {
    let at = at(path);
    move |errno| at(errno.into())
}

impl BackingDirectory {
    /// Opens the directory at a path without symbolic links.
    pub(crate) fn open(dir: &Path) -> Result<BackingDirectory, BackingDirectoryError> {
        Ok(BackingDirectory {
            directory: OpenDirectory::at(dir).map_err(at(dir))?,
            dir: dir.to_path_buf(),
        })
    }

    /// The directory that was opened as this descriptor. `dir`: its path, for messages.
    pub(crate) fn of(directory: OpenDirectory, dir: &Path) -> BackingDirectory {
        let dir = dir.to_path_buf();
        BackingDirectory { dir, directory }
    }

    /// The open directory.
    pub(crate) fn handle(&self) -> &OpenDirectory {
        &self.directory
    }

    /// Its attributes.
    pub(crate) fn attributes(&self) -> Result<Stat, BackingDirectoryError> {
        fstat(&self.directory).map_err(at_errno(&self.dir))
    }

    /// Path of the files while the directory is taken, for messages.
    pub(crate) fn files_path(&self) -> PathBuf {
        self.dir.join(PRIVATE_DIR).join(FILES)
    }

    /// Owner of the private directory, complete or not. `None`: there is none, or nothing can be said of it.
    pub(crate) fn owner_of_private(&self) -> Option<u32> {
        let found = rustix::fs::statat(&self.directory, PRIVATE_DIR, AtFlags::SYMLINK_NOFOLLOW);
        found.ok().map(|found| found.st_uid)
    }

    /// Whether the private directory exists, complete or not.
    pub(crate) fn is_taken(&self) -> bool {
        self.owner_of_private().is_some()
    }

    /// The private directory. `None`: there is none.
    pub(crate) fn private(&self) -> Result<Option<PrivateDirectory>, BackingDirectoryError> {
        PrivateDirectory::open(&self.directory, PRIVATE_DIR, self.dir.join(PRIVATE_DIR))
    }

    /// The private directory of a taken directory.
    pub(crate) fn known_private(&self) -> Result<PrivateDirectory, BackingDirectoryError> {
        self.private()?.ok_or_else(|| BackingDirectoryError::NotTaken {
            dir: self.dir.clone(),
        })
    }

    /// The files, while the directory is taken.
    pub(crate) fn files(&self) -> Result<OpenDirectory, BackingDirectoryError> {
        let files = self.known_private()?.directory(FILES);
        let missing = || at(&self.files_path())(io::ErrorKind::NotFound.into());
        files.map_err(at(&self.files_path()))?.ok_or_else(missing)
    }

    /// Path of the journal that the directory belongs to.
    pub(crate) fn journal(&self) -> Result<PathBuf, BackingDirectoryError> {
        self.journal_in(&self.known_private()?)
    }

    fn journal_in(&self, private: &PrivateDirectory) -> Result<PathBuf, BackingDirectoryError> {
        match private.read(JOURNAL).map_err(at(&private.path_of(JOURNAL)))? {
            Some(bytes) => Ok(PathBuf::from(OsStr::from_bytes(&bytes))),
            None => Err(BackingDirectoryError::NotTaken {
                dir: self.dir.clone(),
            }),
        }
    }

    /// Takes the directory for a journal, or continues an interrupted attempt.
    pub(crate) fn take(&self, journal: &Path) -> Result<(), BackingDirectoryError> {
        let private = match self.check_owner(journal) {
            Ok(private) => private,
            Err(BackingDirectoryError::NotTaken { .. }) => self.begin(journal)?,
            Err(error) => return Err(error),
        };
        if private.exists(MARKER) {
            return self.check_untouched();
        }
        self.immutable(false);
        let files = self.files()?;
        self.move_all((&self.directory, &self.dir), (&files, &self.files_path()))?;
        self.write_note(journal)?;
        private
            .replace(MARKER, b"")
            .map_err(at(&private.path_of(MARKER)))?;
        self.sync()?;
        self.immutable(true);
        Ok(())
    }

    /// Writes the note that explains where the files are. Whoever may list the directory may read it.
    fn write_note(&self, journal: &Path) -> Result<(), BackingDirectoryError> {
        let text = format!(
            "netram has moved this directory's files away. Their newest changes are in the journal {}.\n\
             Run `netram mount recover {}` to put the files back here, or `netram mount` to use them again.\n",
            journal.display(),
            self.dir.display()
        );
        let note = self.dir.join(NOTE);
        self.remove_note()?;
        let mode = Mode::from_raw_mode(0o600 | self.attributes()?.st_mode & 0o044);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.directory, NOTE, flags, mode).map_err(at_errno(&note))?;
        File::from(file).write_all(text.as_bytes()).map_err(at(&note))
    }

    fn remove_note(&self) -> Result<(), BackingDirectoryError> {
        match unlinkat(&self.directory, NOTE, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(at_errno(&self.dir.join(NOTE))(errno)),
        }
    }

    fn begin(&self, journal: &Path) -> Result<PrivateDirectory, BackingDirectoryError> {
        let path = self.dir.join(PRIVATE_DIR);
        match mkdirat(&self.directory, PRIVATE_DIR, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => (),
            Err(errno) => return Err(at_errno(&path)(errno)),
        }
        // The owner of DIR may have put another directory in its place.
        let private = self.known_private()?;
        let path = private.path_of(FILES);
        let files = private.make_directory(FILES).map_err(at(&path))?;
        // Before `home` makes the directory taken: giving back copies the attributes the other way.
        copy_attributes((&files, &path), (&self.directory, &self.dir)).inspect_err(|_| {
            let _ = private.remove_directory(FILES);
            let _ = unlinkat(&self.directory, PRIVATE_DIR, AtFlags::REMOVEDIR);
        })?;
        fsync(&files).map_err(at_errno(&path))?;
        match private.create(JOURNAL, journal.as_os_str().as_bytes()) {
            // Another process began to take the directory at the same moment.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return self.check_owner(journal),
            made => made.map_err(at(&private.path_of(JOURNAL)))?,
        }
        self.sync()?;
        Ok(private)
    }

    fn check_owner(&self, journal: &Path) -> Result<PrivateDirectory, BackingDirectoryError> {
        let private = self.known_private()?;
        match self.journal_in(&private)? {
            other if other == journal => Ok(private),
            other => Err(BackingDirectoryError::OtherJournal {
                dir: self.dir.clone(),
                journal: other,
            }),
        }
    }

    /// Moves all files back; the backing directory must be up to date.
    pub(crate) fn give_back(&self) -> Result<(), BackingDirectoryError> {
        let private = self.known_private()?;
        self.immutable(false);
        private.remove(MARKER).map_err(at(&private.path_of(MARKER)))?;
        private.sync().map_err(at(private.path()))?;
        let path = private.path_of(FILES);
        if let Some(files) = private.directory(FILES).map_err(at(&path))? {
            copy_attributes((&self.directory, &self.dir), (&files, &path))?;
            self.move_all((&files, &path), (&self.directory, &self.dir))?;
        }
        self.remove_note()?;
        // Remove single files: anything else in the private directory is not netram's.
        private.remove_directory(FILES).map_err(at(&path))?;
        private.remove_unfinished().map_err(at(private.path()))?;
        for name in [STAMP, JOURNAL] {
            private.remove(name).map_err(at(&private.path_of(name)))?;
        }
        unlinkat(&self.directory, PRIVATE_DIR, AtFlags::REMOVEDIR).map_err(at_errno(private.path()))?;
        self.sync()
    }

    fn sync(&self) -> Result<(), BackingDirectoryError> {
        fsync(&self.directory).map_err(at_errno(&self.dir))
    }

    fn check_untouched(&self) -> Result<(), BackingDirectoryError> {
        let found = foreign_entries(&self.directory, true).map_err(at(&self.dir))?;
        match found.into_iter().next() {
            Some(name) => Err(BackingDirectoryError::ForeignFile {
                path: self.dir.join(name),
                dir: self.dir.clone(),
            }),
            None => Ok(()),
        }
    }

    fn move_all(
        &self,
        from: (&OpenDirectory, &Path),
        to: (&OpenDirectory, &Path),
    ) -> Result<(), BackingDirectoryError> {
        let is_taking = from.1 == self.dir;
        for name in foreign_entries(from.0, is_taking).map_err(at(from.1))? {
            match renameat_with(from.0, &name, to.0, &name, RenameFlags::NOREPLACE) {
                Ok(()) => (),
                Err(Errno::EXIST) => {
                    let (dir, path) = (self.dir.clone(), to.1.join(&name));
                    return Err(BackingDirectoryError::ForeignFile { dir, path });
                }
                Err(errno) => return Err(at_errno(&from.1.join(&name))(errno)),
            }
        }
        fsync(to.0).map_err(at_errno(to.1))?;
        fsync(from.0).map_err(at_errno(from.1))
    }

    /// Sets or clears the immutable flag, if file system and permissions allow. The files are hidden without
    /// it too.
    fn immutable(&self, on: bool) {
        let set = || -> io::Result<()> {
            let mut flags = ioctl_getflags(&self.directory)?;
            if flags.contains(IFlags::IMMUTABLE) != on {
                flags.set(IFlags::IMMUTABLE, on);
                ioctl_setflags(&self.directory, flags)?;
            }
            Ok(())
        };
        if let Err(error) = set() {
            tracing::debug!(directory = %self.dir.display(), %error, on, "the directory's immutable flag could not be changed");
        }
    }
}

/// Entries of a directory that belong neither to netram nor to the file system. `taken`: it is the taken
/// directory itself, where some names are reserved.
fn foreign_entries(directory: &OpenDirectory, taken: bool) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." && !(taken && is_reserved(name)) {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Copies permissions and owner of `model` to `directory`.
fn copy_attributes(
    directory: (&OpenDirectory, &Path),
    model: (&OpenDirectory, &Path),
) -> Result<(), BackingDirectoryError> {
    let there = fstat(directory.0).map_err(at_errno(directory.1))?;
    let model = fstat(model.0).map_err(at_errno(model.1))?;
    if (there.st_uid, there.st_gid) != (model.st_uid, model.st_gid) {
        let (user, group) = (Uid::from_raw(model.st_uid), Gid::from_raw(model.st_gid));
        fchown(directory.0, Some(user), Some(group)).map_err(at_errno(directory.1))?;
    }
    let mode = Mode::from_raw_mode(model.st_mode as RawMode & 0o7777);
    fchmod(directory.0.as_fd(), mode).map_err(at_errno(directory.1))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use rustix::process::geteuid;

    use super::*;

    fn directory() -> (tempfile::TempDir, BackingDirectory) {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("a"), b"1").unwrap();
        fs::create_dir(directory.path().join("d")).unwrap();
        let ground = BackingDirectory::open(&directory.path().canonicalize().unwrap()).unwrap();
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
        // A process was killed while it wrote its progress. The directory was not given back for that.
        let private = ground.private().unwrap().unwrap();
        fs::write(private.path_of("stamp.77.new"), "").unwrap();
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
        assert_eq!(names(&ground.files_path()), ["a", "d"]);
        assert_eq!(fs::metadata(ground.files_path()).unwrap().mode() & 0o777, 0o750);
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
        fs::rename(directory.path().join("a"), ground.files_path().join("a")).unwrap();
        ground.take(journal).unwrap();
        assert_eq!(names(&ground.files_path()), ["a", "d"]);
        // Giving back was interrupted.
        ground.immutable(false);
        ground.private().unwrap().unwrap().remove(MARKER).unwrap();
        fs::rename(ground.files_path().join("d"), directory.path().join("d")).unwrap();
        ground.take(journal).unwrap();
        assert_eq!(names(&ground.files_path()), ["a", "d"]);
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

    /// Root moved a user's files into the directory that the link named, and gave it to the user.
    #[test]
    fn a_link_in_the_place_of_the_files_is_not_followed() {
        let (directory, ground) = directory();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::set_permissions(elsewhere.path(), Permissions::from_mode(0o755)).unwrap();
        let private = directory.path().join(PRIVATE_DIR);
        fs::create_dir(&private).unwrap();
        fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
        symlink(elsewhere.path(), private.join(FILES)).unwrap();
        assert!(ground.take(Path::new("/the/journal")).is_err());
        fs::write(private.join(JOURNAL), "/the/journal").unwrap();
        assert!(ground.take(Path::new("/the/journal")).is_err());
        assert!(ground.give_back().is_err());
        assert_eq!(names(elsewhere.path()), [""; 0]);
        assert_eq!(fs::metadata(elsewhere.path()).unwrap().mode() & 0o777, 0o755);
        assert!(directory.path().join("a").exists());
    }

    /// Root's own file was overwritten through a link of the note's name.
    #[test]
    fn a_link_of_the_notes_name_is_replaced() {
        let (directory, ground) = directory();
        let canary = directory.path().join("d/canary");
        fs::write(&canary, "as it was").unwrap();
        symlink("d/canary", directory.path().join(NOTE)).unwrap();
        ground.take(Path::new("/the/journal")).unwrap();
        assert!(
            fs::symlink_metadata(directory.path().join(NOTE))
                .unwrap()
                .is_file()
        );
        ground.give_back().unwrap();
        assert_eq!(fs::read(&canary).unwrap(), b"as it was");
    }

    #[test]
    fn what_another_user_or_everybody_can_write_is_not_netrams() {
        let (directory, ground) = directory();
        let private = directory.path().join(PRIVATE_DIR);
        fs::create_dir(&private).unwrap();
        fs::set_permissions(&private, Permissions::from_mode(0o770)).unwrap();
        let refused = ground.take(Path::new("/the/journal")).unwrap_err();
        assert!(matches!(refused, BackingDirectoryError::NotPrivate { .. }));
        fs::set_permissions(&private, Permissions::from_mode(0o700)).unwrap();
        if geteuid().is_root() {
            chown(&private, Some(12_345), None).unwrap();
            let refused = ground.take(Path::new("/the/journal")).unwrap_err().to_string();
            assert!(refused.contains("12345"), "{refused}");
            assert!(matches!(
                ground.give_back(),
                Err(BackingDirectoryError::NotPrivate { .. })
            ));
        }
        assert!(directory.path().join("a").exists());
    }
}
