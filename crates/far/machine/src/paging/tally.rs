//! Counters of a policy's events.

/// Counters since the beginning. Their costs are linear and left to the caller, so one run serves every set
/// of costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyTally {
    /// References that local memory served, after a fault if needed.
    pub local: u64,
    /// References to single words of remote pages.
    pub words: u64,
    /// Number of times that the program waited for pages to move.
    pub faults: u64,
    /// Pages read from the disk at their first reference.
    pub disk_first: u64,
    /// Pages read from the disk again.
    pub disk_again: u64,
    /// Pages made of zeros.
    pub zeroed: u64,
    /// Pages fetched from remote memory.
    pub fetched: u64,
    /// Pages placed in remote memory that had never been local.
    pub placed: u64,
    /// Changed pages sent from local to remote memory.
    pub sent_dirty: u64,
    /// Unchanged pages sent from local to remote memory.
    pub sent_clean: u64,
    /// Pages written to the disk.
    pub disk_written: u64,
    /// Pages dropped, because their content is at their source.
    pub dropped: u64,
}

impl PolicyTally {
    /// Number of all references.
    pub fn references(&self) -> u64 {
        self.local + self.words
    }

    /// Number of pages moved over the network in either direction.
    pub fn network_pages(&self) -> u64 {
        self.fetched + self.placed + self.sent_dirty + self.sent_clean
    }

    /// Number of pages read from or written to the disk.
    pub fn disk_pages(&self) -> u64 {
        self.disk_first + self.disk_again + self.disk_written
    }
}
