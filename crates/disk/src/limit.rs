//! Every bound of this crate, with its reason.

use crate::device::{BLOCK_BYTES, SECTOR_BYTES};

/// Bytes of one read or write: what network block device clients send at most.
pub const REQUEST_BYTES_MAX: u32 = 32 * 1024 * 1024;
/// Bytes of data in one record. A larger write takes several, so that others get in between.
pub const RECORD_DATA_BYTES_MAX: usize = 256 * 1024;
/// Bytes of the largest volume: its checksums then take 16 GiB.
pub const VOLUME_BYTES_MAX: u64 = 1 << 44;

/// Sectors of a block: one bit each in a stage's mask.
pub const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;

const _: () = assert!(BLOCK_SECTORS == u8::BITS as u64, "a mask of sectors is one byte");
const _: () = assert!((RECORD_DATA_BYTES_MAX as u64).is_multiple_of(BLOCK_BYTES));
const _: () = assert!((REQUEST_BYTES_MAX as u64).is_multiple_of(BLOCK_BYTES));
const _: () = assert!(VOLUME_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
