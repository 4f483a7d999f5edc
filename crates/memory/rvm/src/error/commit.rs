//! Why a transaction is not committed, this process's or another's.

use netram_proto::id::Lsn;
use netram_proto::port::{AppendError, IoError, WaitError};

use super::{TruncateError, because};

/// Why a region's stores cannot be found as asked. The region is at [`crate::Capture::Declared`], unless
/// transactions were open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// Open transactions have ranges in the region.
    #[error("{transactions} open transactions have ranges in the region; end them first")]
    Uncommitted {
        /// How many.
        transactions: usize,
    },
    /// The region is not made of pages of 4096 bytes: its storage keeps it on the heap, or the system's are
    /// larger.
    #[error("the region's memory is not made of pages of 4096 bytes; declare ranges")]
    NotPages,
    /// More memory than is kept account of.
    #[error("a region of {length} bytes is too large to be captured by page: {max} at most; map it in parts")]
    TooLarge {
        /// Bytes of the region.
        length: usize,
        /// The most.
        max: usize,
    },
    /// Too many regions of the process are protected.
    #[error("{max} regions of this process are protected already; use `Find::Watch`, or declare ranges")]
    TooManyTraps {
        /// The most.
        max: usize,
    },
    /// The kernel does not note stores, or may not for this process.
    #[error(
        "this system does not note stores (it needs Linux 6.7 and userfaultfd): {cause}; use `Find::Trap`"
    )]
    NoWatch {
        /// What the system said.
        cause: IoError,
    },
    /// The system refused.
    #[error("the region's pages cannot be protected: {cause}")]
    System {
        /// What the system said.
        cause: IoError,
    },
}

/// Why a commit did not come about.
///
/// Except after [`RvmCommitError::Unknown`], nothing was logged. `Transaction::try_commit` leaves the
/// transaction open then, to be retried or aborted; `Transaction::commit` aborts it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RvmCommitError {
    /// The transaction has ended.
    #[error("the transaction has ended")]
    Ended,
    /// Stores were found that were never declared, in a region that is verified. Declare them and retry, or
    /// abort.
    #[error(
        "{count} stores were not declared; the first has {length} bytes at {offset} of the segment {segment}, \
         address {address:#x}: declare it before storing there, or commit without verifying"
    )]
    Undeclared {
        /// The first one's segment.
        segment: std::sync::Arc<str>,
        /// Where in the segment it begins.
        offset: u64,
        /// Its length.
        length: usize,
        /// Its address.
        address: usize,
        /// How many there are.
        count: usize,
    },
    /// Stores were found outside of what the transaction may change. Abort.
    #[error(
        "{count} stores were made outside of what the transaction may change; the first has {} bytes at {} of the segment {}, \
         address {:#x}: abort",
        first.length, first.offset, first.segment, first.address
    )]
    Outside {
        /// The first.
        first: crate::capture::UndeclaredStore,
        /// How many there are.
        count: usize,
    },
    /// The system would not say which pages were stored to. Retry, or abort.
    #[error("the pages that were stored to cannot be found: {cause}; retry, or abort")]
    Capture {
        /// What the system said.
        cause: IoError,
    },
    /// No record can carry it. Commit in parts, or create a larger log.
    #[error("a transaction of {bytes} bytes exceeds the {max} that a record carries; commit it in parts")]
    TooLarge {
        /// Bytes of the record.
        bytes: u64,
        /// Bytes that fit.
        max: usize,
    },
    /// The log is full and truncation could not make room. Mend the cause, then retry.
    #[error("the log is full ({used} of {capacity} bytes){}", because(cause))]
    Full {
        /// Bytes of the log in use.
        used: u64,
        /// Bytes the log can hold.
        capacity: u64,
        /// What stopped truncation.
        cause: Option<TruncateError>,
    },
    /// The log takes nothing more from this process.
    #[error("{0}")]
    Refused(AppendError),
    /// The record was logged and its fate is unknown, never "aborted": recovery may find it. The transaction
    /// has ended and memory keeps its new values.
    #[error("the commit at LSN {lsn}: {cause}")]
    Unknown {
        /// Where the record begins.
        lsn: Lsn,
        /// Why the answer is missing.
        cause: WaitError,
    },
}

/// Why a transaction did not get its preamble. It has the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreambleError {
    /// The transaction has ended.
    #[error("the transaction has ended")]
    Ended,
    /// It is longer than a record's may be.
    #[error("a preamble of {bytes} bytes exceeds {max}; hold fewer locks in one transaction")]
    TooLong {
        /// Bytes given.
        bytes: usize,
        /// The most that fit.
        max: usize,
    },
}

/// Why a foreign record was not applied. Nothing of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// It changes a segment that is not the region's, or not mapped.
    #[error("the record changes segment {segment}, which is not mapped here")]
    Segment {
        /// The segment's number in the record.
        segment: u32,
    },
    /// It changes several segments, and one region was named.
    #[error("the record changes several segments; a region has one")]
    Several,
    /// It changes bytes outside the mapped ones.
    #[error(
        "the record changes bytes from {start} to {end}; mapped are those from {region_start} to {region_end}"
    )]
    OutOfRegion {
        /// The first byte changed.
        start: u64,
        /// Behind the last byte changed.
        end: u64,
        /// The first byte mapped.
        region_start: u64,
        /// Behind the last byte mapped.
        region_end: u64,
    },
    /// It is in the wide form, which is only read.
    #[error("the record is in the wide form of older programs; apply it, and commit its ranges as one's own")]
    Form,
    /// The transaction declared ranges in the segment that the record changes.
    #[error(
        "the transaction has ranges of its own in the segment that the record changes; commit them apart"
    )]
    Declared,
    /// The region's stores are found by page: nothing can be logged for it but what is found.
    #[error(
        "the region's stores are found by page; have them declared where records of other logs are committed"
    )]
    Captured,
    /// The region belongs to another `Rvm`, or the transaction has too many.
    #[error("the region belongs to another log than the transaction, or is one too many for it")]
    Region,
    /// The commit failed.
    #[error("{0}")]
    Commit(#[from] RvmCommitError),
}
