//! Tests that start processes, and tests for which a descriptor must be closed when they close it.
//!
//! They run side by side in one process. A process that one of them starts has every descriptor of the others
//! until it runs its own program: for that moment a socket whose end is dropped is not closed, and a lock not
//! let go.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

static STARTING: RwLock<()> = RwLock::new(());

/// Starts a process; all others here close nothing meanwhile.
pub(crate) fn start<T>(start: impl FnOnce() -> T) -> T {
    let _alone = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    start()
}

/// Nobody here starts a process as long as this is held.
pub(crate) fn none_starts() -> RwLockReadGuard<'static, ()> {
    STARTING.read().unwrap_or_else(PoisonError::into_inner)
}
