//! Heaps of a transaction.

use std::sync::Arc;

use netram_heap::Heap;
use netram_shared_machine::{LockId, LockMode};

use super::super::heaps::HeapError;
use super::Txn;
use crate::server::Span;

impl Txn<'_> {
    /// Formats the span of a lock as an empty heap, whatever it contained, as part of this transaction. The
    /// transaction must hold the lock exclusively. Open the heap in a later transaction.
    ///
    /// # Errors
    ///
    /// [`HeapError`] if the lock is not held exclusively or was written under, the heap there is in use, or
    /// the span cannot be a heap.
    pub fn format_heap(&mut self, lock: LockId) -> Result<(), HeapError> {
        let span = self.span_of(lock, LockMode::Exclusive)?;
        if self.has_written(lock) {
            return Err(HeapError::Written(lock));
        }
        self.shared.applier.heaps.forget(&span)?;
        let region = Arc::clone(&self.shared.region);
        let (start, length) = (span.offset as usize, span.length as usize);
        Ok(Heap::format_in(self, &region, start, length)?)
    }

    /// The heap in the span of a lock that this transaction holds, at least shared. The value is the same for
    /// the whole node, and may be kept for later transactions.
    ///
    /// Allocating, freeing and resizing need the lock exclusively; reading blocks needs it at least shared,
    /// or a [`RegionReader`](crate::RegionReader). Pointers count from the region's start: one stored in a
    /// block may lead into another heap of the region.
    ///
    /// # Errors
    ///
    /// [`HeapError`] if the lock is not held or was written under, or the span contains no valid heap.
    pub fn heap(&self, lock: LockId) -> Result<Arc<Heap>, HeapError> {
        let span = self.span_of(lock, LockMode::Shared)?;
        self.shared.applier.heaps.find(&span, || {
            if self.has_written(lock) {
                return Err(HeapError::Written(lock));
            }
            let region = Arc::clone(&self.shared.region);
            let (start, length) = (span.offset as usize, span.length as usize);
            Ok(Heap::open_shared(region, start, length)?)
        })
    }

    /// The span of a lock, if the transaction holds it in this mode.
    fn span_of(&self, lock: LockId, hold: LockMode) -> Result<Span, HeapError> {
        let place = self.shared.spans.find(lock).ok_or(HeapError::NoLock(lock))?;
        let span = self.shared.spans.at(place);
        let (start, end) = (span.offset as usize, span.end() as usize);
        match self.scratch.locked_spans.cover(start, end, hold) {
            Ok(_) => Ok(*span),
            Err(_) => Err(HeapError::NotHeld(lock)),
        }
    }

    fn has_written(&self, lock: LockId) -> bool {
        self.scratch.locked_spans.written().any(|written| written == lock)
    }
}
