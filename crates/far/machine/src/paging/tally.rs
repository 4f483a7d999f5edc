//! How often what happened.

/// Events since the beginning. What they cost is the caller's affair, and linear in them: so one run serves
/// every set of costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyTally {
    /// References that local memory served, if need be after a fault.
    pub local: u64,
    /// References to single words of pages in remote memory.
    pub words: u64,
    /// Times that the program stood still while pages moved.
    pub faults: u64,
    /// Pages read from the disk: at their first reference, and again later.
    pub disk_first: u64,
    /// See `disk_first`.
    pub disk_again: u64,
    /// Pages that were made of zeros.
    pub zeroed: u64,
    /// Pages fetched from remote memory.
    pub fetched: u64,
    /// Pages put into remote memory that had never been local.
    pub placed: u64,
    /// Pages sent to remote memory from local memory: changed ones, and others.
    pub sent_dirty: u64,
    /// See `sent_dirty`.
    pub sent_clean: u64,
    /// Pages written to the disk.
    pub disk_written: u64,
    /// Pages given up without a copy: one stands where they came from.
    pub dropped: u64,
}

impl PolicyTally {
    /// All references.
    pub fn references(&self) -> u64 {
        self.local + self.words
    }

    /// Pages over the network, either way.
    pub fn network_pages(&self) -> u64 {
        self.fetched + self.placed + self.sent_dirty + self.sent_clean
    }

    /// Pages from the disk and to it.
    pub fn disk_pages(&self) -> u64 {
        self.disk_first + self.disk_again + self.disk_written
    }
}
