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
    pub(crate) fn push(&mut self, range: MissingRange) {
        assert!(range.from < range.to);
        let touches = |known: &MissingRange| known.from <= range.to && range.from <= known.to;
        let found = self.iter().position(|known| touches(&known));
        let full = (self.count == MISSING_RANGES_MAX).then_some(MISSING_RANGES_MAX - 1);
        match found.or(full) {
            Some(index) => {
                let known = &mut self.ranges[index];
                known.from = known.from.min(range.from);
                known.to = known.to.max(range.to);
            }
            None => {
                self.ranges[self.count] = range;
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
        let overlaps = |range: MissingRange| range.from < other.to && other.from < range.to;
        let index = self.iter().position(overlaps)?;
        Some(self.remove(index))
    }

    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }

    fn remove(&mut self, index: usize) -> MissingRange {
        let range = self.ranges[index];
        self.ranges.copy_within(index + 1..self.count, index);
        self.count -= 1;
        range
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn range(from: u64, to: u64) -> MissingRange {
        MissingRange {
            from: Lsn(from),
            to: Lsn(to),
        }
    }

    #[test]
    fn ranges_come_out_in_order_and_touching_ones_merge() {
        let mut ranges = MissingRanges::default();
        ranges.push(range(10, 20));
        ranges.push(range(40, 50));
        ranges.push(range(20, 25));
        ranges.push(range(5, 12));
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [range(5, 25), range(40, 50)]);
        assert_eq!(ranges.take_overlapping(range(50, 60)), None);
        assert_eq!(ranges.take_overlapping(range(24, 41)), Some(range(5, 25)));
        assert_eq!(ranges.pop(), Some(range(40, 50)));
        assert_eq!(ranges.pop(), None);
    }

    #[test]
    fn a_full_set_merges_ranges_and_loses_none() {
        let mut ranges = MissingRanges::default();
        for index in 0..3 * MISSING_RANGES_MAX as u64 {
            ranges.push(range(index * 100, index * 100 + 10));
        }
        for index in 0..3 * MISSING_RANGES_MAX as u64 {
            let byte = Lsn(index * 100 + 5);
            assert!(ranges.iter().any(|known| known.from <= byte && byte < known.to));
        }
        assert_eq!(ranges.iter().count(), MISSING_RANGES_MAX);
    }
}
