//! Errors of starting a lender; one variant a reaction of the operator.

use std::fmt;
use std::io;
use std::path::PathBuf;

use netram_proto::id::JournalId;
use netram_transport::ListenError;

use crate::limit::WINDOWS_NAMED;
use crate::spill::SpillError;

/// Journals whose windows hold bytes, with the number of bytes.
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

/// Why the memory to lend could not be obtained.
#[derive(Debug, thiserror::Error)]
pub enum WindowStoreError {
    /// The requested numbers contradict each other or a limit. Change them.
    #[error("{what} ({got}); it must be {must}")]
    BadGeometry {
        /// The number's name.
        what: &'static str,
        /// The requested value.
        got: u64,
        /// The allowed values.
        must: &'static str,
    },
    /// The requested memory is below or above the limits. Lend another amount.
    #[error("cannot lend {got} bytes of memory; choose from {least} (one chunk) to {most} bytes")]
    Memory {
        /// The requested bytes.
        got: u64,
        /// Minimum: the bytes of a chunk.
        least: u64,
        /// Maximum bytes.
        most: u64,
    },
    /// The machine does not have that much free memory. Lend less, or free some.
    #[error(
        "cannot reserve {asked} bytes to lend: {free} bytes of memory are free; lend less with a smaller memory setting"
    )]
    NoMemory {
        /// The requested bytes, including the store's own tables.
        asked: u64,
        /// The available bytes.
        free: u64,
    },
    /// Another lender uses this store. Stop it, or give this one another name.
    #[error("{path} is in use by another lender; give this one another name (--name), or stop the other")]
    InUse {
        /// The store file.
        path: PathBuf,
    },
    /// The file lies on a disk rather than in memory.
    #[error(
        "{path} is not in memory (tmpfs or hugetlbfs); lent memory belongs on a memory file system such as /dev/shm"
    )]
    NotMemory {
        /// The store file.
        path: PathBuf,
    },
    /// Another user owns the file, or its mode lets others use it. Remove it.
    #[error("{path} belongs to another user or is open to others (mode {mode:o}); remove it and start again")]
    NotPrivate {
        /// The store file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The store of an earlier process holds bytes that clients may still need, and this process could not
    /// keep them. Start with the earlier settings, or discard the bytes.
    #[error(
        "{path} {} and holds bytes that clients may still need ({windows}); {}, or give them up with --discard-windows",
        if *.damaged { "is damaged" } else { "was made with other settings" },
        if *.damaged { "let these clients recover from their other lenders first".to_owned() } else {
            format!("start with the earlier --memory {memory} --journals-max {journals_max} until these clients have recovered or moved away")
        }
    )]
    Windows {
        /// The store file.
        path: PathBuf,
        /// Whether the store is damaged; otherwise it was made with other settings.
        damaged: bool,
        /// The journals whose windows hold bytes.
        windows: OccupiedWindows,
        /// Bytes that the store lends.
        memory: u64,
        /// Number of journals that the store remembers.
        journals_max: u32,
    },
    /// Another release made the store and may have left windows in it. Start that release, or discard them.
    #[error(
        "{path} has format {version}, which this release does not read, and may hold bytes that clients still need; start the release that made it until its clients have moved away, or give them up with --discard-windows"
    )]
    OtherFormat {
        /// The store file.
        path: PathBuf,
        /// The store's format version.
        version: u32,
    },
    /// The directory for spills, or a spill in it, cannot be used.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The limit on locked memory is too low. Raise it, or do not lock.
    #[error("cannot lock {asked} bytes of memory: {source}; raise `ulimit -l` or do without locking")]
    Lock {
        /// Bytes to be locked.
        asked: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file could not be created or mapped.
    #[error("cannot {step} {path}: {source}")]
    Failed {
        /// The failed step.
        step: &'static str,
        /// The store file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a lender did not start.
#[derive(Debug, thiserror::Error)]
pub enum LenderStartError {
    /// A setting is out of its limits. Change it.
    #[error("{what} must be {must}")]
    BadConfig {
        /// The setting's name.
        what: &'static str,
        /// The allowed values.
        must: &'static str,
    },
    /// The memory could not be obtained.
    #[error(transparent)]
    Store(#[from] WindowStoreError),
    /// The lender could not listen at an address.
    #[error(transparent)]
    Bind(#[from] ListenError),
    /// The system refused a thread or a poller.
    #[error("cannot {step}: {source}")]
    System {
        /// The failed step.
        step: &'static str,
        /// The system's error.
        source: io::Error,
    },
}
