//! One process has a node's directory: two would take each other's journals for what a dead process left.
//!
//! The directory itself is locked, so that there is no file to be left over, and none to be removed at the wrong moment. The lock goes with
//! the process, however that ends.

use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::JoinError;

/// A process that has just ended, or a child that has not become another program yet, may have the lock for a moment longer.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The right to use a node's directory; given up when dropped.
pub(super) struct Alone {
    _directory: File,
}

impl Alone {
    pub(super) fn take(directory: &Path) -> Result<Alone, JoinError> {
        let failed = |cause| JoinError::Directory {
            path: directory.to_owned(),
            cause,
        };
        let file = File::open(directory).map_err(failed)?;
        let until = Instant::now() + PATIENCE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Alone { _directory: file }),
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
                Err(TryLockError::WouldBlock) => return Err(JoinError::InUse(directory.to_owned())),
                Err(TryLockError::Error(cause)) => return Err(failed(cause)),
            }
        }
    }
}
