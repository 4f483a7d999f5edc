//! The backing disk of a database, and the state that its processes share there.
//!
//! Files that are synced regularly stay open. A process that is out of descriptors can then still sync. A
//! descriptor opened before a write also learns of a failed write-back, whichever process was told first.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use netram_journal::ForkMark;
use netram_journal::file::{DiskFile, io_error};
use netram_process::files::{self, FileAccess, PRIVATE};
use netram_proto::failure::{CallError, SystemCall};
use netram_proto::journal::{SlotError, SlotPair};
use netram_proto::port::IoError;
use netram_sqlite_machine::{BackingFiles, FileRole};
use rustix::fs::{Advice, FlockOperation, fadvise, flock};
use rustix::io::Errno;

use crate::paths::DatabasePaths;

/// Magic number of the file with the start number.
pub(crate) const START_MAGIC: [u8; 8] = *b"ntrmstrt";
/// Length of each of the file's two slots in bytes.
pub(crate) const START_BYTES: usize = 512;
/// Bytes that are read and rewritten at a time.
const REWRITE_CHUNK_BYTES: usize = 1 << 20;

/// The backing disk of one database.
pub(crate) struct DatabaseDisk {
    paths: DatabasePaths,
    /// Stays open as long as the database: closing any descriptor of a file ends all POSIX locks of the
    /// process on it, SQLite's included.
    main: File,
    /// The log files last seen under their names. SQLite replaces them.
    logs: Mutex<[Option<Arc<File>>; 2]>,
    /// Directory of the logs.
    directory: File,
    start: DiskFile,
    checkpoint_lock: Arc<File>,
}

/// A lock on an open file, released when the value is dropped. A child of `fork` shares the descriptor. There
/// the drop releases nothing, and the child does not keep a lock that the parent releases.
pub(crate) struct FileLock {
    file: Arc<File>,
    mark: ForkMark,
}

impl FileLock {
    /// Wraps a lock, of either kind, that this file holds.
    pub(crate) fn of(file: Arc<File>) -> FileLock {
        let mark = ForkMark::here();
        FileLock { file, mark }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        if !self.mark.is_child() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

/// Opens a lock file, creating it if needed.
pub(crate) fn lock_file(path: &Path) -> io::Result<File> {
    Ok(files::open_or_create(path, PRIVATE)?)
}

/// Waits for a lock, also when interrupted by signals.
pub(crate) fn wait_for_lock(file: &File, operation: FlockOperation) -> io::Result<()> {
    loop {
        match flock(file, operation) {
            Err(Errno::INTR) => (),
            locked => return Ok(locked?),
        }
    }
}

/// Takes an exclusive lock. `None`: another process has it.
pub(crate) fn try_lock(path: &Path) -> io::Result<Option<FileLock>> {
    let file = lock_file(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(FileLock::of(Arc::new(file)))),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn io_error_of(error: &io::Error) -> IoError {
    io_error(error)
}

fn of(call: SystemCall) -> impl FnOnce(io::Error) -> CallError {
    move |error| io_error_of(&error).of(call)
}

fn missing_as_none<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl DatabaseDisk {
    pub(crate) fn at(place: &DatabasePaths) -> io::Result<DatabaseDisk> {
        let open = |path: &Path| -> io::Result<File> { Ok(files::open(path, FileAccess::Write)?) };
        Ok(DatabaseDisk {
            // Opened for writing, which only recovery needs, before SQLite has any lock on the file.
            main: open(&place.file(FileRole::Main))?,
            logs: Mutex::default(),
            directory: File::open(place.directory())?,
            start: DiskFile::new(open(&place.start())?),
            checkpoint_lock: Arc::new(lock_file(&place.checkpoint_lock())?),
            paths: place.clone(),
        })
    }

    /// The log file that now has this name, if any.
    fn log(&self, role: FileRole) -> io::Result<Option<Arc<File>>> {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &mut logs[role as usize - FileRole::Wal as usize];
        let path = self.paths.file(role);
        let Some(named) = missing_as_none(fs::metadata(&path))? else {
            *kept = None;
            return Ok(None);
        };
        if let Some(file) = kept {
            let ours = file.metadata()?;
            if (ours.dev(), ours.ino()) == (named.dev(), named.ino()) {
                return Ok(Some(Arc::clone(file)));
            }
        }
        *kept = None;
        let opened = files::open(&path, FileAccess::Write).map_err(io::Error::from);
        *kept = missing_as_none(opened)?.map(Arc::new);
        Ok(kept.clone())
    }

    /// Runs `act` on a file, creating it if needed.
    fn with<T>(&self, role: FileRole, act: impl FnOnce(&File) -> io::Result<T>) -> Result<T, IoError> {
        let done = match role {
            FileRole::Main => act(&self.main),
            role => self.log(role).and_then(|file| match file {
                Some(file) => act(&file),
                None => lock_file(&self.paths.file(role)).and_then(|file| act(&file)),
            }),
        };
        done.map_err(|error| io_error_of(&error))
    }

    /// Reads the start number anew each time, because other processes write it.
    fn start_slots(&self) -> Result<(SlotPair, u64), IoError> {
        let opened = SlotPair::open(&self.start, START_MAGIC, START_BYTES);
        let (slots, value) = opened.map_err(|error| match error {
            SlotError::Io(error) => error,
            SlotError::Foreign | SlotError::Damaged => IoError::EIO,
        })?;
        let value = value.try_into().map_err(|_| IoError::EIO)?;
        Ok((slots, u64::from_le_bytes(value)))
    }
}

/// Drops a file's page cache. The sync's error belongs to an earlier process and has been reported by now.
fn drop_cache(file: &File) {
    let _ = file.sync_data();
    let _ = fadvise(file, 0, None, Advice::DontNeed);
}

/// Rewrites a file with its own content: clean pages become dirty, and the next sync writes them to the disk.
fn rewrite(file: &File) -> io::Result<()> {
    let mut bytes = vec![0; REWRITE_CHUNK_BYTES];
    let mut at = 0;
    loop {
        match file.read_at(&mut bytes, at) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                file.write_all_at(&bytes[..length], at)?;
                at += length as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
}

impl BackingFiles for DatabaseDisk {
    type CheckpointGuard = FileLock;
    type DeadSlot = FileLock;

    fn lock_checkpoint(&self) -> Result<FileLock, IoError> {
        let locked = wait_for_lock(&self.checkpoint_lock, FlockOperation::LockExclusive);
        locked.map_err(|error| io_error_of(&error))?;
        Ok(FileLock::of(Arc::clone(&self.checkpoint_lock)))
    }

    /// A slot whose lock cannot be tried counts as alive: its writes stay marked unsafe a little longer.
    fn claim_dead_slot(&self, slot: usize) -> Option<FileLock> {
        try_lock(&self.paths.slot(slot)).ok().flatten()
    }

    fn sync(&self) -> Result<(), CallError> {
        self.main.sync_data().map_err(of(SystemCall::Sync))?;
        for role in [FileRole::Wal, FileRole::Journal] {
            if let Some(file) = self.log(role).map_err(of(SystemCall::Open))? {
                file.sync_data().map_err(of(SystemCall::Sync))?;
            }
        }
        self.directory.sync_all().map_err(of(SystemCall::Sync))
    }

    /// The logs are also rewritten, because dropping the cache is only advice. They decide which commits
    /// SQLite sees. What the database file lacks is in the logs or the journals.
    fn drop_cache(&self) -> Result<(), IoError> {
        drop_cache(&self.main);
        for role in [FileRole::Wal, FileRole::Journal] {
            let rewritten = self.log(role).and_then(|file| {
                let Some(file) = file else { return Ok(()) };
                drop_cache(&file);
                rewrite(&file)
            });
            rewritten.map_err(|error| io_error_of(&error))?;
        }
        Ok(())
    }

    fn start(&self) -> Result<u64, IoError> {
        Ok(self.start_slots()?.1)
    }

    fn set_start(&self, start: u64) -> Result<(), CallError> {
        let (mut slots, before) = self.start_slots().map_err(|error| error.of(SystemCall::Read))?;
        if start <= before {
            // The start number is unchanged: nothing was recorded since.
            return Ok(());
        }
        slots.store(&self.start, &start.to_le_bytes())
    }

    fn exists(&self, role: FileRole) -> Result<bool, IoError> {
        let found = self.paths.file(role).try_exists();
        found.map_err(|error| io_error_of(&error))
    }

    fn write(&self, role: FileRole, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        self.with(role, |file| file.write_all_at(bytes, offset))
    }

    fn resize(&self, role: FileRole, size: u64) -> Result<(), IoError> {
        self.with(role, |file| file.set_len(size))
    }

    fn remove(&self, role: FileRole) -> Result<(), IoError> {
        let removed = missing_as_none(fs::remove_file(self.paths.file(role)));
        removed.map(drop).map_err(|error| io_error_of(&error))
    }
}
