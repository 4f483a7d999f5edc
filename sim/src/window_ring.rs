//! The memory of one member's window: a ring of bytes.

use netram_proto::id::Lsn;
use netram_proto::member::{ReserveError, Window, copy_out};
use netram_proto::wire::RefusalReason;

use crate::named_clients::JournalPayment;

/// A window stored in a vector.
#[derive(Debug, Default)]
pub struct WindowRing {
    bytes: Vec<u8>,
    /// The cost of the journal for its client, at a lender whose clients have names.
    pub(crate) payment: Option<JournalPayment>,
    /// Bytes that may be lent.
    pub limit: u64,
}

impl WindowRing {
    /// An empty window of a lender that may lend `limit` bytes.
    pub fn new(limit: u64) -> WindowRing {
        WindowRing {
            bytes: Vec::new(),
            payment: None,
            limit,
        }
    }

    /// Copies `length` bytes from `at`, if the window has them.
    pub fn copy(&self, at: Lsn, length: usize) -> Option<Vec<u8>> {
        if length as u64 > self.capacity() {
            return None;
        }
        let mut bytes = vec![0; length];
        if length > 0 {
            copy_out(self, at, &mut bytes);
        }
        Some(bytes)
    }

    /// Makes the client pay for a window of `bytes` bytes, as the shipped lender does.
    fn pay(&mut self, bytes: u64) -> Result<(), ReserveError> {
        let Some(payment) = &mut self.payment else {
            return Ok(());
        };
        payment.window.resize(bytes).map_err(|over| ReserveError {
            refusal: RefusalReason::OverClientLimit,
            asked: over.resource as u64,
            limit: over.limit,
        })
    }
}

/// A copy on a disk costs no client anything.
impl Clone for WindowRing {
    fn clone(&self) -> WindowRing {
        WindowRing {
            bytes: self.bytes.clone(),
            payment: None,
            limit: self.limit,
        }
    }
}

impl Window for WindowRing {
    fn reserve(&mut self, bytes: u64) -> Result<(), ReserveError> {
        self.release();
        if bytes > self.limit {
            return Err(ReserveError {
                refusal: RefusalReason::NoRoom,
                asked: bytes,
                limit: self.limit,
            });
        }
        self.pay(bytes)?;
        self.bytes = vec![0; bytes as usize];
        Ok(())
    }

    fn release(&mut self) {
        self.bytes = Vec::new();
        assert!(self.pay(0).is_ok(), "less is always granted");
    }

    fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn write(&mut self, at: Lsn, bytes: &[u8]) {
        let capacity = self.bytes.len();
        assert!(bytes.len() <= capacity, "a member writes within its window");
        let start = (at.0 % capacity as u64) as usize;
        let first = bytes.len().min(capacity - start);
        self.bytes[start..start + first].copy_from_slice(&bytes[..first]);
        self.bytes[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }

    fn piece(&self, at: Lsn, max: usize) -> &[u8] {
        let start = (at.0 % self.bytes.len() as u64) as usize;
        &self.bytes[start..self.bytes.len().min(start + max)]
    }
}
