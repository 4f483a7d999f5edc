//! The journals' way into the files, after the machine has crashed.
//!
//! Each process had a journal of its own; the numbers of their records say in which order they are done again. What a record says was written before its number
//! was given, and whatever has a number below the start is on the disk. So the files come to hold all that was acknowledged, and of what was not, what a disk
//! holds after a crash: any part of it.

use netram_proto::port::{IoError, Log, LogError};

use crate::beneath::Beneath;
use crate::change::{Change, DecodeError, Deed, Role};

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
    /// The database is gone.
    #[error(
        "the database's file is missing, and the journals have only what was written to it lately; put it back"
    )]
    Missing,
    /// The disk failed.
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

/// A record that counts, and where it is.
struct Found {
    number: u64,
    kind: netram_proto::port::Kind,
    payload: Vec<u8>,
}

/// Does again what these journals have. Nobody else has the database open, and all journals that it has are here.
pub fn recover<L: Log, B: Beneath>(logs: &[L], beneath: &B) -> Result<Recovered, RecoverError> {
    let start = beneath.start().map_err(disk("reading where records begin"))?;
    let mut recovered = Recovered {
        next: start,
        ..Recovered::default()
    };
    let mut found = Vec::new();
    for log in logs {
        read(log, start, &mut found, &mut recovered.next)?;
    }
    found.sort_by_key(|record| record.number);
    if let Some(pair) = found.windows(2).find(|pair| pair[0].number == pair[1].number) {
        return Err(RecoverError::Twice {
            number: pair[0].number,
        });
    }
    if !beneath
        .exists(Role::Main)
        .map_err(disk("looking for the database"))?
    {
        return Err(RecoverError::Missing);
    }
    for record in &found {
        let Some(change) = Change::decode(record.kind, &record.payload)? else {
            continue;
        };
        recovered.records += 1;
        recovered.bytes += apply(beneath, &change).map_err(disk("writing what a journal has"))?;
    }
    beneath.sync().map_err(disk("syncing the database's files"))?;
    beneath
        .set_start(recovered.next)
        .map_err(disk("storing where records begin"))?;
    for log in logs {
        log.trim(log.state().tail).map_err(RecoverError::Log)?;
    }
    Ok(recovered)
}

fn read<L: Log>(log: &L, start: u64, found: &mut Vec<Found>, next: &mut u64) -> Result<(), RecoverError> {
    let mut failed = None;
    let state = log.state();
    log.read(
        state.head,
        &mut |record| match Change::decode(record.kind, record.payload) {
            Ok(None) => true,
            Ok(Some(change)) => {
                *next = (*next).max(change.number + 1);
                if change.number >= start {
                    found.push(Found {
                        number: change.number,
                        kind: record.kind,
                        payload: record.payload.to_vec(),
                    });
                }
                true
            }
            Err(error) => {
                failed = Some(error);
                false
            }
        },
    )
    .map_err(RecoverError::Log)?;
    failed.map_or(Ok(()), |error| Err(error.into()))
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
