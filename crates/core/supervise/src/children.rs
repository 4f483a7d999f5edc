//! For tests: separates those that start processes from those for which a descriptor must be closed when they
//! close it.
//!
//! Tests run in parallel in one process. A process that one of them starts has every descriptor of the others
//! until it runs its own program. During that time, a dropped socket is not closed and a dropped lock not
//! released.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

static STARTING: RwLock<()> = RwLock::new(());

/// Starts a process while no other test closes a descriptor.
pub fn start<T>(start: impl FnOnce() -> T) -> T {
    let _alone = STARTING.write().unwrap_or_else(PoisonError::into_inner);
    start()
}

/// Prevents all tests from starting a process while the guard is held.
pub fn none_starts() -> RwLockReadGuard<'static, ()> {
    STARTING.read().unwrap_or_else(PoisonError::into_inner)
}
