//! Internal to netram: programs use the crate `netram`.
//!
//! A persistent heap inside recoverable memory.
//!
//! Blocks are allocated, freed and resized within transactions of `netram-rvm`; after a crash the heap
//! contains exactly the blocks of committed transactions. Pointers are typed offsets, so that a segment can
//! be mapped at any address. Layout and crash arguments: `docs/design/heap.md`.
//!
//! ```no_run
//! # use netram_proto::port::{Durability, RecordLog};
//! # use netram_heap::{Heap, Ptr};
//! # use netram_rvm::{RestoreMode, Rvm, SegmentStorage};
//! # fn example<L: RecordLog, S: SegmentStorage>(rvm: &Rvm<L, S>) -> Result<(), Box<dyn std::error::Error>> {
//! let heap = Heap::format(rvm, rvm.map("bank.data", 0, 0)?)?; // the first time; then Heap::open
//!
//! let mut open = rvm.begin(RestoreMode::Restore);
//! let balance: Ptr<u64> = heap.alloc(&mut open, &100)?;
//! heap.set_root(&mut open, 0, balance)?;
//! open.commit(Durability::Remote)?;
//!
//! assert_eq!(heap.get(heap.root::<u64>(0)?)?, 100);
//! # Ok(())
//! # }
//! ```
//!
//! | module | does |
//! |---|---|
//! | [`Heap`] | formatting, opening, allocating, freeing, resizing |
//! | [`Ptr`], [`Slice`] | pointers that can be stored in the heap |
//! | [`HeapView`], [`BorrowedHeap`], [`HeapEdit`] | access to blocks in place |
//! | [`Transact`] | operations that a heap needs of a transaction: rvm's own, or one of a shared region |
//! | [`inspect`] | check of a whole heap from its bytes |
//! | [`limit`] | every limit of the crate |
#![deny(unsafe_code)]

mod block;
mod check;
mod class;
mod error;
#[doc(hidden)]
pub mod fuzzed;
mod heap;
mod layout;
pub mod limit;
mod page_map;
mod pages;
mod pointer;
mod region_slice;
mod runs;
mod stats;
mod transact;

pub use check::{HeapReport, inspect, inspect_shared, is_heap};
pub use error::{
    AllocError, BlockAccessError, BlockError, BlockResizeError, FreeError, HeapDamage, HeapFormatError,
    HeapOpenError,
};
pub use heap::{BorrowedHeap, Heap, HeapEdit, HeapView};
pub use pointer::{Ptr, Slice};
pub use stats::{ClassStats, HeapCounts, HeapStats};
pub use transact::{EditBytes, TopActionOutcome, Transact};
