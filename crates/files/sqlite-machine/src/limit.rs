//! Bounds of a database writer, each with its reason.

/// A sync with more bytes to record than this fraction of the journal runs a checkpoint instead: at that size
/// the disk takes no longer.
pub const LARGE_SYNC_DIVISOR: u64 = 4;
/// Maximum number of separate unrecorded ranges per file. Bounds memory for a program that never syncs.
pub const RANGES_MAX: usize = 4096;
/// Percent of the journal's capacity at which a checkpoint starts.
pub const CHECKPOINT_PERCENT: u64 = 50;
/// Bytes of one journal's records that recovery reads ahead: 16 MiB for sixteen journals of any length.
pub const READ_AHEAD_BYTES: usize = 1 << 20;
