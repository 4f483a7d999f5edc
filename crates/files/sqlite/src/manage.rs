//! A database that netram holds, as somebody sees it who does not have it open: looking, recovering, giving
//! back.

use netram_journal::forget::{ForgetList, JournalDeletion, PATIENCE, UnfreedWindow, WindowRelease};
use netram_proto::failure::CallError;
use netram_sqlite_machine::{BackingFiles, DatabaseRecovery, FileRole};

use crate::database::{DatabaseOpenError, MappedIndex, at, config, recover_all, settings};
use crate::database_disk::{DatabaseDisk, FileLock, try_lock};
use crate::paths::{DatabasePaths, DatabaseStateError};

/// Whoever has the database open, and nobody else.
fn lock_exclusively(place: &DatabasePaths) -> Result<FileLock, DatabaseOpenError> {
    let path = place.open();
    let lock = try_lock(&path).map_err(at(path))?;
    lock.ok_or_else(|| DatabaseOpenError::InUse {
        path: place.path().to_path_buf(),
    })
}

/// Brings what the journals have into a database that nobody has open, whatever the machine's memory has.
/// `accept_loss`: although it may not be all that was committed.
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

/// Gives a database back that nobody has open: all of it is in the file, where it was.
///
/// Its lenders are told; returns those that were away, and will be told later.
pub fn release(place: &DatabasePaths, accept_loss: bool) -> Result<Vec<UnfreedWindow>, DatabaseOpenError> {
    let deleting = || {
        let settings = settings(place).unwrap_or_default();
        let seats = place.journal_slots();
        let seats: Vec<_> = seats
            .iter()
            .map(|seat| netram_journal::JournalPaths::at(seat))
            .collect();
        let key = settings.key_file.as_deref();
        // The database's file has everything by now.
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
        // The machine's memory has all of it. What a sync that fails leaves there, whoever tries again must
        // not believe.
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

/// How a database stands that netram holds, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatabaseStatus {
    /// A process has it open.
    pub open: bool,
    /// The machine's memory was lost since it was written: whoever opens it next recovers it.
    pub to_recover: bool,
    /// Journals that there are.
    pub journal_slots: usize,
    /// Of them, those that processes have.
    pub slots_in_use: usize,
}

/// Looks at a database that netram holds, and changes nothing.
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
