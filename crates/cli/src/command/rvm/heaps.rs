//! Persistent heaps in segments, looked at from outside: the segment's file with the log laid over it.

use anyhow::{Context, Result, ensure};
use netram_heap::Report;
use netram_rvm::SegmentView;

use super::overlay::Overlay;
use crate::output;

/// A heap begins in a segment's first page, or in its second, behind the page of the original's segment loader.
const PLACES: [u64; 2] = [0, 4096];
/// Bytes that are read to see whether there is a heap.
const FRONT_BYTES: u64 = 4096;
/// A larger heap is not read into memory to be looked into.
const HEAP_BYTES_MAX: u64 = 8 << 30;

/// A heap in a segment.
pub(super) struct SegmentHeap {
    /// Where in the segment it begins.
    pub(super) offset: u64,
    /// What is in it; or why that cannot be told, in a sentence.
    pub(super) state: Result<Report, String>,
}

/// The heap in `segment`, over which the log lays `overlay`, if one is there.
pub(super) fn heap_in(segment: &SegmentView, overlay: Option<&Overlay>) -> Result<Option<SegmentHeap>> {
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
    for offset in PLACES {
        let room = file.len().saturating_sub(offset);
        if !netram_heap::is_heap(&read(offset, room.min(FRONT_BYTES))?) {
            continue;
        }
        let inspected = || {
            ensure!(
                room <= HEAP_BYTES_MAX,
                "its {} are too many to be looked into from outside",
                output::bytes(room)
            );
            Ok(netram_heap::inspect(&read(offset, room)?)?)
        };
        let state = inspected().map_err(|error| output::sentence(&error));
        return Ok(Some(SegmentHeap { offset, state }));
    }
    Ok(None)
}

/// What is in a heap, in one sentence.
pub(super) fn account(report: &Report) -> String {
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
