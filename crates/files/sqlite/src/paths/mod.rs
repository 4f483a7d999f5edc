//! Files of a managed database; taking a database and giving it back.
//!
//! ```text
//! app.db                a note, which SQLite does not accept as a database
//! app.db-netram/app.db  the database; beside it its -wal, -journal and -shm
//!               held    marks the database as managed, even if a later step was interrupted
//!               netram.toml, seat-0/, seat-1/, ...   lenders, and the processes' journals
//!               start   the start number: records with lower numbers do not count
//!               ledger, open, settling, slot-0, ...  state that the processes share
//! ```
//!
//! A program that opens `app.db` without netram finds no database, instead of one older than the journals,
//! and changes nothing. Taking and giving back each exchange the database and the note in one step.

mod error;

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

use netram_journal::durable;
use netram_journal::file::DiskFile;
use netram_journal::{JournalLayout, JournalPaths as JournalPlace};
use netram_process::files::{self, FileAccess, FileRefusal};
use netram_proto::journal::SlotPair;
use netram_sqlite_machine::{FileRole, PROCESS_SLOTS};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::database_disk::{START_BYTES, START_MAGIC, lock_file};

pub use error::DatabaseStateError;

/// Suffix of the directory's name after the database's name.
const DIRECTORY_SUFFIX: &str = "-netram";
/// First bytes of the note.
const NOTE_HEAD: &[u8] = b"This is not the database";
/// First bytes of a SQLite database.
const DATABASE_HEAD: &[u8] = b"SQLite format 3\0";
/// Maximum number of journals, one for each committing process.
pub const JOURNAL_SLOTS_MAX: usize = 16;

/// File at the path of a database that is not managed.
enum FileAtPath {
    /// No file: an empty database will be made.
    Nothing,
    /// A database.
    Database,
    /// The note: taking the database or giving it back was interrupted.
    Note,
}

/// Paths of a database's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabasePaths {
    /// Path that programs use.
    path: PathBuf,
    directory: PathBuf,
    name: OsString,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> DatabaseStateError {
    let path = path.to_path_buf();
    move |source| DatabaseStateError::Io { path, source }
}

impl DatabasePaths {
    /// Paths of the database of this name, managed or not.
    ///
    /// # Errors
    ///
    /// [`DatabaseStateError::NoFileName`], or [`DatabaseStateError::Io`] if its directory cannot be read.
    pub fn of(path: &Path) -> Result<DatabasePaths, DatabaseStateError> {
        let nameless = || DatabaseStateError::NoFileName {
            path: path.to_path_buf(),
        };
        let name = path.file_name().ok_or_else(nameless)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let parent = parent.canonicalize().map_err(at(parent))?;
        let found = DatabasePaths::inside(&parent, name);
        Ok(found.unwrap_or_else(|| DatabasePaths::new(&parent, name)))
    }

    fn new(parent: &Path, name: &OsStr) -> DatabasePaths {
        let mut directory = name.to_os_string();
        directory.push(DIRECTORY_SUFFIX);
        DatabasePaths {
            path: parent.join(name),
            directory: parent.join(directory),
            name: name.to_os_string(),
        }
    }

    /// Paths from the place where a managed database is kept.
    fn inside(directory: &Path, name: &OsStr) -> Option<DatabasePaths> {
        let place = DatabasePaths::new(directory.parent()?, name);
        (place.directory == directory && place.is_managed()).then_some(place)
    }

    /// Path that programs use.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Directory with the database and netram's files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Path of one of the database's files.
    pub fn file(&self, role: FileRole) -> PathBuf {
        self.beside(role.suffix())
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.name.clone();
        name.push(suffix);
        self.directory.join(name)
    }

    /// Settings file: the lenders and their use.
    pub fn settings(&self) -> PathBuf {
        self.directory.join("netram.toml")
    }

    pub(crate) fn start(&self) -> PathBuf {
        self.directory.join("start")
    }

    pub(crate) fn shared_index(&self) -> PathBuf {
        self.directory.join("ledger")
    }

    pub(crate) fn open(&self) -> PathBuf {
        self.directory.join("open")
    }

    pub(crate) fn checkpoint_lock(&self) -> PathBuf {
        self.directory.join("settling")
    }

    pub(crate) fn slot(&self, slot: usize) -> PathBuf {
        self.directory.join(format!("slot-{slot}"))
    }

    /// Directories of the processes' journals.
    pub fn journal_slots(&self) -> Vec<PathBuf> {
        { (0..JOURNAL_SLOTS_MAX).map(|seat| self.journal_slot(seat)) }
            .take_while(|seat| seat.exists())
            .collect()
    }

    fn journal_slot(&self, seat: usize) -> PathBuf {
        self.directory.join(format!("seat-{seat}"))
    }

    /// Temporary path: first of the note, then, during the exchange, of the database.
    fn note(&self) -> PathBuf {
        self.directory.join("note")
    }

    fn marker(&self) -> PathBuf {
        self.directory.join("held")
    }

    /// Whether netram manages the database, as far as this user may see.
    pub fn is_managed(&self) -> bool {
        self.marker().exists()
    }

    /// Checks that netram manages the database.
    ///
    /// # Errors
    ///
    /// Why it cannot be opened.
    pub fn check_managed(&self) -> Result<(), DatabaseStateError> {
        let marker = self.marker();
        match marker.try_exists() {
            Ok(true) => Ok(()),
            Ok(false) => Err(DatabaseStateError::NotManaged {
                path: self.path.clone(),
            }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(self.denied(error)),
            Err(error) => Err(at(&marker)(error)),
        }
    }

    /// Error that names the owner of an inaccessible directory.
    fn denied(&self, error: io::Error) -> DatabaseStateError {
        let mut directories = self.directory.ancestors();
        let found = directories.find_map(|directory| Some((directory, fs::metadata(directory).ok()?)));
        match found {
            Some((directory, metadata)) => DatabaseStateError::Denied {
                directory: directory.to_path_buf(),
                owner: metadata.uid(),
            },
            None => at(&self.directory)(error),
        }
    }

    /// Takes a database, or makes an empty one, with `seats` journals of `log_bytes` each. `write_settings`
    /// writes the settings file.
    ///
    /// # Errors
    ///
    /// See [`DatabaseStateError`], and any error of `write_settings`.
    pub fn create<E: From<DatabaseStateError>>(
        &self,
        seats: usize,
        log_bytes: u64,
        write_settings: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E> {
        match self.check_managed() {
            Ok(()) => {
                let path = self.path.clone();
                return Err(DatabaseStateError::AlreadyManaged { path }.into());
            }
            Err(DatabaseStateError::NotManaged { .. }) => (),
            Err(error) => return Err(error.into()),
        }
        let found = self.check()?;
        let begun = self.begin(seats, log_bytes);
        let written = begun
            .map_err(E::from)
            .and_then(|()| write_settings(&self.settings()));
        if let Err(error) = written {
            // The database is still in place, and no process can have written to a journal.
            if !matches!(found, FileAtPath::Note) {
                self.clear();
            }
            return Err(error);
        }
        Ok(self.take(&found)?)
    }

    /// Type of the file at the database's path.
    fn check(&self) -> Result<FileAtPath, DatabaseStateError> {
        let path = self.path.clone();
        if let Ok(named) = fs::symlink_metadata(&path)
            && let Some(what) = file_type_name(&named)
        {
            return Err(DatabaseStateError::NotAFile { path, what });
        }
        for suffix in ["-wal", "-journal"] {
            let mut left = path.clone().into_os_string();
            left.push(suffix);
            let left = PathBuf::from(left);
            if fs::metadata(&left).is_ok_and(|found| found.len() > 0) {
                return Err(DatabaseStateError::NotCheckpointed { path, left });
            }
        }
        let found = match head_of(&path).map_err(at(&path))? {
            None => FileAtPath::Nothing,
            Some(head) if head == NOTE_HEAD => FileAtPath::Note,
            Some(head) if head.is_empty() || head.starts_with(DATABASE_HEAD) => FileAtPath::Database,
            Some(_) => return Err(DatabaseStateError::NotADatabase { path }),
        };
        let note = self.note();
        // An empty database counts as none until it has its name inside the directory.
        let waits =
            { head_of(&note).map_err(at(&note))? }.is_some_and(|head| head.starts_with(DATABASE_HEAD));
        let inside = if waits { note } else { self.file(FileRole::Main) };
        match found {
            FileAtPath::Nothing | FileAtPath::Database if waits || inside.exists() => {
                Err(DatabaseStateError::TwoDatabases { path, inside })
            }
            found => Ok(found),
        }
    }

    /// Makes the journals anew. Existing ones hold nothing of use: none was written before the database was
    /// taken, and everything was on the disk afterwards.
    fn begin(&self, seats: usize, log_bytes: u64) -> Result<(), DatabaseStateError> {
        self.clear();
        let mut directory = DirBuilder::new();
        directory.mode(0o700).recursive(true);
        directory.create(&self.directory).map_err(at(&self.directory))?;
        for seat in 0..seats {
            JournalPlace::of(&self.journal_slot(seat), JournalLayout::Directory).create(log_bytes)?;
        }
        let path = self.start();
        let file = lock_file(&path).map_err(at(&path))?;
        let told = |error: netram_proto::port::IoError| at(&path)(io::Error::from_raw_os_error(error.errno));
        SlotPair::create(
            &DiskFile::new(file),
            START_MAGIC,
            START_BYTES,
            &0_u64.to_le_bytes(),
        )
        .map_err(told)?;
        Ok(())
    }

    /// Exchanges database and note. A crash may come between any two steps: the file at the database's path
    /// shows where to continue.
    fn take(&self, found: &FileAtPath) -> Result<(), DatabaseStateError> {
        let (inside, note) = (self.file(FileRole::Main), self.note());
        if !matches!(found, FileAtPath::Note) {
            if matches!(found, FileAtPath::Nothing) {
                File::create_new(&self.path).map_err(at(&self.path))?;
            }
            self.write_note(&note)?;
            renameat_with(CWD, &note, CWD, &self.path, RenameFlags::EXCHANGE)
                .map_err(|errno| at(&note)(errno.into()))?;
        }
        if !inside.exists() {
            fs::rename(&note, &inside).map_err(at(&note))?;
        }
        let owner = fs::metadata(&inside).map_err(at(&inside))?;
        if rustix::process::geteuid().is_root() {
            give(&self.directory, owner.uid(), owner.gid())?;
        }
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        for directory in [&self.directory, parent] {
            durable::sync(directory).map_err(at(directory))?;
        }
        let marker = self.marker();
        durable::replace(&marker, b"").map_err(at(&marker))
    }

    /// Writes the note that stands at the database's path. It is longer than a SQLite header, so that SQLite
    /// reads it and reports that it is no database.
    fn write_note(&self, path: &Path) -> Result<(), DatabaseStateError> {
        let mut text = format!(
            "{}: netram manages it, and its newest commits are in other machines' memory.\n\
             Programs open it by file:{name}?vfs=netram, with netram's extension loaded.\n\
             `netram sqlite status {name}` says how it stands; `netram sqlite detach {name}` puts it back here.\n",
            String::from_utf8_lossy(NOTE_HEAD),
            name = self.path.display()
        );
        while text.len() < 512 {
            text.push('\n');
        }
        durable::replace(path, text.as_bytes()).map_err(at(path))?;
        fs::set_permissions(path, Permissions::from_mode(0o444)).map_err(at(path))
    }

    /// Puts the database back. It must be complete on the disk, with no process having it open.
    pub(crate) fn give_back(&self) -> Result<(), DatabaseStateError> {
        let marker = self.marker();
        match fs::remove_file(&marker) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&marker)(error)),
            _ => durable::sync(&self.directory).map_err(at(&self.directory))?,
        }
        // The note stays until the database is in place, so that no program can use a log without its
        // database.
        for role in [FileRole::Wal, FileRole::Journal, FileRole::Main] {
            let (inside, mut outside) = (self.file(role), self.path.clone().into_os_string());
            outside.push(role.suffix());
            if inside.exists() {
                fs::rename(&inside, &outside).map_err(at(&inside))?;
            }
        }
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        durable::sync(parent).map_err(at(parent))?;
        self.clear();
        match self.directory.exists() {
            false => Ok(()),
            // Any other file there is not netram's to remove.
            true => fs::remove_dir(&self.directory).map_err(at(&self.directory)),
        }
    }

    /// Removes everything except the database and its logs.
    fn clear(&self) {
        for seat in self.journal_slots() {
            let _ = fs::remove_dir_all(seat);
        }
        let slots = (0..PROCESS_SLOTS).map(|slot| self.slot(slot));
        let ours = [
            self.beside("-shm"),
            self.settings(),
            self.start(),
            self.shared_index(),
            self.open(),
            self.checkpoint_lock(),
        ];
        for file in slots.chain(ours) {
            let _ = fs::remove_file(file);
        }
        // The directory is removed only if it is empty.
        let _ = fs::remove_dir(&self.directory);
    }

    /// Whether giving the database back was interrupted.
    pub(crate) fn is_release_unfinished(&self) -> bool {
        !self.is_managed() && self.directory.exists()
    }
}

/// Type of a file other than a regular one. Reading from a pipe would wait for its writer.
fn file_type_name(named: &Metadata) -> Option<&'static str> {
    let kind = named.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a directory"),
        () if kind.is_symlink() => Some("a link to another name"),
        () => Some("not a regular file"),
    }
}

/// First bytes of a file, if it exists.
fn head_of(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match files::open(path, FileAccess::Read) {
        Err(FileRefusal::System(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut head = Vec::new();
    file.take(NOTE_HEAD.len() as u64).read_to_end(&mut head)?;
    Ok(Some(head))
}

fn give(path: &Path, uid: u32, gid: u32) -> Result<(), DatabaseStateError> {
    lchown(path, Some(uid), Some(gid)).map_err(at(path))?;
    if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        for entry in fs::read_dir(path).map_err(at(path))? {
            give(&entry.map_err(at(path))?.path(), uid, gid)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn create(place: &DatabasePaths) -> Result<(), DatabaseStateError> {
        place.create(2, 1 << 20, |path| fs::write(path, "").map_err(at(path)))
    }

    #[test]
    fn a_taken_database_is_replaced_by_a_note_until_it_is_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let text = [&b"SQLite format 3\0"[..], &[7; 5000]].concat();
        fs::write(&path, &text).unwrap();
        let place = DatabasePaths::of(&path).unwrap();
        assert!(!place.is_managed());
        create(&place).unwrap();
        assert!(place.is_managed() && fs::read(&path).unwrap().starts_with(b"This is not"));
        assert_eq!(fs::read(place.file(FileRole::Main)).unwrap(), text);
        assert_eq!(place.journal_slots().len(), 2);
        assert_eq!(DatabasePaths::of(&place.file(FileRole::Main)).unwrap(), place);
        assert!(matches!(
            create(&place),
            Err(DatabaseStateError::AlreadyManaged { .. })
        ));
        fs::write(place.file(FileRole::Wal), b"w").unwrap();
        place.give_back().unwrap();
        assert_eq!(fs::read(&path).unwrap(), text);
        assert_eq!(fs::read(directory.path().join("app.db-wal")).unwrap(), b"w");
        assert!(!place.directory().exists());
        assert!(matches!(
            create(&place),
            Err(DatabaseStateError::NotCheckpointed { .. })
        ));
    }

    #[test]
    fn an_interrupted_step_is_completed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new.db");
        let place = DatabasePaths::of(&path).unwrap();
        create(&place).unwrap();
        fs::remove_file(place.marker()).unwrap();
        assert!(place.is_release_unfinished());
        create(&place).unwrap();
        assert_eq!(fs::read(place.file(FileRole::Main)).unwrap(), b"");
        fs::remove_file(place.marker()).unwrap();
        place.give_back().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

    #[test]
    fn a_crash_between_two_steps_does_not_lose_the_database() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let text = [DATABASE_HEAD, &[7; 5000]].concat();
        fs::write(&path, &text).unwrap();
        let place = DatabasePaths::of(&path).unwrap();
        create(&place).unwrap();
        // First the state before the database had its name inside, then the state before the exchange.
        fs::remove_file(place.marker()).unwrap();
        fs::rename(place.file(FileRole::Main), place.note()).unwrap();
        let refused = place.create(1, 7, |_| unreachable!("the size is checked earlier"));
        assert!(matches!(refused, Err(DatabaseStateError::Journal(_))));
        create(&place).unwrap();
        assert_eq!(fs::read(place.file(FileRole::Main)).unwrap(), text);
        fs::remove_file(place.marker()).unwrap();
        fs::rename(place.file(FileRole::Main), &path).unwrap();
        place.write_note(&place.note()).unwrap();
        create(&place).unwrap();
        assert_eq!(fs::read(place.file(FileRole::Main)).unwrap(), text);
        assert!(fs::read(&path).unwrap().starts_with(NOTE_HEAD));
        place.give_back().unwrap();
        assert_eq!(fs::read(&path).unwrap(), text);
    }

    #[test]
    fn a_taken_database_is_not_overwritten_by_a_new_one_at_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        fs::write(&path, [DATABASE_HEAD, b"the first"].concat()).unwrap();
        let place = DatabasePaths::of(&path).unwrap();
        create(&place).unwrap();
        fs::remove_file(place.marker()).unwrap();
        fs::remove_file(&path).unwrap();
        assert!(matches!(
            create(&place),
            Err(DatabaseStateError::TwoDatabases { .. })
        ));
        fs::rename(place.file(FileRole::Main), place.note()).unwrap();
        assert!(matches!(
            create(&place),
            Err(DatabaseStateError::TwoDatabases { .. })
        ));
        fs::write(&path, [DATABASE_HEAD, b"another"].concat()).unwrap();
        assert!(matches!(
            create(&place),
            Err(DatabaseStateError::TwoDatabases { .. })
        ));
        assert!(fs::read(place.note()).unwrap().ends_with(b"the first"));
    }

    #[test]
    fn a_file_that_is_not_a_database_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("letter");
        fs::write(&path, "Dear").unwrap();
        let place = DatabasePaths::of(&path).unwrap();
        assert!(matches!(
            create(&place),
            Err(DatabaseStateError::NotADatabase { .. })
        ));
        assert!(!place.directory().exists() && fs::read(&path).unwrap() == b"Dear");
    }

    #[test]
    fn the_error_names_the_type_of_a_special_file() {
        let directory = tempfile::tempdir().unwrap();
        let (real, link) = (directory.path().join("real.db"), directory.path().join("link.db"));
        fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        fs::create_dir(directory.path().join("directory")).unwrap();
        for (name, what) in [("directory", "a directory"), ("link.db", "a link")] {
            let place = DatabasePaths::of(&directory.path().join(name)).unwrap();
            let refused = create(&place).unwrap_err().to_string();
            assert!(
                refused.contains(what) && refused.contains("give the path of a database file"),
                "{refused}"
            );
            assert!(!place.directory().exists());
        }
        assert!(link.is_symlink() && real.is_file());
    }
}
