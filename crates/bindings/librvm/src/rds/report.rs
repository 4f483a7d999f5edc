//! Statistics of the heap as numbers and as text.

use std::fmt::Write;

use netram_heap::{HeapCounts, HeapStats};

use super::{RdsError, StartedHeap, started};
use crate::lock;

/// The numbers of `rds_stats_t`, with 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RdsFigures {
    pub(crate) malloc: u64,
    pub(crate) prealloc: u64,
    pub(crate) free: u64,
    /// Allocations that found a free slot or free pages.
    pub(crate) hits: u64,
    /// Allocations that had to carve a run first.
    pub(crate) misses: u64,
    /// Extents of free pages.
    pub(crate) large_list: u64,
    /// Allocations that found no room.
    pub(crate) large_misses: u64,
    /// Empty runs turned back into free pages.
    pub(crate) merged: u64,
    pub(crate) free_bytes: u64,
    pub(crate) taken_bytes: u64,
}

/// `rds_get_stats`. Clearing sets the counters to zero, but not the numbers of bytes.
pub(crate) fn report(clear: bool) -> Result<RdsFigures, RdsError> {
    let started = started()?;
    // Held while the heap counts: if another call cleared the counters meanwhile, they would exceed those
    // counted here.
    let mut cleared = lock(&started.cleared);
    let statistics = started.heap.statistics()?;
    if clear {
        *cleared = statistics.counts;
        started.prepared.store(0, std::sync::atomic::Ordering::Relaxed);
    }
    Ok(figures(&started, &statistics, &cleared))
}

fn figures(started: &StartedHeap, statistics: &HeapStats, cleared: &HeapCounts) -> RdsFigures {
    let counts = since(cleared, statistics.counts);
    RdsFigures {
        malloc: counts.allocations,
        prealloc: started.prepared.load(std::sync::atomic::Ordering::Relaxed),
        free: counts.frees,
        hits: counts.allocations.saturating_sub(counts.runs_carved),
        misses: counts.runs_carved,
        large_list: statistics.free_extents,
        large_misses: counts.refused,
        merged: counts.runs_given_back,
        free_bytes: statistics.bytes_free_pages + statistics.bytes_free_slots,
        taken_bytes: statistics.bytes_taken,
    }
}

/// Counts since a clearing.
fn since(cleared: &HeapCounts, now: HeapCounts) -> HeapCounts {
    HeapCounts {
        allocations: now.allocations - cleared.allocations,
        frees: now.frees - cleared.frees,
        refused: now.refused - cleared.refused,
        runs_carved: now.runs_carved - cleared.runs_carved,
        runs_given_back: now.runs_given_back - cleared.runs_given_back,
        ..now
    }
}

/// `print_heap`: the heap as text for users.
pub(crate) fn listing() -> Result<String, RdsError> {
    let started = started()?;
    let statistics = started.heap.statistics()?;
    let report = started.heap.check()?;
    let mut text = String::new();
    let mut line = |arguments: std::fmt::Arguments<'_>| {
        let written = writeln!(text, "{arguments}");
        written.expect("writing to a string cannot fail");
    };
    line(format_args!(
        "heap at {:#x}: {} bytes, {} taken in {} blocks, {} free",
        started.base,
        statistics.bytes,
        statistics.bytes_taken,
        report.blocks.len(),
        statistics.bytes_free_pages + statistics.bytes_free_slots,
    ));
    line(format_args!(
        "free pages: {} bytes in {} extents, the largest {}",
        statistics.bytes_free_pages, statistics.free_extents, statistics.largest_free
    ));
    line(format_args!(
        "blocks of whole pages: {} bytes in {} blocks",
        statistics.bytes_taken_large, statistics.large_blocks
    ));
    for class in &statistics.classes {
        line(format_args!(
            "blocks of {} bytes: {} taken, {} free, {} runs",
            class.bytes,
            class.slots - class.free,
            class.free,
            class.runs
        ));
    }
    Ok(text)
}
