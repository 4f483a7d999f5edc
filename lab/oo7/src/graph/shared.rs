//! Persistent heaps in a region of several machines as block space of the graph.

use std::fmt;
use std::sync::Arc;

use netram_heap::Heap;
use netram_proto::port::Durability;
use netram_rvm::{ExclusiveGuard, RangeError, RestoreMode};
use netram_shared::{Node, Txn};
use netram_shared_machine::{LockId, LockMode};

use super::heap::{CommitTransaction, HeapSpaceTransaction};
use super::space::BlockSpace;
use crate::error::Oo7Error;

/// Heaps of a shared region, each under a lock. The first has the root and everything common to all modules;
/// others, if any, belong to the modules in the order of their ids. A transaction acquires all their locks at
/// its beginning, together with those of [`with_locks`](SharedHeapSpace::with_locks), or only those given to
/// [`begin_with`](SharedHeapSpace::begin_with).
pub struct SharedHeapSpace<'n> {
    node: &'n Node,
    heaps: Vec<Arc<Heap>>,
    locks: Vec<(LockId, LockMode)>,
    durability: Durability,
    mode: RestoreMode,
}

impl fmt::Debug for SharedHeapSpace<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("OnSharedHeap")
            .field("heaps", &self.heaps)
            .field("locks", &self.locks)
            .finish_non_exhaustive()
    }
}

impl<'n> SharedHeapSpace<'n> {
    /// Formats the lock's span as a heap without blocks.
    ///
    /// # Errors
    ///
    /// Fails if the lock cannot be acquired, or the span is too small.
    pub fn format(node: &Node, lock: LockId) -> Result<(), Oo7Error> {
        let mut txn = begin(node, &[(lock, LockMode::Exclusive)], RestoreMode::Restore)?;
        txn.format_heap(lock).map_err(Oo7Error::backend)?;
        CommitTransaction::commit(txn, Durability::Remote)
    }

    /// The heap under one lock, which has all modules and which transactions acquire to write.
    ///
    /// # Errors
    ///
    /// Fails if there is no heap under the lock.
    pub fn open(
        node: &'n Node,
        lock: LockId,
        durability: Durability,
    ) -> Result<SharedHeapSpace<'n>, Oo7Error> {
        SharedHeapSpace::open_all(node, &[lock], durability)
    }

    /// The heaps under these locks, the first of which is common to all modules. Transactions acquire all
    /// locks to write.
    ///
    /// # Errors
    ///
    /// Fails if there is no heap under one of the locks.
    pub fn open_all(
        node: &'n Node,
        locks: &[LockId],
        durability: Durability,
    ) -> Result<SharedHeapSpace<'n>, Oo7Error> {
        let with = |hold| -> Vec<(LockId, LockMode)> { locks.iter().map(|lock| (*lock, hold)).collect() };
        let txn = begin(node, &with(LockMode::Shared), RestoreMode::Restore)?;
        let heaps = locks.iter().map(|lock| txn.heap(*lock));
        let heaps: Result<Vec<Arc<Heap>>, _> = heaps.collect();
        let heaps = heaps.map_err(Oo7Error::backend)?;
        drop(txn);
        Ok(SharedHeapSpace {
            node,
            heaps,
            locks: with(LockMode::Exclusive),
            durability,
            mode: RestoreMode::Restore,
        })
    }

    /// Makes transactions acquire their locks for reading, so that several read at once.
    pub fn reading(mut self) -> SharedHeapSpace<'n> {
        self.locks
            .iter_mut()
            .for_each(|(_, hold)| *hold = LockMode::Shared);
        self
    }

    /// Makes transactions acquire these locks too.
    pub fn with_locks(mut self, more: &[(LockId, LockMode)]) -> SharedHeapSpace<'n> {
        self.locks.extend_from_slice(more);
        self
    }

    /// Makes transactions keep no old values. That is cheaper, but dropping one after a change ends the node.
    pub fn without_undo(self) -> SharedHeapSpace<'n> {
        SharedHeapSpace {
            mode: RestoreMode::NoRestore,
            ..self
        }
    }

    /// Begins a transaction that acquires these locks, in this order, and at first no others.
    ///
    /// # Errors
    ///
    /// Fails if a lock cannot be acquired.
    pub fn begin_with(&self, locks: &[(LockId, LockMode)]) -> Result<SharedHeapTransaction<'_>, Oo7Error> {
        let txn = begin(self.node, locks, self.mode)?;
        Ok(HeapSpaceTransaction::new(txn, &self.heaps, self.durability))
    }
}

/// A transaction on heaps of a shared region.
pub type SharedHeapTransaction<'s> = HeapSpaceTransaction<'s, Txn<'s>, Arc<Heap>>;

impl SharedHeapTransaction<'_> {
    /// Acquires another lock. Out of order the transaction may die: see [`Txn::acquire`].
    ///
    /// # Errors
    ///
    /// Fails if the lock cannot be acquired.
    pub fn acquire(&mut self, lock: LockId, hold: LockMode) -> Result<(), Oo7Error> {
        self.transaction_mut()
            .acquire(lock, hold)
            .map_err(Oo7Error::backend)
    }
}

fn begin<'n>(node: &'n Node, locks: &[(LockId, LockMode)], mode: RestoreMode) -> Result<Txn<'n>, Oo7Error> {
    let mut txn = node.begin(mode).map_err(Oo7Error::backend)?;
    txn.acquire_all(locks).map_err(Oo7Error::backend)?;
    Ok(txn)
}

impl CommitTransaction for Txn<'_> {
    fn store(&mut self, held: &mut ExclusiveGuard<'_>, offset: usize, bytes: &[u8]) -> Result<(), Oo7Error> {
        let written = self.write_in(held, offset, bytes);
        written.map_err(|error| Oo7Error::backend(RangeError::from(error)))
    }

    fn commit(self, durability: Durability) -> Result<(), Oo7Error> {
        Txn::commit(self, durability).map_err(Oo7Error::backend)?;
        Ok(())
    }
}

impl BlockSpace for SharedHeapSpace<'_> {
    type Open<'s>
        = SharedHeapTransaction<'s>
    where
        Self: 's;

    fn begin(&self) -> Result<SharedHeapTransaction<'_>, Oo7Error> {
        self.begin_with(&self.locks)
    }
}
