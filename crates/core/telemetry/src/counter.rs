//! Counters and gauges. Their values are independent, so relaxed operations suffice.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A number that only grows. Any thread may add, at the cost of one locked instruction.
#[derive(Debug, Default)]
pub struct MetricCounter(AtomicU64);

impl MetricCounter {
    /// A counter at zero.
    pub const fn new() -> MetricCounter {
        MetricCounter(AtomicU64::new(0))
    }

    /// Adds `count`.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.fetch_add(count, Relaxed);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that only grows, and that one thread adds to: adding needs no locked instruction.
#[derive(Debug, Default)]
pub struct SingleWriterCounter(AtomicU64);

impl SingleWriterCounter {
    /// Adds `count`. Only the counter's one writer may call this.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that may fall.
#[derive(Debug, Default)]
pub struct MetricGauge(AtomicU64);

impl MetricGauge {
    /// A gauge at zero.
    pub const fn new() -> MetricGauge {
        MetricGauge(AtomicU64::new(0))
    }

    /// Sets the value.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    /// The last value that was set.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
