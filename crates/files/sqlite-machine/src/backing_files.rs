//! Interface of a database writer to the disk and to the other processes.

use netram_proto::failure::CallError;
use netram_proto::port::IoError;

use crate::change::FileRole;

/// The files of one database and the state that its processes share on the disk.
///
/// Methods return the system's error.
pub trait BackingFiles {
    /// While this value lives, no other process runs a checkpoint.
    type CheckpointGuard;
    /// While this value lives, no process can take the dead process's slot.
    type DeadSlot;

    /// Waits until no process runs a checkpoint.
    fn lock_checkpoint(&self) -> Result<Self::CheckpointGuard, IoError>;
    /// Takes the slot of a dead process. `None`: its process lives.
    fn claim_dead_slot(&self, slot: usize) -> Option<Self::DeadSlot>;
    /// Syncs all files and their names. The error says whether a sync itself failed.
    fn sync(&self) -> Result<(), CallError>;
    /// Drops the page cache, so that files read as the disk has them, or as the next [`BackingFiles::sync`]
    /// leaves them. After a failed sync the cache shows, as clean, bytes that the disk never got.
    fn drop_cache(&self) -> Result<(), IoError>;
    /// The start number: records with lower numbers are on the disk and do not count.
    fn start(&self) -> Result<u64, IoError>;
    /// Sets the start number, durably.
    fn set_start(&self, start: u64) -> Result<(), CallError>;
    /// Whether the file exists.
    fn exists(&self, role: FileRole) -> Result<bool, IoError>;
    /// Writes to a file, creating it if needed.
    fn write(&self, role: FileRole, offset: u64, bytes: &[u8]) -> Result<(), IoError>;
    /// Sets a file's length, creating it if needed.
    fn resize(&self, role: FileRole, size: u64) -> Result<(), IoError>;
    /// Removes a file if it exists.
    fn remove(&self, role: FileRole) -> Result<(), IoError>;
}
