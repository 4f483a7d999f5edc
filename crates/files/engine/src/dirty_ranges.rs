//! Written ranges of a file that have no record yet. Only offsets are kept; the bytes are in the file.
//!
//! Nothing is promised before a sync, so recording waits for it: a range written several times is recorded
//! once, and a write wakes no thread.

use std::collections::BTreeMap;

use crate::limit::{PAGE_BYTES, PENDING_BYTES_MAX, PENDING_RANGES_MAX};

/// Disjoint ranges of a file, no two of which touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirtyRanges {
    /// Start → end of each range.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl DirtyRanges {
    /// Adds a written range, merging it with those it touches.
    pub fn add(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (mut start, mut end) = (offset, offset.saturating_add(length));
        // Go backwards from the last range that begins no later than this one ends, through all that touch
        // it.
        while let Some((from, to)) = self
            .ranges
            .range(..=end)
            .next_back()
            .map(|(from, to)| (*from, *to))
        {
            if to < start {
                break;
            }
            self.ranges.remove(&from);
            self.bytes -= to - from;
            (start, end) = (start.min(from), end.max(to));
        }
        self.ranges.insert(start, end);
        self.bytes += end - start;
    }

    /// Whether the ranges should be recorded now: too many bytes or too many ranges.
    pub fn is_large(&self) -> bool {
        self.bytes >= PENDING_BYTES_MAX || self.ranges.len() >= PENDING_RANGES_MAX
    }

    /// Total bytes in all ranges.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of ranges.
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Merges all ranges into one, including the gaps between them.
    pub fn coalesce(&mut self) {
        let ends = self.ranges.first_key_value().zip(self.ranges.last_key_value());
        if let Some(((from, _), (_, to))) = ends {
            let (from, length) = (*from, to - from);
            *self = DirtyRanges::default();
            self.add(from, length);
        }
    }

    /// Drops everything at or after `size`, the file's new end.
    pub fn truncate(&mut self, size: u64) {
        let behind = self.ranges.split_off(&size);
        self.bytes -= behind.iter().map(|(from, to)| to - from).sum::<u64>();
        if let Some((_, to)) = self.ranges.iter_mut().next_back()
            && *to > size
        {
            self.bytes -= *to - size;
            *to = size;
        }
    }

    /// Removes the first range and returns its start and end.
    pub fn take_first(&mut self) -> Option<(u64, u64)> {
        let (from, to) = self.ranges.pop_first()?;
        self.bytes -= to - from;
        Some((from, to))
    }
}

/// Bytes that the next record takes from a range with `left` bytes left at `offset`: at most `most`. A record
/// never takes part of a page whose rest falls into the next one, because the journal may end between the
/// two.
pub(crate) fn record_bytes(offset: u64, left: u64, most: usize) -> usize {
    let room = left.min(most as u64);
    let end = offset + room;
    match end - end % PAGE_BYTES {
        whole if room < left && whole > offset => (whole - offset) as usize,
        _ => room as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Berkeley DB lost commits and pages of its B-tree: half of a page came from one record, and the record
    /// with the other half had never been sent.
    #[test]
    fn a_page_is_never_split_between_records() {
        assert_eq!(record_bytes(0, 100, 5000), 100);
        assert_eq!(record_bytes(8192, 8192, 8192), 8192);
        assert_eq!(record_bytes(8192, 20_000, 10_000), 8192);
        assert_eq!(record_bytes(8292, 20_000, 10_000), 8092);
        assert_eq!(record_bytes(100, 20_000, 3000), 3000, "less than a page fits");
        let (mut offset, to) = (4096, 4096 * 100);
        while offset < to {
            offset += record_bytes(offset, to - offset, 65_000) as u64;
            assert_eq!(offset % PAGE_BYTES, 0);
        }
        assert_eq!(offset, to);
    }

    fn of(ranges: &[(u64, u64)]) -> DirtyRanges {
        let mut pending = DirtyRanges::default();
        ranges
            .iter()
            .for_each(|(offset, length)| pending.add(*offset, *length));
        pending
    }

    fn all(mut pending: DirtyRanges) -> Vec<(u64, u64)> {
        let all = std::iter::from_fn(|| pending.take_first()).collect();
        assert_eq!(pending, DirtyRanges::default());
        all
    }

    #[test]
    fn touching_ranges_merge() {
        assert_eq!(all(of(&[(0, 8), (0, 8), (4, 8)])), [(0, 12)]);
        assert_eq!(all(of(&[(0, 8), (16, 8), (8, 8)])), [(0, 24)]);
        assert_eq!(all(of(&[(10, 5), (20, 5), (30, 5), (0, 100)])), [(0, 100)]);
        assert_eq!(
            all(of(&[(10, 5), (16, 4), (0, 9), (5, 0)])),
            [(0, 9), (10, 15), (16, 20)]
        );
        assert_eq!(all(of(&[(0, 100), (10, 5)])), [(0, 100)]);
    }

    #[test]
    fn ranges_cover_exactly_the_written_bytes() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..500 {
            let (mut pending, mut bytes) = (DirtyRanges::default(), [false; 64]);
            for _ in 0..next(12) {
                let (offset, length) = (next(50), next(14));
                pending.add(offset, length);
                bytes[offset as usize..(offset + length) as usize].fill(true);
            }
            let count = bytes.iter().filter(|byte| **byte).count() as u64;
            assert_eq!(pending.bytes, count);
            for (from, to) in all(pending) {
                bytes[from as usize..to as usize].iter_mut().for_each(|byte| {
                    assert!(*byte);
                    *byte = false;
                });
            }
            assert!(!bytes.contains(&true));
        }
    }

    #[test]
    fn truncation_drops_ranges_after_the_end() {
        let whole = [(10, 5), (20, 5), (30, 5)];
        let cut = |size| {
            let mut pending = of(&whole);
            pending.truncate(size);
            let ranges = all(pending.clone());
            assert_eq!(
                pending.bytes(),
                ranges.iter().map(|(from, to)| to - from).sum::<u64>()
            );
            ranges
        };
        assert_eq!(cut(22), [(10, 15), (20, 22)]);
        assert_eq!(cut(20), [(10, 15)]);
        assert_eq!(cut(0), []);
        assert_eq!(cut(35), [(10, 15), (20, 25), (30, 35)]);
    }

    #[test]
    fn coalescing_leaves_one_range() {
        let mut pending = of(&[(10, 5), (20, 5), (30, 5)]);
        pending.coalesce();
        assert_eq!((pending.ranges(), pending.bytes()), (1, 25));
        assert_eq!(all(pending), [(10, 35)]);
    }

    #[test]
    fn many_bytes_or_ranges_count_as_large() {
        assert!(!of(&[(0, PENDING_BYTES_MAX - 1)]).is_large() && of(&[(7, PENDING_BYTES_MAX)]).is_large());
        let apart: Vec<(u64, u64)> = (0..PENDING_RANGES_MAX as u64)
            .map(|index| (index * 9, 8))
            .collect();
        assert!(of(&apart).is_large() && !of(&apart[1..]).is_large());
    }
}
