//! Every bound of this crate, with its reason.

use crate::device::{BLOCK_BYTES, SECTOR_BYTES};

/// Bytes of one read or write: what network block device clients send at most.
pub const REQUEST_BYTES_MAX: u32 = 32 * 1024 * 1024;
/// Bytes of data in one record. A larger write takes several, so that others get in between.
pub const RECORD_DATA_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the largest volume: its checksums then take 16 GiB.
pub const VOLUME_BYTES_MAX: u64 = 1 << 44;

/// Bytes of journal, or of memory, at which a stage ends unless chosen otherwise: LND's 10,000 KB.
pub const STAGE_BYTES: u64 = 10_000 * 1024;
/// How old a stage becomes: bounds what a recovery must apply of a quiet volume.
pub const STAGE_AGE_MS: u64 = 5000;
/// Closed stages that wait for the image, the one being applied among them. With the open one they bridge a
/// disk that stalls for 40 MB of writes, and bound the memory.
pub const STAGES_CLOSED_MAX: usize = 3;
/// Blocks that one step writes to the image.
pub const STEP_BLOCKS: usize = 64;
/// Blocks that one step makes holes of: a file system frees extents, not blocks, but does not do it for
/// nothing.
pub const STEP_ZERO_BLOCKS: u64 = 1 << 18;
/// Blocks that a read looks up at once: bounds its stack, and how long it keeps the stages from writers.
pub const READ_BLOCKS: usize = 64;
/// Blocks that a look for holes takes at once.
pub const EXTENT_BLOCKS: usize = 4096;

/// Ends of stages that are in the image and kept in the journal for the data lender: a few KiB.
pub const RETAINED_ENDS_MAX: usize = 512;
/// Runs of blocks that are marked dirty at once: 64 KiB.
pub const MARK_RUNS: usize = 4096;
/// Blocks that are asked of the data lender at once.
pub const FETCH_BLOCKS: usize = 64;
/// How often a block is asked for that the applier has overtaken meanwhile, before it is only read and not
/// mended.
pub const FETCH_TURNS: u32 = 3;
/// Checksums that a step of restoring, or of a scrub, looks at.
pub const COPY_SUMS: usize = 16 * 1024;
/// Blocks that a step of restoring fetches before it syncs: 4 MiB, so that a sync is a small part of it.
pub const COPY_BLOCKS: usize = 1024;
/// Bad blocks that are remembered until somebody asks; the rest are found again.
pub const BAD_BLOCKS_MAX: usize = 1024;

/// Sectors of a block: one bit each in a stage's mask.
pub const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;

const _: () = assert!(BLOCK_SECTORS == u8::BITS as u64, "a mask of sectors is one byte");
const _: () = assert!(
    FETCH_BLOCKS <= READ_BLOCKS,
    "they are read at once to be compared"
);
const _: () = assert!((RECORD_DATA_BYTES_MAX as u64).is_multiple_of(BLOCK_BYTES));
const _: () = assert!((REQUEST_BYTES_MAX as u64).is_multiple_of(BLOCK_BYTES));
const _: () = assert!(VOLUME_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
