//! Why a lender does not start, one variant a reaction.

use std::fmt;
use std::io;
use std::path::PathBuf;

use netram_proto::id::JournalId;
use netram_transport::ListenError;

use crate::limit::WINDOWS_NAMED;

/// Windows with bytes in them, by journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OccupiedWindows(pub Vec<(JournalId, u64)>);

impl fmt::Display for OccupiedWindows {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (journal, bytes)) in self.0.iter().take(WINDOWS_NAMED).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(out, "{comma}journal {journal}: {bytes} bytes")?;
        }
        match self.0.len().saturating_sub(WINDOWS_NAMED) {
            0 => Ok(()),
            more => write!(out, ", and {more} more"),
        }
    }
}

/// Why the memory to lend could not be had.
#[derive(Debug, thiserror::Error)]
pub enum WindowStoreError {
    /// The numbers asked for contradict each other or a limit. Change them.
    #[error("{what} ({got}); it must be {must}")]
    BadGeometry {
        /// Which number.
        what: &'static str,
        /// What was given.
        got: u64,
        /// What is allowed.
        must: &'static str,
    },
    /// Less than the least that can be lent, or more than the most. Lend another amount.
    #[error("cannot lend {got} bytes of memory; choose from {least} (one chunk) to {most} bytes")]
    Memory {
        /// What was asked for.
        got: u64,
        /// Bytes of a chunk.
        least: u64,
        /// The most chunks, in bytes.
        most: u64,
    },
    /// The machine has not that much free memory. Lend less, or free some.
    #[error(
        "cannot reserve {asked} bytes to lend: {free} bytes of memory are free; lend less with a smaller memory setting"
    )]
    NoMemory {
        /// Bytes asked for, with the store's own tables.
        asked: u64,
        /// Bytes that could be had.
        free: u64,
    },
    /// Another lender lends this memory. Stop it, or give this one another name.
    #[error("{path} is in use by another lender; give this one another name (--name), or stop the other")]
    InUse {
        /// The store file.
        path: PathBuf,
    },
    /// The file lies on a disk, whose contents are not memory.
    #[error(
        "{path} is not in memory (tmpfs or hugetlbfs); lent memory belongs on a memory file system such as /dev/shm"
    )]
    NotMemory {
        /// The store file.
        path: PathBuf,
    },
    /// Somebody else owns the file, or may read it. Remove it.
    #[error("{path} belongs to another user or is open to others (mode {mode:o}); remove it and start again")]
    NotPrivate {
        /// The store file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Clients may still need what an earlier process holds in the store, and this one could not hold it.
    /// Start as before, or discard it.
    #[error(
        "{path} {} and holds bytes that clients may still need ({windows}); {}, or give them up with --discard-windows",
        if *.damaged { "is damaged" } else { "is cut for other numbers" },
        if *.damaged { "let these clients recover from their other lenders first".to_owned() } else {
            format!("start with --memory {memory} --journals-max {journals_max}, as it was, until these clients have recovered or moved away")
        }
    )]
    Windows {
        /// The store file.
        path: PathBuf,
        /// It is not whole; otherwise it was made for other numbers.
        damaged: bool,
        /// Which journals have bytes there.
        windows: OccupiedWindows,
        /// Bytes that it lends.
        memory: u64,
        /// Journals that it remembers.
        journals_max: u32,
    },
    /// Another release made the store, and may have left windows in it. Start that release, or discard them.
    #[error(
        "{path} has format {version}, which this release does not read, and may hold bytes that clients still need; start the release that made it until its clients have moved away, or give them up with --discard-windows"
    )]
    OtherFormat {
        /// The store file.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
    /// The limit on locked memory is too low. Raise it, or do without.
    #[error("cannot lock {asked} bytes of memory: {source}; raise `ulimit -l` or do without locking")]
    Lock {
        /// Bytes to be locked.
        asked: u64,
        /// Why not.
        source: io::Error,
    },
    /// The file could not be made or mapped.
    #[error("cannot {step} {path}: {source}")]
    Failed {
        /// What failed.
        step: &'static str,
        /// The store file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Why a lender did not start.
#[derive(Debug, thiserror::Error)]
pub enum LenderStartError {
    /// A setting is out of its limits. Change it.
    #[error("{what} must be {must}")]
    BadConfig {
        /// Which setting.
        what: &'static str,
        /// What is allowed.
        must: &'static str,
    },
    /// The memory could not be had.
    #[error(transparent)]
    Store(#[from] WindowStoreError),
    /// An address could not be listened on.
    #[error(transparent)]
    Bind(#[from] ListenError),
    /// The system refused a thread or a poller.
    #[error("cannot {step}: {source}")]
    System {
        /// What failed.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
}
