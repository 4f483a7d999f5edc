//! Objects that one thread at a time uses until they end: transactions, readers.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;

use crate::error;

/// A value, until it is taken.
pub(crate) struct ExclusiveSlot<T>(Mutex<Option<T>>);

/// Why the value cannot be used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExclusiveSlotError {
    /// Another thread is using it.
    Busy,
    /// The value has ended.
    Ended,
}

impl ExclusiveSlotError {
    pub(crate) fn raise(self, py: Python<'_>, what: &str) -> PyErr {
        match self {
            ExclusiveSlotError::Busy => error::busy(py, format_args!("another thread is using this {what}")),
            ExclusiveSlotError::Ended => {
                error::closed(py, format_args!("the {what} has ended; begin another"))
            }
        }
    }
}

impl<T> ExclusiveSlot<T> {
    pub(crate) fn new(value: T) -> ExclusiveSlot<T> {
        ExclusiveSlot(Mutex::new(Some(value)))
    }

    /// Locks the slot unless another thread uses it. Never waits.
    pub(crate) fn enter(&self) -> Result<MutexGuard<'_, Option<T>>, ExclusiveSlotError> {
        match self.0.try_lock() {
            Ok(slot) => Ok(slot),
            Err(TryLockError::Poisoned(slot)) => Ok(slot.into_inner()),
            Err(TryLockError::WouldBlock) => Err(ExclusiveSlotError::Busy),
        }
    }

    pub(crate) fn with<R>(&self, then: impl FnOnce(&mut T) -> R) -> Result<R, ExclusiveSlotError> {
        self.enter()?.as_mut().map(then).ok_or(ExclusiveSlotError::Ended)
    }

    /// Takes the value permanently. While `then` runs, other threads find the slot in use.
    pub(crate) fn end<R>(&self, then: impl FnOnce(T) -> R) -> Result<R, ExclusiveSlotError> {
        let mut slot = self.enter()?;
        slot.take().map(then).ok_or(ExclusiveSlotError::Ended)
    }

    /// Takes the value, waiting for a thread that uses it.
    pub(crate) fn take_after(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_open(&self) -> bool {
        // A value in use is open. Never waits, not even in a forked child.
        self.enter().map_or(true, |slot| slot.is_some())
    }

    /// For a child of fork, where dropping the value would wait for locks that the parent's threads may have
    /// held.
    pub(crate) fn never_drop(&mut self) {
        let inner = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let _never_dropped = ManuallyDrop::new(inner);
    }
}
