//! What a heap holds and what happened to it.

/// What a heap holds. Read under its lock, so that the numbers belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeapStats {
    /// Bytes of the heap, header and table included.
    pub bytes: u64,
    /// Bytes of pages that it can give out.
    pub bytes_usable: u64,
    /// Bytes of blocks that are taken, or were freed by a transaction that is still open. Counted in the size
    /// of the blocks, which may exceed what was asked for by an eighth.
    pub bytes_taken: u64,
    /// Bytes of blocks of whole pages among them.
    pub bytes_taken_large: u64,
    /// Bytes of pages that belong to nothing.
    pub bytes_free_pages: u64,
    /// Bytes of slots that wait for the next block of their class.
    pub bytes_free_slots: u64,
    /// Bytes of headers and ends of runs.
    pub bytes_overhead: u64,
    /// Bytes of the largest extent of free pages.
    pub largest_free: u64,
    /// Extents of free pages.
    pub free_extents: u64,
    /// Blocks of whole pages that are taken.
    pub large_blocks: u64,
    /// Each class that has runs, by size.
    pub classes: Vec<ClassStats>,
    /// What happened since the opening.
    pub counts: HeapCounts,
}

impl HeapStats {
    /// How far the free pages are from being one extent: 0 when they are, near 1 when no two hang together.
    pub fn fragmentation(&self) -> f64 {
        match self.bytes_free_pages {
            0 => 0.0,
            free => 1.0 - self.largest_free as f64 / free as f64,
        }
    }

    /// Bytes of pages in use for each byte of blocks taken: what the heap's own shape costs.
    pub fn overhead(&self) -> f64 {
        let in_use = self.bytes_usable - self.bytes_free_pages;
        match self.bytes_taken {
            0 => 0.0,
            taken => in_use as f64 / taken as f64,
        }
    }
}

/// What one size class holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes of a slot.
    pub bytes: u64,
    /// Runs of it.
    pub runs: u64,
    /// Slots in them.
    pub slots: u64,
    /// Slots that wait for the next block.
    pub free: u64,
}

/// What happened to a heap since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapCounts {
    /// Blocks allocated.
    pub allocations: u64,
    /// Blocks freed.
    pub frees: u64,
    /// Blocks resized where they stand.
    pub resized_in_place: u64,
    /// Blocks resized by moving them.
    pub resized_by_moving: u64,
    /// Wishes that found no room.
    pub refused: u64,
    /// Runs carved.
    pub runs_carved: u64,
    /// Runs given back.
    pub runs_given_back: u64,
    /// Transactions that ended as committed with business in the heap.
    pub committed: u64,
    /// Transactions that ended as aborted with business in the heap.
    pub aborted: u64,
}
