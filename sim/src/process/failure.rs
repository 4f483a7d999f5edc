//! Reasons for which a journal does not open.

use netram_proto::failure::CallError;
use netram_proto::id::Lsn;
use netram_proto::journal::{AssembleError, LogFileError, RecoveryError, SlotError};
use netram_proto::port::IoError;

/// Why a journal did not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenFailure {
    /// The process died while it opened the journal.
    Crashed,
    /// The disk failed.
    Io(IoError),
    /// Too few members answered, or a newer writer has fenced the journal.
    Refused(RecoveryError),
    /// The log is damaged below what had been durable.
    Corrupt {
        /// LSN of the damage.
        at: Lsn,
    },
    /// A file does not have the expected format.
    Unusable(&'static str),
}

impl From<IoError> for OpenFailure {
    fn from(error: IoError) -> OpenFailure {
        OpenFailure::Io(error)
    }
}

impl From<CallError> for OpenFailure {
    fn from(failure: CallError) -> OpenFailure {
        OpenFailure::Io(failure.error)
    }
}

impl From<SlotError> for OpenFailure {
    fn from(error: SlotError) -> OpenFailure {
        match error {
            SlotError::Io(error) => OpenFailure::Io(error),
            SlotError::Foreign | SlotError::Damaged => OpenFailure::Unusable("view file"),
        }
    }
}

impl From<LogFileError> for OpenFailure {
    fn from(error: LogFileError) -> OpenFailure {
        match error {
            LogFileError::Io(error) => OpenFailure::Io(error),
            _ => OpenFailure::Unusable("log file"),
        }
    }
}

impl From<AssembleError> for OpenFailure {
    fn from(error: AssembleError) -> OpenFailure {
        match error {
            AssembleError::Io(error) => OpenFailure::Io(error),
            AssembleError::Corrupt { at, .. } => OpenFailure::Corrupt { at },
        }
    }
}
