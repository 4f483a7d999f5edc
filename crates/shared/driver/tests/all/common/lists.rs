//! Lists in persistent heaps of a shared region: one heap per lock, with a list of numbers in it, newest
//! first.
//!
//! Each number's text is in a block of its own, whose length depends on the number, so that slots of many
//! sizes and whole pages are used and freed.

use std::collections::BTreeSet;
use std::sync::Arc;

use netram_heap::{Heap, Ptr, Slice};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::node::{AcquireError, TxnCommit, TxnCommitError};
use netram_shared::{Node, Txn};
use netram_shared_machine::{LockId, LockMode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a heap.
pub(crate) const HEAP: usize = 64 * 4096;

/// An item of a list.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Item {
    pub(crate) number: u64,
    pub(crate) text: Slice<u8>,
    pub(crate) next: Ptr<Item>,
}

fn text(number: u64) -> Vec<u8> {
    let length = match number % 10 {
        0 => 5000,
        few => 8 << (few % 5),
    };
    vec![number as u8; length]
}

/// A transaction that holds these locks exclusively.
pub(crate) fn begin<'n>(node: &'n Node, locks: &[u32]) -> Result<Txn<'n>, TxnCommitError> {
    let mut txn = node.begin(RestoreMode::Restore)?;
    let wanted: Vec<_> = locks
        .iter()
        .map(|lock| (LockId(*lock), LockMode::Exclusive))
        .collect();
    match txn.acquire_all(&wanted) {
        Ok(()) => Ok(txn),
        Err(AcquireError::Gone(gone)) => Err(gone.into()),
        Err(AcquireError::Lost) => Err(TxnCommitError::Lost),
        Err(error) => panic!("{error}"),
    }
}

/// Formats each lock's span as a heap.
pub(crate) fn format(node: &Node, locks: u32) {
    for lock in 0..locks {
        let mut txn = begin(node, &[lock]).expect("there is a node");
        txn.format_heap(LockId(lock)).expect("it fits");
        txn.commit(Durability::Remote).expect("it commits");
    }
}

/// Adds a number at the front, within a transaction.
pub(crate) fn push_in(txn: &mut Txn<'_>, lock: u32, number: u64) {
    let heap = txn.heap(LockId(lock)).expect("a heap");
    let text = heap.alloc_slice(txn, &text(number)).expect("room");
    let next = heap.root(0).expect("a root");
    let item = heap.alloc(txn, &Item { number, text, next }).expect("room");
    heap.set_root(txn, 0, item).expect("it is held");
}

/// Removes the front number, within a transaction. `None`: the list is empty.
pub(crate) fn pop_in(txn: &mut Txn<'_>, lock: u32) -> Option<u64> {
    let heap = txn.heap(LockId(lock)).expect("a heap");
    let first: Ptr<Item> = heap.root(0).expect("a root");
    if first.is_null() {
        return None;
    }
    let item = heap.get(first).expect("an item");
    assert_eq!(heap.get_slice(item.text).expect("a text"), text(item.number));
    heap.set_root(txn, 0, item.next).expect("it is held");
    heap.free(txn, item.text.block()).expect("it was taken");
    heap.free(txn, first).expect("it was taken");
    Some(item.number)
}

pub(crate) fn push(node: &Node, lock: u32, number: u64) -> Result<TxnCommit, TxnCommitError> {
    let mut txn = begin(node, &[lock])?;
    push_in(&mut txn, lock, number);
    txn.commit(Durability::Remote)
}

/// Moves the front number of one list to another.
pub(crate) fn carry(node: &Node, from: u32, to: u32) -> Result<Option<u64>, TxnCommitError> {
    let mut txn = begin(node, &[from, to])?;
    let number = pop_in(&mut txn, from);
    if let Some(number) = number {
        push_in(&mut txn, to, number);
    }
    txn.commit(Durability::Remote)?;
    Ok(number)
}

/// The heap of a lock, and the numbers in its list. Fails unless the heap is valid and has exactly the list's
/// blocks.
pub(crate) fn numbers(node: &Node, lock: u32) -> (Arc<Heap>, Vec<u64>) {
    let mut txn = node.begin(RestoreMode::Restore).expect("there is a node");
    txn.acquire(LockId(lock), LockMode::Shared)
        .expect("it is free some day");
    let heap = txn.heap(LockId(lock)).expect("a heap");
    let report = heap.check().expect("the heap is whole");
    let mut numbers = Vec::new();
    let mut blocks = BTreeSet::new();
    let mut next: Ptr<Item> = heap.root(0).expect("a root");
    while !next.is_null() {
        let item = heap.get(next).expect("an item");
        assert_eq!(heap.get_slice(item.text).expect("a text"), text(item.number));
        blocks.extend([next.offset(), item.text.block().offset()]);
        numbers.push(item.number);
        next = item.next;
    }
    let found: BTreeSet<u64> = report.blocks.iter().map(|(at, _)| *at).collect();
    assert_eq!(found, blocks, "no block without an owner, none with two");
    (heap, numbers)
}
