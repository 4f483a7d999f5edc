//! What a transaction says to those who read its record elsewhere.

use netram_proto::port::RecordLog;

use super::Transaction;
use crate::error::PreambleError;
use crate::limit::PREAMBLE_BYTES_MAX;
use crate::storage::SegmentStorage;

impl<L: RecordLog, S: SegmentStorage> Transaction<L, S> {
    /// Has the record begin with these bytes, in place of those given before. They mean nothing here: shared
    /// memory puts there which locks were held, at which versions.
    ///
    /// A record with a preamble is never spooled, and stands for this transaction alone. A transaction
    /// without ranges writes none even so, unless [`Transaction::log_always`] asks for it.
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

    /// Has the commit write a record though no range was declared.
    pub fn log_always(&mut self) {
        self.buffers.always = true;
    }
}
