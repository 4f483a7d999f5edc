//! State of the thread that writes to the disk.

use std::sync::Mutex;

use netram_proto::failure::RetryPolicy;

use crate::sys::RingDrain;

/// The disk writer behind its lock.
pub(crate) type SharedDiskWriter = Mutex<DiskWriter>;

/// State of the thread that writes to the disk.
pub(crate) struct DiskWriter {
    /// The ring's reading end; `None` once the disk was given up, so that no thread retries (rule 9).
    pub(crate) drain: Option<RingDrain>,
    pub(crate) policy: RetryPolicy,
}

impl DiskWriter {
    pub(crate) fn new(drain: RingDrain) -> DiskWriter {
        DiskWriter {
            drain: Some(drain),
            policy: RetryPolicy::new(),
        }
    }
}
