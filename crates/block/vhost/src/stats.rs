//! Counts of a server over all virtual machines.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VhostStats {
    /// Number of reads answered with data.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Number of writes that the device accepted.
    pub writes: u64,
    /// Bytes of these writes.
    pub written_bytes: u64,
    /// Number of zero and discard requests that the device accepted.
    pub zeroes: u64,
    /// Number of flushes of the device.
    pub flushes: u64,
    /// Number of batches; the writes of a batch are waited for once.
    pub batches: u64,
    /// Number of requests answered with an error.
    pub errors: u64,
    /// Number of virtual machines that have connected.
    pub sessions: u64,
}

impl VhostStats {
    /// The counts with their names, for reports.
    pub fn named(&self) -> [(&'static str, u64); 9] {
        [
            ("reads", self.reads),
            ("read_bytes", self.read_bytes),
            ("writes", self.writes),
            ("written_bytes", self.written_bytes),
            ("zeroes", self.zeroes),
            ("flushes", self.flushes),
            ("batches", self.batches),
            ("errors", self.errors),
            ("sessions", self.sessions),
        ]
    }
}

/// The counts while they are updated, in the order of [`VhostStats::named`].
#[derive(Debug, Default)]
pub(crate) struct VhostCounters([AtomicU64; 9]);

impl VhostCounters {
    /// Adds the counts of a batch.
    pub(crate) fn add(&self, stats: &VhostStats) {
        for (counter, (_, count)) in self.0.iter().zip(stats.named()) {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn read(&self) -> VhostStats {
        let [
            reads,
            read_bytes,
            writes,
            written_bytes,
            zeroes,
            flushes,
            batches,
            errors,
            sessions,
        ] = std::array::from_fn(|index| self.0[index].load(Ordering::Relaxed));
        VhostStats {
            reads,
            read_bytes,
            writes,
            written_bytes,
            zeroes,
            flushes,
            batches,
            errors,
            sessions,
        }
    }
}
