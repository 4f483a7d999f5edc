//! Persistent heaps of a shared region, each under one lock. The same calls as of a heap in recoverable memory (`crate::heap`).

use std::sync::{Arc, Weak};

use netram_heap::Heap;
use netram_shared::Txn;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::joined::Joined;
use super::transaction::NodeTransaction;
use crate::error;
use crate::heap::{HeapStatistics, fits, pointer};
use crate::region::Offset;
use crate::transaction::bytes_of;

/// The heap under a lock: NodeTransaction.heap(lock). A block is its offset in the region, also in other nodes; 0 is none.
///
/// Whoever allocates, frees, resizes, writes or sets a root has a transaction that holds the lock exclusively (NotHeld
/// otherwise). What is read is the node's memory as it is: hold the lock, or pin the memory with a reader. A heap that was
/// formatted again is another one (ClosedError).
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct NodeHeap {
    joined: Arc<Joined>,
    lock: u32,
    /// The node's: it ends with the node, or when it is formatted.
    heap: Weak<Heap>,
}

impl NodeHeap {
    pub(super) fn of(joined: &Arc<Joined>, lock: u32, heap: &Arc<Heap>) -> NodeHeap {
        NodeHeap {
            joined: Arc::clone(joined),
            lock,
            heap: Arc::downgrade(heap),
        }
    }

    fn using<R: Send>(&self, py: Python<'_>, then: impl FnOnce(&Heap) -> R + Send) -> PyResult<R> {
        // Held meanwhile, so that the node stays.
        let node = self.joined.node(py)?;
        let done = py.detach(|| {
            let done = self.heap.upgrade().map(|heap| then(&heap));
            drop(node);
            done
        });
        done.ok_or_else(|| formatted(py))
    }

    fn changing<R: Send>(
        &self,
        txn: &Bound<'_, NodeTransaction>,
        then: impl FnOnce(&Heap, &mut Txn<'static>) -> R + Send,
    ) -> PyResult<R> {
        let py = txn.py();
        self.joined.check_process(py)?;
        let done = txn
            .get()
            .with(py, |txn| self.heap.upgrade().map(|heap| then(&heap, txn)))?;
        done.ok_or_else(|| formatted(py))
    }
}

#[pymethods]
impl NodeHeap {
    /// Allocate a block of at least size bytes, which keep whatever values they had. Raises NoRoom.
    fn allocate(&self, txn: &Bound<'_, NodeTransaction>, size: Offset) -> PyResult<u64> {
        let taken = self.changing(txn, |heap, inner| heap.allocate(inner, size.0))?;
        let taken = taken.map_err(|cause| error::alloc(txn.py(), &cause))?;
        Ok(taken.offset())
    }

    /// Allocate a block and store data in it. Raises NoRoom.
    fn store(&self, txn: &Bound<'_, NodeTransaction>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
        let data = bytes_of(data)?;
        let bytes = data.as_bytes();
        let taken = self.changing(txn, |heap, inner| heap.alloc_bytes(inner, bytes))?;
        let taken = taken.map_err(|cause| error::alloc(txn.py(), &cause))?;
        Ok(taken.offset())
    }

    /// Free a block. Raises HeapError when it is none.
    fn free(&self, txn: &Bound<'_, NodeTransaction>, block: Offset) -> PyResult<()> {
        let freed = self.changing(txn, |heap, inner| heap.free(inner, pointer(block)))?;
        freed.map_err(|cause| error::free(txn.py(), &cause))
    }

    /// Make a block at least size bytes long; returns where it is now. Bytes up to the shorter length keep their values.
    fn resize(&self, txn: &Bound<'_, NodeTransaction>, block: Offset, size: Offset) -> PyResult<u64> {
        let resized = self.changing(txn, |heap, inner| heap.resize(inner, pointer(block), size.0))?;
        let resized = resized.map_err(|cause| error::resize(txn.py(), &cause))?;
        Ok(resized.offset())
    }

    /// Bytes that a block can hold: at least what was asked for.
    fn size(&self, py: Python<'_>, block: Offset) -> PyResult<u64> {
        let found = self.using(py, |heap| heap.block_bytes(pointer(block)))?;
        found.map_err(|cause| error::block(py, &cause))
    }

    /// A copy of a block's first length bytes; by default all that it can hold.
    #[pyo3(signature = (block, length = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        block: Offset,
        length: Option<Offset>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let size = usize::try_from(self.size(py, block)?).unwrap_or(usize::MAX);
        let length = length.map_or(size, |length| length.0);
        fits(py, 0, length, size)?;
        let mut bytes = vec![0; length];
        let copied = self.using(py, |heap| heap.region().read_into(block.0, &mut bytes))?;
        copied.map_err(|cause| error::range(py, &cause))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Store data in a block, offset bytes from its beginning. Raises RangeError when it does not fit.
    #[pyo3(signature = (txn, block, data, offset = None))]
    fn write(
        &self,
        txn: &Bound<'_, NodeTransaction>,
        block: Offset,
        data: &Bound<'_, PyAny>,
        offset: Option<Offset>,
    ) -> PyResult<()> {
        let (py, data) = (txn.py(), bytes_of(data)?);
        let (bytes, offset) = (data.as_bytes(), offset.map_or(0, |offset| offset.0));
        let size = usize::try_from(self.size(py, block)?).unwrap_or(usize::MAX);
        fits(py, offset, bytes.len(), size)?;
        let stored = self.changing(txn, |_, inner| inner.write(block.0 + offset, bytes))?;
        stored.map_err(|cause| super::error::declare(py, &cause))
    }

    /// The block in a root, 0 to 63: where a program begins to look. 0 until it is set.
    fn root(&self, py: Python<'_>, number: Offset) -> PyResult<u64> {
        let found = self.using(py, |heap| heap.root::<u8>(number.0))?;
        let found = found.map_err(|cause| error::access(py, &cause))?;
        Ok(found.offset())
    }

    /// Set a root to a block, or to 0.
    fn set_root(&self, txn: &Bound<'_, NodeTransaction>, number: Offset, block: Offset) -> PyResult<()> {
        let set = self.changing(txn, |heap, inner| heap.set_root(inner, number.0, pointer(block)))?;
        set.map_err(|cause| error::access(txn.py(), &cause))
    }

    /// Go through the whole heap; returns each block that is taken, and what it can hold. Raises HeapError when the heap
    /// is damaged.
    fn check(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64)>> {
        let checked = self.using(py, |heap| heap.check())?;
        let report = checked.map_err(|cause| error::heap_error(py, cause))?;
        Ok(report.blocks)
    }

    /// What the heap holds, and what this node did to it. The transaction holds its lock exclusively.
    fn statistics(&self, txn: &Bound<'_, NodeTransaction>) -> PyResult<HeapStatistics> {
        let py = txn.py();
        let read = self.changing(txn, |heap, inner| {
            heap.catch_up(inner)?;
            Ok(heap.statistics()?)
        })?;
        let statistics = read.map_err(|cause: netram_heap::AllocError| error::alloc(py, &cause))?;
        Ok(HeapStatistics::of(&statistics))
    }

    /// The lock that it is under.
    #[getter]
    fn lock(&self) -> u32 {
        self.lock
    }

    fn __repr__(&self) -> String {
        format!("<netram.shared.NodeHeap under lock {}>", self.lock)
    }
}

fn formatted(py: Python<'_>) -> PyErr {
    error::closed(
        py,
        "the heap was formatted again, or its node has left; open it anew",
    )
}
