//! What can be wrong with a range.

/// Why a range, a read or a write was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// Not inside the region.
    #[error("range {offset} + {length} is outside the region of {region} bytes")]
    OutOfRegion {
        /// Where the range begins.
        offset: usize,
        /// Its length.
        length: usize,
        /// The region's length.
        region: usize,
    },
    /// No record can carry it.
    #[error("a range of {length} bytes can never be committed: a record carries {max}; declare less")]
    TooLarge {
        /// Bytes asked for.
        length: usize,
        /// Bytes that fit a record.
        max: usize,
    },
    /// The transaction has too many ranges, regions or old values.
    #[error("the transaction exceeds {max} {what}; commit it in parts")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// The most allowed.
        max: usize,
    },
    /// The region belongs to another `Rvm`.
    #[error("the region belongs to another log than the transaction")]
    ForeignRegion,
    /// Another transaction has the region, whose stores are found by page.
    #[error("another transaction stores to the region, which is captured by page; wait until it ends")]
    Captured,
    /// The transaction belongs to a shared region, and has not acquired the lock that covers a byte, or only
    /// to read.
    #[error(
        "the byte at {offset} (address {address:#x}) is under a lock that the transaction has not acquired exclusively"
    )]
    NotHeld {
        /// The first such byte.
        offset: usize,
        /// Where it is in this process.
        address: usize,
        /// The lock; `None`: no lock covers it, and nobody can ever write there.
        lock: Option<u32>,
    },
    /// The transaction has ended.
    #[error("the transaction has ended")]
    Ended,
}
