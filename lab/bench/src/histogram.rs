//! Latencies of equal operations: percentiles, throughput, processor time.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::machine;

/// The longest recorded time in nanoseconds; longer ones count as this.
const NANOSECONDS_MAX: u64 = 60_000_000_000;
/// Number of significant digits. Three make a histogram of some hundred kilobytes, allocated before the run.
const DIGITS: u8 = 3;

/// Records one duration for each operation, and the processor time of the whole run.
pub struct LatencyRecorder {
    histogram: Histogram<u64>,
    processes: Vec<u32>,
    cpu_before: Duration,
    started: Instant,
}

/// Latencies, throughput and processor time of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LatencySummary {
    /// Number of operations, without the warm-up.
    pub count: u64,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile in microseconds.
    pub p999_us: f64,
    /// The longest, in microseconds.
    pub max_us: f64,
    /// Operations per second, over all threads.
    pub per_second: f64,
    /// Processor time of an operation, in microseconds: of this process and of the child processes it used.
    pub cpu_us: f64,
}

impl LatencyRecorder {
    /// Starts the clock. `processes` are children whose processor time counts too.
    pub fn start(processes: &[u32]) -> LatencyRecorder {
        LatencyRecorder {
            histogram: empty(),
            processes: processes.to_vec(),
            cpu_before: machine::cpu_time(processes),
            started: Instant::now(),
        }
    }

    /// Counts one operation.
    pub fn record(&mut self, took: Duration) {
        self.histogram.saturating_record(took.as_nanos() as u64);
    }

    /// Adds another thread's records.
    pub fn add(&mut self, other: &Histogram<u64>) {
        // Both have the same bounds, so every value of one fits the other.
        let added = self.histogram.add(other);
        assert!(added.is_ok());
    }

    /// Stops the clock.
    pub fn finish(self) -> LatencySummary {
        let elapsed = self.started.elapsed();
        let cpu = machine::cpu_time(&self.processes).saturating_sub(self.cpu_before);
        let count = self.histogram.len();
        let at = |quantile| self.histogram.value_at_quantile(quantile) as f64 / 1e3;
        LatencySummary {
            count,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.histogram.max() as f64 / 1e3,
            per_second: count as f64 / elapsed.as_secs_f64(),
            cpu_us: cpu.as_secs_f64() * 1e6 / count.max(1) as f64,
        }
    }
}

/// An empty histogram with this crate's bounds, for one thread.
pub fn empty() -> Histogram<u64> {
    Histogram::new_with_bounds(1, NANOSECONDS_MAX, DIGITS)
        .expect("the bounds are constants that fit each other")
}

impl LatencySummary {
    /// The median of each field over rounds, so that one disturbed round changes nothing.
    pub fn median(rounds: &[LatencySummary]) -> LatencySummary {
        let field = |of: fn(&LatencySummary) -> f64| median(rounds.iter().map(of).collect());
        LatencySummary {
            count: rounds.iter().map(|round| round.count).sum(),
            p50_us: field(|round| round.p50_us),
            p99_us: field(|round| round.p99_us),
            p999_us: field(|round| round.p999_us),
            max_us: field(|round| round.max_us),
            per_second: field(|round| round.per_second),
            cpu_us: field(|round| round.cpu_us),
        }
    }
}

/// The median; zero for an empty list.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ordered_and_near_the_recorded_times() {
        let mut recorder = LatencyRecorder::start(&[]);
        for us in 1..=1000 {
            recorder.record(Duration::from_micros(us));
        }
        let summary = recorder.finish();
        assert_eq!(summary.count, 1000);
        assert!((summary.p50_us - 500.0).abs() < 2.0, "{summary:?}");
        assert!((summary.p99_us - 990.0).abs() < 2.0, "{summary:?}");
        assert!(summary.p999_us <= summary.max_us);
    }

    #[test]
    fn one_disturbed_round_does_not_move_the_median() {
        let round = |p50_us| LatencySummary {
            count: 1,
            p50_us,
            ..LatencySummary::default()
        };
        let middle = LatencySummary::median(&[round(8.0), round(400.0), round(7.0)]);
        assert_eq!((middle.count, middle.p50_us), (3, 8.0));
        assert_eq!(median(Vec::new()), 0.0);
    }

    #[test]
    fn a_time_beyond_the_bounds_counts_as_the_bound() {
        let mut recorder = LatencyRecorder::start(&[]);
        recorder.record(Duration::from_secs(3600));
        let summary = recorder.finish();
        assert_eq!(summary.count, 1);
        assert!(summary.max_us >= 59e6);
    }
}
