//! Bounds, each with its reason.

/// Maximum bytes of a name, as in Linux.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum bytes of a path that the kernel accepts.
pub const PATH_BYTES_MAX: usize = 4095;
/// Maximum bytes of a symbolic link's target, as in Linux.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Maximum bytes of an extended attribute's value, as in Linux.
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// Maximum number of inodes in a directory. Each takes about 300 bytes of memory, and each catalog contains
/// all.
pub const INODES_MAX: usize = 1 << 20;
/// Inode numbers are below this, so that every number has a successor.
pub const INODE_ID_END: u64 = 1 << 62;
/// Prefix, before an inode's number, of the temporary names that recovery uses.
pub const ASIDE_PREFIX: &[u8] = b".netram-aside-";
/// Prefix, before an inode's number, of the name of a file that has lost its last one and that programs may
/// still have open. It is in the root directory, where no program finds it.
pub const ORPHAN_PREFIX: &[u8] = b".netram-aside-orphan-";
/// Name of a new file until its record is held. Only one exists at a time.
pub const STAGED_NAME: &[u8] = b".netram-aside-new";
/// Attempts at making a file whose identity no earlier record has. On a file system without birth times, any
/// inode number may have been used since the last checkpoint.
pub const STAGINGS_MAX: usize = 16;
/// Minimum number of files that are synced and closed together when too many are open. A program that opens
/// one file after another then does not wait for the disk at each.
pub const EVICTION_BATCH_MIN: usize = 16;
/// Percent of the journal's capacity at which a checkpoint starts.
pub const CHECKPOINT_PERCENT: u64 = 50;
/// Bytes of a file that may be pending before they are recorded. Bounds what a sync has to send.
pub const PENDING_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of separate pending ranges per file.
pub const PENDING_RANGES_MAX: usize = 64;

/// Alignment at which a range may be split between two records. Programs that write whole pages without a
/// second copy rely on this: a disk never mixes older and newer halves of a block.
pub const PAGE_BYTES: u64 = 4096;
