//! The persistent heap as the ground of the graph.
//!
//! The region's lock is taken once to read, once more at the first change, and kept: a traversal follows offsets with a bounds check
//! each, and changes with a declaration each. Taken and freed with every change it was almost half of what a change cost: each
//! time the processor waits until all that it has begun is done, with the misses of the walk.

use std::fmt;
use std::ops::Deref;

use netram_heap::{AllocError, Heap, Ptr, Transact};
use netram_proto::port::{Durability, Log};
use netram_rvm::{ExclusiveGuard, Mode, ReadGuard, Rvm, Storage, Transaction};

use super::ground::{Ground, Near, Space};
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

impl<'h, L: Log, S: Storage> Space for OnHeap<'h, L, S> {
    type Open<'s>
        = HeapOpen<'s, Transaction<L, S>, &'h Heap>
    where
        Self: 's;

    fn begin(&self) -> Result<HeapOpen<'_, Transaction<L, S>, &'h Heap>, StoreError> {
        Ok(HeapOpen::new(
            self.rvm.begin(self.mode),
            std::slice::from_ref(&self.heap),
            self.durability,
        ))
    }
}

/// A transaction that can be committed, and changes memory whose lock is held already.
pub trait Commits: Transact {
    /// Declares bytes and stores them.
    fn store(&mut self, held: &mut ExclusiveGuard<'_>, offset: usize, bytes: &[u8])
    -> Result<(), StoreError>;

    /// Commits it.
    fn commit(self, durability: Durability) -> Result<(), StoreError>;
}

impl<L: Log, S: Storage> Commits for Transaction<L, S> {
    fn store(
        &mut self,
        held: &mut ExclusiveGuard<'_>,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.write_in(held, offset, bytes).map_err(StoreError::below)
    }

    fn commit(self, durability: Durability) -> Result<(), StoreError> {
        Transaction::commit(self, durability).map_err(StoreError::below)?;
        Ok(())
    }
}

/// A transaction on a heap, or on several of one region. The first one has the root, and what belongs to all modules; the others are
/// those of the modules, in the order of their ids.
pub struct HeapOpen<'s, X, H> {
    // Dropped before the transaction, whose end takes the region's lock.
    reading: Option<ReadGuard<'s>>,
    /// From the first change on, instead.
    storing: Option<ExclusiveGuard<'s>>,
    transaction: X,
    heaps: &'s [H],
    durability: Durability,
}

impl<'s, X: Commits, H: Deref<Target = Heap>> HeapOpen<'s, X, H> {
    pub(super) fn new(transaction: X, heaps: &'s [H], durability: Durability) -> HeapOpen<'s, X, H> {
        assert!(!heaps.is_empty());
        HeapOpen {
            reading: None,
            storing: None,
            transaction,
            heaps,
            durability,
        }
    }

    /// The heap of what belongs to all modules.
    fn common(&self) -> &'s Heap {
        let heaps = self.heaps;
        &heaps[0]
    }

    /// The heap in which a block lies: the one that begins last before it.
    fn heap_of(&self, at: u64) -> &'s Heap {
        let offset = at.saturating_add(self.common().base() as u64);
        let heaps = self.heaps.iter().map(|heap| &**heap);
        let before = heaps.filter(|heap| heap.start() as u64 <= offset);
        before.max_by_key(|heap| heap.start()).unwrap_or(self.common())
    }

    fn heap_near(&self, near: Near) -> &'s Heap {
        match near {
            Near::Common => self.common(),
            Near::Module(id) => {
                let heaps = self.heaps;
                heaps.get(id as usize).map_or(self.common(), |heap| heap)
            }
            Near::Block(at) => self.heap_of(at),
        }
    }
}

impl<X, H> fmt::Debug for HeapOpen<'_, X, H> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("HeapOpen").finish_non_exhaustive()
    }
}

impl<X, H> HeapOpen<'_, X, H> {
    /// The transaction, for what takes the region's lock itself, or waits.
    pub(super) fn changing(&mut self) -> &mut X {
        self.reading = None;
        self.storing = None;
        &mut self.transaction
    }
}

impl<X: Commits, H: Deref<Target = Heap>> Ground for HeapOpen<'_, X, H> {
    fn bytes(&mut self) -> &[u8] {
        let heap = self.common();
        let bytes: &[u8] = match &self.storing {
            Some(storing) => storing,
            None => self.reading.get_or_insert_with(|| heap.region().read()),
        };
        &bytes[heap.base()..]
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let heap = self.common();
        let offset = usize::try_from(at)
            .ok()
            .and_then(|at| at.checked_add(heap.base()));
        let offset = offset.ok_or(StoreError::Damaged {
            what: "bytes to write",
            at,
        })?;
        self.reading = None;
        let storing = self.storing.get_or_insert_with(|| heap.region().exclusive());
        self.transaction.store(storing, offset, bytes)
    }

    fn allocate(&mut self, near: Near, bytes: usize) -> Result<u64, StoreError> {
        let heap = self.heap_near(near);
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
        let heap = self.heap_of(at);
        heap.free(self.changing(), Ptr::<u8>::from_offset(at))
            .map_err(StoreError::below)
    }

    fn root(&mut self) -> Result<u64, StoreError> {
        // It takes the region's lock itself.
        self.changing();
        let root = self.common().root::<u8>(ROOT).map_err(StoreError::below)?;
        Ok(root.offset())
    }

    fn set_root(&mut self, at: u64) -> Result<(), StoreError> {
        let heap = self.common();
        heap.set_root(self.changing(), ROOT, Ptr::<u8>::from_offset(at))
            .map_err(StoreError::below)
    }

    fn commit(self) -> Result<(), StoreError> {
        let HeapOpen {
            reading,
            storing,
            transaction,
            durability,
            ..
        } = self;
        drop((reading, storing));
        transaction.commit(durability)
    }
}
