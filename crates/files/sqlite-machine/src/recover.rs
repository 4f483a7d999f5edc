//! The journals' way into the files, after the machine has crashed.
//!
//! Each process had a journal of its own; the numbers of their records say in which order they are done
//! again. What a record says was written before its number was given, and whatever has a number below the
//! start is on the disk. So the files come to hold all that was acknowledged, and of what was not, what a
//! disk holds after a crash: any part of it.

use netram_proto::failure::CallError;
use netram_proto::planted::{Fault, Planted};
use netram_proto::port::{IoError, Log, LogError};

use crate::beneath::Beneath;
use crate::change::{Change, DecodeError, Deed, Role};
use crate::merge::Merge;

/// What was done again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Records.
    pub records: u64,
    /// Bytes written.
    pub bytes: u64,
    /// The number of the next record.
    pub next: u64,
}

/// Why a database is not recovered. Nothing that was acknowledged is lost by trying.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// A journal cannot be read.
    #[error("{0}")]
    Log(LogError),
    /// A journal has something else in it.
    #[error("a record of a journal is of no use: {0}")]
    Record(#[from] DecodeError),
    /// Two records have one number.
    #[error("the journals are not of one database: record {number} is there twice")]
    Twice {
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

fn disk(what: &'static str) -> impl FnOnce(IoError) -> RecoverError {
    move |source| RecoverError::Disk { what, source }
}

/// Does again what these journals have. Nobody else has the database open, and all journals that it has are
/// here.
///
/// The journals are read twice: whatever is wrong with a record is known before anything is written.
pub fn recover<L: Log, B: Beneath>(
    logs: &[L],
    beneath: &B,
    planted: Planted,
) -> Result<Recovered, RecoverError> {
    let start = beneath.start().map_err(disk("reading where records begin"))?;
    let mut recovered = Recovered {
        next: start,
        ..Recovered::default()
    };
    let mut records = Merge::of(logs);
    while let Some(record) = records.next()? {
        recovered.next = recovered.next.max(record.number + 1);
        record.change()?;
    }
    if !beneath
        .exists(Role::Main)
        .map_err(disk("looking for the database"))?
    {
        return Err(RecoverError::Missing);
    }
    // What journals have is not all that is in the files: SQLite looks at the rest, too, and must find what
    // the disk has.
    if !planted.is(Fault::CacheTrusted) {
        beneath
            .distrust_cache()
            .map_err(disk("reading the database's files anew"))?;
    }
    let mut records = Merge::of(logs);
    while let Some(record) = records.next()? {
        if record.number < start {
            continue;
        }
        recovered.records += 1;
        let applied = apply(beneath, &record.change()?);
        recovered.bytes += applied.map_err(disk("writing what a journal has"))?;
    }
    beneath.sync().map_err(RecoverError::Sync)?;
    beneath.set_start(recovered.next).map_err(RecoverError::Sync)?;
    for log in logs {
        log.trim(log.state().tail).map_err(RecoverError::Log)?;
    }
    Ok(recovered)
}

fn apply<B: Beneath>(beneath: &B, change: &Change<'_>) -> Result<u64, IoError> {
    let role = change.role;
    match change.deed {
        Deed::Write { offset, bytes } => {
            beneath.write(role, offset, bytes)?;
            Ok(bytes.len() as u64)
        }
        Deed::Resize { size } => beneath.resize(role, size).map(|()| 0),
        Deed::Remove => beneath.remove(role).map(|()| 0),
    }
}
