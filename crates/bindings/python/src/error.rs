//! Rust's errors as Python's exceptions. `python/netram/errors.py` defines and describes the classes.

use netram_heap::{AllocError, BlockAccessError, BlockError, BlockResizeError, FreeError, HeapFormatError};
use netram_journal::{JournalCreateError, JournalOpenError};
use netram_proto::port::IoError;
use netram_rvm::{
    FlushError, ForgetError, MapError, RangeError, RvmCommitError, SegmentError, TruncateError,
};
use netram_shared_machine::LockId;
use netram_store::StoreError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

/// ETXTBSY: the error of `netram_rvm::RealStorage` for a file that another process has locked.
const IN_USE: IoError = IoError { errno: 26 };

macro_rules! classes {
    ($($(#[$doc:meta])* $function:ident = $name:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) fn $function(py: Python<'_>, message: impl std::fmt::Display) -> PyErr {
            static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
            match CLASS.import(py, "netram.errors", $name) {
                Ok(class) => PyErr::from_type(class.clone(), (message.to_string(),)),
                Err(missing) => missing,
            }
        }
    )*};
}
pub(crate) use classes;

classes! {
    /// A store could not be opened or created.
    open_error = "OpenError";
    /// Another process or store has the file open.
    in_use = "InUse";
    /// Recovery cannot be proven complete.
    refused = "RecoveryRefused";
    /// A segment could not be created, mapped or forgotten.
    segment_error = "SegmentError";
    /// A range is not inside its region.
    range_error = "RangeError";
    /// Flushing or truncating failed.
    log_error = "LogError";
    /// Lenders do not acknowledge commits.
    lenders_missing = "LendersMissing";
    /// The object was closed or has ended.
    closed = "ClosedError";
    /// A heap or a block of one is invalid.
    heap_error = "HeapError";
    /// The region contains no heap.
    no_heap = "NoHeap";
    /// A heap is full.
    no_room = "NoRoom";
    /// A page of far memory is lost.
    page_lost = "PageLost";
    /// The object is in use: transactions are open, or another thread is using it.
    busy = "BusyError";
}

/// The exception for a commit that failed, or whose outcome is unknown.
pub(crate) fn commit(py: Python<'_>, error: &RvmCommitError) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let lsn = match error {
        RvmCommitError::Ended => return ended(py),
        RvmCommitError::Unknown { lsn, .. } => Some(lsn.0),
        _ => None,
    };
    match CLASS.import(py, "netram.errors", "CommitError") {
        Ok(class) => PyErr::from_type(class.clone(), (error.to_string(), lsn.is_some(), lsn)),
        Err(missing) => missing,
    }
}

/// The exception for a transaction that has ended.
pub(crate) fn ended(py: Python<'_>) -> PyErr {
    closed(py, "the transaction has ended; begin another")
}

/// The exception for a store that could not be opened or created.
pub(crate) fn store(py: Python<'_>, error: &StoreError) -> PyErr {
    let segment = |error: &SegmentError| matches!(error, SegmentError::InUse { .. });
    match error {
        StoreError::Journal(JournalOpenError::InUse { .. }) => in_use(py, error),
        StoreError::Table { cause, .. } if *cause == IN_USE => in_use(py, error),
        StoreError::Memory(netram_rvm::RvmOpenError::Recovery(TruncateError::Segment(cause)))
            if segment(cause) =>
        {
            in_use(py, error)
        }
        StoreError::Journal(JournalOpenError::Refused { .. }) => refused(py, error),
        StoreError::Create(JournalCreateError::Exists(path)) => open_error(
            py,
            format_args!(
                "a log already exists at {}; open it, or choose another path",
                path.display()
            ),
        ),
        _ => open_error(py, error),
    }
}

/// The exception for a segment that could not be created or used.
pub(crate) fn segment(py: Python<'_>, error: &SegmentError) -> PyErr {
    match error {
        SegmentError::InUse { .. } => in_use(py, error),
        _ => segment_error(py, error),
    }
}

/// The exception for a region that could not be mapped.
pub(crate) fn map(py: Python<'_>, error: &MapError) -> PyErr {
    match error {
        MapError::Segment(cause) => segment(py, cause),
        MapError::OutOfSegment { .. } | MapError::Unaligned { .. } => range_error(py, error),
        _ => segment_error(py, error),
    }
}

/// The exception for a segment that could not be removed from the table.
pub(crate) fn forget(py: Python<'_>, error: &ForgetError) -> PyErr {
    segment_error(py, error)
}

/// The exception for an invalid range.
pub(crate) fn range(py: Python<'_>, error: &RangeError) -> PyErr {
    match error {
        RangeError::Ended => ended(py),
        RangeError::NotHeld { lock, .. } => crate::nodes::not_held(py, error, lock.map(LockId)),
        RangeError::Captured => busy(py, error),
        _ => range_error(py, error),
    }
}

/// The exception for a truncation that failed.
pub(crate) fn truncate(py: Python<'_>, error: &TruncateError) -> PyErr {
    log_error(py, error)
}

/// The exception for commits that could not be made as safe as requested.
pub(crate) fn flush(py: Python<'_>, error: &FlushError) -> PyErr {
    log_error(py, error)
}

/// The exception for an invalid block.
pub(crate) fn block(py: Python<'_>, error: &BlockError) -> PyErr {
    heap_error(py, error)
}

/// The exception for a heap that could not be opened.
pub(crate) fn open_heap(py: Python<'_>, error: &netram_heap::HeapOpenError) -> PyErr {
    match error {
        netram_heap::HeapOpenError::Busy { .. } => busy(py, error),
        // Only this error means "no heap": programs answer it by making one, which loses all content.
        netram_heap::HeapOpenError::Foreign => no_heap(py, error),
        _ => heap_error(py, error),
    }
}

/// The exception for a heap that could not be made.
pub(crate) fn format(py: Python<'_>, error: &HeapFormatError) -> PyErr {
    match error {
        HeapFormatError::Range(cause) => range(py, cause),
        HeapFormatError::Commit(cause) => commit(py, cause),
        HeapFormatError::Busy { .. } => busy(py, error),
        HeapFormatError::Open(cause) => open_heap(py, cause),
        HeapFormatError::Size { .. } => heap_error(py, error),
    }
}

/// The exception for a block that could not be allocated.
pub(crate) fn alloc(py: Python<'_>, error: &AllocError) -> PyErr {
    match error {
        AllocError::NoRoom { .. } => no_room(py, error),
        AllocError::Transactions { .. } => busy(py, error),
        AllocError::Range(cause) => range(py, cause),
        AllocError::Prepare(cause) => commit(py, cause),
        AllocError::Damaged(_) => heap_error(py, error),
    }
}

/// The exception for a block that could not be freed.
pub(crate) fn free(py: Python<'_>, error: &FreeError) -> PyErr {
    match error {
        FreeError::Block(cause) => block(py, cause),
        FreeError::Busy { .. } | FreeError::Transactions { .. } => busy(py, error),
        FreeError::Range(cause) => range(py, cause),
    }
}

/// The exception for a block that could not be resized.
pub(crate) fn resize(py: Python<'_>, error: &BlockResizeError) -> PyErr {
    match error {
        BlockResizeError::Free(cause) => free(py, cause),
        BlockResizeError::Alloc(cause) => alloc(py, cause),
        BlockResizeError::Range(cause) => range(py, cause),
    }
}

/// The exception for a root or a block that could not be read or written.
pub(crate) fn access(py: Python<'_>, error: &BlockAccessError) -> PyErr {
    match error {
        BlockAccessError::Range(cause) => range(py, cause),
        BlockAccessError::Root { .. } => range_error(py, error),
        _ => heap_error(py, error),
    }
}
