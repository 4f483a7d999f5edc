//! What can go wrong, sorted by what the caller will do.

use netram_rvm::{RangeError, RvmCommitError};

/// A part of a heap that does not hold together. The heap is not used further; restore the segment from a
/// copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapDamage {
    /// A page's descriptor is none that a heap writes.
    #[error("the descriptor of page {page} is damaged; restore the segment from a copy")]
    Descriptor {
        /// The page.
        page: u32,
    },
    /// Two extents or runs claim a page.
    #[error("page {page} is claimed twice, by the pages from {by} on too; restore the segment from a copy")]
    Overlap {
        /// The page.
        page: u32,
        /// Where the other claim begins.
        by: u32,
    },
    /// A run's header is damaged.
    #[error("the header of the run at page {page} is damaged; restore the segment from a copy")]
    Run {
        /// The run's first page.
        page: u32,
    },
    /// A slot is neither taken nor free, or is taken now although nobody took it.
    #[error("the state of slot {slot} of the run at page {page} is damaged; restore the segment from a copy")]
    Slot {
        /// The run's first page.
        page: u32,
        /// The slot.
        slot: u32,
    },
}

/// Why there is no heap to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapOpenError {
    /// The region holds something else, or nothing.
    #[error("there is no heap in this region; format one, or map the region that has it")]
    Foreign,
    /// The header fails its checksum or contradicts itself.
    #[error("the heap's header is damaged; restore the segment from a copy")]
    Header,
    /// Written by another version.
    #[error("the heap has version {found}, this program knows {known}; use the netram that wrote it")]
    Version {
        /// The version in the header.
        found: u32,
        /// The version known here.
        known: u32,
    },
    /// The region is shorter than the heap.
    #[error("the heap is {needed} bytes long, the region only {found}; map all of it")]
    Short {
        /// Bytes of the heap.
        needed: u64,
        /// Bytes of the region.
        found: u64,
    },
    /// Open transactions have ranges in the region.
    #[error("{transactions} open transactions have ranges in the heap's region; end them, then open it")]
    Busy {
        /// How many.
        transactions: usize,
    },
    /// The table behind the header is damaged.
    #[error(transparent)]
    Damaged(#[from] HeapDamage),
}

/// Why a region could not be made a heap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapFormatError {
    /// Too small, too large to count its pages, or not at a multiple of 16.
    #[error("a heap needs {min} to {max} bytes at a multiple of 16; there are {found}: choose another place")]
    Size {
        /// Bytes of the region.
        found: u64,
        /// Bytes of the smallest heap.
        min: u64,
        /// Bytes of the largest.
        max: u64,
    },
    /// The transaction refused the change.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Open transactions have ranges in the region, others than the one that formats.
    #[error("{transactions} open transactions have ranges in the region; end them, then make the heap")]
    Busy {
        /// How many.
        transactions: usize,
    },
    /// A part of the format could not be committed. There is no heap; format again.
    #[error("the heap could not be formatted: {0}")]
    Commit(#[from] RvmCommitError),
    /// The heap was made, and not opened.
    #[error("the heap was formatted, but could not be opened: {0}")]
    Open(#[from] HeapOpenError),
}

/// Why an address is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The null pointer.
    #[error("the pointer is null")]
    Null,
    /// It lies outside the pages that the heap gives out.
    #[error("offset {at} lies outside the heap's blocks")]
    Outside {
        /// The offset in the region.
        at: u64,
    },
    /// It is not where a block begins.
    #[error("no block begins at offset {at}; pass the pointer that the allocation returned")]
    NotABlock {
        /// The offset in the region.
        at: u64,
    },
    /// The block there is free: it was freed before.
    #[error("the block at offset {at} is free already")]
    Free {
        /// The offset in the region.
        at: u64,
    },
    /// The heap is damaged there.
    #[error(transparent)]
    Damaged(#[from] HeapDamage),
}

/// Why no block was allocated. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// No free place is large enough. Free something, or use a larger segment.
    #[error(
        "no room for {asked} bytes: the largest block that is free has {largest}; free some, or use a larger heap"
    )]
    NoRoom {
        /// Bytes asked for.
        asked: usize,
        /// Bytes of the largest block that could be had.
        largest: u64,
    },
    /// More transactions than can be told apart have business in this heap.
    #[error("{max} open transactions use this heap; end some")]
    Transactions {
        /// How many may.
        max: usize,
    },
    /// The transaction refused the change: it has ended, belongs elsewhere, or is full.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The heap is damaged.
    #[error(transparent)]
    Damaged(#[from] HeapDamage),
    /// The log refused the record that prepares the pages.
    #[error("the pages for it could not be prepared: {0}")]
    Prepare(RvmCommitError),
}

/// Why a block was not freed. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreeError {
    /// It is no block that could be freed.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// Another open transaction allocated or resized it.
    #[error("the block at offset {at} belongs to another open transaction; end that first")]
    Busy {
        /// The offset in the region.
        at: u64,
    },
    /// More transactions than can be told apart have business in this heap.
    #[error("{max} open transactions use this heap; end some")]
    Transactions {
        /// How many may.
        max: usize,
    },
    /// The transaction refused the change.
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// Why a block was not resized. It is as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockResizeError {
    /// The old block cannot be given up.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// The new one cannot be had.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The transaction refused the copy. What was allocated for it goes when the transaction aborts; until
    /// then both blocks are there.
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// Why a value was not reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockAccessError {
    /// The pointer names no block.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The block is smaller than the value.
    #[error("the block at offset {at} has {found} bytes, the value {needed}: the pointer is of another type")]
    Small {
        /// The offset in the region.
        at: u64,
        /// Bytes of the block.
        found: u64,
        /// Bytes of the value.
        needed: u64,
    },
    /// The value cannot be borrowed where it stands.
    #[error("the value at offset {at} is not aligned for its type in this mapping; copy it out instead")]
    Unaligned {
        /// The offset in the region.
        at: u64,
    },
    /// There is no root of that number.
    #[error("there is no root {number}, only {count}")]
    Root {
        /// The number asked for.
        number: usize,
        /// How many there are.
        count: usize,
    },
    /// The transaction refused the change.
    #[error(transparent)]
    Range(#[from] RangeError),
}
