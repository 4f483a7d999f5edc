//! A database that this process has open: its files' locks, its journal, and the thread that looks after
//! both.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_journal::{
    ForkMark, Journal, JournalConfig, JournalLock, JournalOpenError as JournalError, QuorumError,
};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::Durability;
use netram_sqlite_machine::{
    DatabaseRecoverError, DatabaseRecovery, DatabaseWriter, DatabaseWriterError, FileContents, FileRole,
    JournalSlots, PROCESS_SLOTS, SharedIndex, SyncMedium, recover,
};
use netram_store::{StoreSettings, StoreSettingsError};
use rustix::fs::{FlockOperation, flock};

use crate::database_disk::{DatabaseDisk, FileLock, lock_file, try_lock, wait_for_lock};
use crate::paths::{DatabasePaths, DatabaseStateError};
use crate::vfs::{IndexMapping, warn};

/// How often it is looked whether the journal is to be emptied.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(50);
/// Everything is brought to the disk once in so long; sooner if the journal is half full.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);
/// Whoever commits once and goes does so by the disk: a journal takes as long to open.
const FIRST_ATTEMPT_DELAY: Duration = Duration::from_millis(20);
/// A journal that could not be opened is tried again after this.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// How long lenders may take to become members before it is said that commits wait for the disk.
const MEMBERS_PATIENCE: Duration = Duration::from_secs(3);

/// Why a database is not opened. What was committed is in its journals, and at their lenders.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseOpenError {
    /// It is not held, or not where it should be.
    #[error(transparent)]
    State(#[from] DatabaseStateError),
    /// The settings are of no use.
    #[error(transparent)]
    Settings(#[from] StoreSettingsError),
    /// A journal could not be recovered: a lender is missing, for one.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// What the journals have could not be brought into the database.
    #[error("{}: {source}", .path.display())]
    Recover {
        /// The database.
        path: PathBuf,
        /// Why.
        source: DatabaseRecoverError,
    },
    /// What a process left that was killed could not be brought to the disk.
    #[error("{}: {source}", .path.display())]
    Writer {
        /// The database.
        path: PathBuf,
        /// Why.
        source: DatabaseWriterError,
    },
    /// Too many have it open.
    #[error("{} is open in {PROCESS_SLOTS} processes already", .path.display())]
    TooManyProcesses {
        /// The database.
        path: PathBuf,
    },
    /// Somebody has it open.
    #[error("{} is open in another process; close it there first", .path.display())]
    InUse {
        /// The database.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    Io {
        /// What was opened, or mapped.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// A database that this process has open.
pub struct Database {
    inner: Arc<Inner>,
    maintenance_thread: JoinHandle<()>,
}

struct Inner {
    paths: DatabasePaths,
    writer: DatabaseWriter<Journal, DatabaseDisk>,
    config: JournalConfig,
    maintenance: Mutex<MaintenanceState>,
    wake: Condvar,
    /// Shared with other processes that have it open.
    _open: FileLock,
    _slot: FileLock,
    mark: ForkMark,
}

#[derive(Default)]
struct MaintenanceState {
    /// Somebody has synced: there is to be a journal.
    wanted: bool,
    ended: bool,
    /// Why there is none, as it was told last.
    trouble: Option<String>,
}

pub(crate) fn at(path: PathBuf) -> impl FnOnce(io::Error) -> DatabaseOpenError {
    move |source| DatabaseOpenError::Io { path, source }
}

impl Database {
    /// Opens a database that netram holds. The first one after a crash of the machine brings the journals
    /// into it.
    pub fn open(place: &DatabasePaths) -> Result<(Database, DatabaseRecovery), DatabaseOpenError> {
        place.check_managed()?;
        let config = config(place, false)?;
        let main = place.file(FileRole::Main);
        let disk = DatabaseDisk::at(place).map_err(at(main))?;
        let shared = MappedIndex::of(place)?;
        let (open, recovered) = join(place, &disk, &shared, &config)?;
        // It was given back while this waited to come in.
        place.check_managed()?;
        let (number, slot) = take_slot(place)?;
        let party = DatabaseWriter::join(disk, shared.index, number, Durability::Remote, FaultSwitch::NONE)
            .map_err(|source| DatabaseOpenError::Writer {
            path: place.path().to_path_buf(),
            source,
        })?;
        let inner = Arc::new(Inner {
            paths: place.clone(),
            writer: party,
            config,
            maintenance: Mutex::default(),
            wake: Condvar::new(),
            _open: open,
            _slot: slot,
            mark: ForkMark::here(),
        });
        let kept = Arc::clone(&inner);
        let seat = std::thread::Builder::new()
            .name("netram-seat".to_owned())
            .spawn(move || kept.maintain())
            .map_err(at(place.path().to_path_buf()))?;
        Ok((
            Database {
                inner,
                maintenance_thread: seat,
            },
            recovered,
        ))
    }

    /// Where it is.
    pub fn paths(&self) -> &DatabasePaths {
        &self.inner.paths
    }

    /// Whether this is a child of the process that has it open. Nothing is done to it there, and it is not
    /// closed: its threads, locks and journal are the parent's.
    pub fn is_of_parent(&self) -> bool {
        self.inner.mark.is_child()
    }

    /// Writes to one of its files.
    pub fn write<T>(&self, role: FileRole, offset: u64, length: u64, act: impl FnOnce() -> T) -> T {
        self.inner.writer.write(role, offset, length, act)
    }

    /// Gives one of its files a length.
    pub fn resize<T>(&self, role: FileRole, size: u64, act: impl FnOnce() -> T) -> T {
        self.inner.writer.resize(role, size, act)
    }

    /// Removes one of its files, which is durable when this returns.
    pub fn remove<T, E: From<DatabaseWriterError>>(
        &self,
        role: FileRole,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.request_journal();
        self.inner.writer.remove(role, act)
    }

    /// Makes what was written to one of its files durable.
    pub fn sync(
        &self,
        role: FileRole,
        file: &mut dyn FileContents,
    ) -> Result<SyncMedium, DatabaseWriterError> {
        self.request_journal();
        self.inner.writer.sync(role, file)
    }

    /// The first that is made durable is by the disk, while the journal is opened. Whoever only reads needs
    /// none.
    fn request_journal(&self) {
        let mut keeper = self.inner.maintenance();
        if !keeper.wanted {
            keeper.wanted = true;
            self.inner.wake.notify_all();
        }
    }

    /// Brings all of it to the disk, and needs no lender any more.
    pub fn close(self) -> Result<(), DatabaseWriterError> {
        if self.is_of_parent() {
            let _parents = std::mem::ManuallyDrop::new(self);
            return Ok(());
        }
        let Database {
            inner,
            maintenance_thread: seat,
        } = self;
        inner.maintenance().ended = true;
        inner.wake.notify_all();
        // It has the database's file open, too, which must not be closed when somebody has opened it anew.
        let _ = seat.join();
        let closed = match inner.writer.has_records() {
            true => inner.writer.checkpoint(),
            false => Ok(()),
        };
        drop(inner.writer.detach_journal());
        closed
    }
}

impl Inner {
    fn maintenance(&self) -> MutexGuard<'_, MaintenanceState> {
        self.maintenance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks after the journal, until the database is closed.
    fn maintain(&self) {
        let (mut tried, mut last, mut told): (Option<Instant>, _, _) = (None, Instant::now(), false);
        let mut joining = true;
        loop {
            {
                // Who only reads is not looked after.
                let idle = |keeper: &mut MaintenanceState| !keeper.wanted && !keeper.ended;
                let keeper = self.wake.wait_while(self.maintenance(), idle);
                let keeper = keeper.unwrap_or_else(PoisonError::into_inner);
                let pause = if tried.is_some() {
                    MAINTENANCE_INTERVAL
                } else {
                    FIRST_ATTEMPT_DELAY
                };
                let paused = self
                    .wake
                    .wait_timeout_while(keeper, pause, |keeper| !keeper.ended);
                if paused.unwrap_or_else(PoisonError::into_inner).0.ended {
                    return;
                }
            }
            if self.writer.log().is_none() && tried.is_none_or(|tried| tried.elapsed() > RETRY_INTERVAL) {
                tried = Some(Instant::now());
                self.take_journal_slot();
            }
            joining = joining && !self.has_checked_lenders(tried);
            let due = last.elapsed() > CHECKPOINT_INTERVAL && self.writer.has_records();
            if due || self.writer.needs_checkpoint() {
                last = Instant::now();
                if let Err(error) = self.writer.checkpoint()
                    && !std::mem::replace(&mut told, true)
                {
                    let database = self.paths.path().display();
                    warn(&format!("{database} is not brought to the disk: {error}"));
                }
            }
        }
    }

    /// Says once why lenders do not count, unless they do; they are given time for it. Whether it has been
    /// looked.
    fn has_checked_lenders(&self, sat_down: Option<Instant>) -> bool {
        let Some(log) = self.writer.log() else {
            return false;
        };
        if sat_down.is_none_or(|at| at.elapsed() < MEMBERS_PATIENCE) {
            return false;
        }
        if let Err(why) = check_members(&log, Duration::ZERO) {
            warn(&format!(
                "{}: commits wait for the disk: {why}",
                self.paths.path().display()
            ));
        }
        true
    }

    /// Takes a journal that no other process has.
    fn take_journal_slot(&self) {
        let trouble = self.try_take_journal_slot().err();
        let before = std::mem::replace(&mut self.maintenance().trouble, trouble.clone());
        if let Some(trouble) = trouble
            && before.as_ref() != Some(&trouble)
        {
            let database = self.paths.path().display();
            warn(&format!(
                "{database} has no journal, and its commits go to the disk: {trouble}"
            ));
        }
    }

    fn try_take_journal_slot(&self) -> Result<(), String> {
        let journals = JournalDirs {
            dirs: self.paths.journal_slots(),
            config: &self.config,
        };
        self.writer
            .take_journal_slot(&journals)
            .map_err(|error| error.to_string())
    }
}

/// A database's journals, of which this process takes one.
struct JournalDirs<'a> {
    dirs: Vec<PathBuf>,
    config: &'a JournalConfig,
}

impl JournalSlots for JournalDirs<'_> {
    type JournalSlotLock = JournalLock;
    type Log = Journal;
    type Error = JournalError;

    fn count(&self) -> usize {
        self.dirs.len()
    }

    fn lock(&self, seat: usize) -> Result<Option<JournalLock>, JournalError> {
        match netram_journal::JournalPaths::at(&self.dirs[seat]).lock() {
            Ok(lock) => Ok(Some(lock)),
            Err(JournalError::InUse { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whoever of its lenders are gone, nothing is missing.
    fn open(&self, _seat: usize, lock: JournalLock) -> Result<Journal, JournalError> {
        let config = JournalConfig {
            accept_loss: true,
            patience: Duration::ZERO,
            ..self.config.clone()
        };
        Ok(Journal::open_locked(lock, config, &mut || Ok(()))?.0)
    }
}

/// What the settings beside the database say, and the environment over them.
pub(crate) fn settings(place: &DatabasePaths) -> Result<StoreSettings, DatabaseOpenError> {
    let file = place.settings();
    let settings = match file.exists() {
        true => StoreSettings::load(&file)?,
        false => StoreSettings::default(),
    };
    Ok(settings.with_environment(&|name| std::env::var(name).ok())?)
}

/// How the journals of the database at `place` are opened.
pub(crate) fn config(place: &DatabasePaths, accept_loss: bool) -> Result<JournalConfig, DatabaseOpenError> {
    let mut settings = settings(place)?;
    settings.accept_loss |= accept_loss;
    Ok(settings.journal_config()?)
}

/// Whether lenders count, or why they do not, if the settings name any.
fn check_members(journal: &Journal, patience: Duration) -> Result<(), QuorumError> {
    match journal.status().writer.lenders.is_empty() {
        true => Ok(()),
        false => journal.wait_for_members(patience),
    }
}

/// Why commits of a database will wait for the disk that has just been taken, and that nobody has written to.
/// `None`: lenders count, or there are to be none; or the journal is somebody's already, who says it.
pub fn why_lenders_wait(place: &DatabasePaths) -> Result<Option<QuorumError>, DatabaseOpenError> {
    let Some(seat) = place.journal_slots().into_iter().next() else {
        return Ok(None);
    };
    match Journal::open(&seat, config(place, false)?) {
        Ok((journal, _)) => Ok(check_members(&journal, MEMBERS_PATIENCE).err()),
        Err(JournalError::InUse { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What the processes of a database have in memory together.
pub(crate) struct MappedIndex {
    pub(crate) index: SharedIndex,
    /// What the ledger is marked with while it counts: this boot of the machine, and this file. A copy of it
    /// is of no boot.
    boot_mark: u64,
}

impl MappedIndex {
    pub(crate) fn of(place: &DatabasePaths) -> Result<MappedIndex, DatabaseOpenError> {
        let mapping = IndexMapping::of(&place.shared_index()).map_err(at(place.shared_index()))?;
        let file = mapping.number().map_err(at(place.shared_index()))?;
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
        let boot = u64::from_str_radix(&digits, 16).unwrap_or(1);
        Ok(MappedIndex {
            index: SharedIndex::new(Box::new(mapping)),
            boot_mark: (boot ^ file.rotate_left(32)) | 1,
        })
    }

    /// Whether the files have all that was written, as the machine's memory shows them.
    pub(crate) fn is_current(&self) -> bool {
        self.index.is_of_boot(self.boot_mark)
    }

    /// Everything is on the disk, and the next record has this number.
    pub(crate) fn reset(&self, next: u64) {
        self.index.reset(self.boot_mark, next);
    }
}

/// Joins those that have it open. Whoever is the first since the machine's memory was lost recovers it.
fn join(
    place: &DatabasePaths,
    disk: &DatabaseDisk,
    shared: &MappedIndex,
    config: &JournalConfig,
) -> Result<(FileLock, DatabaseRecovery), DatabaseOpenError> {
    let path = place.open();
    let file = Arc::new(lock_file(&path).map_err(at(path.clone()))?);
    let mut recovered = DatabaseRecovery::default();
    loop {
        let lock = FileLock::of(Arc::clone(&file));
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && !shared.is_current() {
            recovered = recover_all(place, disk, shared, config)?;
        }
        wait_for_lock(&file, FlockOperation::LockShared).map_err(at(path.clone()))?;
        if shared.is_current() {
            return Ok((lock, recovered));
        }
        if shared.index.has_failed() {
            return Err(DatabaseOpenError::Writer {
                path: place.path().to_path_buf(),
                source: DatabaseWriterError::Failed,
            });
        }
        // Whoever was the first has failed, and is about to leave.
        drop(lock);
        std::thread::sleep(MAINTENANCE_INTERVAL);
    }
}

/// Brings the journals into the files, of which nobody else has one open.
pub(crate) fn recover_all(
    place: &DatabasePaths,
    disk: &DatabaseDisk,
    shared: &MappedIndex,
    config: &JournalConfig,
) -> Result<DatabaseRecovery, DatabaseOpenError> {
    let seats = place.journal_slots();
    check_all(&seats, config)?;
    let journals = seats.into_iter().map(|seat| {
        let (journal, _) = Journal::open(&seat, config.clone())?;
        Ok(journal)
    });
    let journals = journals.collect::<Result<Vec<Journal>, JournalError>>()?;
    // Until then nothing was changed, whatever was refused. From here on a crash leaves files that are of no
    // moment.
    shared.index.invalidate();
    let recovered =
        recover(&journals, disk, FaultSwitch::NONE).map_err(|source| DatabaseOpenError::Recover {
            path: place.path().to_path_buf(),
            source,
        })?;
    shared.reset(recovered.next);
    Ok(recovered)
}

/// Asks whether each journal would open, before any of them begins a reign (rule 18): opened one after the
/// other, the first would be fenced and read for a recovery that the last one refuses.
fn check_all(seats: &[PathBuf], config: &JournalConfig) -> Result<(), JournalError> {
    if seats.len() < 2 {
        return Ok(());
    }
    // They ask side by side: one that waits for its members does not hold up the others.
    let checks: Vec<_> = std::thread::scope(|scope| {
        let ask = |seat: &PathBuf| {
            let asking = seat.clone();
            let asked =
                std::thread::Builder::new().spawn_scoped(scope, move || Journal::check(&asking, config));
            // Without room for a thread they ask one after the other.
            asked.map_err(|_| Box::new(Journal::check(seat, config)))
        };
        let asked: Vec<_> = seats.iter().map(ask).collect();
        let answers = asked.into_iter().map(|asked| match asked {
            Ok(asking) => asking.join().expect("a check does not panic"),
            Err(answer) => *answer,
        });
        answers.collect()
    });
    for check in checks {
        if let Some(refusal) = check?.refusal {
            return Err(refusal);
        }
    }
    Ok(())
}

fn take_slot(place: &DatabasePaths) -> Result<(usize, FileLock), DatabaseOpenError> {
    for number in 0..PROCESS_SLOTS {
        let path = place.slot(number);
        if let Some(lock) = try_lock(&path).map_err(at(path))? {
            return Ok((number, lock));
        }
    }
    Err(DatabaseOpenError::TooManyProcesses {
        path: place.path().to_path_buf(),
    })
}
