//! The persistent heap of a region: blocks allocated and freed in transactions.
//!
//! A block is identified by its offset in the region. The offset is a number that can be stored in other
//! blocks. It stays valid wherever the segment is mapped, and locates the block's bytes in any view of the
//! region.

use std::sync::Arc;

use netram_heap::{HeapCounts, HeapFormatError, HeapOpenError, Ptr};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error;
use crate::region::{self, OffsetArgument, Region, open_transactions};
use crate::sys;
use crate::transaction::Transaction;
use crate::window::{RegionWindow, unmapped};

/// Methods common to heaps in recoverable and in shared memory, followed by a class's own ones, because a
/// class has only one block of methods. The class must have `using` and `changing`, and its file `error` and
/// `OffsetArgument`. `$tx` is the parameter name of the transaction in Python.
macro_rules! heap_methods {
    ($heap:ident, $tx:ident: $transaction:ident, { $($own:tt)* }) => {
        #[pymethods]
        impl $heap {
            /// Allocate a block of at least size bytes, which keep earlier values. Raises NoRoom.
            fn allocate(&self, $tx: &Bound<'_, $transaction>, size: OffsetArgument) -> PyResult<u64> {
                let taken = self.changing($tx, |heap, inner| heap.allocate(inner, size.0))?;
                let taken = taken.map_err(|cause| error::alloc($tx.py(), &cause))?;
                Ok(taken.offset())
            }

            /// Allocate a block and store data in it. Raises NoRoom.
            fn store(&self, $tx: &Bound<'_, $transaction>, data: &Bound<'_, PyAny>) -> PyResult<u64> {
                let data = $crate::transaction::bytes_of(data)?;
                let bytes = data.as_bytes();
                let taken = self.changing($tx, |heap, inner| heap.alloc_bytes(inner, bytes))?;
                let taken = taken.map_err(|cause| error::alloc($tx.py(), &cause))?;
                Ok(taken.offset())
            }

            /// Free a block. Raises HeapError if it is not a block, and BusyError if another open transaction
            /// allocated it.
            fn free(&self, $tx: &Bound<'_, $transaction>, block: OffsetArgument) -> PyResult<()> {
                let block = $crate::heap::pointer(block);
                let freed = self.changing($tx, |heap, inner| heap.free(inner, block))?;
                freed.map_err(|cause| error::free($tx.py(), &cause))
            }

            /// Resize a block to at least size bytes; returns its new offset. Bytes up to the shorter length
            /// keep their values.
            fn resize(
                &self,
                $tx: &Bound<'_, $transaction>,
                block: OffsetArgument,
                size: OffsetArgument,
            ) -> PyResult<u64> {
                let block = $crate::heap::pointer(block);
                let resized = self.changing($tx, |heap, inner| heap.resize(inner, block, size.0))?;
                let resized = resized.map_err(|cause| error::resize($tx.py(), &cause))?;
                Ok(resized.offset())
            }

            /// Capacity of a block in bytes: at least the requested size.
            fn size(&self, py: Python<'_>, block: OffsetArgument) -> PyResult<u64> {
                let found = self.using(py, |heap| heap.block_bytes($crate::heap::pointer(block)))?;
                found.map_err(|cause| error::block(py, &cause))
            }

            /// Store data in a block, offset bytes from its beginning. Raises RangeError if it does not fit.
            #[pyo3(signature = ($tx, block, data, offset = None))]
            fn write(
                &self,
                $tx: &Bound<'_, $transaction>,
                block: OffsetArgument,
                data: &Bound<'_, PyAny>,
                offset: Option<OffsetArgument>,
            ) -> PyResult<()> {
                let (py, data) = ($tx.py(), $crate::transaction::bytes_of(data)?);
                let (bytes, offset) = (data.as_bytes(), offset.map_or(0, |offset| offset.0));
                let size = usize::try_from(self.size(py, block)?).unwrap_or(usize::MAX);
                $crate::heap::fits(py, offset, bytes.len(), size)?;
                // Not the transaction's own `write`: on shared memory that accepts any offset in its own
                // region, whichever node's heap this is.
                let stored = self.changing($tx, |heap, inner| {
                    netram_heap::Transact::write(inner, heap.region(), block.0 + offset, bytes)
                })?;
                stored.map_err(|cause| error::range(py, &cause))
            }

            /// The block in a root, 0 to 63, from which a program finds its data. 0 until it is set.
            fn root(&self, py: Python<'_>, number: OffsetArgument) -> PyResult<u64> {
                let found = self.using(py, |heap| heap.root::<u8>(number.0))?;
                let found = found.map_err(|cause| error::access(py, &cause))?;
                Ok(found.offset())
            }

            /// Set a root to a block, or to 0.
            fn set_root(
                &self,
                $tx: &Bound<'_, $transaction>,
                number: OffsetArgument,
                block: OffsetArgument,
            ) -> PyResult<()> {
                let block = $crate::heap::pointer(block);
                let set = self.changing($tx, |heap, inner| heap.set_root(inner, number.0, block))?;
                set.map_err(|cause| error::access($tx.py(), &cause))
            }

            /// Check the whole heap; returns the offset and capacity of each allocated block. Raises
            /// HeapError if the heap is damaged.
            fn check(&self, py: Python<'_>) -> PyResult<Vec<(u64, u64)>> {
                let checked = self.using(py, |heap| heap.check())?;
                let report = checked.map_err(|cause| error::heap_error(py, cause))?;
                Ok(report.blocks)
            }

            $($own)*
        }
    };
}
pub(crate) use heap_methods;

/// The heap in a region. Transactions allocate, free and resize blocks: a freed block is reused only after
/// the commit, and an abort frees the blocks that it allocated.
///
/// Heap(region) opens the existing heap. A block is an offset in the region; 0 is none. The bytes of a block
/// begin at memoryview(region)[block:].
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct Heap {
    window: Arc<RegionWindow>,
}

/// Why there is no heap.
enum NoHeapReason {
    Unmapped,
    Busy(usize),
    Format(HeapFormatError),
    Open(HeapOpenError),
}

impl NoHeapReason {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            NoHeapReason::Unmapped => unmapped(py),
            NoHeapReason::Busy(transactions) => error::busy(
                py,
                format_args!("{transactions} open transactions have ranges in the region; end them first"),
            ),
            NoHeapReason::Format(cause) => error::format(py, cause),
            NoHeapReason::Open(cause) => error::open_heap(py, cause),
        }
    }
}

impl Heap {
    fn using<R: Send>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&netram_heap::Heap) -> R + Send,
    ) -> PyResult<R> {
        self.window.log.check_process(py)?;
        py.detach(|| self.window.with_heap(then))
            .ok_or_else(|| unmapped(py))
    }

    fn changing<R: Send>(
        &self,
        tx: &Bound<'_, Transaction>,
        then: impl FnOnce(&netram_heap::Heap, &mut netram_store::JournaledTransaction) -> R + Send,
    ) -> PyResult<R> {
        let py = tx.py();
        let done = tx
            .get()
            .change(py, |inner| self.window.with_heap(|heap| then(heap, inner)))?;
        done.ok_or_else(|| self.gone(py))
    }

    fn gone(&self, py: Python<'_>) -> PyErr {
        match self.window.is_mapped(py) {
            false => unmapped(py),
            true => error::closed(
                py,
                "this heap was closed for formatting the region, which failed; open it again",
            ),
        }
    }
}

heap_methods!(Heap, tx: Transaction, {
    /// Open the heap in a region. Raises NoHeap if there is none, HeapError if it is damaged or has another
    /// version.
    #[new]
    fn open(region: &Bound<'_, Region>) -> PyResult<Heap> {
        let (py, window) = (region.py(), region::window(region));
        window.log.check_process(py)?;
        let opened = py.detach(|| {
            let mut held = window.hold();
            let mapped = held.mapped().ok_or(NoHeapReason::Unmapped)?;
            if mapped.heap.is_none() {
                let heap = netram_heap::Heap::open(mapped.region.clone()).map_err(NoHeapReason::Open)?;
                mapped.heap = Some(heap);
            }
            Ok(())
        });
        opened.map_err(|why: NoHeapReason| why.raise(py))?;
        Ok(Heap {
            window: window.clone(),
        })
    }

    /// Make an empty heap in the whole region, replacing its content, and open it. Earlier blocks are lost.
    ///
    /// Raises HeapError if the region is too small (3 pages), BusyError while open transactions have ranges
    /// in it.
    #[staticmethod]
    fn format(region: &Bound<'_, Region>) -> PyResult<Heap> {
        let (py, window) = (region.py(), region::window(region));
        let formatted = window.log.waiting(py, |memory| {
            let mut held = window.hold();
            let mapped = held.mapped().ok_or(NoHeapReason::Unmapped)?;
            match open_transactions(memory, &mapped.region) {
                0 => {}
                transactions => return Err(NoHeapReason::Busy(transactions)),
            }
            mapped.heap = None;
            let region = &mapped.region;
            netram_heap::Heap::format_part(memory, region, 0, region.len()).map_err(NoHeapReason::Format)?;
            // A program that stores through views at the same time may already have damaged it.
            let heap = netram_heap::Heap::open(region.clone()).map_err(NoHeapReason::Open)?;
            mapped.heap = Some(heap);
            Ok(())
        });
        formatted?.map_err(|why| why.raise(py))?;
        Ok(Heap {
            window: window.clone(),
        })
    }

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
        self.window
            .use_region(py, |region| sys::copy(py, region, block.0..block.0 + length))?
    }

    /// Statistics of the heap: its content, and counters since it was opened.
    fn statistics(&self, py: Python<'_>) -> PyResult<HeapStatistics> {
        let read = self.using(py, |heap| heap.statistics())?;
        let statistics = read.map_err(|cause| error::heap_error(py, cause))?;
        Ok(HeapStatistics::of(&statistics))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let described = self.using(py, |heap| {
            let region = heap.region();
            format!(
                "<netram.Heap in {:?}, {} bytes>",
                region.segment_path(),
                region.len()
            )
        });
        described.unwrap_or_else(|_gone| "<netram.Heap, unmapped>".to_owned())
    }
});

pub(crate) fn pointer(block: OffsetArgument) -> Ptr<u8> {
    Ptr::from_offset(block.0 as u64)
}

/// Fails unless the bytes lie in a block of `size` bytes.
pub(crate) fn fits(py: Python<'_>, offset: usize, length: usize, size: usize) -> PyResult<()> {
    match offset.checked_add(length) {
        Some(end) if end <= size => Ok(()),
        _ => Err(error::range_error(
            py,
            format_args!("bytes {offset} + {length} are outside the block of {size} bytes"),
        )),
    }
}

/// Statistics of a heap: its content, and counters since it was opened.
#[pyclass(frozen, get_all, module = "netram._netram")]
#[derive(Clone, Debug)]
pub(crate) struct HeapStatistics {
    /// Length of the heap in bytes, including its header and table.
    bytes: u64,
    /// Bytes of pages for blocks.
    bytes_usable: u64,
    /// Bytes of allocated blocks.
    bytes_taken: u64,
    /// Bytes of free pages.
    bytes_free_pages: u64,
    /// Bytes of free slots, waiting for a block of their size.
    bytes_free_slots: u64,
    /// Bytes that the heap itself uses in pages with blocks.
    bytes_overhead: u64,
    /// Bytes of the largest extent of free pages.
    largest_free: u64,
    /// Fragmentation of the free pages: 0 if they are one extent, near 1 if no two are adjacent.
    fragmentation: f64,
    /// Blocks allocated.
    allocations: u64,
    /// Blocks freed.
    frees: u64,
    /// Blocks resized in place.
    resized_in_place: u64,
    /// Blocks resized by moving them.
    resized_by_moving: u64,
    /// Allocations that found no room.
    refused: u64,
}

impl HeapStatistics {
    pub(crate) fn of(from: &netram_heap::HeapStats) -> HeapStatistics {
        let HeapCounts {
            allocations,
            frees,
            resized_in_place,
            resized_by_moving,
            refused,
            ..
        } = from.counts;
        HeapStatistics {
            bytes: from.bytes,
            bytes_usable: from.bytes_usable,
            bytes_taken: from.bytes_taken,
            bytes_free_pages: from.bytes_free_pages,
            bytes_free_slots: from.bytes_free_slots,
            bytes_overhead: from.bytes_overhead,
            largest_free: from.largest_free,
            fragmentation: from.fragmentation(),
            allocations,
            frees,
            resized_in_place,
            resized_by_moving,
            refused,
        }
    }
}

#[pymethods]
impl HeapStatistics {
    fn __repr__(&self) -> String {
        format!(
            "<netram.HeapStatistics: {} of {} bytes taken, largest free {}>",
            self.bytes_taken, self.bytes_usable, self.largest_free
        )
    }
}
