//! Persistent heaps in the region, each within the span of one lock.
//!
//! A heap keeps lists of what is free beside the region's bytes. Others' records would make them false, so
//! whoever applies one says to the heaps here which bytes it changed; the heap looks at those again when it
//! is used next under its lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_heap::{Heap, HeapFormatError, HeapOpenError};
use netram_rvm::RecordChanges;
use netram_rvm::record::RecordScope;
use netram_shared_machine::LockId;

use super::Node;
use crate::server::Span;

/// Why a transaction has no heap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapError {
    /// The region has no such lock.
    #[error("the region has no lock {0}")]
    NoLock(LockId),
    /// The transaction does not have the lock.
    #[error("the heap is under lock {0}, which this transaction has not acquired: to make one, exclusively")]
    NotHeld(LockId),
    /// What the transaction wrote may still be undone.
    #[error("this transaction has written under lock {0}: commit it, then make or open the heap in another")]
    Written(LockId),
    /// A heap is in use there, whose blocks would vanish.
    #[error("the heap under lock {0} is in use in this process: drop it first")]
    InUse(LockId),
    /// The span cannot be made a heap.
    #[error(transparent)]
    Format(#[from] HeapFormatError),
    /// There is no heap, or a damaged one.
    #[error(transparent)]
    Open(#[from] HeapOpenError),
}

/// The heaps that have been opened, kept for the node's life: their lists are dear to make.
#[derive(Default)]
pub(super) struct Heaps {
    any: AtomicBool,
    /// By where they begin, with where they end.
    open: Mutex<BTreeMap<u64, (u64, Arc<Heap>)>>,
}

impl Heaps {
    /// A record of another node has changed the region.
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
                // The region is all of its segment: places in a record are places in the region.
                heap.note_remote(
                    changes
                        .ranges()
                        .map(|range| (range.offset as usize, range.bytes.len())),
                );
            }
        }
    }

    /// The heap in a span; opens it if nobody has yet. Nothing changes the span meanwhile.
    pub(super) fn find(
        &self,
        span: &Span,
        open: impl FnOnce() -> Result<Heap, HeapError>,
    ) -> Result<Arc<Heap>, HeapError> {
        let mut heaps = self.lock();
        if let Some((_, heap)) = heaps.get(&span.offset) {
            return Ok(Arc::clone(heap));
        }
        // Nothing comes that changes it before it can be told.
        let heap = Arc::new(open()?);
        heaps.insert(span.offset, (span.end(), Arc::clone(&heap)));
        self.any.store(true, Ordering::Release);
        Ok(heap)
    }

    /// The heap in a span, if somebody has opened it.
    fn opened(&self, span: &Span) -> Option<Arc<Heap>> {
        self.lock().get(&span.offset).map(|(_, heap)| Arc::clone(heap))
    }

    /// Forgets the heap in a span. Refused while somebody has it.
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
    /// The heap in the span of a lock, if a transaction of this node has used it since it was made: for a
    /// [`RegionReader`](crate::RegionReader), in whose bytes its `lens` finds roots and blocks without the
    /// lock.
    pub fn heap(&self, lock: LockId) -> Option<Arc<Heap>> {
        let place = self.shared.spans.find(lock)?;
        self.shared.applier.heaps.opened(self.shared.spans.at(place))
    }
}
