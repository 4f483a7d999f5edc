//! Bounds of this crate, each with its reason.

use crate::device::{BLOCK_BYTES, SECTOR_BYTES};

/// Maximum bytes of one read or write; network block device clients send no more.
pub const REQUEST_BYTES_MAX: u32 = 32 * 1024 * 1024;
/// Maximum bytes of data in one record. A larger write takes several records, so that other writes get in
/// between.
pub const RECORD_DATA_BYTES_MAX: usize = 256 * 1024;
/// Maximum bytes of a volume. The checksums of the largest take 16 GiB.
pub const VOLUME_BYTES_MAX: u64 = 1 << 44;

/// Default bytes of journal or memory at which a stage ends; LND's 10,000 KB.
pub const STAGE_BYTES: u64 = 10_000 * 1024;
/// Maximum age of a stage in milliseconds. Bounds what recovery must apply on a volume with few writes.
pub const STAGE_AGE_MS: u64 = 5000;
/// Maximum number of closed stages that wait for the image, including the one being applied. With the open
/// stage they absorb 40 MB of writes while the disk stalls, and they bound the memory.
pub const STAGES_CLOSED_MAX: usize = 3;
/// Maximum number of blocks that one step writes to the image.
pub const STEP_BLOCKS: usize = 64;
/// Maximum number of blocks that one step punches out of the image. Bounded because freeing extents costs the
/// file system time too.
pub const STEP_ZERO_BLOCKS: u64 = 1 << 18;
/// Maximum number of blocks that a read looks up at once. Bounds its stack, and how long it keeps writers
/// from the stages.
pub const READ_BLOCKS: usize = 64;
/// Maximum number of blocks that one search for holes covers.
pub const EXTENT_BLOCKS: usize = 4096;

/// Maximum number of ends of retained stages: stages applied but kept in the journal for the data lender. A
/// few KiB.
pub const RETAINED_ENDS_MAX: usize = 512;
/// Maximum number of block runs marked dirty at once: 64 KiB.
pub const MARK_RUNS: usize = 4096;
/// Maximum number of blocks fetched from the data lender at once.
pub const FETCH_BLOCKS: usize = 64;
/// Maximum number of fetches of a block that the applier overtakes each time. After that the block is read
/// but not repaired.
pub const FETCH_TURNS: u32 = 3;
/// Number of checksums that one step of a restore or scrub examines.
pub const COPY_SUMS: usize = 16 * 1024;
/// Number of blocks that one step of a restore fetches before it syncs: 4 MiB, so that the sync is a small
/// part of the step.
pub const COPY_BLOCKS: usize = 1024;
/// Maximum number of bad blocks remembered until they are asked for; the rest are found again later.
pub const BAD_BLOCKS_MAX: usize = 1024;

/// Sectors of a block, one bit each in a stage's mask.
pub const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;

const _: () = assert!(BLOCK_SECTORS == u8::BITS as u64, "a mask of sectors is one byte");
const _: () = assert!(
    FETCH_BLOCKS <= READ_BLOCKS,
    "fetched blocks are read at once for comparison"
);
const _: () = assert!((RECORD_DATA_BYTES_MAX as u64).is_multiple_of(BLOCK_BYTES));
const _: () = assert!((REQUEST_BYTES_MAX as u64).is_multiple_of(BLOCK_BYTES));
const _: () = assert!(VOLUME_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
