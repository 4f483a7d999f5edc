//! Why a store failed.

/// Why a store could not do what it was asked. The transaction at hand should be dropped.
#[derive(Debug, thiserror::Error)]
pub enum Oo7Error {
    /// What was read is no object of the benchmark. Audit the database, or build it anew.
    #[error("the database is damaged: {what} at {at:#x}; build it anew")]
    Damaged {
        /// What should be there.
        what: &'static str,
        /// Where, in the store's own terms.
        at: u64,
    },
    /// The database was never completed, or there is none. Build it.
    #[error("there is no whole OO7 database here: {why}; build one")]
    Missing {
        /// What was found instead.
        why: &'static str,
    },
    /// The store is full. Give it more room.
    #[error("no room for {asked} bytes, {largest} are free in a row; choose a larger heap")]
    Full {
        /// Bytes asked for.
        asked: u64,
        /// Bytes of the largest block that could be had.
        largest: u64,
    },
    /// The store cannot undo, and somebody dropped a transaction that had changed something.
    #[error("a transaction was given up half done, and plain memory cannot undo: build the database anew")]
    Poisoned,
    /// What lies below refused.
    #[error("{0}")]
    Backend(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Oo7Error {
    /// An error of what lies below the store.
    pub fn backend(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Oo7Error {
        Oo7Error::Backend(error.into())
    }
}
