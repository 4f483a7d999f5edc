//! One process has a node's directory: two would take each other's journals for what a dead process left.
//!
//! The directory itself is locked, so that there is no file to be left over, and none to be removed at the
//! wrong moment. The lock goes with the process, however that ends.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::JoinError;

/// A process that has just ended, or a child that has not become another program yet, may have the lock for a
/// moment longer.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The right to use a node's directory; given up when dropped.
pub(super) struct DirectoryLock {
    _directory: File,
}

impl DirectoryLock {
    pub(super) fn take(directory: &Path) -> Result<DirectoryLock, JoinError> {
        let failed = |cause| JoinError::Directory {
            path: directory.to_owned(),
            cause,
        };
        let file = File::open(directory).map_err(failed)?;
        let until = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(DirectoryLock { _directory: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(RETRY_INTERVAL),
                Err(TryLockError::WouldBlock) => return Err(JoinError::InUse(directory.to_owned())),
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
        }
    }
}
