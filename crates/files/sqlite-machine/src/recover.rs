//! The journals' way into the files, after the machine has crashed.
//!
//! Each process had a journal of its own; the numbers of their records say in which order they are done
//! again. What a record says was written before its number was given, and whatever has a number below the
//! start is on the disk. So the files come to hold all that was acknowledged, and of what was not, what a
//! disk holds after a crash: any part of it.

use netram_proto::failure::CallError;
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::port::{IoError, LogError, RecordLog};

use crate::backing_files::BackingFiles;
use crate::change::{DatabaseChange, DatabaseDecodeError, FileOp, FileRole};
use crate::journal_merge::JournalMerge;

/// What was done again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseRecovery {
    /// Records.
    pub records: u64,
    /// Bytes written.
    pub bytes: u64,
    /// The number of the next record.
    pub next: u64,
}

/// Why a database is not recovered. Nothing that was acknowledged is lost by trying.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseRecoverError {
    /// A journal cannot be read.
    #[error("{0}")]
    Log(LogError),
    /// A journal has something else in it.
    #[error("a record of a journal is of no use: {0}")]
    Record(#[from] DatabaseDecodeError),
    /// Two records have one number.
    #[error("the journals are not of one database: record {number} is there twice")]
    Duplicate {
        /// Which one.
        number: u64,
    },
    /// The numbers of one journal's records do not rise.
    #[error("the journals are not of one database: record {number} comes after one with a higher number")]
    Order {
        /// Which one.
        number: u64,
    },
    /// The database is gone.
    #[error(
        "the database's file is missing, and the journals have only what was written to it lately; put it back"
    )]
    Missing,
    /// What was written could not be synced. The journals still have all of it.
    #[error("syncing the database's files: {0}")]
    Sync(CallError),
    /// The system refused.
    #[error("{what}: {source}")]
    Disk {
        /// What was done.
        what: &'static str,
        /// What the system said.
        source: IoError,
    },
}

fn disk(what: &'static str) -> impl FnOnce(IoError) -> DatabaseRecoverError {
    move |source| DatabaseRecoverError::Disk { what, source }
}

/// Does again what these journals have. Nobody else has the database open, and all journals that it has are
/// here.
///
/// The journals are read twice: whatever is wrong with a record is known before anything is written.
pub fn recover<L: RecordLog, B: BackingFiles>(
    logs: &[L],
    beneath: &B,
    planted: FaultSwitch,
) -> Result<DatabaseRecovery, DatabaseRecoverError> {
    let start = beneath.start().map_err(disk("reading where records begin"))?;
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
    // What journals have is not all that is in the files: SQLite looks at the rest, too, and must find what
    // the disk has.
    if !planted.is(PlantedFault::CacheTrusted) {
        beneath
            .drop_cache()
            .map_err(disk("reading the database's files anew"))?;
    }
    let mut records = JournalMerge::of(logs);
    while let Some(record) = records.next()? {
        if record.number < start {
            continue;
        }
        recovered.records += 1;
        let applied = apply(beneath, &record.change()?);
        recovered.bytes += applied.map_err(disk("writing what a journal has"))?;
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
