//! Statistics of a heap: its content, and counters since its opening.

/// Content of a heap. Read under its lock, so that the numbers are consistent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Length of the heap in bytes, including header and table.
    pub bytes: u64,
    /// Bytes of pages for blocks.
    pub bytes_usable: u64,
    /// Bytes of blocks that are allocated, or were freed by a transaction that is still open. A block may be
    /// an eighth larger than requested.
    pub bytes_taken: u64,
    /// Part of `bytes_taken` in blocks of whole pages.
    pub bytes_taken_large: u64,
    /// Bytes of free pages.
    pub bytes_free_pages: u64,
    /// Bytes of free slots, waiting for a block of their class.
    pub bytes_free_slots: u64,
    /// Bytes of run headers and unused ends of runs.
    pub bytes_overhead: u64,
    /// Bytes of the largest extent of free pages.
    pub largest_free: u64,
    /// Number of extents of free pages.
    pub free_extents: u64,
    /// Number of allocated blocks of whole pages.
    pub large_blocks: u64,
    /// Classes that have runs, by size.
    pub classes: Vec<ClassStats>,
    /// Counters since the opening.
    pub counts: HeapCounts,
}

impl HeapStats {
    /// Fragmentation of the free pages: 0 if they are one extent, near 1 if no two are adjacent.
    pub fn fragmentation(&self) -> f64 {
        match self.bytes_free_pages {
            0 => 0.0,
            free => 1.0 - self.largest_free as f64 / free as f64,
        }
    }

    /// Bytes of pages in use per byte of allocated blocks.
    pub fn overhead(&self) -> f64 {
        let in_use = self.bytes_usable - self.bytes_free_pages;
        match self.bytes_taken {
            0 => 0.0,
            taken => in_use as f64 / taken as f64,
        }
    }
}

/// Content of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes of a slot.
    pub bytes: u64,
    /// Number of runs.
    pub runs: u64,
    /// Number of slots in these runs.
    pub slots: u64,
    /// Number of free slots.
    pub free: u64,
}

/// Counters of a heap since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapCounts {
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Blocks resized in place.
    pub resized_in_place: u64,
    /// Blocks resized by moving them.
    pub resized_by_moving: u64,
    /// Allocations that found no room.
    pub refused: u64,
    /// Runs carved.
    pub runs_carved: u64,
    /// Empty runs turned back into free pages.
    pub runs_given_back: u64,
    /// Committed transactions that used the heap.
    pub committed: u64,
    /// Aborted transactions that used the heap.
    pub aborted: u64,
}
