//! Measured times of each step in each place, and the steps' counts.

use crate::histogram::median;

/// Times in µs by step and place, and counts. A round's count is the same in all places, but rounds may
/// differ: an operation that moves build dates changes the results of queries by date.
pub(super) struct StepTimes {
    times: Vec<Vec<Vec<f64>>>,
    /// Count of each step in this round, and in the first.
    counts: Vec<Option<u64>>,
    first: Vec<Option<u64>>,
}

impl StepTimes {
    pub(super) fn of(steps: usize, places: usize) -> StepTimes {
        StepTimes {
            times: vec![vec![Vec::new(); places]; steps],
            counts: vec![None; steps],
            first: vec![None; steps],
        }
    }

    /// Begins a round.
    pub(super) fn round(&mut self) {
        self.counts.fill(None);
    }

    /// Records a step in a place. The error is its count elsewhere in this round.
    pub(super) fn record(&mut self, step: usize, place: usize, took_us: f64, count: u64) -> Result<(), u64> {
        let other = *self.counts[step].get_or_insert(count);
        if other != count {
            return Err(other);
        }
        self.first[step].get_or_insert(count);
        self.times[step][place].push(took_us);
        Ok(())
    }

    /// For each step, the first round's count and the medians of all places.
    pub(super) fn rows(self) -> impl Iterator<Item = (u64, Vec<f64>)> {
        let rows = self.first.into_iter().zip(self.times);
        rows.map(|(count, times)| (count.unwrap_or(0), times.into_iter().map(median).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_places_of_a_round_must_count_the_same() {
        let mut times = StepTimes::of(1, 2);
        times.round();
        assert_eq!(times.record(0, 0, 1.0, 7), Ok(()));
        assert_eq!(times.record(0, 1, 1.0, 8), Err(7));
    }

    #[test]
    fn the_next_round_may_count_differently() {
        let mut times = StepTimes::of(1, 2);
        for (count, took_us) in [(7, 3.0), (8, 1.0), (7, 2.0)] {
            times.round();
            for place in 0..2 {
                assert_eq!(times.record(0, place, took_us + place as f64, count), Ok(()));
            }
        }
        assert_eq!(times.rows().collect::<Vec<_>>(), [(7, vec![2.0, 3.0])]);
    }
}
