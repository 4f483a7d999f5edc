//! Errors of commits, the process's own and those taken over from another log.

use netram_proto::id::Lsn;
use netram_proto::port::{AppendError, IoError, WaitError};

use super::{TruncateError, because};

/// Why a region's capture mode was not changed. After an error other than [`CaptureError::Uncommitted`] the
/// region is back at [`crate::CaptureMode::Declared`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// Open transactions have ranges in the region.
    #[error("{transactions} open transactions have ranges in the region; end them first")]
    Uncommitted {
        /// Number of these transactions.
        transactions: usize,
    },
    /// The region does not consist of pages of 4096 bytes: its storage keeps it on the heap, or the system's
    /// pages are larger.
    #[error(
        "the region does not consist of pages of 4096 bytes, so stores cannot be found by page; declare \
         ranges"
    )]
    NotPages,
    /// The region is larger than stores are tracked for.
    #[error(
        "a region of {length} bytes is too large to be captured by page; the limit is {max} bytes; map it in \
         parts"
    )]
    TooLarge {
        /// Length of the region.
        length: usize,
        /// Longest region that can be captured by page.
        max: usize,
    },
    /// The process already has the maximum number of regions with protected pages.
    #[error(
        "{max} regions of this process already have protected pages; use `DetectMethod::Watch`, or declare \
         ranges"
    )]
    TooManyTraps {
        /// Maximum number of such regions in one process.
        max: usize,
    },
    /// The kernel cannot track stores, or this process is not permitted to use that.
    #[error(
        "this system cannot track stores (that needs Linux 6.7 and userfaultfd): {cause}; use \
         `DetectMethod::Trap`"
    )]
    NoWatch {
        /// The system's error.
        cause: IoError,
    },
    /// The system refused to protect the region's pages.
    #[error("the region's pages cannot be protected: {cause}")]
    System {
        /// The system's error.
        cause: IoError,
    },
}

/// Why a commit failed.
///
/// Nothing was logged, except after [`RvmCommitError::Unknown`]. `Transaction::try_commit` then leaves the
/// transaction open, to be retried or aborted; `Transaction::commit` aborts it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RvmCommitError {
    /// The transaction has ended.
    #[error("the transaction has ended")]
    Ended,
    /// Undeclared stores were found in a verified region. Declare them and retry, or abort.
    #[error(
        "{count} stores were not declared; the first has {length} bytes at {offset} of the segment \
         {segment}, address {address:#x}: declare it before storing there, or commit without verifying"
    )]
    Undeclared {
        /// Segment of the first undeclared store.
        segment: std::sync::Arc<str>,
        /// Offset of that store in the segment.
        offset: u64,
        /// Length of that store, in bytes.
        length: usize,
        /// Address of that store.
        address: usize,
        /// Number of undeclared stores.
        count: usize,
    },
    /// Stores were found outside the bytes that the transaction may change. Abort.
    #[error(
        "{count} stores lie outside the bytes that the transaction may change; the first has {} bytes at {} \
         of the segment {}, address {:#x}: abort",
        first.length, first.offset, first.segment, first.address
    )]
    Outside {
        /// The first such store.
        first: crate::declared::UndeclaredStore,
        /// Number of such stores.
        count: usize,
    },
    /// The system could not report which pages were stored to. Retry, or abort.
    #[error("the system cannot report which pages were stored to: {cause}; retry, or abort")]
    Capture {
        /// The system's error.
        cause: IoError,
    },
    /// The transaction is larger than a record. Commit in parts, or create a larger log.
    #[error(
        "a transaction of {bytes} bytes exceeds the {max} bytes that fit into a record; commit it in parts"
    )]
    TooLarge {
        /// Bytes that the record would have.
        bytes: u64,
        /// Most bytes that fit into a record.
        max: usize,
    },
    /// The log is full and truncation could not make room. Remove the cause, then retry.
    #[error("the log is full ({used} of {capacity} bytes){}", because(cause))]
    Full {
        /// Bytes of the log in use.
        used: u64,
        /// Bytes the log can hold.
        capacity: u64,
        /// Why truncation failed; `None` if it found nothing to free.
        cause: Option<TruncateError>,
    },
    /// The log accepts no more records from this process.
    #[error("{0}")]
    Refused(AppendError),
    /// The record was logged, but its outcome is unknown: recovery may find it. It is never "aborted". The
    /// transaction has ended and memory keeps its new values.
    #[error("the commit at LSN {lsn}: {cause}")]
    Unknown {
        /// Where the record begins.
        lsn: Lsn,
        /// Why the acknowledgement is missing.
        cause: WaitError,
    },
}

/// Why a preamble was not set. The transaction keeps the earlier one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreambleError {
    /// The transaction has ended.
    #[error("the transaction has ended")]
    Ended,
    /// The preamble is longer than a record's may be.
    #[error("a preamble of {bytes} bytes exceeds {max}; hold fewer locks in one transaction")]
    TooLong {
        /// Length of the preamble given, in bytes.
        bytes: usize,
        /// Longest preamble, in bytes.
        max: usize,
    },
}

/// Why a foreign record was not applied. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForeignError {
    /// The record changes a segment that is not mapped, or not the one of the region.
    #[error("the record changes segment {segment}, which is not mapped here")]
    Segment {
        /// The segment's number in the record.
        segment: u32,
    },
    /// The record changes several segments, but a region belongs to one.
    #[error("the record changes several segments; a region has one")]
    Several,
    /// The record changes bytes outside the mapped ones.
    #[error(
        "the record changes bytes from {start} to {end}; the region holds {region_start} to {region_end}"
    )]
    OutOfRegion {
        /// Offset in the segment of the first changed byte.
        start: u64,
        /// Offset in the segment behind the last changed byte.
        end: u64,
        /// Offset in the segment of the first mapped byte.
        region_start: u64,
        /// Offset in the segment behind the last mapped byte.
        region_end: u64,
    },
    /// The record is in the wide form, which is only read.
    #[error("the record is in the wide form of older programs; apply it, then commit its ranges as your own")]
    Form,
    /// The transaction declared ranges in the segment that the record changes.
    #[error(
        "the transaction has ranges of its own in the segment that the record changes; commit them separately"
    )]
    Declared,
    /// The region's stores are found by page, so only stores found there can be logged.
    #[error(
        "the region's stores are found by page; set its capture mode to declared before committing records \
         of other logs"
    )]
    Captured,
    /// The region belongs to another `Rvm`, or the transaction already has the maximum number of regions.
    #[error(
        "the region belongs to another log than the transaction, or the transaction has too many regions \
         already"
    )]
    Region,
    /// The commit failed.
    #[error("{0}")]
    Commit(#[from] RvmCommitError),
}
