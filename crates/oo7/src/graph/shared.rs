//! A persistent heap in a region of several machines as the ground of the graph.

use std::fmt;
use std::sync::Arc;

use netram_heap::Heap;
use netram_proto::port::Durability;
use netram_proto::shared::{Hold, LockId};
use netram_rvm::Mode;
use netram_shared::{Node, Txn};

use super::ground::Space;
use super::heap::{Commits, HeapOpen};
use crate::error::StoreError;

/// The heap under one lock of a shared region. Every transaction acquires that lock as it begins, and those that it is told
/// to acquire with it.
pub struct OnSharedHeap<'n> {
    node: &'n Node,
    heap: Arc<Heap>,
    locks: Vec<(LockId, Hold)>,
    durability: Durability,
    mode: Mode,
}

impl fmt::Debug for OnSharedHeap<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("OnSharedHeap")
            .field("heap", &self.heap)
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

    /// The heap under the lock, which transactions acquire to write.
    pub fn open(
        node: &'n Node,
        lock: LockId,
        durability: Durability,
    ) -> Result<OnSharedHeap<'n>, StoreError> {
        let txn = begin(node, &[(lock, Hold::Shared)], Mode::Restore)?;
        let heap = txn.heap(lock).map_err(StoreError::below)?;
        drop(txn);
        Ok(OnSharedHeap {
            node,
            heap,
            locks: vec![(lock, Hold::Exclusive)],
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
}

fn begin<'n>(node: &'n Node, locks: &[(LockId, Hold)], mode: Mode) -> Result<Txn<'n>, StoreError> {
    let mut txn = node.begin(mode).map_err(StoreError::below)?;
    txn.acquire_all(locks).map_err(StoreError::below)?;
    Ok(txn)
}

impl Commits for Txn<'_> {
    fn commit(self, durability: Durability) -> Result<(), StoreError> {
        Txn::commit(self, durability).map_err(StoreError::below)?;
        Ok(())
    }
}

impl Space for OnSharedHeap<'_> {
    type Open<'s>
        = HeapOpen<'s, Txn<'s>>
    where
        Self: 's;

    fn begin(&self) -> Result<HeapOpen<'_, Txn<'_>>, StoreError> {
        let txn = begin(self.node, &self.locks, self.mode)?;
        Ok(HeapOpen::new(txn, &self.heap, self.durability))
    }
}
