//! What a server has done, counted over all its connections.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NbdStats {
    /// Reads answered with data.
    pub reads: u64,
    /// Their bytes, holes included.
    pub read_bytes: u64,
    /// Writes that the device took.
    pub writes: u64,
    /// Their bytes.
    pub written_bytes: u64,
    /// Requests to zero or to forget that the device took.
    pub zeroes: u64,
    /// Flushes that reached the device, those of FUA included. Flushes that came together are one.
    pub flushes: u64,
    /// Batches: writes of one batch were waited for once.
    pub batches: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Connections that chose an export.
    pub sessions: u64,
    /// Connections that did not come so far.
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

/// The same while it is counted.
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
    /// Adds what a connection counted by itself.
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
