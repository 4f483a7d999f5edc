//! The journals of a database, of which each process that commits has one.

use netram_proto::planted::PlantedFault;
use netram_proto::port::{LogError, RecordLog};

use crate::backing_files::BackingFiles;
use crate::database_writer::{DatabaseWriter, DatabaseWriterError};

/// A database's journals.
pub trait JournalSlots {
    /// The right to one of them, which no other process has meanwhile.
    type JournalSlotLock;
    /// A journal.
    type Log: RecordLog;
    /// Why one is not locked or opened.
    type Error;

    /// How many there are.
    fn count(&self) -> usize;
    /// Locks one of them. `None`: another process has it.
    fn lock(&self, seat: usize) -> Result<Option<Self::JournalSlotLock>, Self::Error>;
    /// Opens one that is locked. Whatever is in it is of no use any more, whether or not all of it is found.
    fn open(&self, seat: usize, lock: Self::JournalSlotLock) -> Result<Self::Log, Self::Error>;
}

/// Why a process has no journal. It commits by the disk, and may try again.
#[derive(Debug, thiserror::Error)]
pub enum JournalSlotError<E> {
    /// All are other processes'.
    #[error("all journals are other processes'; `netram sqlite create --seats` says how many there are")]
    AllInUse,
    /// The files could not be settled. The free journal was left as it was.
    #[error(transparent)]
    Checkpoint(#[from] DatabaseWriterError),
    /// It could not be locked or opened.
    #[error("{0}")]
    Slot(E),
    /// It could not be emptied.
    #[error("{0}")]
    Trim(LogError),
}

impl<L: RecordLog, B: BackingFiles> DatabaseWriter<L, B> {
    /// Takes a journal that no other process has, and whatever is in it is given up.
    ///
    /// Its owner may have committed to it until the moment in which it died, and nobody else knows of that.
    /// So the lock comes first, from when on no record is added to it; then everything is settled, which is
    /// all that such a record could say; and only then is it opened, by which an earlier owner is fenced.
    /// Where settling is refused, nothing was changed.
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
