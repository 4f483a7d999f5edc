//! Errors of ranges, reads and writes in a region.

/// Why a range, a read or a write was refused. Nothing changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The range is not inside the region.
    #[error("range {offset} + {length} is outside the region of {region} bytes")]
    OutOfRegion {
        /// Where the range begins.
        offset: usize,
        /// Its length, in bytes.
        length: usize,
        /// The region's length.
        region: usize,
    },
    /// The range is longer than a record can carry.
    #[error("a range of {length} bytes can never be committed: a record carries at most {max}; declare less")]
    TooLarge {
        /// Length of the range, in bytes.
        length: usize,
        /// Longest range that fits into a record, in bytes.
        max: usize,
    },
    /// The transaction has too many ranges, regions or bytes of old values.
    #[error("the transaction exceeds {max} {what}; commit it in parts")]
    TooMany {
        /// Name of the exceeded quantity, for the message.
        what: &'static str,
        /// Its limit.
        max: usize,
    },
    /// The region belongs to another `Rvm`.
    #[error("the region belongs to another log than the transaction")]
    ForeignRegion,
    /// The region is captured by page, and another transaction is storing to it.
    #[error("another transaction stores to the region, which is captured by page; wait until it ends")]
    Captured,
    /// The byte is in a shared region, and the transaction has not acquired the lock that covers it
    /// exclusively.
    #[error(
        "the byte at {offset} (address {address:#x}) is under a lock that the transaction has not acquired \
         exclusively"
    )]
    NotHeld {
        /// Offset of the first such byte in the region.
        offset: usize,
        /// Address of that byte in this process.
        address: usize,
        /// The lock; `None` if no lock covers the byte, so that it can never be written.
        lock: Option<u32>,
    },
    /// The transaction has ended.
    #[error("the transaction has ended")]
    Ended,
}
