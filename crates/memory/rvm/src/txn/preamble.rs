//! The preamble: bytes of a record for those who read it elsewhere.

use netram_proto::port::RecordLog;

use super::Transaction;
use crate::error::PreambleError;
use crate::limit::PREAMBLE_BYTES_MAX;
use crate::storage::SegmentStorage;

impl<L: RecordLog, S: SegmentStorage> Transaction<L, S> {
    /// Sets the bytes that the record begins with, in place of earlier ones. This crate does not interpret
    /// them: shared memory stores there which locks were held, at which versions.
    ///
    /// A record with a preamble is never spooled and holds this transaction alone. A transaction without
    /// ranges still writes no record, unless [`Transaction::log_always`] requests it.
    ///
    /// # Errors
    ///
    /// [`PreambleError`] if the transaction has ended, or the preamble exceeds
    /// [`PREAMBLE_BYTES_MAX`].
    pub fn set_preamble(&mut self, bytes: &[u8]) -> Result<(), PreambleError> {
        if !self.open {
            return Err(PreambleError::Ended);
        }
        if bytes.len() > PREAMBLE_BYTES_MAX {
            return Err(PreambleError::TooLong {
                bytes: bytes.len(),
                max: PREAMBLE_BYTES_MAX,
            });
        }
        self.buffers.preamble.clear();
        self.buffers.preamble.extend_from_slice(bytes);
        Ok(())
    }

    /// Makes the commit write a record even if no range was declared.
    pub fn log_always(&mut self) {
        self.buffers.always = true;
    }
}
