//! Latencies in buckets that are linear within each power of two, from 1 µs to 67 s.
//!
//! Bounds are 1, 2, 3, 4, 6, 8, 12, 16 … µs: two a power of two. A quantile read off them is wrong by half at
//! most. All histograms have the same bounds, so that those of many processes can be added.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Number of buckets with a bound.
pub const BOUNDED_BUCKETS: usize = 52;

/// Number of all buckets: the last one has no bound.
pub const BUCKETS: usize = BOUNDED_BUCKETS + 1;

const NANOS_PER_MICRO: u64 = 1000;

/// Durations, counted by size. Recording is two relaxed additions: about 10 ns, without lock or allocation.
#[derive(Debug)]
pub struct LatencyHistogram {
    counts: [AtomicU64; BUCKETS],
    /// Sum of all durations in nanoseconds; wraps after 584 years.
    sum: AtomicU64,
}

/// A copy of a histogram. Its counts may be read an instant apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencySnapshot {
    /// Number of durations in each bucket.
    pub counts: [u64; BUCKETS],
    /// Sum of the durations in nanoseconds.
    pub sum_ns: u64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram::new()
    }
}

impl LatencyHistogram {
    /// A histogram without a duration.
    pub const fn new() -> LatencyHistogram {
        LatencyHistogram {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            sum: AtomicU64::new(0),
        }
    }

    /// Counts `duration`.
    #[inline]
    pub fn record(&self, duration: Duration) {
        self.record_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts a duration of `nanoseconds`.
    #[inline]
    pub fn record_ns(&self, nanoseconds: u64) {
        self.counts[bucket_of(nanoseconds)].fetch_add(1, Relaxed);
        self.sum.fetch_add(nanoseconds, Relaxed);
    }

    /// The counts so far.
    pub fn snapshot(&self) -> LatencySnapshot {
        LatencySnapshot {
            counts: std::array::from_fn(|index| self.counts[index].load(Relaxed)),
            sum_ns: self.sum.load(Relaxed),
        }
    }
}

impl LatencySnapshot {
    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// A bound which `share` of the durations (0 to 1) do not exceed; `None` without a duration. Those above
    /// the last bound count as infinite.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let count = self.count();
        let wanted = ((share.clamp(0.0, 1.0) * count as f64).ceil() as u64).max(1);
        let mut seen = 0;
        let reached = self.counts.iter().position(|bucket| {
            seen += bucket;
            seen >= wanted
        });
        reached.map(bound_s)
    }
}

/// The index of the bucket of a duration.
#[inline]
fn bucket_of(nanoseconds: u64) -> usize {
    // A bound belongs to the bucket below it.
    let micros = nanoseconds.saturating_sub(1) / NANOS_PER_MICRO;
    if micros < 2 {
        return micros as usize;
    }
    let power = micros.ilog2();
    let half = (micros >> (power - 1)) & 1;
    (2 * power as usize + half as usize).min(BOUNDED_BUCKETS)
}

/// The bound of a bucket in microseconds. `index` is less than [`BOUNDED_BUCKETS`].
const fn bound_us(index: usize) -> u64 {
    assert!(index < BOUNDED_BUCKETS);
    if index < 2 {
        return index as u64 + 1;
    }
    let power = 1 << (index / 2);
    match index % 2 {
        0 => power + power / 2,
        _ => 2 * power,
    }
}

/// The bound of a bucket in seconds, infinite for the last one.
pub fn bound_s(index: usize) -> f64 {
    match index < BOUNDED_BUCKETS {
        // Division rounds once, so that the bound has as few digits as possible.
        true => bound_us(index) as f64 / 1e6,
        false => f64::INFINITY,
    }
}

const _: () = assert!(bound_us(0) == 1 && bound_us(BOUNDED_BUCKETS - 1) >= 60_000_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let exact = |nanoseconds: u64| {
            let bound = |index: &usize| nanoseconds <= bound_us(*index) * NANOS_PER_MICRO;
            (0..BOUNDED_BUCKETS).find(bound).unwrap_or(BOUNDED_BUCKETS)
        };
        for index in 0..BOUNDED_BUCKETS {
            assert!(index == 0 || bound_us(index - 1) < bound_us(index));
            let bound = bound_us(index) * NANOS_PER_MICRO;
            for nanoseconds in [bound - 1, bound, bound + 1] {
                assert_eq!(bucket_of(nanoseconds), exact(nanoseconds), "{nanoseconds} ns");
            }
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BOUNDED_BUCKETS));
    }

    #[test]
    fn quantiles_are_bounds_of_what_was_recorded() {
        let histogram = LatencyHistogram::new();
        assert_eq!(histogram.snapshot().quantile(0.5), None);
        for _ in 0..99 {
            histogram.record(Duration::from_micros(9));
        }
        histogram.record(Duration::from_secs(100));
        let snapshot = histogram.snapshot();
        assert_eq!(snapshot.count(), 100);
        assert_eq!(snapshot.sum_ns, 99 * 9_000 + 100_000_000_000);
        assert_eq!(snapshot.quantile(0.5), Some(12e-6));
        assert_eq!(snapshot.quantile(1.0), Some(f64::INFINITY));
    }
}
