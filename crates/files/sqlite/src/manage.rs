//! Operations on a managed database without opening it: status, recovery, release.

use netram_journal::forget::{ForgetList, JournalDeletion, PATIENCE, UnfreedWindow, WindowRelease};
use netram_proto::failure::CallError;
use netram_sqlite_machine::{BackingFiles, DatabaseRecovery, FileRole};

use crate::database::{DatabaseOpenError, MappedIndex, at, config, recover_all, settings};
use crate::database_disk::{DatabaseDisk, FileLock, try_lock};
use crate::paths::{DatabasePaths, DatabaseStateError};

/// Takes the lock that excludes every process with the database open.
fn lock_exclusively(place: &DatabasePaths) -> Result<FileLock, DatabaseOpenError> {
    let path = place.open();
    let lock = try_lock(&path).map_err(at(path))?;
    lock.ok_or_else(|| DatabaseOpenError::InUse {
        path: place.path().to_path_buf(),
    })
}

/// Replays the journals into a database that no process has open, even if the machine has not crashed.
/// `accept_loss`: also if committed data may be missing.
///
/// # Errors
///
/// See [`DatabaseOpenError`].
pub fn recover_database(
    place: &DatabasePaths,
    accept_loss: bool,
) -> Result<DatabaseRecovery, DatabaseOpenError> {
    place.check_managed()?;
    let _alone = lock_exclusively(place)?;
    let config = config(place, accept_loss)?;
    let disk = DatabaseDisk::at(place).map_err(at(place.file(FileRole::Main)))?;
    recover_all(place, &disk, &MappedIndex::of(place)?, &config)
}

/// Gives a database back that no process has open: the complete file returns to its old path.
///
/// Its lenders are asked to free their windows. Returns the windows at lenders that were away; they are freed
/// later.
///
/// # Errors
///
/// See [`DatabaseOpenError`].
pub fn release(place: &DatabasePaths, accept_loss: bool) -> Result<Vec<UnfreedWindow>, DatabaseOpenError> {
    let deleting = || {
        let settings = settings(place).unwrap_or_default();
        let seats = place.journal_slots();
        let seats: Vec<_> = seats
            .iter()
            .map(|seat| netram_journal::JournalPaths::at(seat))
            .collect();
        let key = settings.key_file.as_deref();
        // The database file has everything by now.
        let windows = WindowRelease::All;
        JournalDeletion::begin(
            ForgetList::usual(),
            place.path(),
            &seats,
            windows,
            &settings.lenders,
            key,
        )
    };
    let done = |deleting: Option<JournalDeletion>| {
        deleting.map_or_else(Vec::new, |deleting| deleting.done(PATIENCE))
    };
    match place.check_managed() {
        Err(DatabaseStateError::NotManaged { .. }) if place.is_release_unfinished() => {
            let deleting = deleting();
            place.give_back()?;
            return Ok(done(deleting));
        }
        held => held?,
    }
    let lock = lock_exclusively(place)?;
    let disk = DatabaseDisk::at(place).map_err(at(place.file(FileRole::Main)))?;
    let shared = MappedIndex::of(place)?;
    if shared.is_current() {
        // The page cache has everything. If a sync fails, a later attempt must not trust that cache.
        let lost = |error: &CallError| {
            if error.is_final() {
                shared.index.fail();
            }
        };
        disk.sync()
            .inspect_err(lost)
            .map_err(|error| DatabaseOpenError::Writer {
                path: place.path().to_path_buf(),
                source: error.into(),
            })?;
    } else {
        recover_all(place, &disk, &shared, &config(place, accept_loss)?)?;
    }
    let deleting = deleting();
    place.give_back()?;
    drop(lock);
    Ok(done(deleting))
}

/// Status of a managed database, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseStatus {
    /// Whether a process has it open.
    pub open: bool,
    /// Whether the machine has crashed since it was written; the next open recovers it.
    pub to_recover: bool,
    /// Number of journal slots.
    pub journal_slots: usize,
    /// Number of slots that processes own.
    pub slots_in_use: usize,
}

/// Reads the status of a managed database and changes nothing.
///
/// # Errors
///
/// See [`DatabaseOpenError`].
pub fn database_status(place: &DatabasePaths) -> Result<DatabaseStatus, DatabaseOpenError> {
    place.check_managed()?;
    let open = try_lock(&place.open()).map_err(at(place.open()))?.is_none();
    let shared = MappedIndex::of(place)?;
    let seats = place.journal_slots();
    let taken = { seats.iter() }
        .map(|seat| netram_journal::JournalPaths::at(seat).is_locked())
        .filter(|locked| matches!(locked, Ok(true)))
        .count();
    Ok(DatabaseStatus {
        open,
        to_recover: !shared.is_current(),
        journal_slots: seats.len(),
        slots_in_use: taken,
    })
}
