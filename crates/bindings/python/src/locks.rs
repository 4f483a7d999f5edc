//! Taking locks beside an interpreter that has one of its own.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError};

use pyo3::prelude::*;

/// Locks; a panic elsewhere has been reported there and left nothing half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks shared. Whoever has the lock exclusively may wait for a disk: other Python threads run until it is
/// given back.
pub(crate) fn shared<'l, T: Send + Sync>(py: Python<'_>, lock: &'l RwLock<T>) -> RwLockReadGuard<'l, T> {
    loop {
        match lock.try_read() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(guard)) => return guard.into_inner(),
            // The guard is this thread's and cannot be brought along from there, so it is tried for again.
            Err(TryLockError::WouldBlock) => {
                py.detach(|| drop(lock.read().unwrap_or_else(PoisonError::into_inner)));
            }
        }
    }
}
