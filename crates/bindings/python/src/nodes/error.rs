//! Errors of nodes as Python's exceptions.

use netram_rvm::RangeError;
use netram_shared::node::{
    AcquireError, DeclareError, HeapError, JoinError, LeaveError, NodeGone, ReadError, ReaderExpired,
    SaveError, StrayStores, TxnCommitError,
};
use netram_shared_machine::LockId;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::error::{about_a_lock, classes, in_use, not_held};

classes! {
    /// The node could not join.
    join_error = "JoinError";
    /// The node has ended.
    gone_error = "Gone";
    /// The transaction's locks are lost.
    lost = "Lost";
    /// The state that a reader had pinned was given up.
    expired_error = "Expired";
    /// No copy can be saved while a server may exist.
    served = "Served";
    /// The copy could not be written.
    save_error = "SaveError";
}

about_a_lock! {
    died = "Died";
    timed_out = "TimedOut";
    lock_error = "LockError";
}

pub(super) fn gone(py: Python<'_>, gone: &NodeGone) -> PyErr {
    gone_error(py, gone)
}

pub(super) fn expired(py: Python<'_>) -> PyErr {
    expired_error(py, ReaderExpired)
}

pub(super) fn join(py: Python<'_>, error: &JoinError) -> PyErr {
    match error {
        JoinError::Gone(why) => gone(py, why),
        JoinError::InUse(_) => in_use(py, error),
        _ => join_error(py, error),
    }
}

/// The exception for a node that could not leave cleanly; it has ended all the same.
pub(super) fn leave(py: Python<'_>, error: &LeaveError) -> PyErr {
    gone_error(
        py,
        format_args!(
            "{error}; its commits are safe, and the next join from this directory offers them to the server"
        ),
    )
}

pub(super) fn acquire(py: Python<'_>, error: &AcquireError) -> PyErr {
    match error {
        AcquireError::Died(lock) => died(py, error, Some(*lock)),
        AcquireError::TimedOut(lock) => timed_out(py, error, Some(*lock)),
        AcquireError::OutOfOrder(lock) | AcquireError::NoLock(lock) => lock_error(py, error, Some(*lock)),
        AcquireError::TooMany(_) => lock_error(py, error, None),
        AcquireError::Captured => crate::error::busy(py, error),
        AcquireError::Lost => lost(py, error),
        AcquireError::Gone(why) => gone(py, why),
    }
}

pub(super) fn no_lock(py: Python<'_>, lock: u32) -> PyErr {
    acquire(py, &AcquireError::NoLock(LockId(lock)))
}

pub(super) fn declare(py: Python<'_>, error: &DeclareError) -> PyErr {
    match error {
        DeclareError::NotHeld { lock, .. } => not_held(py, error, Some(*lock)),
        DeclareError::NoLock { .. } => not_held(py, error, None),
        DeclareError::Range(cause) => range(py, cause),
    }
}

pub(super) fn read(py: Python<'_>, error: &ReadError) -> PyErr {
    match error {
        ReadError::NotHeld { lock, .. } => not_held(py, error, Some(*lock)),
        ReadError::NoLock { .. } => not_held(py, error, None),
        ReadError::Range(cause) => range(py, cause),
    }
}

fn range(py: Python<'_>, error: &RangeError) -> PyErr {
    crate::error::range(py, error)
}

pub(super) fn heap(py: Python<'_>, error: &HeapError) -> PyErr {
    match error {
        HeapError::NoLock(lock) => lock_error(py, error, Some(*lock)),
        HeapError::NotHeld(lock) => not_held(py, error, Some(*lock)),
        HeapError::Written(_) | HeapError::InUse(_) => crate::error::busy(py, error),
        HeapError::Format(cause) => crate::error::format(py, cause),
        HeapError::Open(cause) => crate::error::open_heap(py, cause),
    }
}

pub(super) fn save(py: Python<'_>, error: &SaveError) -> PyErr {
    match error {
        SaveError::Gone(why) => gone(py, why),
        SaveError::Served | SaveError::Changed => served(py, error),
        SaveError::Busy | SaveError::Unacknowledged => crate::error::busy(py, error),
        SaveError::Copy(cause) => save_error(py, cause),
    }
}

/// The exception of a commit with stores that the transaction may not make.
fn stray(py: Python<'_>, error: &TxnCommitError, found: &StrayStores) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let StrayStores {
        offset,
        address,
        length,
        count,
        lock,
        held,
    } = *found;
    let lock = lock.map(|lock| lock.0);
    let told = (error.to_string(), offset, address, length, count, lock, held);
    match CLASS.import(py, "netram.errors", "Stray") {
        Ok(class) => PyErr::from_type(class.clone(), told),
        Err(missing) => missing,
    }
}

pub(super) fn commit(py: Python<'_>, error: &TxnCommitError) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match error {
        TxnCommitError::Unknown { node, number, .. } => match CLASS.import(py, "netram.errors", "Unknown") {
            Ok(class) => PyErr::from_type(class.clone(), (error.to_string(), node.0, number.0)),
            Err(missing) => missing,
        },
        TxnCommitError::Lost => lost(py, error),
        TxnCommitError::Stray(found) => stray(py, error, found),
        TxnCommitError::Gone(why) => gone(py, why),
        TxnCommitError::Refused(cause) => crate::error::commit(py, cause),
    }
}
