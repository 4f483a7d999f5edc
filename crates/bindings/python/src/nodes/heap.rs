//! Persistent heaps of a shared region, each under one lock. They have the same methods as a heap in
//! recoverable memory (`crate::heap`).

use std::sync::{Arc, Weak};

use netram_heap::Heap;
use netram_shared::Txn;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::session::NodeSession;
use super::transaction::NodeTransaction;
use crate::error;
use crate::heap::{HeapStatistics, fits, heap_methods};
use crate::region::OffsetArgument;

/// The heap under a lock, from NodeTransaction.heap(lock). A block is its offset in the region, the same in
/// all nodes; 0 is none.
///
/// Allocating, freeing, resizing, writing and setting a root need a transaction that holds the lock
/// exclusively (NotHeld otherwise). Reading returns the node's present memory: hold the lock, or pin the
/// memory with a reader. After formatting again this object is closed (ClosedError).
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct NodeHeap {
    joined: Arc<NodeSession>,
    lock: u32,
    /// Owned by the node: dropped when the node ends or the heap is formatted again.
    heap: Weak<Heap>,
}

impl NodeHeap {
    pub(super) fn of(joined: &Arc<NodeSession>, lock: u32, heap: &Arc<Heap>) -> NodeHeap {
        NodeHeap {
            joined: Arc::clone(joined),
            lock,
            heap: Arc::downgrade(heap),
        }
    }

    fn using<R: Send>(&self, py: Python<'_>, then: impl FnOnce(&Heap) -> R + Send) -> PyResult<R> {
        // Held during the call, so that the node stays.
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

heap_methods!(NodeHeap, txn: NodeTransaction, {
    /// A copy of a block's first length bytes; by default all of them.
    #[pyo3(signature = (block, length = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        block: OffsetArgument,
        length: Option<OffsetArgument>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let size = usize::try_from(self.size(py, block)?).unwrap_or(usize::MAX);
        let length = length.map_or(size, |length| length.0);
        fits(py, 0, length, size)?;
        let mut bytes = vec![0; length];
        let copied = self.using(py, |heap| heap.region().read_into(block.0, &mut bytes))?;
        copied.map_err(|cause| error::range(py, &cause))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Statistics of the heap, counted by this node. txn must hold the heap's lock exclusively.
    fn statistics(&self, txn: &Bound<'_, NodeTransaction>) -> PyResult<HeapStatistics> {
        let py = txn.py();
        let read = self.changing(txn, |heap, inner| {
            heap.catch_up(inner)?;
            Ok(heap.statistics()?)
        })?;
        let statistics = read.map_err(|cause: netram_heap::AllocError| error::alloc(py, &cause))?;
        Ok(HeapStatistics::of(&statistics))
    }

    /// The lock that covers the heap.
    #[getter]
    fn lock(&self) -> u32 {
        self.lock
    }

    fn __repr__(&self) -> String {
        format!("<netram.shared.NodeHeap under lock {}>", self.lock)
    }
});

fn formatted(py: Python<'_>) -> PyErr {
    error::closed(
        py,
        "the heap was formatted again, or its node has left; open it again",
    )
}
