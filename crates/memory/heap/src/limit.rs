//! Every bound of this crate, with its reason.

/// Bytes of a page: what extents are counted in, and what the processor maps.
pub const PAGE_BYTES: usize = 4096;
/// Every block begins at a multiple of this, enough for any type of C or Rust that memory instructions know.
pub const ALIGNMENT: usize = 16;
/// Roots of one heap.
pub const ROOTS: usize = 64;
/// Pages of the smallest heap: its header, a page of table, one page to give out.
pub const PAGES_MIN: usize = 3;
/// Pages of the largest heap: a descriptor counts them in 32 bits. 16 TiB.
pub const PAGES_MAX: usize = u32::MAX as usize;

/// Pages of the longest run. A block's run is found by walking back over this many descriptors at most.
pub const RUN_PAGES_MAX: usize = 20;
/// Slots of a run. Their state bytes fit the run's first page, and their owners a small array.
pub const RUN_SLOTS_MAX: usize = 256;

/// Transactions with open business in one heap. An owner is kept in 16 bits.
pub const TRANSACTIONS_MAX: usize = u16::MAX as usize - 1;
/// Empty runs kept for the next block of their class before they are given back. Keeps a program that frees
/// and allocates around a boundary from carving a run each time.
pub const EMPTY_RUNS_KEPT: usize = 16;
/// Runs of unknown state that one allocation reads before it carves a run instead. Bounds the pages that the
/// first allocation after an opening touches.
pub const UNREAD_LOOKS: usize = 64;
/// Bytes that format zeroes in one transaction. Fits a record of the smallest useful log.
pub const FORMAT_STEP_BYTES: usize = 2 * 1024;
/// Bytes copied at once when a block moves.
pub const COPY_STEP_BYTES: usize = PAGE_BYTES;
/// Pages that others have changed, noted one by one until the heap is used next. With more of them the whole
/// table is read again, which costs as much as reading so many one by one.
pub const TOUCHED_MAX: usize = 4096;
/// Bytes of the table read at once when a heap is opened.
pub const SCAN_STEP_BYTES: usize = 64 * 1024;

const _: () = assert!(
    RUN_SLOTS_MAX + ALIGNMENT <= PAGE_BYTES,
    "a run's states fit its first page"
);
const _: () = assert!(SCAN_STEP_BYTES.is_multiple_of(8), "descriptors are read whole");
