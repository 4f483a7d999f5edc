//! Every limit of this crate, with its reason.

/// Bytes of a page, the unit of extents and of the processor's mappings.
pub const PAGE_BYTES: usize = 4096;
/// Alignment of every block, in bytes: enough for every C or Rust type, including vector types of 16 bytes.
pub const ALIGNMENT: usize = 16;
/// Roots of one heap.
pub const ROOTS: usize = 64;
/// Pages of the smallest heap: header, table, and one page for blocks.
pub const PAGES_MIN: usize = 3;
/// Pages of the largest heap: a descriptor counts them in 32 bits, for 16 TiB.
pub const PAGES_MAX: usize = u32::MAX as usize;

/// Pages of the longest run. Finding a block's run reads at most this many descriptors.
pub const RUN_PAGES_MAX: usize = 20;
/// Slots of a run. Their state bytes fit the run's first page.
pub const RUN_SLOTS_MAX: usize = 256;

/// Open transactions that use one heap. The number of a slot's owner has 16 bits.
pub const TRANSACTIONS_MAX: usize = u16::MAX as usize - 1;
/// Empty runs kept for later blocks of their class. They keep a program that frees and allocates around a
/// boundary from carving a run each time.
pub const EMPTY_RUNS_KEPT: usize = 16;
/// Runs of unknown state that one allocation reads before it carves a new run. Bounds the pages that the
/// first allocation after an opening touches.
pub const UNREAD_LOOKS: usize = 64;
/// Bytes that formatting zeroes in one transaction, so that it fits a record of the smallest useful log.
pub const FORMAT_STEP_BYTES: usize = 2 * 1024;
/// Bytes copied at once when a block moves.
pub const COPY_STEP_BYTES: usize = PAGE_BYTES;
/// Pages changed by other nodes that are listed until the heap is used next. Beyond this the whole table is
/// read again, which costs as much as reading this many pages one by one.
pub const TOUCHED_MAX: usize = 4096;
/// Bytes of the table read at once when a heap is opened.
pub const SCAN_STEP_BYTES: usize = 64 * 1024;

const _: () = assert!(
    RUN_SLOTS_MAX + ALIGNMENT <= PAGE_BYTES,
    "a run's states fit its first page"
);
const _: () = assert!(SCAN_STEP_BYTES.is_multiple_of(8), "descriptors are read whole");
