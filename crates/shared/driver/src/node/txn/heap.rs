//! A transaction's heaps.

use std::sync::Arc;

use netram_heap::Heap;
use netram_shared_machine::{LockId, LockMode};

use super::super::heaps::HeapError;
use super::Txn;
use crate::server::Span;

impl Txn<'_> {
    /// Makes the span of a lock a heap without blocks, whatever it was, as a part of this transaction, which
    /// holds the lock exclusively. Open it in a later one.
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

    /// The heap in the span of a lock, which this transaction holds, if only to read. The value is the same
    /// one for all of this node, and may be kept and used in later transactions.
    ///
    /// Whoever allocates, frees or resizes holds the lock exclusively; whoever reads blocks holds it at least
    /// shared, or reads by a [`RegionReader`](crate::RegionReader). Its pointers count from the region's
    /// beginning: one stored in a block may lead into another heap of the region.
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

    /// The span of a lock that the transaction holds.
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
