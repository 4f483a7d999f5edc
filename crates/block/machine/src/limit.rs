//! Every bound of a replica, with its reason.

/// Maximum bytes of one record that a data lender accepts. Bounds the memory for a record that has arrived in
/// part.
pub const REPLICA_RECORD_BYTES_MAX: usize = 1024 * 1024;
/// Maximum bytes of log sent to a data lender and not yet flushed there.
pub const REPLICA_FLIGHT_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Maximum number of resync frames that a data lender has not answered.
pub const RESYNC_FRAMES_MAX: usize = 16;
/// Resync blocks wait while the data lender lacks more than one `RESYNC_LAG_PART`th of the log's capacity.
/// Otherwise the log's head would pass what the data lender has.
pub const RESYNC_LAG_PART: u64 = 8;
/// Maximum number of batch ends that a client remembers until its data lender has flushed them. Beyond that,
/// batches are merged.
pub const REPLICA_ENDS_MAX: usize = 256;
