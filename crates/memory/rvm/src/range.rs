//! The ranges of one transaction: a list while they are few or come in order, and bits once they are many and
//! do not. Never a tree.
//!
//! Measured by `cargo run --release -p netram-rvm --example set_range`; figures in `docs/results/memory.md`.

use crate::declared::DeclaredRange;
use crate::granules::{Granules, fits};
use crate::limit::TRANSACTION_RANGES_MAX;
use crate::radix;

/// Number of ranges out of order from which on bits are tried; below it one sort is cheaper.
const LISTED_MAX: usize = 1024;
/// Ranges per page from which on bits are cheaper than the sort. Bits cost about 30 ns a page, a sort 15 ns a
/// range.
const DENSITY_MIN: usize = 3;
/// Factor by which the list grows before bits are tried again, where ranges were too far apart for them.
const RETRY_FACTOR: usize = 4;

/// All ranges of one transaction. Keeps its memory when cleared.
#[derive(Debug, Default)]
pub(crate) struct RangeList {
    /// Ranges whose old values were kept, oldest first; all ranges while there are no bits.
    declared: Vec<DeclaredRange>,
    /// Ranges came out of order, or overlap.
    disordered: bool,
    /// Bits are kept, because the list was long, out of order and dense.
    dense: bool,
    /// Length of the list at which bits are tried. Zero means `LISTED_MAX`.
    try_at: usize,
    /// Below this length another range is appended without a check: memory is reserved, and bits are not
    /// tried yet.
    room: usize,
    /// The declared ranges that bits can represent.
    granules: Granules,
    /// The declared ranges that bits cannot represent, once there are bits.
    loose: Vec<DeclaredRange>,
    /// Ranges that a commit found without a declaration.
    captured: Vec<DeclaredRange>,
    merged: Vec<DeclaredRange>,
    /// Working memory for sorting.
    spare: Vec<DeclaredRange>,
    /// Number of declarations and their bytes, for statistics.
    calls: u64,
    bytes: u64,
}

impl RangeList {
    /// Adds a range and returns the part, as offset and length, whose old values are not kept yet. With
    /// `keep` the caller keeps them, and the part joins [`RangeList::restorable`].
    ///
    /// Programs declare neighbouring fields one after the other; those extend the last range in place.
    #[inline]
    pub(crate) fn declare(&mut self, region: u32, offset: u64, length: u32, keep: bool) -> (u64, u32) {
        self.calls += 1;
        self.bytes += u64::from(length);
        if self.dense {
            return self.declare_granules(region, offset, length, keep);
        }
        let mut disordered = self.disordered;
        if let Some(last) = self.declared.last_mut() {
            if last.region == region
                && let Some(into) = offset.checked_sub(last.offset)
                && into <= u64::from(last.length)
            {
                let old_end = last.end();
                let end = (offset + u64::from(length)).max(old_end);
                if let Ok(whole) = u32::try_from(end - last.offset) {
                    last.length = whole;
                    // At most `length`, so it fits.
                    return (old_end, (end - old_end) as u32);
                }
            }
            disordered |= (region, offset) < (last.region, last.end());
        }
        let thinks = self.declared.len() >= self.room || disordered != self.disordered;
        if thinks && self.make_room(disordered) {
            return self.declare_granules(region, offset, length, keep);
        }
        self.declared.push(DeclaredRange {
            offset,
            length,
            region,
        });
        (offset, length)
    }

    /// Makes room for one more range in the list. Returns `true` if bits are kept instead.
    #[cold]
    fn make_room(&mut self, disordered: bool) -> bool {
        self.disordered = disordered;
        if disordered && self.declared.len() >= LISTED_MAX.max(self.try_at) {
            self.begin_granules();
        }
        if self.dense {
            self.room = 0;
            return true;
        }
        self.declared.reserve(1);
        let listed = match disordered {
            true => LISTED_MAX.max(self.try_at),
            false => TRANSACTION_RANGES_MAX,
        };
        self.room = listed.min(self.declared.capacity());
        false
    }

    /// Adds a range whose old values are not kept. Returns `false`, with nothing done, if
    /// [`RangeList::declare`] is needed.
    #[inline(always)]
    pub(crate) fn append(&mut self, region: u32, offset: u64, length: u32) -> bool {
        if self.declared.len() >= self.room {
            return self.dense && self.mark(region, offset, length);
        }
        let Some(last) = self.declared.last_mut() else {
            return false;
        };
        if last.region != region {
            return false;
        }
        let last_end = last.end();
        let end = offset + u64::from(length);
        if offset > last_end || (self.disordered && offset < last.offset) {
            self.declared.push(DeclaredRange {
                offset,
                length,
                region,
            });
        } else if offset >= last.offset && end - last.offset <= u64::from(u32::MAX) {
            last.length = (end.max(last_end) - last.offset) as u32;
        } else {
            return false;
        }
        self.calls += 1;
        self.bytes += u64::from(length);
        true
    }

    /// Adds a range to the bits of the page used last. Returns `false` if it lies in another page or bits
    /// cannot represent it.
    #[inline]
    fn mark(&mut self, region: u32, offset: u64, length: u32) -> bool {
        let marked = fits(offset, length) && self.granules.mark(region, offset, length);
        if marked {
            self.calls += 1;
            self.bytes += u64::from(length);
        }
        marked
    }

    /// Converts the list to bits if it is dense.
    fn begin_granules(&mut self) {
        let RangeList {
            declared,
            granules,
            loose,
            ..
        } = self;
        for range in declared.iter() {
            let fitting = fits(range.offset, range.length);
            if !fitting
                || granules
                    .declare(range.region, range.offset, range.length)
                    .is_none()
            {
                loose.push(*range);
            }
        }
        self.dense = (granules.pages() + loose.len()) * DENSITY_MIN <= declared.len();
        if !self.dense {
            self.try_at = declared.len() * RETRY_FACTOR;
            granules.clear();
            loose.clear();
        }
    }

    fn declare_granules(&mut self, region: u32, offset: u64, length: u32, keep: bool) -> (u64, u32) {
        let (fresh, count) = match fits(offset, length) {
            true => self.granules.declare(region, offset, length),
            false => None,
        }
        .unwrap_or_else(|| {
            self.loose.push(DeclaredRange {
                offset,
                length,
                region,
            });
            (offset, length)
        });
        if keep && count > 0 {
            self.declared.push(DeclaredRange {
                offset: fresh,
                length: count,
                region,
            });
        }
        (fresh, count)
    }

    /// The ranges whose old values were kept, oldest first.
    pub(crate) fn restorable(&self) -> &[DeclaredRange] {
        &self.declared
    }

    /// Number of ranges in lists, which bounds their memory.
    pub(crate) fn listed(&self) -> usize {
        self.declared.len().max(self.loose.len())
    }

    /// Adds a range that a commit found.
    pub(crate) fn add_captured(&mut self, range: DeclaredRange) {
        self.captured.push(range);
    }

    /// Forgets ranges that a commit found; another attempt finds them again.
    pub(crate) fn clear_captured(&mut self) {
        self.captured.clear();
    }

    /// Number of declared or found ranges, and their bytes; neighbours and duplicates count separately.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let found: u64 = self.captured.iter().map(|range| u64::from(range.length)).sum();
        (self.calls + self.captured.len() as u64, self.bytes + found)
    }

    /// The ranges as last merged.
    pub(crate) fn merged(&self) -> &[DeclaredRange] {
        match self.is_merged_already() {
            true => &self.declared,
            false => &self.merged,
        }
    }

    /// Whether the list is already the result: sorted, without overlaps.
    fn is_merged_already(&self) -> bool {
        !self.disordered && self.captured.is_empty()
    }

    /// Sorts the ranges by position and merges duplicate, overlapping and adjacent ones. The declarations are
    /// kept, for an abort after a refused commit.
    pub(crate) fn merge(&mut self) {
        if self.is_merged_already() {
            return;
        }
        self.merged.clear();
        if !self.dense {
            self.merged.extend_from_slice(&self.declared);
        } else {
            self.granules.collect(&mut self.merged);
            self.merged.extend_from_slice(&self.loose);
        }
        self.merged.extend_from_slice(&self.captured);
        radix::sort(&mut self.merged, &mut self.spare);
        let kept = coalesce(&mut self.merged);
        self.merged.truncate(kept);
    }

    pub(crate) fn clear(&mut self) {
        self.declared.clear();
        if self.dense {
            self.granules.clear();
        }
        (self.disordered, self.dense) = (false, false);
        (self.try_at, self.room) = (0, 0);
        self.loose.clear();
        self.captured.clear();
        self.merged.clear();
        (self.calls, self.bytes) = (0, 0);
    }

    /// Bytes of memory that stay allocated.
    pub(crate) fn capacity_bytes(&self) -> usize {
        let listed = self.declared.capacity() + self.loose.capacity();
        let listed = listed + self.captured.capacity() + self.merged.capacity() + self.spare.capacity();
        listed * size_of::<DeclaredRange>() + self.granules.capacity_bytes()
    }
}

/// Merges sorted ranges in place; returns how many remain.
fn coalesce(ranges: &mut [DeclaredRange]) -> usize {
    let mut kept = 0;
    for index in 1..ranges.len() {
        let next = ranges[index];
        let last = &mut ranges[kept];
        if last.region == next.region
            && next.offset <= last.end()
            && let Ok(length) = u32::try_from(next.end().max(last.end()) - last.offset)
        {
            last.length = length;
        } else {
            kept += 1;
            ranges[kept] = next;
        }
    }
    ranges.len().min(kept + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Declares like a transaction that restores nothing.
    fn add(ranges: &mut RangeList, (region, offset, length): (u32, u64, u32)) -> (u64, u32) {
        match ranges.append(region, offset, length) {
            true => (offset, length),
            false => ranges.declare(region, offset, length, false),
        }
    }

    fn merged(declared: &[(u32, u64, u32)]) -> Vec<(u32, u64, u32)> {
        let mut ranges = RangeList::default();
        for (region, offset, length) in declared {
            add(&mut ranges, (*region, *offset, *length));
        }
        ranges.merge();
        ranges
            .merged()
            .iter()
            .map(|range| (range.region, range.offset, range.length))
            .collect()
    }

    #[test]
    fn neighbours_duplicates_and_overlaps_become_one() {
        assert_eq!(merged(&[(0, 0, 8), (0, 8, 8), (0, 4, 2)]), [(0, 0, 16)]);
        assert_eq!(merged(&[(0, 8, 8), (0, 0, 8), (0, 8, 8)]), [(0, 0, 16)]);
        assert_eq!(merged(&[(0, 0, 8), (0, 9, 8)]), [(0, 0, 8), (0, 9, 8)]);
        assert_eq!(merged(&[(0, 0, 8), (1, 8, 8)]), [(0, 0, 8), (1, 8, 8)]);
        assert_eq!(merged(&[]), []);
    }

    #[test]
    fn lengths_that_do_not_fit_stay_apart() {
        assert_eq!(merged(&[(0, 0, u32::MAX), (0, 1 << 20, u32::MAX)]).len(), 2);
    }

    proptest! {
        #[test]
        fn merged_ranges_cover_exactly_what_was_declared(
            declared in proptest::collection::vec((0u32..3, 0u64..100, 1u32..20), 0..40)
        ) {
            let mut bytes = std::collections::BTreeSet::new();
            for (region, offset, length) in &declared {
                bytes.extend((*offset..offset + u64::from(*length)).map(|at| (*region, at)));
            }
            let merged = merged(&declared);
            let mut covered = Vec::new();
            for (region, offset, length) in &merged {
                covered.extend((*offset..offset + u64::from(*length)).map(|at| (*region, at)));
            }
            prop_assert!(covered.iter().eq(bytes.iter()), "sorted, and each byte once");
            for pair in merged.windows(2) {
                prop_assert!(pair[0].0 < pair[1].0 || pair[0].1 + u64::from(pair[0].2) < pair[1].1);
            }
        }

        #[test]
        fn many_ranges_are_the_same_bytes_as_bits_and_as_a_list(
            declared in proptest::collection::vec((0u32..2, 0u64..4000, 1u32..5, any::<bool>()), 1..60),
            keep in any::<bool>(),
        ) {
            let mut ranges = RangeList::default();
            let (mut bytes, mut saved) = (std::collections::BTreeSet::new(), Vec::new());
            // Declared backwards, so that bits are used; then the ranges under test.
            let before = (0..=LISTED_MAX as u64).rev().map(|at| (0, 100_000 + at * 16, 8));
            let after = declared.iter().map(|(region, at, length, whole)| match whole {
                true => (*region, at * 8, length * 8),
                false => (*region, at * 8 + 3, length * 8 + 1),
            });
            for (region, offset, length) in before.chain(after) {
                let (fresh, count) = match keep {
                    true => ranges.declare(region, offset, length, true),
                    false => add(&mut ranges, (region, offset, length)),
                };
                saved.extend((fresh..fresh + u64::from(count)).map(|at| (region, at)));
                bytes.extend((offset..offset + u64::from(length)).map(|at| (region, at)));
            }
            assert!(ranges.dense);
            for _ in 0..2 {
                ranges.merge();
                let covered = ranges.merged().iter().flat_map(|range| {
                    (range.offset..range.end()).map(|at| (range.region, at))
                });
                prop_assert!(covered.eq(bytes.iter().copied()), "sorted, and each byte once");
            }
            let kept = ranges.restorable().iter().flat_map(|range| {
                (range.offset..range.end()).map(|at| (range.region, at))
            });
            let kept: Vec<_> = kept.collect();
            prop_assert!(!keep || kept == saved, "old values are listed in the order of keeping");
            let kept: std::collections::BTreeSet<_> = kept.into_iter().collect();
            prop_assert!(!keep || kept == bytes);
            ranges.clear();
            ranges.merge();
            prop_assert!(ranges.merged().is_empty());
        }

        #[test]
        fn the_fresh_parts_cover_each_byte_before_its_first_use(
            declared in proptest::collection::vec((0u64..50, 1u32..20), 0..40)
        ) {
            let mut ranges = RangeList::default();
            let mut captured = std::collections::BTreeSet::new();
            let mut total = 0u64;
            for (offset, length) in declared {
                let (fresh, count) = ranges.declare(0, offset, length, true);
                total += u64::from(count);
                captured.extend(fresh..fresh + u64::from(count));
                for at in offset..offset + u64::from(length) {
                    prop_assert!(captured.contains(&at));
                }
            }
            let declared: u64 = ranges.restorable().iter().map(|range| u64::from(range.length)).sum();
            prop_assert_eq!(declared, total, "the undo bytes match the declared ranges");
        }
    }
}
