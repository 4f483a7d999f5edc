//! A member's window in a vector.

use netram_proto::id::Lsn;
use netram_proto::member::{ReserveError, Window};

/// A window that grants any size and wraps at its end.
#[derive(Default)]
pub(crate) struct WindowBuffer(Vec<u8>);

impl Window for WindowBuffer {
    fn reserve(&mut self, bytes: u64) -> Result<(), ReserveError> {
        self.0 = vec![0; bytes as usize];
        Ok(())
    }

    fn release(&mut self) {
        self.0 = Vec::new();
    }

    fn capacity(&self) -> u64 {
        self.0.len() as u64
    }

    fn write(&mut self, at: Lsn, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let place = (at.0 as usize + index) % self.0.len();
            self.0[place] = *byte;
        }
    }

    fn piece(&self, at: Lsn, max: usize) -> &[u8] {
        let start = (at.0 % self.0.len() as u64) as usize;
        &self.0[start..self.0.len().min(start + max)]
    }
}
