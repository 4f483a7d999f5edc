//! Latencies of the last hour: a ring of steps, each with what was counted in it.

use std::collections::VecDeque;

use netram_telemetry::LatencySnapshot;
use netram_telemetry::histogram::BUCKETS;
use serde::{Deserialize, Serialize};

use crate::limit::{LATENCY_STEP, LATENCY_STEPS};

/// Percentiles of an hour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HourLatency {
    /// Number of commits.
    pub commits: u64,
    /// Seconds that half of them, 99 % and 99.9 % did not exceed; `None` without commits, or above a minute.
    pub quantiles: [Option<f64>; 3],
}

/// Commits of the last hour by latency, in steps. A step without commits takes no memory.
#[derive(Debug, Default)]
pub struct LatencyHistory {
    /// The last reading of counts that only grow.
    last: Vec<u64>,
    /// The counts of each step, oldest first: bucket and number.
    steps: VecDeque<Vec<(u8, u32)>>,
    /// Number of the newest step.
    newest: u64,
}

impl LatencyHistory {
    /// Takes a reading of counts. Returns what is new in it. Counts that fell belong to a new process.
    pub fn read(&mut self, now_ms: u64, counts: &[u64]) -> Vec<u64> {
        if counts.len() != BUCKETS {
            return Vec::new();
        }
        let is_first = self.last.is_empty();
        let fell = self.last.iter().zip(counts).any(|(last, count)| count < last);
        let gained: Vec<u64> = match is_first || fell {
            // What came before the first look is not of this hour.
            true if is_first => vec![0; BUCKETS],
            true => counts.to_vec(),
            false => self
                .last
                .iter()
                .zip(counts)
                .map(|(last, count)| count - last)
                .collect(),
        };
        self.last = counts.to_vec();
        self.add(now_ms, &gained);
        gained
    }

    /// Adds commits of this moment.
    pub fn add(&mut self, now_ms: u64, gained: &[u64]) {
        self.advance(now_ms);
        let Some(step) = self.steps.back_mut() else { return };
        for (bucket, count) in gained.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = u32::try_from(*count).unwrap_or(u32::MAX);
            match step.iter_mut().find(|(other, _)| usize::from(*other) == bucket) {
                Some((_, sum)) => *sum = sum.saturating_add(count),
                None => step.push((bucket as u8, count)),
            }
        }
    }

    /// Begins the steps up to this moment.
    fn advance(&mut self, now_ms: u64) {
        let step = now_ms / LATENCY_STEP.as_millis() as u64;
        let missing = match self.steps.is_empty() {
            true => 1,
            false => step.saturating_sub(self.newest).min(LATENCY_STEPS as u64),
        };
        for _ in 0..missing {
            if self.steps.len() == LATENCY_STEPS {
                self.steps.pop_front();
            }
            self.steps.push_back(Vec::new());
        }
        self.newest = self.newest.max(step);
    }

    /// The percentiles of all steps.
    pub fn hour(&mut self, now_ms: u64) -> HourLatency {
        self.advance(now_ms);
        let snapshot = snapshot(self.steps.iter().flatten());
        HourLatency {
            commits: snapshot.count(),
            quantiles: [0.5, 0.99, 0.999]
                .map(|share| snapshot.quantile(share).filter(|bound| bound.is_finite())),
        }
    }

    /// The percentiles of groups of steps, the oldest first, at most `points` of them.
    pub fn curve(&self, points: usize) -> Vec<Option<[f64; 3]>> {
        let group = LATENCY_STEPS.div_ceil(points.max(1));
        // Groups end at round times, so that a point does not change its steps at each reading.
        let first = self.newest + 1 - (self.steps.len() as u64).min(self.newest + 1);
        let mut groups: Vec<(u64, Vec<&(u8, u32)>)> = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let number = (first + index as u64) / group as u64;
            match groups.last_mut() {
                Some((other, counted)) if *other == number => counted.extend(step),
                _ => groups.push((number, step.iter().collect())),
            }
        }
        let quantiles = |counted: Vec<&(u8, u32)>| {
            let snapshot = snapshot(counted.into_iter());
            let of = |share| snapshot.quantile(share).map(|bound| bound.min(60.0));
            Some([of(0.5)?, of(0.99)?, of(0.999)?])
        };
        groups
            .into_iter()
            .map(|(_, counted)| quantiles(counted))
            .collect()
    }
}

fn snapshot<'a>(counted: impl Iterator<Item = &'a (u8, u32)>) -> LatencySnapshot {
    let mut counts = [0; BUCKETS];
    for (bucket, count) in counted {
        counts[usize::from(*bucket)] += u64::from(*count);
    }
    LatencySnapshot { counts, sum_ns: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = LATENCY_STEP.as_millis() as u64;

    fn counts(of: &[(usize, u64)]) -> Vec<u64> {
        let mut counts = vec![0; BUCKETS];
        for (bucket, count) in of {
            counts[*bucket] = *count;
        }
        counts
    }

    #[test]
    fn percentiles_are_of_what_was_counted_in_the_hour_and_of_nothing_before() {
        let mut history = LatencyHistory::default();
        history.read(0, &counts(&[(20, 1000)]));
        assert_eq!(history.hour(0).commits, 0, "those came before the first look");
        // 990 of 8 µs (bucket 5), 10 of 1 ms.
        history.read(STEP, &counts(&[(20, 1000), (5, 990)]));
        history.read(2 * STEP, &counts(&[(20, 1010), (5, 990)]));
        let hour = history.hour(2 * STEP);
        assert_eq!(hour.commits, 1000);
        assert_eq!(hour.quantiles, [Some(8e-6), Some(8e-6), Some(1.536e-3)]);
        // An hour later they are gone, whether somebody looked meanwhile or not.
        assert_eq!(
            history.hour((2 + LATENCY_STEPS as u64) * STEP),
            HourLatency::default()
        );
    }

    #[test]
    fn counts_that_fell_are_those_of_a_new_process() {
        let mut history = LatencyHistory::default();
        history.read(0, &counts(&[(3, 100)]));
        assert_eq!(history.read(1, &counts(&[(3, 7)])), counts(&[(3, 7)]));
        assert_eq!(history.read(2, &counts(&[(3, 8)])), counts(&[(3, 1)]));
        assert_eq!(history.hour(2).commits, 8);
        assert_eq!(
            history.read(3, &[1, 2]),
            Vec::<u64>::new(),
            "another release's buckets"
        );
    }

    #[test]
    fn a_curve_has_gaps_where_nothing_was_committed() {
        let mut history = LatencyHistory::default();
        history.read(0, &counts(&[]));
        history.read(1, &counts(&[(5, 1)]));
        history.read(4 * STEP, &counts(&[(5, 2)]));
        let curve = history.curve(LATENCY_STEPS);
        let told: Vec<bool> = curve.iter().map(Option::is_some).collect();
        assert_eq!(told, [true, false, false, false, true]);
        for step in 0..2 * LATENCY_STEPS as u64 {
            history.read(step * STEP, &counts(&[(5, 2 + step)]));
        }
        assert!(history.curve(180).len() <= 181, "{}", history.curve(180).len());
    }
}
