//! Rust's errors as Python's. The classes, and what each is for: `python/netram/errors.py`.

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

/// ETXTBSY: `netram_rvm::RealStorage` says it of a file that another process has locked.
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
    /// No store was opened or created.
    open_error = "OpenError";
    /// Another process or store has it.
    in_use = "InUse";
    /// Recovery could not be proven complete.
    refused = "RecoveryRefused";
    /// A segment could not be created, mapped or forgotten.
    segment_error = "SegmentError";
    /// Outside a region.
    range_error = "RangeError";
    /// Flushing or truncating failed.
    log_error = "LogError";
    /// The members do not count.
    lenders_missing = "LendersMissing";
    /// The object's time is over.
    closed = "ClosedError";
    /// A heap, or a block of one.
    heap_error = "HeapError";
    /// There is none at all.
    no_heap = "NoHeap";
    /// A heap is full.
    no_room = "NoRoom";
    /// A page of far memory is lost.
    page_lost = "PageLost";
    /// Not now: transactions are open, or another thread is in it.
    busy = "BusyError";
}

/// A commit that did not come about, or whose outcome is unknown.
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

/// The transaction has ended.
pub(crate) fn ended(py: Python<'_>) -> PyErr {
    closed(py, "the transaction has ended; begin another")
}

/// What kept a store from being opened or created.
pub(crate) fn home(py: Python<'_>, error: &StoreError) -> PyErr {
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
                "there is a log at {} already; open it, or choose another path",
                path.display()
            ),
        ),
        _ => open_error(py, error),
    }
}

/// What kept a segment from being created or used.
pub(crate) fn segment(py: Python<'_>, error: &SegmentError) -> PyErr {
    match error {
        SegmentError::InUse { .. } => in_use(py, error),
        _ => segment_error(py, error),
    }
}

/// What kept a region from being mapped.
pub(crate) fn map(py: Python<'_>, error: &MapError) -> PyErr {
    match error {
        MapError::Segment(cause) => segment(py, cause),
        MapError::OutOfSegment { .. } | MapError::Unaligned { .. } => range_error(py, error),
        _ => segment_error(py, error),
    }
}

/// What kept a segment in the table.
pub(crate) fn forget(py: Python<'_>, error: &ForgetError) -> PyErr {
    segment_error(py, error)
}

/// What is wrong with a range.
pub(crate) fn range(py: Python<'_>, error: &RangeError) -> PyErr {
    match error {
        RangeError::Ended => ended(py),
        RangeError::NotHeld { lock, .. } => crate::nodes::not_held(py, error, lock.map(LockId)),
        RangeError::Captured => busy(py, error),
        _ => range_error(py, error),
    }
}

/// What stopped a truncation.
pub(crate) fn truncate(py: Python<'_>, error: &TruncateError) -> PyErr {
    log_error(py, error)
}

/// What kept commits from becoming as safe as asked.
pub(crate) fn flush(py: Python<'_>, error: &FlushError) -> PyErr {
    log_error(py, error)
}

/// What is wrong with a block.
pub(crate) fn block(py: Python<'_>, error: &BlockError) -> PyErr {
    heap_error(py, error)
}

/// What kept a heap from being opened.
pub(crate) fn open_heap(py: Python<'_>, error: &netram_heap::HeapOpenError) -> PyErr {
    match error {
        netram_heap::HeapOpenError::Busy { .. } => busy(py, error),
        // Nothing else: a program answers it by making one, and all that is there is void.
        netram_heap::HeapOpenError::Foreign => no_heap(py, error),
        _ => heap_error(py, error),
    }
}

/// What kept a heap from being made.
pub(crate) fn format(py: Python<'_>, error: &HeapFormatError) -> PyErr {
    match error {
        HeapFormatError::Range(cause) => range(py, cause),
        HeapFormatError::Commit(cause) => commit(py, cause),
        HeapFormatError::Busy { .. } => busy(py, error),
        HeapFormatError::Open(cause) => open_heap(py, cause),
        HeapFormatError::Size { .. } => heap_error(py, error),
    }
}

/// What kept a block from being allocated.
pub(crate) fn alloc(py: Python<'_>, error: &AllocError) -> PyErr {
    match error {
        AllocError::NoRoom { .. } => no_room(py, error),
        AllocError::Transactions { .. } => busy(py, error),
        AllocError::Range(cause) => range(py, cause),
        AllocError::Prepare(cause) => commit(py, cause),
        AllocError::Damaged(_) => heap_error(py, error),
    }
}

/// What kept a block from being freed.
pub(crate) fn free(py: Python<'_>, error: &FreeError) -> PyErr {
    match error {
        FreeError::Block(cause) => block(py, cause),
        FreeError::Busy { .. } | FreeError::Transactions { .. } => busy(py, error),
        FreeError::Range(cause) => range(py, cause),
    }
}

/// What kept a block from being resized.
pub(crate) fn resize(py: Python<'_>, error: &BlockResizeError) -> PyErr {
    match error {
        BlockResizeError::Free(cause) => free(py, cause),
        BlockResizeError::Alloc(cause) => alloc(py, cause),
        BlockResizeError::Range(cause) => range(py, cause),
    }
}

/// What kept a root or a block from being read or written.
pub(crate) fn access(py: Python<'_>, error: &BlockAccessError) -> PyErr {
    match error {
        BlockAccessError::Range(cause) => range(py, cause),
        BlockAccessError::Root { .. } => range_error(py, error),
        _ => heap_error(py, error),
    }
}
