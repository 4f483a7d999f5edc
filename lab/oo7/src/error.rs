//! Errors of a store.

/// The store could not do an operation. The current transaction should be dropped.
#[derive(Debug, thiserror::Error)]
pub enum Oo7Error {
    /// The bytes read are no object of the benchmark. Audit the database, or rebuild it.
    #[error("the database is damaged: {what} at {at:#x}; rebuild it")]
    Damaged {
        /// The expected object.
        what: &'static str,
        /// Position in the store's own terms.
        at: u64,
    },
    /// The database was never completed, or does not exist. Build it.
    #[error("no complete OO7 database here: {why}; build one")]
    Missing {
        /// The contradiction to a complete database.
        why: &'static str,
    },
    /// The store is full. Give it more room.
    #[error("no room for {asked} bytes; the largest free block has {largest}; choose a larger heap")]
    Full {
        /// Requested bytes.
        asked: u64,
        /// Bytes of the largest possible block.
        largest: u64,
    },
    /// A transaction with changes was dropped, and the store cannot undo them.
    #[error(
        "a transaction with changes was dropped, and plain memory cannot undo them; rebuild the database"
    )]
    Poisoned,
    /// The layer below the store failed.
    #[error("{0}")]
    Backend(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Oo7Error {
    /// Wraps an error of the layer below the store.
    pub fn backend(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Oo7Error {
        Oo7Error::Backend(error.into())
    }
}
