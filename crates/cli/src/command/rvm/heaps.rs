//! Persistent heaps in segments, read from outside: the segment's file with the log's transactions over it.

use anyhow::{Context, Result, ensure};
use netram_heap::{HeapOpenError, HeapReport};
use netram_rvm::SegmentView;

use super::overlay::LogOverlay;
use crate::output;

/// A heap begins in a segment's first page, or in its second, behind the page of the original's segment
/// loader.
const HEAP_OFFSETS: [u64; 2] = [0, 4096];
/// Bytes that are read to see whether there is a heap.
const FRONT_BYTES: u64 = 4096;
/// Largest heap that is read into memory to be checked.
const HEAP_BYTES_MAX: u64 = 8 << 30;

/// A heap in a segment.
pub(crate) struct SegmentHeap {
    /// Where in the segment it begins.
    pub(super) offset: u64,
    pub(super) state: HeapState,
}

/// Outcome of reading a heap.
pub(crate) enum HeapState {
    /// The heap is whole.
    Whole(HeapReport),
    /// The heap has this many bytes, more than are read into memory.
    TooLarge(u64),
    /// The heap is damaged or cannot be read; the sentence says why.
    Unusable(String),
}

/// Returns the heap in `segment` with the log's `overlay` over it, if one is there.
pub(super) fn heap_in(segment: &SegmentView, overlay: Option<&LogOverlay>) -> Result<Option<SegmentHeap>> {
    let file = segment.open()?;
    let read = |offset: u64, length: u64| {
        let mut bytes = vec![0; usize::try_from(length)?];
        let what = || format!("reading {} at {offset}", segment.path);
        file.read_at(offset, &mut bytes).with_context(what)?;
        if let Some(overlay) = overlay {
            overlay.apply(offset, &mut bytes);
        }
        anyhow::Ok(bytes)
    };
    for offset in HEAP_OFFSETS {
        let room = file.len().saturating_sub(offset);
        let front = read(offset, room.min(FRONT_BYTES))?;
        if !netram_heap::is_heap(&front) {
            continue;
        }
        // A heap is longer than its front, which tells how long if it is whole. The segment may be longer
        // still.
        let length = match netram_heap::inspect(&front) {
            Err(HeapOpenError::Short { needed, .. }) => needed,
            _ => front.len() as u64,
        };
        let inspected = || {
            let (needed, found) = (length, room);
            ensure!(needed <= found, HeapOpenError::Short { needed, found });
            Ok(netram_heap::inspect(&read(offset, length)?)?)
        };
        let state = match length <= room && length > HEAP_BYTES_MAX {
            true => HeapState::TooLarge(length),
            false => inspected().map_or_else(
                |error| HeapState::Unusable(output::sentence(&error)),
                HeapState::Whole,
            ),
        };
        return Ok(Some(SegmentHeap { offset, state }));
    }
    Ok(None)
}

/// Says that a heap of this many bytes was not checked.
pub(super) fn too_large(bytes: u64) -> String {
    format!(
        "heap of {}, which was not checked: heaps of more than {} are not read into memory",
        output::bytes(bytes),
        output::bytes(HEAP_BYTES_MAX)
    )
}

/// Returns a heap's contents in one sentence.
pub(super) fn account(report: &HeapReport) -> String {
    let free: u64 = report.free.iter().map(|(_, bytes)| bytes).sum();
    format!(
        "heap of {}: {} ({}), {} free in {}, {}",
        output::bytes(report.bytes),
        output::count(report.blocks.len() as u64, "block"),
        output::bytes(report.bytes_taken),
        output::bytes(free),
        output::count(report.free.len() as u64, "extent"),
        output::count(report.roots.len() as u64, "root"),
    )
}
