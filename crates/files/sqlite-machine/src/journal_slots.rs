//! Journal slots: the journals of a database. Each process that commits owns one.

use netram_proto::planted::PlantedFault;
use netram_proto::port::{LogError, RecordLog};

use crate::backing_files::BackingFiles;
use crate::database_writer::{DatabaseWriter, DatabaseWriterError};

/// The journal slots of a database.
pub trait JournalSlots {
    /// Exclusive right to one slot.
    type JournalSlotLock;
    /// Type of an open journal.
    type Log: RecordLog;
    /// Why a slot cannot be locked or opened.
    type Error;

    /// Number of slots.
    fn count(&self) -> usize;
    /// Locks a slot. `None`: another process has it.
    fn lock(&self, seat: usize) -> Result<Option<Self::JournalSlotLock>, Self::Error>;
    /// Opens the journal of a locked slot. Its records are no longer needed, so missing ones are not an
    /// error.
    fn open(&self, seat: usize, lock: Self::JournalSlotLock) -> Result<Self::Log, Self::Error>;
}

/// Why a process has no journal. Its commits go to the disk, and it may try again.
#[derive(Debug, thiserror::Error)]
pub enum JournalSlotError<E> {
    /// Other processes own all slots.
    #[error("all journals are in use by other processes; `netram sqlite create --seats` sets their number")]
    AllInUse,
    /// The checkpoint failed. The free slot is unchanged.
    #[error(transparent)]
    Checkpoint(#[from] DatabaseWriterError),
    /// The slot could not be locked or opened.
    #[error("{0}")]
    Slot(E),
    /// The journal's old records could not be discarded.
    #[error("{0}")]
    Trim(LogError),
}

impl<L: RecordLog, B: BackingFiles> DatabaseWriter<L, B> {
    /// Takes a free journal slot and discards the records in it.
    ///
    /// Its previous owner may have committed until the moment it died, unknown to any other process. The lock
    /// comes first, after which no record is added. Then a checkpoint brings to the disk all that such a
    /// record could contain. Only then is the journal opened, which fences the previous owner. If the
    /// checkpoint is refused, nothing has changed.
    ///
    /// # Errors
    ///
    /// See [`JournalSlotError`].
    pub fn take_journal_slot<S: JournalSlots<Log = L>>(
        &self,
        seats: &S,
    ) -> Result<(), JournalSlotError<S::Error>> {
        let too_early = self.planted().is(PlantedFault::CheckpointBeforeLock);
        if too_early {
            self.checkpoint_files()?;
        }
        for seat in 0..seats.count() {
            let Some(lock) = seats.lock(seat).map_err(JournalSlotError::Slot)? else {
                continue;
            };
            if !too_early {
                self.checkpoint_files()?;
            }
            let log = seats.open(seat, lock).map_err(JournalSlotError::Slot)?;
            log.trim(log.state().tail).map_err(JournalSlotError::Trim)?;
            self.attach_journal(log);
            return Ok(());
        }
        Err(JournalSlotError::AllInUse)
    }
}
