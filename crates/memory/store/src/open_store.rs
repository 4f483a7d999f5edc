//! The short way to open a store: created if it is missing, its segments mapped by name.

use std::ops::Deref;
use std::path::Path;
use std::time::Duration;

use netram_journal::{JournalLayout, QuorumError};
use netram_rvm::{MapError, Region, SegmentAllocation};

use crate::store::{JournaledRvm, OpenStore, Store, StoreError};

/// Why a segment could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum SegmentMapError {
    /// The segment's file could not be created.
    #[error("{0}")]
    Create(#[from] netram_rvm::SegmentError),
    /// The segment could not be mapped.
    #[error("{0}")]
    Map(#[from] MapError),
}

impl Store {
    /// Opens the store whose log is the file `log`, after creating it with `log_bytes` if it does not exist.
    /// Opening recovers the store after a crash. Settings come from `LOG.toml` beside the log and from
    /// `NETRAM_*` variables.
    ///
    /// # Errors
    ///
    /// As [`Store::create`] and [`Store::open`].
    pub fn open_or_create(log: impl AsRef<Path>, log_bytes: u64) -> Result<OpenStore, StoreError> {
        let log = log.as_ref();
        let mut store = Store::at(log);
        if !store.exists() {
            store = Store::create(log, JournalLayout::Beside, log_bytes)?;
        }
        store.open(&store.settings()?)
    }
}

impl OpenStore {
    /// Maps the whole segment in the file `path`, after creating it with `length` bytes of zeros if it does
    /// not exist.
    ///
    /// # Errors
    ///
    /// [`SegmentMapError::Create`] if the file cannot be created; [`SegmentMapError::Map`] if another process
    /// has the segment, or it belongs to another log.
    pub fn map_or_create(&self, path: &str, length: u64) -> Result<Region, SegmentMapError> {
        // A file that cannot be looked up is left to the mapping, whose error says why.
        if !Path::new(path).try_exists().unwrap_or(true) {
            self.memory
                .create_segment(path, length, SegmentAllocation::Preallocated)?;
        }
        Ok(self.memory.map(path, 0, 0)?)
    }

    /// Waits, at most `timeout`, until lenders acknowledge commits. Before that, commits wait for the local
    /// disk.
    ///
    /// # Errors
    ///
    /// The lenders that are missing, and why. Without any lender in the settings this is an error, too.
    pub fn wait_for_lenders(&self, timeout: Duration) -> Result<(), QuorumError> {
        self.memory.log().wait_for_members(timeout)
    }
}

impl Deref for OpenStore {
    type Target = JournaledRvm;

    fn deref(&self) -> &JournaledRvm {
        &self.memory
    }
}
