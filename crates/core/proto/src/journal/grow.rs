//! Giving an empty log a larger data area.
//!
//! The byte at LSN `n` lies at `n` modulo the capacity, so another capacity moves every record. A log that
//! holds none has nothing to move: what is left in its data area are records of the past, at places where no
//! reader will look for them. `docs/journal.md` argues why none of them can be taken for a record, or for
//! proof of damage, at its new place.
//!
//! What only the driver can do (making the file longer, before; holding the journal's lock, all the time) is
//! left to it.

use crate::failure::CallError;
use crate::id::Lsn;
use crate::limit::{LOG_ALIGN, LOG_BYTES_MAX, LOG_BYTES_MIN};
use crate::port::{IoError, StorageFile};

use super::logfile::{LogFile, LogFileError, LogSuperblock, check_size};
use super::slot_pair::SlotPair;

/// Why a log was not given another size. It is as before, unless storing the new superblock failed: then it
/// has the old size or the new, and either is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogGrowError {
    /// The size is out of bounds, or the file failed or is shorter than it must be.
    File(LogFileError),
    /// A log does not become smaller.
    Smaller {
        /// Bytes of the data area.
        capacity: u64,
        /// Bytes asked for.
        asked: u64,
    },
    /// The log holds records.
    NotEmpty {
        /// Where they begin.
        head: Lsn,
        /// Where they end, as far as they are valid.
        end: Lsn,
    },
    /// Records had been on the disk and are bad now.
    Damaged {
        /// Where the valid ones end.
        at: Lsn,
        /// Below this, everything had been durable.
        proof: Lsn,
    },
}

impl core::fmt::Display for LogGrowError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LogGrowError::File(error) => error.fmt(out),
            LogGrowError::Smaller { capacity, asked } => write!(
                out,
                "the log has {capacity} bytes, and {asked} are fewer; a log only grows: for a smaller one make a new \
                 journal"
            ),
            LogGrowError::NotEmpty { head, end } => write!(
                out,
                "the log holds records from LSN {head} to {end}, which a larger log would look for elsewhere; let its \
                 program truncate it and close it, then try again"
            ),
            LogGrowError::Damaged { at, proof } => write!(
                out,
                "the log is damaged: LSN {at} to {proof} had been on the disk and is bad now; recover the journal first"
            ),
        }
    }
}

impl core::error::Error for LogGrowError {}

impl From<LogFileError> for LogGrowError {
    fn from(error: LogFileError) -> LogGrowError {
        LogGrowError::File(error)
    }
}

impl From<IoError> for LogGrowError {
    fn from(error: IoError) -> LogGrowError {
        LogGrowError::File(LogFileError::Io(error))
    }
}

impl From<CallError> for LogGrowError {
    fn from(failure: CallError) -> LogGrowError {
        failure.error.into()
    }
}

/// The leave to grow: only [`LogFile::may_grow`] gives it, so that the log is read through once.
#[derive(Debug)]
pub struct GrowPermit {
    superblock: LogSuperblock,
}

impl GrowPermit {
    /// Bytes that the data area will have.
    pub fn capacity(&self) -> u64 {
        self.superblock.capacity
    }
}

impl<F: StorageFile> LogFile<F> {
    /// Asks for `capacity` bytes. `base` is what the durable view knows to be on the disk.
    ///
    /// To be asked before the file is made longer, so that a refusal changes nothing. Asking for the size
    /// that the log has is granted: its superblock is stored once more, and an attempt that was cut off is
    /// complete.
    pub fn may_grow(
        &self,
        superblock: &LogSuperblock,
        base: Lsn,
        capacity: u64,
    ) -> Result<GrowPermit, LogGrowError> {
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&capacity) || !capacity.is_multiple_of(LOG_ALIGN) {
            return Err(LogFileError::Size(capacity).into());
        }
        if capacity < self.capacity() {
            return Err(LogGrowError::Smaller {
                capacity: self.capacity(),
                asked: capacity,
            });
        }
        let head = superblock.head;
        let limit = head.lsn.plus(self.capacity());
        let scan = self.scan(head, limit, &mut |_| true);
        if let Some(error) = scan.unreadable {
            return Err(error.into());
        }
        let proof = superblock.stable.max(base).max(scan.proof);
        let proof = proof.max(self.proof_beyond(scan.end.lsn, limit)?);
        if proof > scan.end.lsn {
            return Err(LogGrowError::Damaged {
                at: scan.end.lsn,
                proof,
            });
        }
        if scan.end.lsn > head.lsn {
            return Err(LogGrowError::NotEmpty {
                head: head.lsn,
                end: scan.end.lsn,
            });
        }
        Ok(GrowPermit {
            superblock: LogSuperblock {
                capacity,
                ..*superblock
            },
        })
    }

    /// Grows, durably. The file is long enough already, and that is synced; nothing was appended since the
    /// leave was given.
    pub fn grow(
        self,
        slots: &mut SlotPair,
        growth: &GrowPermit,
    ) -> Result<(LogFile<F>, LogSuperblock), LogGrowError> {
        let grown = growth.superblock;
        assert!(grown.capacity >= self.capacity());
        check_size(self.file(), grown.capacity)?;
        // The old capacity's last act: from the first slot's sync on, records are looked for at their new
        // places.
        self.store(slots, &grown)?;
        Ok((self.with_capacity(grown.capacity), grown))
    }
}
