//! Persistent heaps of shared regions for C, where a block is an address.

use netram_heap::{BlockError, Heap, Ptr};
use netram_shared::Txn;
use netram_shared_machine::LockId;

use super::{HeapRecord, Nodes, refusal};
use crate::code::ReturnCode;
use crate::failure::CallFailure;
use crate::slots::ObjectHandle;

/// A heap in use by a transaction that holds its lock.
struct Use<'o> {
    txn: &'o mut Txn<'static>,
    heap: &'o Heap,
    /// Address from which the heap's pointers count.
    base: usize,
}

impl Use<'_> {
    fn address(&self, block: Ptr<u8>) -> usize {
        match block.is_null() {
            true => 0,
            false => self.base + block.offset() as usize,
        }
    }

    /// The heap's pointer for an address; an error for NULL.
    fn pointer(&self, address: usize) -> Result<Ptr<u8>, CallFailure> {
        match address {
            0 => Ok(Ptr::NULL),
            _ => match address.checked_sub(self.base) {
                Some(offset) if offset < self.heap.region().len() => Ok(Ptr::from_offset(offset as u64)),
                _ => Err(outside(address)),
            },
        }
    }
}

impl Nodes {
    pub(crate) fn format_heap(&self, txn: ObjectHandle, lock: u32) -> Result<(), CallFailure> {
        self.with(txn, |open| Ok(open.txn.format_heap(LockId(lock))?))
    }

    pub(crate) fn allocate(&self, txn: ObjectHandle, lock: u32, bytes: u64) -> Result<usize, CallFailure> {
        self.on_heap(txn, lock, |used| {
            let block = used.heap.allocate(used.txn, size(bytes))?;
            Ok(used.address(block))
        })
    }

    pub(crate) fn resize(&self, txn: ObjectHandle, block: usize, bytes: u64) -> Result<usize, CallFailure> {
        self.on_block(txn, block, |used, block| {
            let moved = used.heap.resize(used.txn, block, size(bytes))?;
            Ok(used.address(moved))
        })
    }

    pub(crate) fn free(&self, txn: ObjectHandle, block: usize) -> Result<(), CallFailure> {
        self.on_block(txn, block, |used, block| Ok(used.heap.free(used.txn, block)?))
    }

    pub(crate) fn block_bytes(&self, txn: ObjectHandle, block: usize) -> Result<u64, CallFailure> {
        self.on_block(txn, block, |used, block| Ok(used.heap.block_bytes(block)?))
    }

    pub(crate) fn root(&self, txn: ObjectHandle, lock: u32, number: u64) -> Result<usize, CallFailure> {
        self.on_heap(txn, lock, |used| {
            let block = used.heap.root(size(number))?;
            Ok(used.address(block))
        })
    }

    pub(crate) fn set_root(
        &self,
        txn: ObjectHandle,
        lock: u32,
        number: u64,
        block: usize,
    ) -> Result<(), CallFailure> {
        self.on_heap(txn, lock, |used| {
            let block = used.pointer(block)?;
            Ok(used.heap.set_root(used.txn, size(number), block)?)
        })
    }

    pub(crate) fn heap_info(&self, txn: ObjectHandle, lock: u32) -> Result<HeapRecord, CallFailure> {
        self.on_heap(txn, lock, |used| {
            used.heap.catch_up(used.txn)?;
            Ok(HeapRecord::of(&used.heap.statistics()?))
        })
    }

    /// A root as a pinned reader sees it. Requires that a transaction of this node has used the heap.
    pub(crate) fn reader_root(
        &self,
        reader: ObjectHandle,
        lock: u32,
        number: u64,
    ) -> Result<usize, CallFailure> {
        self.reading(reader, |pinned| {
            super::span_of(&pinned.node, lock)?;
            let heap = pinned.node.heap(LockId(lock)).ok_or_else(|| CallFailure {
                lock: Some(lock),
                ..CallFailure::new(
                    ReturnCode::NoHeap,
                    format!("no transaction of this node has used a heap under lock {lock} yet; read its root in a transaction first"),
                )
            })?;
            let bytes = pinned.reader.read().map_err(|_| refusal::expired())?;
            let block: Ptr<u8> = heap.borrowed_view(&bytes).root(size(number))?;
            Ok(match block.is_null() {
                true => 0,
                false => pinned.node.region().as_ptr().addr() + block.offset() as usize,
            })
        })
    }

    /// Calls `act` with the heap under a lock.
    fn on_heap<R>(
        &self,
        txn: ObjectHandle,
        lock: u32,
        act: impl FnOnce(&mut Use<'_>) -> Result<R, CallFailure>,
    ) -> Result<R, CallFailure> {
        self.with(txn, |open| {
            let heap = open.txn.heap(LockId(lock))?;
            act(&mut Use {
                base: open.node.region().as_ptr().addr() + heap.base(),
                txn: &mut open.txn,
                heap: &heap,
            })
        })
    }

    /// Calls `act` with the block at an address, in the heap under the lock that covers it.
    fn on_block<R>(
        &self,
        txn: ObjectHandle,
        block: usize,
        act: impl FnOnce(&mut Use<'_>, Ptr<u8>) -> Result<R, CallFailure>,
    ) -> Result<R, CallFailure> {
        let lock = self.with(txn, |open| {
            let at = match block {
                0 => return Err(BlockError::Null.into()),
                _ => block.checked_sub(open.node.region().as_ptr().addr()),
            };
            let span = at.and_then(|at| open.node.span_at(at as u64));
            Ok(span.ok_or_else(|| outside(block))?.lock.0)
        })?;
        self.on_heap(txn, lock, |used| {
            let block = used.pointer(block)?;
            act(used, block)
        })
    }
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn outside(address: usize) -> CallFailure {
    CallFailure::new(
        ReturnCode::Block,
        format!("the address {address:#x} is not in a heap of the shared region"),
    )
}
