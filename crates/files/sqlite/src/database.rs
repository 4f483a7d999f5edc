//! A database that this process has open: its lock, its journal and its maintenance thread.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_journal::settings::{JournalSettings, SettingsError};
use netram_journal::{
    ForkMark, Journal, JournalConfig, JournalLock, JournalOpenError as JournalError, QuorumError,
};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::Durability;
use netram_sqlite_machine::{
    DatabaseRecoverError, DatabaseRecovery, DatabaseWriter, DatabaseWriterError, FileContents, FileRole,
    JournalSlots, PROCESS_SLOTS, SharedIndex, SyncMedium, recover,
};
use netram_telemetry::MetricsRegistration;
use rustix::fs::{FlockOperation, flock};

use crate::database_disk::{DatabaseDisk, FileLock, lock_file, try_lock, wait_for_lock};
use crate::metrics::DatabaseMetrics;
use crate::paths::{DatabasePaths, DatabaseStateError};
use crate::vfs::{IndexMapping, warn};

/// Interval at which the maintenance thread checks whether a checkpoint is due.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(50);
/// Checkpoint interval; a checkpoint also runs when the journal is half full.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);
/// Delay before the first journal is opened. Opening takes as long, so a process that commits once and exits
/// uses the disk.
const FIRST_ATTEMPT_DELAY: Duration = Duration::from_millis(20);
/// Delay before a failed opening of a journal is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Time that lenders get to become members before a warning says that commits wait for the disk.
const MEMBERS_PATIENCE: Duration = Duration::from_secs(3);

/// Why a database cannot be opened. Committed data is safe in its journals and at their lenders.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseOpenError {
    /// The database is not managed by netram, or its files are not in place.
    #[error(transparent)]
    State(#[from] DatabaseStateError),
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A journal could not be recovered, for example because a lender is missing.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journals could not be replayed into the database.
    #[error("{}: {source}", .path.display())]
    Recover {
        /// The database.
        path: PathBuf,
        /// Reason that recovery gave.
        source: DatabaseRecoverError,
    },
    /// Unrecorded writes of a killed process could not be brought to the disk.
    #[error("{}: {source}", .path.display())]
    Writer {
        /// The database.
        path: PathBuf,
        /// Reason that the checkpoint gave.
        source: DatabaseWriterError,
    },
    /// The maximum number of processes have the database open.
    #[error("{} is open in {PROCESS_SLOTS} processes already", .path.display())]
    TooManyProcesses {
        /// The database.
        path: PathBuf,
    },
    /// Another process has the database open.
    #[error("{} is open in another process; close it there first", .path.display())]
    InUse {
        /// The database.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// File that was being opened or mapped.
        path: PathBuf,
        /// Error that the system returned.
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
    /// Lock shared by all processes that have the database open.
    _open: FileLock,
    _slot: FileLock,
    mark: ForkMark,
    metrics: MetricsRegistration<DatabaseMetrics>,
}

#[derive(Default)]
struct MaintenanceState {
    /// Whether a sync has asked for a journal.
    wanted: bool,
    ended: bool,
    /// Last reported reason for having no journal.
    trouble: Option<String>,
}

pub(crate) fn at(path: PathBuf) -> impl FnOnce(io::Error) -> DatabaseOpenError {
    move |source| DatabaseOpenError::Io { path, source }
}

impl Database {
    /// Opens a managed database. The first open after a crash of the machine replays the journals into it.
    ///
    /// # Errors
    ///
    /// See [`DatabaseOpenError`].
    pub fn open(place: &DatabasePaths) -> Result<(Database, DatabaseRecovery), DatabaseOpenError> {
        place.check_managed()?;
        let config = config(place, false)?;
        let main = place.file(FileRole::Main);
        let disk = DatabaseDisk::at(place).map_err(at(main))?;
        let shared = MappedIndex::of(place)?;
        let (open, recovered) = join(place, &disk, &shared, &config)?;
        // The database may have been released while this process waited for the lock.
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
            metrics: DatabaseMetrics::register(place.path()),
        });
        let kept = Arc::clone(&inner);
        let seat = std::thread::Builder::new()
            .name("netram-sqlite".to_owned())
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

    /// Paths of the database.
    pub fn paths(&self) -> &DatabasePaths {
        &self.inner.paths
    }

    /// Whether this process is a child, by `fork`, of the one that opened the database. Threads, locks and
    /// journal belong to the parent, so the child may neither change nor close it.
    pub fn is_of_parent(&self) -> bool {
        self.inner.mark.is_child()
    }

    /// Writes to a file of the database: `act` does the write, which is noted for the next sync.
    pub fn write<T>(&self, role: FileRole, offset: u64, length: u64, act: impl FnOnce() -> T) -> T {
        self.inner.writer.write(role, offset, length, act)
    }

    /// Sets the length of a file of the database: `act` does it, and the change is noted for the next sync.
    pub fn resize<T>(&self, role: FileRole, size: u64, act: impl FnOnce() -> T) -> T {
        self.inner.writer.resize(role, size, act)
    }

    /// Removes a file of the database; the removal is durable on return.
    ///
    /// # Errors
    ///
    /// The error of `act`, or a [`DatabaseWriterError`] if the removal is not durable.
    pub fn remove<T, E: From<DatabaseWriterError>>(
        &self,
        role: FileRole,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        self.request_journal();
        self.inner.writer.remove(role, act)
    }

    /// Makes all earlier writes to a file of the database durable.
    ///
    /// # Errors
    ///
    /// See [`DatabaseWriterError`].
    pub fn sync(
        &self,
        role: FileRole,
        file: &mut dyn FileContents,
    ) -> Result<SyncMedium, DatabaseWriterError> {
        self.request_journal();
        let begun = Instant::now();
        let synced = self.inner.writer.sync(role, file);
        let metrics = &self.inner.metrics;
        match &synced {
            Ok(medium) => metrics.syncs(role, *medium).record(begun.elapsed()),
            Err(_) => metrics.syncs_failed.add(1),
        }
        synced
    }

    /// Asks the maintenance thread for a journal. The first sync uses the disk meanwhile; a process that only
    /// reads needs no journal.
    fn request_journal(&self) {
        let mut keeper = self.inner.maintenance();
        if !keeper.wanted {
            keeper.wanted = true;
            self.inner.wake.notify_all();
        }
    }

    /// Brings everything to the disk and closes the database. No lender is needed.
    ///
    /// # Errors
    ///
    /// See [`DatabaseWriterError`]; the journals keep the records.
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
        // The thread must end first. It has the database's file open, and closing that after another open
        // would end the new locks.
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

    /// Loop of the maintenance thread until the database is closed.
    fn maintain(&self) {
        let (mut tried, mut last, mut told): (Option<Instant>, _, _) = (None, Instant::now(), false);
        let mut joining = true;
        loop {
            {
                // A process that only reads needs no maintenance.
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
                let made = self.writer.checkpoint();
                self.metrics.checkpoint.record(last.elapsed());
                self.metrics.checkpoints_fail.set(made.is_err().into());
                if let Err(error) = made
                    && !std::mem::replace(&mut told, true)
                {
                    let database = self.paths.path().display();
                    warn(&format!("{database}: checkpoint failed: {error}"));
                }
            }
        }
    }

    /// Warns once if lenders do not count after [`MEMBERS_PATIENCE`]. Returns whether that has been checked.
    fn has_checked_lenders(&self, since: Option<Instant>) -> bool {
        let Some(log) = self.writer.log() else {
            return false;
        };
        if since.is_none_or(|at| at.elapsed() < MEMBERS_PATIENCE) {
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

    /// Takes a free journal slot.
    fn take_journal_slot(&self) {
        let trouble = self.try_take_journal_slot().err();
        self.metrics.has_journal.set(trouble.is_none().into());
        let before = std::mem::replace(&mut self.maintenance().trouble, trouble.clone());
        if let Some(trouble) = trouble
            && before.as_ref() != Some(&trouble)
        {
            let database = self.paths.path().display();
            warn(&format!(
                "{database} has no journal, so its commits wait for the disk: {trouble}"
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

/// The journal slots of a database, as directories on the disk.
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

    /// Opens the journal even without its lenders: its records are on the disk already.
    fn open(&self, _seat: usize, lock: JournalLock) -> Result<Journal, JournalError> {
        let config = JournalConfig {
            accept_loss: true,
            patience: Duration::ZERO,
            ..self.config.clone()
        };
        Ok(Journal::open_locked(lock, config, &mut || Ok(()))?.0)
    }
}

/// Settings from the file beside the database; environment variables take precedence.
pub(crate) fn settings(place: &DatabasePaths) -> Result<JournalSettings, DatabaseOpenError> {
    let file = place.settings();
    let settings = match file.exists() {
        true => JournalSettings::load(&file)?,
        false => JournalSettings::default(),
    };
    Ok(settings.with_environment(&|name| std::env::var(name).ok())?)
}

/// Journal configuration of a database.
pub(crate) fn config(place: &DatabasePaths, accept_loss: bool) -> Result<JournalConfig, DatabaseOpenError> {
    let mut settings = settings(place)?;
    settings.accept_loss |= accept_loss;
    Ok(settings.journal_config()?)
}

/// Checks that lenders count, if the settings name any.
fn check_members(journal: &Journal, patience: Duration) -> Result<(), QuorumError> {
    match journal.status().writer.lenders.is_empty() {
        true => Ok(()),
        false => journal.wait_for_members(patience),
    }
}

/// Why commits of a newly managed database will wait for the disk. `None`: lenders count, none are
/// configured, or another process owns the journal and reports it.
///
/// # Errors
///
/// See [`DatabaseOpenError`].
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

/// The shared index, mapped, with its boot mark.
pub(crate) struct MappedIndex {
    pub(crate) index: SharedIndex,
    /// Mark of this boot and this file. A copy of the file therefore belongs to no boot.
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

    /// Whether the cached files have all writes, so that no recovery is needed.
    pub(crate) fn is_current(&self) -> bool {
        self.index.is_of_boot(self.boot_mark)
    }

    /// Resets the index: everything is on the disk, and the next record gets the number `next`.
    pub(crate) fn reset(&self, next: u64) {
        self.index.reset(self.boot_mark, next);
    }
}

/// Joins the processes that have the database open. The first one after a crash of the machine recovers it.
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
        // The first process has failed and is about to release its lock.
        drop(lock);
        std::thread::sleep(MAINTENANCE_INTERVAL);
    }
}

/// Replays the journals into the files. No other process may have the database open.
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
    // Nothing has changed yet. A crash from here on leaves an index without a boot mark.
    shared.index.invalidate();
    let recovered =
        recover(&journals, disk, FaultSwitch::NONE).map_err(|source| DatabaseOpenError::Recover {
            path: place.path().to_path_buf(),
            source,
        })?;
    shared.reset(recovered.next);
    Ok(recovered)
}

/// Checks that every journal would open before any begins a new epoch (rule 18). Otherwise the first could be
/// fenced and read for a recovery that the last one refuses.
fn check_all(seats: &[PathBuf], config: &JournalConfig) -> Result<(), JournalError> {
    if seats.len() < 2 {
        return Ok(());
    }
    // The checks run in parallel: a journal that waits for its members does not delay the others.
    let checks: Vec<_> = std::thread::scope(|scope| {
        let ask = |seat: &PathBuf| {
            let asking = seat.clone();
            let asked =
                std::thread::Builder::new().spawn_scoped(scope, move || Journal::check(&asking, config));
            // If no thread can be started, the checks run one after the other.
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
