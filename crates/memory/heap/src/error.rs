//! Errors of heaps: one enum per operation, one variant per reaction of the caller.

use netram_rvm::{RangeError, RvmCommitError};

/// Damage in a heap's bytes. The heap is not used further; restore the segment from a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapDamage {
    /// A page's descriptor has a value that no heap writes.
    #[error("the descriptor of page {page} is damaged; restore the segment from a copy")]
    Descriptor {
        /// The page.
        page: u32,
    },
    /// Two extents or runs cover the same page.
    #[error(
        "page {page} belongs to two blocks or runs, one of which begins at page {by}; restore the segment \
         from a copy"
    )]
    Overlap {
        /// The page.
        page: u32,
        /// First page of the other extent or run.
        by: u32,
    },
    /// A run's header is damaged.
    #[error("the header of the run at page {page} is damaged; restore the segment from a copy")]
    Run {
        /// The run's first page.
        page: u32,
    },
    /// A slot's state is neither taken nor free, or has changed although no program allocated it.
    #[error("the state of slot {slot} of the run at page {page} is damaged; restore the segment from a copy")]
    Slot {
        /// The run's first page.
        page: u32,
        /// The slot.
        slot: u32,
    },
}

/// Why a heap could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapOpenError {
    /// The region does not begin with a heap.
    #[error("this region contains no heap; format one, or map the region that contains it")]
    Foreign,
    /// The header's checksum is wrong, or its fields contradict each other.
    #[error("the heap's header is damaged; restore the segment from a copy")]
    Header,
    /// The heap was written by another version.
    #[error(
        "the heap has version {found}, but this program knows only {known}; use the netram that wrote it"
    )]
    Version {
        /// The version in the header.
        found: u32,
        /// The version known here.
        known: u32,
    },
    /// The region is shorter than the heap.
    #[error("the heap is {needed} bytes long, but the region has only {found}; map all of it")]
    Short {
        /// Length of the heap, in bytes.
        needed: u64,
        /// Length of the region, in bytes.
        found: u64,
    },
    /// Open transactions have ranges in the region.
    #[error("{transactions} open transactions have ranges in the heap's region; end them, then open it")]
    Busy {
        /// Number of these transactions.
        transactions: usize,
    },
    /// The page table behind the header is damaged.
    #[error(transparent)]
    Damaged(#[from] HeapDamage),
}

/// Why a heap could not be made in a region.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapFormatError {
    /// The place for the heap is too small, too large, or not at a multiple of 16.
    #[error("a heap needs {min} to {max} bytes at a multiple of 16; there are {found}: choose another place")]
    Size {
        /// Length of the place, in bytes.
        found: u64,
        /// Smallest heap, in bytes.
        min: u64,
        /// Largest heap, in bytes.
        max: u64,
    },
    /// The transaction refused the change.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Other open transactions than the formatting one have ranges in the region.
    #[error("{transactions} open transactions have ranges in the region; end them, then make the heap")]
    Busy {
        /// Number of these transactions.
        transactions: usize,
    },
    /// A step of formatting could not be committed. The region contains no heap; format again.
    #[error("the heap could not be formatted: {0}")]
    Commit(#[from] RvmCommitError),
    /// The heap was made but could not be opened.
    #[error("the heap was formatted, but could not be opened: {0}")]
    Open(#[from] HeapOpenError),
}

/// Why an address is not a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The pointer is null.
    #[error("the pointer is null")]
    Null,
    /// The pointer lies outside the heap's pages for blocks.
    #[error("offset {at} lies outside the heap's blocks")]
    Outside {
        /// Offset in the region.
        at: u64,
    },
    /// The pointer is not the beginning of a block.
    #[error("no block begins at offset {at}; pass the pointer that the allocation returned")]
    NotABlock {
        /// Offset in the region.
        at: u64,
    },
    /// The block was freed before.
    #[error("the block at offset {at} was already freed")]
    Free {
        /// Offset in the region.
        at: u64,
    },
    /// The heap is damaged at the pointer.
    #[error(transparent)]
    Damaged(#[from] HeapDamage),
}

/// Why a block was not allocated. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// No free part of the heap is large enough. Free blocks, or use a larger segment.
    #[error(
        "no room for {asked} bytes: the largest free block has {largest}; free some blocks, or use a larger \
         heap"
    )]
    NoRoom {
        /// Requested size, in bytes.
        asked: usize,
        /// Largest size that could be allocated, in bytes.
        largest: u64,
    },
    /// The maximum number of open transactions already use this heap.
    #[error("{max} open transactions already use this heap; end some first")]
    Transactions {
        /// Maximum number of these transactions.
        max: usize,
    },
    /// The transaction refused the change: it has ended, is full, or belongs to another log.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The heap is damaged.
    #[error(transparent)]
    Damaged(#[from] HeapDamage),
    /// The log refused the record that prepares pages for the block.
    #[error("pages for the block could not be prepared: {0}")]
    Prepare(RvmCommitError),
}

/// Why a block was not freed. Nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreeError {
    /// The pointer is not an allocated block.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// Another open transaction allocated or resized the block.
    #[error("the block at offset {at} belongs to another open transaction; end that first")]
    Busy {
        /// Offset in the region.
        at: u64,
    },
    /// The maximum number of open transactions already use this heap.
    #[error("{max} open transactions already use this heap; end some first")]
    Transactions {
        /// Maximum number of these transactions.
        max: usize,
    },
    /// The transaction refused the change.
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// Why a block was not resized. It is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockResizeError {
    /// The old block cannot be freed.
    #[error(transparent)]
    Free(#[from] FreeError),
    /// A new block cannot be allocated.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The transaction refused the copy. The new block is freed when the transaction aborts; until then both
    /// blocks exist.
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// Why a value was not read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockAccessError {
    /// The pointer is not an allocated block.
    #[error(transparent)]
    Block(#[from] BlockError),
    /// The block is smaller than the value.
    #[error(
        "the block at offset {at} has {found} bytes, but the value needs {needed}: the pointer has the wrong \
         type"
    )]
    Small {
        /// Offset in the region.
        at: u64,
        /// Size of the block, in bytes.
        found: u64,
        /// Size of the value, in bytes.
        needed: u64,
    },
    /// The value cannot be borrowed in place because it is not aligned.
    #[error("the value at offset {at} is not aligned for its type in this mapping; copy it out instead")]
    Unaligned {
        /// Offset in the region.
        at: u64,
    },
    /// The number of the root is out of range.
    #[error("root {number} does not exist; roots are numbered from 0, and the heap has {count}")]
    Root {
        /// Number of the requested root.
        number: usize,
        /// Number of roots.
        count: usize,
    },
    /// The transaction refused the change.
    #[error(transparent)]
    Range(#[from] RangeError),
}
