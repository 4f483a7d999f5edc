//! Lock of a node's directory. Two processes in one directory would take each other's journals for those of a
//! dead process.
//!
//! The directory itself is locked, so that no lock file can be left over or be removed at the wrong moment.
//! The kernel releases the lock when the process ends.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::JoinError;

/// Time to wait for the lock. A process that has just ended, or a child that has not called `exec` yet, may
/// hold it for a moment.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The right to use a node's directory, given up on drop.
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
