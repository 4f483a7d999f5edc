//! What a database's party needs of the disk beneath, and of the other processes.

use netram_proto::failure::CallError;
use netram_proto::port::IoError;

use crate::change::FileRole;

/// The files of one database, and what its processes share on the disk.
pub trait BackingFiles {
    /// Keeps all other processes from settling while it lives.
    type CheckpointGuard;
    /// Keeps a dead process's slot from being taken while it lives.
    type DeadSlot;

    /// Waits until no process settles.
    fn lock_checkpoint(&self) -> Result<Self::CheckpointGuard, IoError>;
    /// Takes the slot of a process that is dead. `None`: it lives.
    fn claim_dead_slot(&self, slot: usize) -> Option<Self::DeadSlot>;
    /// Makes all that was written to the files, and their names, durable. The error says whether a sync
    /// itself failed.
    fn sync(&self) -> Result<(), CallError>;
    /// Has the page cache forgotten: a file then reads as the disk has it, or as the next
    /// [`BackingFiles::sync`] makes it. After a sync that failed the cache shows, as clean, what the disk
    /// never got.
    fn drop_cache(&self) -> Result<(), IoError>;
    /// The number below which records do not count: what they say is on the disk.
    fn start(&self) -> Result<u64, IoError>;
    /// Sets it, durably.
    fn set_start(&self, start: u64) -> Result<(), CallError>;
    /// Whether there is such a file.
    fn exists(&self, role: FileRole) -> Result<bool, IoError>;
    /// Writes to a file, which is made if there is none.
    fn write(&self, role: FileRole, offset: u64, bytes: &[u8]) -> Result<(), IoError>;
    /// Gives a file a length; it is made if there is none.
    fn resize(&self, role: FileRole, size: u64) -> Result<(), IoError>;
    /// Removes a file, if it is there.
    fn remove(&self, role: FileRole) -> Result<(), IoError>;
}
