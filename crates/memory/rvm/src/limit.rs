//! Every limit of this crate, with its reason.

/// Segments that one log knows. A full table fits its slot if paths average at most 216 bytes.
pub const SEGMENTS_MAX: usize = 224;
/// Bytes of a segment's path in the table.
pub const PATH_BYTES_MAX: usize = 255;
/// Bytes of one slot of the segment table.
pub const TABLE_SLOT_BYTES: usize = 64 * 1024;
/// Bytes of the segment table's file: two slots.
pub const TABLE_BYTES: u64 = 2 * TABLE_SLOT_BYTES as u64;

/// Regions that one transaction touches. A commit holds all their locks at once on the stack, about 500 bytes
/// for every 16, so 1024 take 32 to 48 KiB. Measured by running `crates/memory/rvm/tests/all/regions.rs` on
/// stacks of these sizes.
pub const TRANSACTION_REGIONS_MAX: usize = 1024;
/// Ranges that one transaction declares before merging. Bounds the list (16 bytes each).
pub const TRANSACTION_RANGES_MAX: usize = 1 << 24;
/// Bytes of old values that one restoring transaction keeps. Bounds its memory.
pub const UNDO_BYTES_MAX: usize = 1 << 30;

/// Bytes of a transaction's preamble: the locks of a transaction on shared memory, with their versions.
pub const PREAMBLE_BYTES_MAX: usize = 16 * 1024;

/// Bytes copied at once between memory and a record. For longer copies the C library uses an instruction that
/// is 25 times slower on some processors (AMD Zen 4) where the target lies up to 32 bytes further into its
/// page than the source.
pub const COPY_BYTES: usize = 2048;

/// Ended transactions whose buffers are kept for reuse. More are freed.
pub const POOL_TRANSACTIONS_MAX: usize = 64;
/// Bytes of buffers that a pooled transaction may keep.
pub const POOL_BUFFER_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Default for the bytes of values that truncation reads before it merges and writes. Bounds its memory;
/// larger batches write each byte less often.
pub const BATCH_BYTES: usize = 32 * 1024 * 1024;
/// Bytes of values that one step of truncation reads.
pub const STEP_READ_BYTES: usize = 1024 * 1024;
/// Bytes that one step of truncation writes to a segment.
pub const STEP_WRITE_BYTES: usize = 256 * 1024;
/// Writes per step of truncation.
pub const STEP_WRITES_MAX: usize = 64;
/// How long the truncation thread leaves lazy commits in the spool, which is also how much more a crash may
/// lose.
pub const SPOOL_MS: u64 = 1000;
/// How long the truncation thread waits after a failure before it retries by itself.
pub const TRUNCATION_RETRY_MS: u64 = 1000;

/// Length of a region whose stores are found by page. Bounds the bits and bytes kept for each page.
pub const CAPTURE_BYTES_MAX: usize = 1 << 36;
/// Undeclared stores that a verified region remembers until they are taken. Further ones are only counted in
/// errors.
pub const UNDECLARED_MAX: usize = 1024;
/// Regions per process whose stores are found by a signal. The signal handler searches this many slots.
pub const TRAPS_MAX: usize = 64;

/// Regions begin at multiples of this in their segment, and no two share a page.
pub const PAGE_BYTES: u64 = 4096;

const _: () = assert!(STEP_READ_BYTES <= BATCH_BYTES);
