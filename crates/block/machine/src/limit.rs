//! Every bound of a replica, with its reason.

/// Bytes of one record of a volume that a data lender takes: what it keeps in memory of a record that has
/// come in part.
pub const REPLICA_RECORD_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of the log on their way to a data lender, sent and not flushed there.
pub const REPLICA_FLIGHT_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Frames of a resync on their way to a data lender, and so the answers that it may owe.
pub const RESYNC_FRAMES_MAX: usize = 16;
/// While the data lender lacks more than this part of the log's room, blocks wait for the log: its beginning
/// would pass what the data lender has.
pub const RESYNC_LAG_PART: u64 = 8;
/// Ends of synced batches that a client remembers until its data lender has flushed them. Beyond that they
/// are joined.
pub const REPLICA_ENDS_MAX: usize = 256;
