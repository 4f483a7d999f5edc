//! The persistent heap as the ground of the graph.
//!
//! Reading takes the region's lock once, and keeps it until something changes: a traversal that only reads follows
//! offsets with a bounds check each, and nothing else.

use std::fmt;

use netram_heap::{AllocError, Heap, Ptr, Transact};
use netram_proto::port::{Durability, Log};
use netram_rvm::{Mode, ReadGuard, Rvm, Storage, Transaction};

use super::ground::{Ground, Space};
use crate::error::StoreError;

/// The root of the heap in which the database is kept.
const ROOT: usize = 0;

/// A persistent heap whose transactions commit with one durability.
pub struct OnHeap<'h, L: Log, S: Storage> {
    rvm: &'h Rvm<L, S>,
    heap: &'h Heap,
    durability: Durability,
    mode: Mode,
}

impl<L: Log, S: Storage> fmt::Debug for OnHeap<'_, L, S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("OnHeap")
            .field("heap", self.heap)
            .finish_non_exhaustive()
    }
}

impl<'h, L: Log, S: Storage> OnHeap<'h, L, S> {
    /// The heap, which must stand in a region of this recoverable memory.
    pub fn new(rvm: &'h Rvm<L, S>, heap: &'h Heap, durability: Durability) -> OnHeap<'h, L, S> {
        OnHeap {
            rvm,
            heap,
            durability,
            mode: Mode::Restore,
        }
    }

    /// Transactions that keep no old values: cheaper, and a dropped one leaves its changes in memory, uncommitted.
    pub fn without_undo(self) -> OnHeap<'h, L, S> {
        OnHeap {
            mode: Mode::NoRestore,
            ..self
        }
    }
}

impl<L: Log, S: Storage> Space for OnHeap<'_, L, S> {
    type Open<'s>
        = HeapOpen<'s, Transaction<L, S>>
    where
        Self: 's;

    fn begin(&self) -> Result<HeapOpen<'_, Transaction<L, S>>, StoreError> {
        Ok(HeapOpen::new(
            self.rvm.begin(self.mode),
            self.heap,
            self.durability,
        ))
    }
}

/// A transaction that can be committed.
pub trait Commits: Transact {
    /// Commits it.
    fn commit(self, durability: Durability) -> Result<(), StoreError>;
}

impl<L: Log, S: Storage> Commits for Transaction<L, S> {
    fn commit(self, durability: Durability) -> Result<(), StoreError> {
        Transaction::commit(self, durability).map_err(StoreError::below)?;
        Ok(())
    }
}

/// A transaction on a heap.
pub struct HeapOpen<'s, X> {
    // Dropped before the transaction, whose end takes the region's lock.
    reading: Option<ReadGuard<'s>>,
    transaction: X,
    heap: &'s Heap,
    durability: Durability,
}

impl<'s, X: Commits> HeapOpen<'s, X> {
    pub(super) fn new(transaction: X, heap: &'s Heap, durability: Durability) -> HeapOpen<'s, X> {
        HeapOpen {
            reading: None,
            transaction,
            heap,
            durability,
        }
    }
}

impl<X> fmt::Debug for HeapOpen<'_, X> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("HeapOpen").finish_non_exhaustive()
    }
}

impl<X: Commits> HeapOpen<'_, X> {
    /// The transaction, for a change: nothing may be lent for reading meanwhile.
    fn changing(&mut self) -> &mut X {
        self.reading = None;
        &mut self.transaction
    }
}

impl<X: Commits> Ground for HeapOpen<'_, X> {
    fn bytes(&mut self) -> &[u8] {
        let heap = self.heap;
        let reading = self.reading.get_or_insert_with(|| heap.region().read());
        &reading[heap.base()..]
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let heap = self.heap;
        let offset = usize::try_from(at)
            .ok()
            .and_then(|at| at.checked_add(heap.base()));
        let offset = offset.ok_or(StoreError::Damaged {
            what: "bytes to write",
            at,
        })?;
        let written = self.changing().write(heap.region(), offset, bytes);
        written.map_err(StoreError::below)
    }

    fn allocate(&mut self, bytes: usize) -> Result<u64, StoreError> {
        let heap = self.heap;
        match heap.allocate(self.changing(), bytes) {
            Ok(block) => Ok(block.offset()),
            Err(AllocError::NoRoom { asked, largest }) => Err(StoreError::NoRoom {
                asked: asked as u64,
                largest,
            }),
            Err(error) => Err(StoreError::below(error)),
        }
    }

    fn free(&mut self, at: u64) -> Result<(), StoreError> {
        let heap = self.heap;
        heap.free(self.changing(), Ptr::<u8>::from_offset(at))
            .map_err(StoreError::below)
    }

    fn root(&mut self) -> Result<u64, StoreError> {
        // It takes the region's lock itself.
        self.reading = None;
        let root = self.heap.root::<u8>(ROOT).map_err(StoreError::below)?;
        Ok(root.offset())
    }

    fn set_root(&mut self, at: u64) -> Result<(), StoreError> {
        let heap = self.heap;
        heap.set_root(self.changing(), ROOT, Ptr::<u8>::from_offset(at))
            .map_err(StoreError::below)
    }

    fn commit(self) -> Result<(), StoreError> {
        let HeapOpen {
            reading,
            transaction,
            durability,
            ..
        } = self;
        drop(reading);
        transaction.commit(durability)
    }
}
