//! Bounds, each with its reason.

/// Bytes of a name, as Linux has it.
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a path that the kernel takes.
pub const PATH_BYTES_MAX: usize = 4095;
/// Bytes of where a symbolic link leads, as Linux has it.
pub const TARGET_BYTES_MAX: usize = 4095;
/// Bytes of an extended attribute, as Linux has it.
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// Nodes in a directory: each takes about 300 bytes, and the catalog has all of them whenever the journal is
/// trimmed.
pub const INODES_MAX: usize = 1 << 20;
/// No node has this number or a higher one: the next could not be numbered.
pub const INODE_ID_END: u64 = 1 << 62;
/// The name under which recovery lays a node aside, before its number.
pub const ASIDE_PREFIX: &[u8] = b".netram-aside-";
/// The name of a new file until its record is held. One at a time is made.
pub const STAGED_NAME: &[u8] = b".netram-aside-new";
/// Files that are made in vain, before one is made that no record can tell from another: where inodes have no
/// time of birth, each of them may have been used since the last checkpoint.
pub const STAGINGS_MAX: usize = 16;
/// Files that are synced and closed at once when too many are open, so that a program that opens one file
/// after another does not wait for the disk each time.
pub const EVICTION_BATCH_MIN: usize = 16;
/// Percent of the journal's capacity at which what is in it is brought to the disk.
pub const CHECKPOINT_PERCENT: u64 = 50;
/// Bytes of a file that are written and not recorded: what a sync has to send at most, but for what is
/// written meanwhile.
pub const PENDING_BYTES_MAX: u64 = 1 << 20;
/// Parts of a file in which they lie.
pub const PENDING_RANGES_MAX: usize = 64;

/// Where a record of a part of a range may end. Programs that write whole pages, and have no second copy of
/// one under way, rely on a disk's never mixing an older and a newer one, within what a file system writes as
/// one.
pub const PAGE_BYTES: u64 = 4096;
