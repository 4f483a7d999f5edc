//! A persistent heap as block space of the graph.
//!
//! The region's lock is taken once for reading, once more at the first change, and kept. A traversal then
//! follows offsets with a bounds check each, and changes bytes with a declaration each. Taking the lock for
//! every change was almost half of a change's cost: each time the processor waits for all its pending memory
//! accesses.

use std::fmt;
use std::ops::Deref;

use netram_heap::{AllocError, Heap, Ptr, Transact};
use netram_proto::port::{Durability, RecordLog};
use netram_rvm::{ExclusiveGuard, ReadGuard, RestoreMode, Rvm, SegmentStorage, Transaction};

use super::space::{BlockOwner, BlockSpace, BlockTransaction};
use crate::error::Oo7Error;

/// Root of the heap that holds the database.
const ROOT: usize = 0;

/// A persistent heap whose transactions commit with one durability.
pub struct HeapSpace<'h, L: RecordLog, S: SegmentStorage> {
    rvm: &'h Rvm<L, S>,
    heap: &'h Heap,
    durability: Durability,
    mode: RestoreMode,
}

impl<L: RecordLog, S: SegmentStorage> fmt::Debug for HeapSpace<'_, L, S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("OnHeap")
            .field("heap", self.heap)
            .finish_non_exhaustive()
    }
}

impl<'h, L: RecordLog, S: SegmentStorage> HeapSpace<'h, L, S> {
    /// A block space on `heap`, which must be in a region of this recoverable memory.
    pub fn new(rvm: &'h Rvm<L, S>, heap: &'h Heap, durability: Durability) -> HeapSpace<'h, L, S> {
        HeapSpace {
            rvm,
            heap,
            durability,
            mode: RestoreMode::Restore,
        }
    }

    /// Makes transactions keep no old values. That is cheaper, but a dropped one leaves its uncommitted
    /// changes in memory.
    pub fn without_undo(self) -> HeapSpace<'h, L, S> {
        HeapSpace {
            mode: RestoreMode::NoRestore,
            ..self
        }
    }
}

impl<'h, L: RecordLog, S: SegmentStorage> BlockSpace for HeapSpace<'h, L, S> {
    type Open<'s>
        = HeapSpaceTransaction<'s, Transaction<L, S>, &'h Heap>
    where
        Self: 's;

    fn begin(&self) -> Result<HeapSpaceTransaction<'_, Transaction<L, S>, &'h Heap>, Oo7Error> {
        Ok(HeapSpaceTransaction::new(
            self.rvm.begin(self.mode),
            std::slice::from_ref(&self.heap),
            self.durability,
        ))
    }
}

/// A transaction that can be committed, and that can change memory whose lock is already held.
pub trait CommitTransaction: Transact {
    /// Declares bytes and stores them.
    fn store(&mut self, held: &mut ExclusiveGuard<'_>, offset: usize, bytes: &[u8]) -> Result<(), Oo7Error>;

    /// Commits it.
    fn commit(self, durability: Durability) -> Result<(), Oo7Error>;
}

impl<L: RecordLog, S: SegmentStorage> CommitTransaction for Transaction<L, S> {
    fn store(&mut self, held: &mut ExclusiveGuard<'_>, offset: usize, bytes: &[u8]) -> Result<(), Oo7Error> {
        self.write_in(held, offset, bytes).map_err(Oo7Error::backend)
    }

    fn commit(self, durability: Durability) -> Result<(), Oo7Error> {
        Transaction::commit(self, durability).map_err(Oo7Error::backend)?;
        Ok(())
    }
}

/// A transaction on a heap, or on several heaps of one region. The first has the root and everything common
/// to all modules; the others belong to the modules, in the order of their ids.
pub struct HeapSpaceTransaction<'s, X, H> {
    // Dropped before the transaction, whose end takes the region's lock.
    reading: Option<ReadGuard<'s>>,
    /// Replaces `reading` from the first change on.
    storing: Option<ExclusiveGuard<'s>>,
    transaction: X,
    heaps: &'s [H],
    durability: Durability,
}

impl<'s, X: CommitTransaction, H: Deref<Target = Heap>> HeapSpaceTransaction<'s, X, H> {
    pub(super) fn new(
        transaction: X,
        heaps: &'s [H],
        durability: Durability,
    ) -> HeapSpaceTransaction<'s, X, H> {
        assert!(!heaps.is_empty());
        HeapSpaceTransaction {
            reading: None,
            storing: None,
            transaction,
            heaps,
            durability,
        }
    }

    /// The heap that is common to all modules.
    fn common(&self) -> &'s Heap {
        let heaps = self.heaps;
        &heaps[0]
    }

    /// The heap that contains a block: the last one that begins before it.
    fn heap_of(&self, at: u64) -> &'s Heap {
        let offset = at.saturating_add(self.common().base() as u64);
        let heaps = self.heaps.iter().map(|heap| &**heap);
        let before = heaps.filter(|heap| heap.start() as u64 <= offset);
        before.max_by_key(|heap| heap.start()).unwrap_or(self.common())
    }

    fn heap_near(&self, near: BlockOwner) -> &'s Heap {
        match near {
            BlockOwner::Common => self.common(),
            BlockOwner::Module(id) => {
                let heaps = self.heaps;
                heaps.get(id as usize).map_or(self.common(), |heap| heap)
            }
            BlockOwner::Block(at) => self.heap_of(at),
        }
    }
}

impl<X, H> fmt::Debug for HeapSpaceTransaction<'_, X, H> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("HeapOpen").finish_non_exhaustive()
    }
}

impl<X, H> HeapSpaceTransaction<'_, X, H> {
    /// The transaction, for operations that take the region's lock themselves, or wait.
    pub(super) fn transaction_mut(&mut self) -> &mut X {
        self.reading = None;
        self.storing = None;
        &mut self.transaction
    }
}

impl<X: CommitTransaction, H: Deref<Target = Heap>> BlockTransaction for HeapSpaceTransaction<'_, X, H> {
    fn bytes(&mut self) -> &[u8] {
        let heap = self.common();
        let bytes: &[u8] = match &self.storing {
            Some(storing) => storing,
            None => self.reading.get_or_insert_with(|| heap.region().read()),
        };
        &bytes[heap.base()..]
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Oo7Error> {
        let heap = self.common();
        let offset = usize::try_from(at)
            .ok()
            .and_then(|at| at.checked_add(heap.base()));
        let offset = offset.ok_or(Oo7Error::Damaged {
            what: "bytes to write",
            at,
        })?;
        self.reading = None;
        let storing = self.storing.get_or_insert_with(|| heap.region().exclusive());
        self.transaction.store(storing, offset, bytes)
    }

    fn allocate(&mut self, near: BlockOwner, bytes: usize) -> Result<u64, Oo7Error> {
        let heap = self.heap_near(near);
        match heap.allocate(self.transaction_mut(), bytes) {
            Ok(block) => Ok(block.offset()),
            Err(AllocError::NoRoom { asked, largest }) => Err(Oo7Error::Full {
                asked: asked as u64,
                largest,
            }),
            Err(error) => Err(Oo7Error::backend(error)),
        }
    }

    fn free(&mut self, at: u64) -> Result<(), Oo7Error> {
        let heap = self.heap_of(at);
        heap.free(self.transaction_mut(), Ptr::<u8>::from_offset(at))
            .map_err(Oo7Error::backend)
    }

    fn root(&mut self) -> Result<u64, Oo7Error> {
        // It takes the region's lock itself.
        self.transaction_mut();
        let root = self.common().root::<u8>(ROOT).map_err(Oo7Error::backend)?;
        Ok(root.offset())
    }

    fn set_root(&mut self, at: u64) -> Result<(), Oo7Error> {
        let heap = self.common();
        heap.set_root(self.transaction_mut(), ROOT, Ptr::<u8>::from_offset(at))
            .map_err(Oo7Error::backend)
    }

    fn commit(self) -> Result<(), Oo7Error> {
        let HeapSpaceTransaction {
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
