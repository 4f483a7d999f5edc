//! Where a database is while netram holds it, taking it and giving it back.
//!
//! ```text
//! app.db                a note, which SQLite says is no database
//! app.db-netram/app.db  the database; beside it its -wal, -journal and -shm
//!               held    it is held: the database is here, whatever else was cut off
//!               netram.toml, seat-0/, seat-1/, ...   lenders, and the journals of processes
//!               start   the number below which records do not count
//!               ledger, open, settling, slot-0, ...  what its processes share
//! ```
//!
//! So a program that opens `app.db` without netram finds no database, instead of one that the journals are
//! ahead of, and changes nothing. Both ways the database itself changes places with the note in one step.

mod error;

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use netram_journal::file::DiskFile;
use netram_journal::{JournalLayout, JournalPaths as JournalPlace};
use netram_proto::journal::SlotPair;
use netram_sqlite_machine::{FileRole, PROCESS_SLOTS};
use netram_store::durable;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::database_disk::{START_BYTES, START_MAGIC};

pub use error::DatabaseStateError;

/// What the directory's name has that the database's has not.
const DIRECTORY_SUFFIX: &str = "-netram";
/// What the note begins with.
const NOTE_HEAD: &[u8] = b"This is not the database";
/// What a database begins with.
const DATABASE_HEAD: &[u8] = b"SQLite format 3\0";
/// Journals at most, each of a process.
pub const JOURNAL_SLOTS_MAX: usize = 16;

/// What is in the place of a database that is not held.
enum FileAtPath {
    /// There is to be one.
    Nothing,
    /// It is there.
    Database,
    /// The note: taking it, or giving it back, was cut off.
    Note,
}

/// Where a database is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabasePaths {
    /// What it is called by its users.
    path: PathBuf,
    directory: PathBuf,
    name: OsString,
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> DatabaseStateError {
    let path = path.to_path_buf();
    move |source| DatabaseStateError::Io { path, source }
}

impl DatabasePaths {
    /// The database of this name, held or not.
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

    /// By where it is while it is held.
    fn inside(directory: &Path, name: &OsStr) -> Option<DatabasePaths> {
        let place = DatabasePaths::new(directory.parent()?, name);
        (place.directory == directory && place.is_managed()).then_some(place)
    }

    /// What it is called by its users.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where all of it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// One of its files.
    pub fn file(&self, role: FileRole) -> PathBuf {
        self.beside(role.suffix())
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.name.clone();
        name.push(suffix);
        self.directory.join(name)
    }

    /// The lenders, and how they are used.
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

    /// Its processes' journals.
    pub fn journal_slots(&self) -> Vec<PathBuf> {
        { (0..JOURNAL_SLOTS_MAX).map(|seat| self.journal_slot(seat)) }
            .take_while(|seat| seat.exists())
            .collect()
    }

    fn journal_slot(&self, seat: usize) -> PathBuf {
        self.directory.join(format!("seat-{seat}"))
    }

    /// The note before it has its place; then, for a moment, the database before it has its own.
    fn note(&self) -> PathBuf {
        self.directory.join("note")
    }

    fn marker(&self) -> PathBuf {
        self.directory.join("held")
    }

    /// Whether netram holds it, and this user may know.
    pub fn is_managed(&self) -> bool {
        self.marker().exists()
    }

    /// Nothing, if netram holds it; or why it is not opened.
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

    /// Whose the directory is that may not be looked into.
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

    /// Takes a database, or makes an empty one, with so many journals of `log_bytes`. `write_settings` writes
    /// the settings.
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
            // The database is where it was, and nobody can have written to a journal yet.
            if !matches!(found, FileAtPath::Note) {
                self.clear();
            }
            return Err(error);
        }
        Ok(self.take(&found)?)
    }

    /// What is in the database's place.
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
        // Before it has its name inside, an empty one is as good as none.
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

    /// Whatever there is of journals is of no use: before it was held nobody has written to them, and
    /// afterwards everything was on the disk.
    fn begin(&self, seats: usize, log_bytes: u64) -> Result<(), DatabaseStateError> {
        self.clear();
        let mut directory = DirBuilder::new();
        directory.mode(0o700).recursive(true);
        directory.create(&self.directory).map_err(at(&self.directory))?;
        for seat in 0..seats {
            JournalPlace::of(&self.journal_slot(seat), JournalLayout::Directory).create(log_bytes)?;
        }
        let path = self.start();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(at(&path))?;
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

    /// Each step may be cut off: what is in the database's place says where it goes on.
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

    /// What stands in the database's place. Longer than a database's header, so that SQLite looks at it and
    /// says what it is not.
    fn write_note(&self, path: &Path) -> Result<(), DatabaseStateError> {
        let mut text = format!(
            "{}: netram holds it, with its newest commits in other machines' memory.\n\
             Programs open it by file:{name}?vfs=netram, with netram's extension loaded.\n\
             `netram sqlite status {name}` says how it stands; `netram sqlite release {name}` puts it back here.\n",
            String::from_utf8_lossy(NOTE_HEAD),
            name = self.path.display()
        );
        while text.len() < 512 {
            text.push('\n');
        }
        durable::replace(path, text.as_bytes()).map_err(at(path))?;
        fs::set_permissions(path, Permissions::from_mode(0o444)).map_err(at(path))
    }

    /// Puts the database back. All of it is on the disk, and nobody has it open.
    pub(crate) fn give_back(&self) -> Result<(), DatabaseStateError> {
        let marker = self.marker();
        match fs::remove_file(&marker) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(at(&marker)(error)),
            _ => durable::sync(&self.directory).map_err(at(&self.directory))?,
        }
        // The note is there until the database is: a log of it is nobody's in between.
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
            // Whatever else is there is not ours to remove.
            true => fs::remove_dir(&self.directory).map_err(at(&self.directory)),
        }
    }

    /// Removes what there is beside database and logs.
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
        // Where nothing is left, there was nothing to begin with.
        let _ = fs::remove_dir(&self.directory);
    }

    /// Whether giving it back was cut off.
    pub(crate) fn is_release_unfinished(&self) -> bool {
        !self.is_managed() && self.directory.exists()
    }
}

/// What it is, if it is no file. Reading a pipe would wait for whoever writes to it.
fn file_type_name(named: &Metadata) -> Option<&'static str> {
    let kind = named.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a directory"),
        () if kind.is_symlink() => Some("a link to another name"),
        () => Some("no regular file"),
    }
}

/// How a file begins, if it is there.
fn head_of(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut head = Vec::new();
    file.take(NOTE_HEAD.len() as u64).read_to_end(&mut head)?;
    Ok(Some(head))
}

fn give(path: &Path, uid: u32, gid: u32) -> Result<(), DatabaseStateError> {
    chown(path, Some(uid), Some(gid)).map_err(at(path))?;
    if path.is_dir() {
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
    fn a_database_that_is_taken_is_no_database_where_it_was_and_comes_back() {
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
    fn what_was_cut_off_goes_on() {
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
    fn between_any_two_steps_the_database_is_not_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let text = [DATABASE_HEAD, &[7; 5000]].concat();
        fs::write(&path, &text).unwrap();
        let place = DatabasePaths::of(&path).unwrap();
        create(&place).unwrap();
        // As it was before the database had its name inside; then, as it was before the exchange.
        fs::remove_file(place.marker()).unwrap();
        fs::rename(place.file(FileRole::Main), place.note()).unwrap();
        let refused = place.create(1, 7, |_| unreachable!("the size is refused before"));
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
    fn a_database_that_was_taken_is_not_written_over_by_another_one_in_its_place() {
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
    fn what_is_no_database_stays_where_it_is() {
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
    fn what_is_no_file_is_called_by_what_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (real, link) = (directory.path().join("real.db"), directory.path().join("link.db"));
        fs::write(&real, "").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        fs::create_dir(directory.path().join("directory")).unwrap();
        for (name, what) in [("directory", "a directory"), ("link.db", "a link")] {
            let place = DatabasePaths::of(&directory.path().join(name)).unwrap();
            let refused = create(&place).unwrap_err().to_string();
            assert!(
                refused.contains(what) && refused.contains("name the file"),
                "{refused}"
            );
            assert!(!place.directory().exists());
        }
        assert!(link.is_symlink() && real.is_file());
    }
}
