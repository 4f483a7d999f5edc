//! Why a lender does not start, one variant a reaction.

use std::io;
use std::path::PathBuf;

use netram_transport::BindError;

/// Why the memory to lend could not be had.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
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
pub enum StartError {
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
    Store(#[from] StoreError),
    /// An address could not be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The system refused a thread or a poller.
    #[error("cannot {step}: {source}")]
    System {
        /// What failed.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
}
