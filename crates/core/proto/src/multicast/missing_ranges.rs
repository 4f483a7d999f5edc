//! The writer's record of the ranges that one member reported missing and that have not been sent again.

use crate::id::Lsn;
use crate::limit::MISSING_RANGES_MAX;

use super::MissingRange;

/// The missing ranges of one member, in the order in which it reported them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MissingRanges {
    ranges: [MissingRange; MISSING_RANGES_MAX],
    count: usize,
}

impl Default for MissingRanges {
    fn default() -> MissingRanges {
        let none = MissingRange {
            from: Lsn(0),
            to: Lsn(0),
        };
        MissingRanges {
            ranges: [none; MISSING_RANGES_MAX],
            count: 0,
        }
    }
}

impl MissingRanges {
    /// Adds a range. It is merged with a range that it touches; when the set is full, with the last one,
    /// including the bytes between them.
    pub(crate) fn push(&mut self, hole: MissingRange) {
        assert!(hole.from < hole.to);
        let touches = |known: &MissingRange| known.from <= hole.to && hole.from <= known.to;
        let found = self.iter().position(|known| touches(&known));
        let full = (self.count == MISSING_RANGES_MAX).then_some(MISSING_RANGES_MAX - 1);
        match found.or(full) {
            Some(index) => {
                let known = &mut self.ranges[index];
                known.from = known.from.min(hole.from);
                known.to = known.to.max(hole.to);
            }
            None => {
                self.ranges[self.count] = hole;
                self.count += 1;
            }
        }
    }

    /// Removes and returns the oldest range.
    pub(crate) fn pop(&mut self) -> Option<MissingRange> {
        (self.count > 0).then(|| self.remove(0))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = MissingRange> {
        self.ranges[..self.count].iter().copied()
    }

    /// Removes and returns the first range that shares a byte with `other`.
    pub(crate) fn take_overlapping(&mut self, other: MissingRange) -> Option<MissingRange> {
        let overlaps = |hole: MissingRange| hole.from < other.to && other.from < hole.to;
        let index = self.iter().position(overlaps)?;
        Some(self.remove(index))
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    fn remove(&mut self, index: usize) -> MissingRange {
        let hole = self.ranges[index];
        self.ranges.copy_within(index + 1..self.count, index);
        self.count -= 1;
        hole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn hole(from: u64, to: u64) -> MissingRange {
        MissingRange {
            from: Lsn(from),
            to: Lsn(to),
        }
    }

    #[test]
    fn ranges_come_out_in_order_and_touching_ones_merge() {
        let mut holes = MissingRanges::default();
        holes.push(hole(10, 20));
        holes.push(hole(40, 50));
        holes.push(hole(20, 25));
        holes.push(hole(5, 12));
        assert_eq!(holes.iter().collect::<Vec<_>>(), [hole(5, 25), hole(40, 50)]);
        assert_eq!(holes.take_overlapping(hole(50, 60)), None);
        assert_eq!(holes.take_overlapping(hole(24, 41)), Some(hole(5, 25)));
        assert_eq!(holes.pop(), Some(hole(40, 50)));
        assert_eq!(holes.pop(), None);
    }

    #[test]
    fn a_full_set_merges_ranges_and_loses_none() {
        let mut holes = MissingRanges::default();
        for index in 0..3 * MISSING_RANGES_MAX as u64 {
            holes.push(hole(index * 100, index * 100 + 10));
        }
        for index in 0..3 * MISSING_RANGES_MAX as u64 {
            let byte = Lsn(index * 100 + 5);
            assert!(holes.iter().any(|known| known.from <= byte && byte < known.to));
        }
        assert_eq!(holes.iter().count(), MISSING_RANGES_MAX);
    }
}
