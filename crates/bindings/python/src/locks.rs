//! Taking locks in the presence of the interpreter's own lock.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError};

use pyo3::prelude::*;

/// Locks and ignores poisoning: a panic elsewhere was reported there and left consistent data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks shared. A holder of the exclusive lock may wait for a disk, so other Python threads run during the
/// wait.
pub(crate) fn shared<'l, T: Send + Sync>(py: Python<'_>, lock: &'l RwLock<T>) -> RwLockReadGuard<'l, T> {
    loop {
        match lock.try_read() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(guard)) => return guard.into_inner(),
            // A guard cannot be moved between threads, so the lock is tried again on this one.
            Err(TryLockError::WouldBlock) => {
                py.detach(|| drop(lock.read().unwrap_or_else(PoisonError::into_inner)));
            }
        }
    }
}
