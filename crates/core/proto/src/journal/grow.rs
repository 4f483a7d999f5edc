//! Giving an empty log a larger data area.
//!
//! The byte at LSN `n` lies at `n` modulo the capacity, so another capacity moves every record. An empty log
//! has none to move: its data area holds only old records, at places where no reader looks for them.
//! `docs/design/journal.md` shows why none of them can be taken for a record, or for proof of damage, at its
//! new place.
//!
//! Not here: making the file longer beforehand, and holding the journal's lock throughout. The driver does
//! both.

use crate::failure::CallError;
use crate::id::Lsn;
use crate::limit::{LOG_ALIGN, LOG_BYTES_MAX, LOG_BYTES_MIN};
use crate::port::{IoError, StorageFile};

use super::logfile::{LogFile, LogFileError, LogSuperblock, check_size};
use super::slot_pair::SlotPair;

/// Why a log was not resized. The log is unchanged, unless storing the new superblock failed: then it has
/// either the old or the new size, and both are sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogGrowError {
    /// The size is out of bounds, or the file failed or is too short.
    File(LogFileError),
    /// The requested size is smaller; a log cannot shrink.
    Smaller {
        /// Size of the data area, in bytes.
        capacity: u64,
        /// Bytes requested.
        asked: u64,
    },
    /// The log is not empty.
    NotEmpty {
        /// Start of its records.
        head: Lsn,
        /// End of its valid records.
        end: Lsn,
    },
    /// Records that were on the disk are damaged.
    Damaged {
        /// End of the valid records.
        at: Lsn,
        /// Everything below was durable once.
        proof: Lsn,
    },
}

impl core::fmt::Display for LogGrowError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LogGrowError::File(error) => error.fmt(out),
            LogGrowError::Smaller { capacity, asked } => write!(
                out,
                "the log has {capacity} bytes, more than the {asked} requested; a log cannot shrink: create a new \
                 journal for a smaller one"
            ),
            LogGrowError::NotEmpty { head, end } => write!(
                out,
                "the log holds records from LSN {head} to {end}, and only an empty log can grow; let its program \
                 truncate it and close it, then try again"
            ),
            LogGrowError::Damaged { at, proof } => write!(
                out,
                "the log is damaged: LSN {at} to {proof} was on the disk once and is invalid now; recover the journal first"
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

/// Permission to grow a log. Only [`LogFile::may_grow`] grants it, after reading the log through.
#[derive(Debug)]
pub struct GrowPermit {
    superblock: LogSuperblock,
}

impl GrowPermit {
    /// Future size of the data area, in bytes.
    pub fn capacity(&self) -> u64 {
        self.superblock.capacity
    }
}

impl<F: StorageFile> LogFile<F> {
    /// Checks that the log can grow to `capacity` bytes. `base` is the LSN below which, according to the
    /// durable view, everything is on the disk.
    ///
    /// Call it before the file is made longer, so that a refusal changes nothing. The log's present size is
    /// accepted, too: storing its superblock once more completes an attempt that was cut off.
    ///
    /// # Errors
    ///
    /// The size is out of bounds or smaller, the log is not empty or damaged, or the file failed.
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

    /// Makes the new size durable. The file must already have its new length, synced, and nothing may have
    /// been appended since the permit was granted.
    ///
    /// # Errors
    ///
    /// The file is too short, or storing the superblock failed.
    pub fn grow(
        self,
        slots: &mut SlotPair,
        growth: &GrowPermit,
    ) -> Result<(LogFile<F>, LogSuperblock), LogGrowError> {
        let grown = growth.superblock;
        assert!(grown.capacity >= self.capacity());
        check_size(self.file(), grown.capacity)?;
        // The old capacity ends here: from the first slot's sync on, records are looked for at their new
        // places.
        self.store(slots, &grown)?;
        Ok((self.with_capacity(grown.capacity), grown))
    }
}
