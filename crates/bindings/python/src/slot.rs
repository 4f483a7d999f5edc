//! What one thread at a time uses until it ends: a transaction, a reader.

use std::mem::ManuallyDrop;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;

use crate::error;

/// A value, until it is taken out.
pub(crate) struct ExclusiveSlot<T>(Mutex<Option<T>>);

/// Why it is not to be had.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExclusiveSlotError {
    /// Another thread is in it.
    Busy,
    /// It has ended.
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

    /// The place itself, if nobody else is in it. Never waits.
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

    /// Takes it out for good. While `then` goes on, others find somebody in it.
    pub(crate) fn end<R>(&self, then: impl FnOnce(T) -> R) -> Result<R, ExclusiveSlotError> {
        let mut slot = self.enter()?;
        slot.take().map(then).ok_or(ExclusiveSlotError::Ended)
    }

    /// Takes it, whoever is in it: waits for that.
    pub(crate) fn take_after(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn is_open(&self) -> bool {
        // Who is in it is using it, so it is open. Never waits, not even in a forked child.
        self.enter().map_or(true, |slot| slot.is_some())
    }

    /// In a child of fork: its end would wait for locks that the parent's threads may have held at the fork.
    pub(crate) fn never_drop(&mut self) {
        let inner = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let _never_dropped = ManuallyDrop::new(inner);
    }
}
