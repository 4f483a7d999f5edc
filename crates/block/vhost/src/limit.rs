//! Bounds of the server.

/// Maximum number of queues that a virtual machine may use; QEMU's default is one for each of its processors.
pub const QUEUES_MAX: usize = 64;
/// Maximum number of threads, which share the queues.
pub const THREADS_MAX: usize = 4;
/// Maximum number of descriptors of a queue.
pub const QUEUE_SIZE_MAX: u16 = 1024;
/// Number of data segments of a request that guests are told. A queue of 128 descriptors, QEMU's default,
/// must have room for one such request with its header and status.
pub const SEGMENTS_MAX: u32 = 126;
/// Maximum number of requests of a batch.
pub const BATCH_MAX: usize = 128;
/// Bytes of writes at which a batch ends.
pub const BATCH_BYTES_MAX: u64 = 4 << 20;
/// Maximum bytes that pass through a thread's buffer at once. Larger requests take several pieces.
pub const PIECE_BYTES: usize = 1 << 20;
/// Maximum number of ranges in one discard or zero request.
pub const RANGES_MAX: u32 = 16;
/// Bytes of a range of such a request.
pub const RANGE_BYTES: usize = 16;
/// Maximum sectors of such a range: the largest that the field holds in whole blocks.
pub const RANGE_SECTORS_MAX: u32 = !7;
/// Bytes of the name that a guest reads as the disk's serial number.
pub const SERIAL_BYTES: usize = 20;

const _: () = assert!(
    SEGMENTS_MAX as usize + 2 <= 128,
    "a request must fit in the smallest usual queue"
);
