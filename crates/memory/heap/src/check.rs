//! Checks of a whole heap from its bytes alone, for tools and tests.

use crate::block::HeapBytes;
use crate::class::RUNS;
use crate::error::HeapOpenError;
use crate::heap::{ScanItem, header, scan};
use crate::layout::{SLOT_TAKEN, check_run, page_at, run_header_bytes, state_at};
use crate::limit::{PAGE_BYTES, ROOTS};

/// Content of a heap that passed the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapReport {
    /// Length of the heap, in bytes.
    pub bytes: u64,
    /// Allocated blocks as offset and capacity, by address.
    pub blocks: Vec<(u64, u64)>,
    /// Sum of the capacities of these blocks.
    pub bytes_taken: u64,
    /// Runs of slots.
    pub runs: u64,
    /// Extents of free pages as offset and length in bytes.
    pub free: Vec<(u64, u64)>,
    /// Roots that are set: number and offset.
    pub roots: Vec<(usize, u64)>,
    /// Numbers of roots that refer to no block. This is no damage: a program that frees a block may leave its
    /// root.
    pub loose_roots: Vec<usize>,
}

/// Checks a heap in the bytes of its region: header, descriptors, run headers and slot states, and that no
/// two blocks share a page.
///
/// The bytes may come from a mapped region or from a segment's file to which the log was applied.
///
/// # Errors
///
/// The first damage found, as [`HeapOpenError`].
pub fn inspect(bytes: &[u8]) -> Result<HeapReport, HeapOpenError> {
    inspect_in(bytes, bytes.len() as u64, 0)
}

/// Checks a heap of a shared region. `bytes` is the heap's part of the region and begins at `start` there.
/// Pointers, and offsets in the report, count from the region's beginning.
///
/// # Errors
///
/// The first damage found, as [`HeapOpenError`].
pub fn inspect_shared(bytes: &[u8], start: u64) -> Result<HeapReport, HeapOpenError> {
    inspect_in(bytes, bytes.len() as u64, start)
}

/// Whether the bytes begin like a heap, intact or damaged.
pub fn is_heap(bytes: &[u8]) -> bool {
    !matches!(header(bytes, bytes.len() as u64), Err(HeapOpenError::Foreign))
}

pub(crate) fn inspect_in<B: HeapBytes + ?Sized>(
    bytes: &B,
    room: u64,
    origin: u64,
) -> Result<HeapReport, HeapOpenError> {
    let geometry = header(bytes, room)?.counted_from(origin);
    let pointer = |page| geometry.pointer(page_at(page));
    let mut report = HeapReport {
        bytes: geometry.bytes(),
        ..HeapReport::default()
    };
    let mut runs = Vec::new();
    scan(bytes, geometry, &mut |found| match found {
        ScanItem::Free { page, pages } => report.free.push((pointer(page), page_at(pages))),
        ScanItem::Extent { page, pages } => report.blocks.push((pointer(page), page_at(pages))),
        ScanItem::Run { page, class } => runs.push((page, class)),
    })?;
    for (page, class) in &runs {
        let run = RUNS[usize::from(*class)];
        let mut raw = [0; PAGE_BYTES];
        let raw = &mut raw[..run_header_bytes(run)];
        bytes.copy(page_at(*page), raw);
        check_run(*page, *class, raw)?;
        let states = &raw[state_at(0) as usize..];
        let taken = states
            .iter()
            .enumerate()
            .filter(|(_, state)| **state == SLOT_TAKEN);
        let blocks = taken.map(|(slot, _)| (pointer(*page) + run.slot_at(slot as u32), u64::from(run.bytes)));
        report.blocks.extend(blocks);
    }
    report.runs = runs.len() as u64;
    report.blocks.sort_unstable();
    report.bytes_taken = report.blocks.iter().map(|(_, bytes)| bytes).sum();
    for number in 0..ROOTS {
        let mut raw = [0; 8];
        bytes.copy(crate::layout::root_at(number), &mut raw);
        let at = u64::from_le_bytes(raw);
        if at == 0 {
            continue;
        }
        report.roots.push((number, at));
        if report
            .blocks
            .binary_search_by_key(&at, |(begin, _)| *begin)
            .is_err()
        {
            report.loose_roots.push(number);
        }
    }
    Ok(report)
}
