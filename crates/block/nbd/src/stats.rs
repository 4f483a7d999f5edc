//! Counts of a server over all its connections.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NbdStats {
    /// Number of reads answered with data.
    pub reads: u64,
    /// Bytes of these reads, holes included.
    pub read_bytes: u64,
    /// Number of writes that the device accepted.
    pub writes: u64,
    /// Bytes of these writes.
    pub written_bytes: u64,
    /// Number of zero and discard requests that the device accepted.
    pub zeroes: u64,
    /// Number of flushes of the device, including those for FUA. Flushes of one batch count once.
    pub flushes: u64,
    /// Number of batches; the writes of a batch are waited for once.
    pub batches: u64,
    /// Number of requests answered with an error.
    pub errors: u64,
    /// Number of connections that chose an export.
    pub sessions: u64,
    /// Number of connections that ended before that.
    pub rejected: u64,
}

impl NbdStats {
    /// The counts with their names, for reports.
    pub fn named(&self) -> [(&'static str, u64); 10] {
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
            ("rejected", self.rejected),
        ]
    }
}

/// The counts while they are updated.
#[derive(Debug, Default)]
pub(crate) struct NbdCounters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    zeroes: AtomicU64,
    flushes: AtomicU64,
    batches: AtomicU64,
    errors: AtomicU64,
    sessions: AtomicU64,
    rejected: AtomicU64,
}

impl NbdCounters {
    /// Adds the counts of one connection.
    pub(crate) fn add(&self, stats: &NbdStats) {
        let pairs = [
            (&self.reads, stats.reads),
            (&self.read_bytes, stats.read_bytes),
            (&self.writes, stats.writes),
            (&self.written_bytes, stats.written_bytes),
            (&self.zeroes, stats.zeroes),
            (&self.flushes, stats.flushes),
            (&self.batches, stats.batches),
            (&self.errors, stats.errors),
            (&self.sessions, stats.sessions),
            (&self.rejected, stats.rejected),
        ];
        for (counter, count) in pairs {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn read(&self) -> NbdStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NbdStats {
            reads: read(&self.reads),
            read_bytes: read(&self.read_bytes),
            writes: read(&self.writes),
            written_bytes: read(&self.written_bytes),
            zeroes: read(&self.zeroes),
            flushes: read(&self.flushes),
            batches: read(&self.batches),
            errors: read(&self.errors),
            sessions: read(&self.sessions),
            rejected: read(&self.rejected),
        }
    }
}
