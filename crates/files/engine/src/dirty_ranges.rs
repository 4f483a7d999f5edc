//! What was written to a file and is not recorded yet: where, and not what, for that is in the file.
//!
//! Nobody is promised anything before a sync, so records wait for that: what is written several times is
//! recorded once, and a write wakes nobody.

use std::collections::BTreeMap;

use crate::limit::{PAGE_BYTES, PENDING_BYTES_MAX, PENDING_RANGES_MAX};

/// Ranges of a file, none of which touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirtyRanges {
    /// Where each begins and ends.
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl DirtyRanges {
    /// So many bytes were written there.
    pub fn add(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (mut start, mut end) = (offset, offset.saturating_add(length));
        // The last one that begins no later than this ends, and so on: all that touch it.
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

    /// Whether it is better recorded now.
    pub fn is_large(&self) -> bool {
        self.bytes >= PENDING_BYTES_MAX || self.ranges.len() >= PENDING_RANGES_MAX
    }

    /// Bytes in them.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Parts in which they lie.
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// Makes them one, with what lies between.
    pub fn coalesce(&mut self) {
        let ends = self.ranges.first_key_value().zip(self.ranges.last_key_value());
        if let Some(((from, _), (_, to))) = ends {
            let (from, length) = (*from, to - from);
            *self = DirtyRanges::default();
            self.add(from, length);
        }
    }

    /// The file ends there by now.
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

    /// The first range, which is taken out: where it begins and ends.
    pub fn take_first(&mut self) -> Option<(u64, u64)> {
        let (from, to) = self.ranges.pop_first()?;
        self.bytes -= to - from;
        Some((from, to))
    }
}

/// How many bytes the next record has of a range, of which `left` are left from `offset` on: at most `most`,
/// and no part of a page that the record behind it has the rest of. The journal may end between the two.
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

    /// Berkeley DB lost commits, and pages of its tree: half of a page came from one record, and the other
    /// half was older, for the next one was never sent.
    #[test]
    fn a_page_is_in_one_record() {
        assert_eq!(record_bytes(0, 100, 5000), 100);
        assert_eq!(record_bytes(8192, 8192, 8192), 8192);
        assert_eq!(record_bytes(8192, 20_000, 10_000), 8192);
        assert_eq!(record_bytes(8292, 20_000, 10_000), 8092);
        assert_eq!(record_bytes(100, 20_000, 3000), 3000, "a page has no room in it");
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
    fn ranges_that_touch_are_one() {
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
    fn they_cover_what_was_written_and_nothing_else() {
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
    fn what_is_behind_the_end_is_not_kept() {
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
    fn many_may_be_made_one() {
        let mut pending = of(&[(10, 5), (20, 5), (30, 5)]);
        pending.coalesce();
        assert_eq!((pending.ranges(), pending.bytes()), (1, 25));
        assert_eq!(all(pending), [(10, 35)]);
    }

    #[test]
    fn much_is_told() {
        assert!(!of(&[(0, PENDING_BYTES_MAX - 1)]).is_large() && of(&[(7, PENDING_BYTES_MAX)]).is_large());
        let apart: Vec<(u64, u64)> = (0..PENDING_RANGES_MAX as u64)
            .map(|index| (index * 9, 8))
            .collect();
        assert!(of(&apart).is_large() && !of(&apart[1..]).is_large());
    }
}
