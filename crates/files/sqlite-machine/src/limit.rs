//! Bounds of a party, each with its reason.

/// A sync that has more to record than this part of the journal settles instead: the disk takes as long by
/// then.
pub const LARGE_SYNC_DIVISOR: u64 = 4;
/// Ranges of a file that are kept apart: a program that never syncs is not to need memory for each page.
pub const RANGES_MAX: usize = 4096;
/// Percent of the journal's capacity at which it is settled.
pub const CHECKPOINT_PERCENT: u64 = 50;
/// Bytes of records of one journal that recovery reads ahead. With sixteen journals that is 16 MiB, however
/// long they are.
pub const READ_AHEAD_BYTES: usize = 1 << 20;
