//! Persistent heaps in a region of several machines as the ground of the graph.

use std::fmt;
use std::sync::Arc;

use netram_heap::Heap;
use netram_proto::port::Durability;
use netram_rvm::{ExclusiveGuard, Mode, RangeError};
use netram_shared::{Node, Txn};
use netram_shared_machine::{Hold, LockId};

use super::ground::Space;
use super::heap::{Commits, HeapOpen};
use crate::error::StoreError;

/// Heaps of a shared region, each under a lock. The first one has the root and what belongs to all modules; if there are others, they
/// are those of the modules, in the order of their ids. A transaction acquires all their locks as it begins, and those that
/// it is told to acquire with them, or only what [`begin_with`](OnSharedHeap::begin_with) is given.
pub struct OnSharedHeap<'n> {
    node: &'n Node,
    heaps: Vec<Arc<Heap>>,
    locks: Vec<(LockId, Hold)>,
    durability: Durability,
    mode: Mode,
}

impl fmt::Debug for OnSharedHeap<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("OnSharedHeap")
            .field("heaps", &self.heaps)
            .field("locks", &self.locks)
            .finish_non_exhaustive()
    }
}

impl<'n> OnSharedHeap<'n> {
    /// Makes the lock's span a heap without blocks.
    pub fn format(node: &Node, lock: LockId) -> Result<(), StoreError> {
        let mut txn = begin(node, &[(lock, Hold::Exclusive)], Mode::Restore)?;
        txn.format_heap(lock).map_err(StoreError::below)?;
        Commits::commit(txn, Durability::Remote)
    }

    /// The heap under one lock, which transactions acquire to write: all modules are in it.
    pub fn open(
        node: &'n Node,
        lock: LockId,
        durability: Durability,
    ) -> Result<OnSharedHeap<'n>, StoreError> {
        OnSharedHeap::open_all(node, &[lock], durability)
    }

    /// The heaps under these locks, the first of which is for what belongs to all modules. Transactions acquire all to write.
    pub fn open_all(
        node: &'n Node,
        locks: &[LockId],
        durability: Durability,
    ) -> Result<OnSharedHeap<'n>, StoreError> {
        let with = |hold| -> Vec<(LockId, Hold)> { locks.iter().map(|lock| (*lock, hold)).collect() };
        let txn = begin(node, &with(Hold::Shared), Mode::Restore)?;
        let heaps = locks.iter().map(|lock| txn.heap(*lock));
        let heaps: Result<Vec<Arc<Heap>>, _> = heaps.collect();
        let heaps = heaps.map_err(StoreError::below)?;
        drop(txn);
        Ok(OnSharedHeap {
            node,
            heaps,
            locks: with(Hold::Exclusive),
            durability,
            mode: Mode::Restore,
        })
    }

    /// Transactions acquire their locks to read: several of them at once, that change nothing.
    pub fn reading(mut self) -> OnSharedHeap<'n> {
        self.locks.iter_mut().for_each(|(_, hold)| *hold = Hold::Shared);
        self
    }

    /// Transactions acquire these locks, too.
    pub fn with_locks(mut self, more: &[(LockId, Hold)]) -> OnSharedHeap<'n> {
        self.locks.extend_from_slice(more);
        self
    }

    /// Transactions that keep no old values: cheaper, and one that is dropped after a change ends the node.
    pub fn without_undo(self) -> OnSharedHeap<'n> {
        OnSharedHeap {
            mode: Mode::NoRestore,
            ..self
        }
    }

    /// Begins a transaction that acquires these locks, in their order, and for the time being no others.
    pub fn begin_with(&self, locks: &[(LockId, Hold)]) -> Result<SharedOpen<'_>, StoreError> {
        let txn = begin(self.node, locks, self.mode)?;
        Ok(HeapOpen::new(txn, &self.heaps, self.durability))
    }
}

/// A transaction on heaps of a shared region.
pub type SharedOpen<'s> = HeapOpen<'s, Txn<'s>, Arc<Heap>>;

impl SharedOpen<'_> {
    /// Acquires one lock more. Out of order it may die of it: see [`Txn::acquire`].
    pub fn acquire(&mut self, lock: LockId, hold: Hold) -> Result<(), StoreError> {
        self.changing().acquire(lock, hold).map_err(StoreError::below)
    }
}

fn begin<'n>(node: &'n Node, locks: &[(LockId, Hold)], mode: Mode) -> Result<Txn<'n>, StoreError> {
    let mut txn = node.begin(mode).map_err(StoreError::below)?;
    txn.acquire_all(locks).map_err(StoreError::below)?;
    Ok(txn)
}

impl Commits for Txn<'_> {
    fn store(
        &mut self,
        held: &mut ExclusiveGuard<'_>,
        offset: usize,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let written = self.write_in(held, offset, bytes);
        written.map_err(|error| StoreError::below(RangeError::from(error)))
    }

    fn commit(self, durability: Durability) -> Result<(), StoreError> {
        Txn::commit(self, durability).map_err(StoreError::below)?;
        Ok(())
    }
}

impl Space for OnSharedHeap<'_> {
    type Open<'s>
        = SharedOpen<'s>
    where
        Self: 's;

    fn begin(&self) -> Result<SharedOpen<'_>, StoreError> {
        self.begin_with(&self.locks)
    }
}
