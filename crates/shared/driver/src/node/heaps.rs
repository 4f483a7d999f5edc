//! Persistent heaps in the region, each within the span of one lock.
//!
//! A heap keeps free lists beside the region's bytes, which other nodes' records would make stale. So the
//! heaps are told which bytes each applied record changes. A heap reads those again when it is next used
//! under its lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_heap::{Heap, HeapFormatError, HeapOpenError};
use netram_rvm::RecordChanges;
use netram_rvm::record::RecordScope;
use netram_shared_machine::LockId;

use super::Node;
use crate::server::Span;

/// Reason why a transaction does not get a heap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapError {
    /// The region does not have this lock.
    #[error("the region has no lock {0}")]
    NoLock(LockId),
    /// The transaction does not hold the lock.
    #[error(
        "the heap is under lock {0}, which this transaction has not acquired; creating a heap needs it exclusively"
    )]
    NotHeld(LockId),
    /// The transaction has written under the lock, and may still be undone.
    #[error(
        "this transaction has written under lock {0}: commit it, and create or open the heap in another one"
    )]
    Written(LockId),
    /// A heap in the span is in use; its blocks would vanish.
    #[error("the heap under lock {0} is in use in this process: drop it first")]
    InUse(LockId),
    /// The span cannot be formatted as a heap.
    #[error(transparent)]
    Format(#[from] HeapFormatError),
    /// The span contains no heap, or a damaged one.
    #[error(transparent)]
    Open(#[from] HeapOpenError),
}

/// Heaps that were opened. They are kept for the node's life, since making their lists is expensive.
#[derive(Default)]
pub(super) struct Heaps {
    any: AtomicBool,
    /// Key: start of the span. Value: its end and its heap.
    open: Mutex<BTreeMap<u64, (u64, Arc<Heap>)>>,
}

impl Heaps {
    /// Notes that a record of another node has changed the region.
    #[inline]
    pub(super) fn touched(&self, changes: &RecordChanges<'_>) {
        if self.any.load(Ordering::Acquire) {
            self.tell(changes);
        }
    }

    fn tell(&self, changes: &RecordChanges<'_>) {
        let RecordScope::Segment { start, end, .. } = changes.scope() else {
            return;
        };
        for (until, heap) in self.lock().range(..end).map(|(_, heap)| heap) {
            if *until > start {
                // The region is its whole segment: offsets in a record are offsets in the region.
                heap.note_remote(
                    changes
                        .ranges()
                        .map(|range| (range.offset as usize, range.bytes.len())),
                );
            }
        }
    }

    /// The heap in a span, opened if needed. The caller ensures that the span does not change at the same
    /// time.
    pub(super) fn find(
        &self,
        span: &Span,
        open: impl FnOnce() -> Result<Heap, HeapError>,
    ) -> Result<Arc<Heap>, HeapError> {
        let mut heaps = self.lock();
        if let Some((_, heap)) = heaps.get(&span.offset) {
            return Ok(Arc::clone(heap));
        }
        // No record can change the heap before it can be notified.
        let heap = Arc::new(open()?);
        heaps.insert(span.offset, (span.end(), Arc::clone(&heap)));
        self.any.store(true, Ordering::Release);
        Ok(heap)
    }

    /// The heap in a span, if it was opened.
    fn opened(&self, span: &Span) -> Option<Arc<Heap>> {
        self.lock().get(&span.offset).map(|(_, heap)| Arc::clone(heap))
    }

    /// Drops the heap in a span. Fails while it is in use.
    pub(super) fn forget(&self, span: &Span) -> Result<(), HeapError> {
        let mut heaps = self.lock();
        if let Some((_, heap)) = heaps.get(&span.offset)
            && Arc::strong_count(heap) > 1
        {
            return Err(HeapError::InUse(span.lock));
        }
        heaps.remove(&span.offset);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (u64, Arc<Heap>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// The heap in the span of a lock, if a transaction of this node has opened it. Its `lens` finds roots
    /// and blocks in a [`RegionReader`](crate::RegionReader)'s bytes without the lock.
    pub fn heap(&self, lock: LockId) -> Option<Arc<Heap>> {
        let place = self.shared.spans.find(lock)?;
        self.shared.applier.heaps.opened(self.shared.spans.at(place))
    }
}
