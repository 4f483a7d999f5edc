//! Recovery: replays the journals into the files after the machine has crashed.
//!
//! Each process had a journal of its own; their records are replayed in the order of their numbers. A
//! record's bytes were in the file before its number was taken, and everything below the start number is on
//! the disk. The files therefore end up with all acknowledged writes. Of the others they have any part, as a
//! disk has after a crash.

use netram_proto::failure::CallError;
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::port::{IoError, LogError, RecordLog};

use crate::backing_files::BackingFiles;
use crate::change::{DatabaseChange, DatabaseDecodeError, FileOp, FileRole};
use crate::journal_merge::JournalMerge;

/// Summary of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseRecovery {
    /// Number of records replayed.
    pub records: u64,
    /// Number of bytes written.
    pub bytes: u64,
    /// Number for the next record.
    pub next: u64,
}

/// Why a database cannot be recovered. Nothing acknowledged is lost by the attempt.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseRecoverError {
    /// A journal cannot be read.
    #[error("{0}")]
    Log(LogError),
    /// A journal contains a record that is not a change of a database.
    #[error("a journal contains an invalid record: {0}")]
    Record(#[from] DatabaseDecodeError),
    /// Two records have the same number.
    #[error("the journals belong to different databases: record {number} occurs twice")]
    Duplicate {
        /// The number.
        number: u64,
    },
    /// The numbers within one journal do not rise.
    #[error("the journals belong to different databases: record {number} follows one with a higher number")]
    Order {
        /// Number of the later record.
        number: u64,
    },
    /// The database file is missing.
    #[error("the database file is missing, and the journals have only its latest changes; put the file back")]
    Missing,
    /// The replayed writes could not be synced. The journals still have all of them.
    #[error("syncing the database's files: {0}")]
    Sync(CallError),
    /// The system refused a call.
    #[error("{what}: {source}")]
    Disk {
        /// Step that failed.
        what: &'static str,
        /// Error that the system returned.
        source: IoError,
    },
}

fn disk(what: &'static str) -> impl FnOnce(IoError) -> DatabaseRecoverError {
    move |source| DatabaseRecoverError::Disk { what, source }
}

/// Replays the journals, which must be all of the database's. No other process may have the database open.
///
/// The journals are read twice, so that an invalid record is found before anything is written.
///
/// # Errors
///
/// See [`DatabaseRecoverError`].
pub fn recover<L: RecordLog, B: BackingFiles>(
    logs: &[L],
    beneath: &B,
    planted: FaultSwitch,
) -> Result<DatabaseRecovery, DatabaseRecoverError> {
    let start = beneath.start().map_err(disk("reading the start number"))?;
    let mut recovered = DatabaseRecovery {
        next: start,
        ..DatabaseRecovery::default()
    };
    let mut records = JournalMerge::of(logs);
    while let Some(record) = records.next()? {
        recovered.next = recovered.next.max(record.number + 1);
        record.change()?;
    }
    if !beneath
        .exists(FileRole::Main)
        .map_err(disk("looking for the database"))?
    {
        return Err(DatabaseRecoverError::Missing);
    }
    // Journals do not cover whole files. SQLite reads the rest too, and must see what the disk has.
    if !planted.is(PlantedFault::CacheTrusted) {
        beneath
            .drop_cache()
            .map_err(disk("dropping the page cache of the database's files"))?;
    }
    let mut records = JournalMerge::of(logs);
    while let Some(record) = records.next()? {
        if record.number < start {
            continue;
        }
        recovered.records += 1;
        let applied = apply(beneath, &record.change()?);
        recovered.bytes += applied.map_err(disk("replaying a record"))?;
    }
    beneath.sync().map_err(DatabaseRecoverError::Sync)?;
    beneath
        .set_start(recovered.next)
        .map_err(DatabaseRecoverError::Sync)?;
    for log in logs {
        log.trim(log.state().tail).map_err(DatabaseRecoverError::Log)?;
    }
    Ok(recovered)
}

fn apply<B: BackingFiles>(beneath: &B, change: &DatabaseChange<'_>) -> Result<u64, IoError> {
    let role = change.role;
    match change.op {
        FileOp::Write { offset, bytes } => {
            beneath.write(role, offset, bytes)?;
            Ok(bytes.len() as u64)
        }
        FileOp::Resize { size } => beneath.resize(role, size).map(|()| 0),
        FileOp::Remove => beneath.remove(role).map(|()| 0),
    }
}
