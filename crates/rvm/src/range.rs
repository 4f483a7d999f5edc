//! The ranges of one transaction: an append while it runs, one sort when it commits, never a tree.
//!
//! Measured by `cargo run --release -p netram-rvm --example set_range`; figures in `docs/rvm.md`.

/// Bytes of one region that a transaction declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// Where in the region it begins.
    pub(crate) offset: u64,
    pub(crate) length: u32,
    /// The region's place in the transaction's own list.
    pub(crate) region: u32,
}

impl Range {
    pub(crate) fn end(self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

/// All ranges of one transaction. Keeps its memory when cleared.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    declared: Vec<Range>,
    merged: Vec<Range>,
    /// How often a range was declared, and their bytes, for statistics.
    calls: u64,
    bytes: u64,
}

impl Ranges {
    /// Adds a range and returns the part of it, as offset and length, that the last one did not cover.
    ///
    /// Programs declare neighbouring fields one after the other; those extend the last range in place.
    #[inline]
    pub(crate) fn declare(&mut self, region: u32, offset: u64, length: u32) -> (u64, u32) {
        self.calls += 1;
        self.bytes += u64::from(length);
        if let Some(last) = self.declared.last_mut()
            && last.region == region
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
        self.declared.push(Range {
            offset,
            length,
            region,
        });
        (offset, length)
    }

    /// The ranges as declared, oldest first.
    pub(crate) fn declared(&self) -> &[Range] {
        &self.declared
    }

    /// How many ranges were declared, and their bytes, neighbours and duplicates each for itself.
    pub(crate) fn told(&self) -> (u64, u64) {
        (self.calls, self.bytes)
    }

    /// The ranges as last merged.
    pub(crate) fn merged(&self) -> &[Range] {
        &self.merged
    }

    /// Sorts the ranges by place, with duplicate, overlapping and adjacent ones made one. The declared ones
    /// stay as they are, for an abort after a refused commit.
    pub(crate) fn merge(&mut self) {
        self.merged.clear();
        self.merged.extend_from_slice(&self.declared);
        let key = |range: &Range| (range.region, range.offset);
        if !self.merged.is_sorted_by_key(key) {
            self.merged.sort_unstable_by_key(key);
        }
        let kept = coalesce(&mut self.merged);
        self.merged.truncate(kept);
    }

    pub(crate) fn clear(&mut self) {
        self.declared.clear();
        self.merged.clear();
        (self.calls, self.bytes) = (0, 0);
    }

    /// Bytes of memory held on to.
    pub(crate) fn capacity_bytes(&self) -> usize {
        (self.declared.capacity() + self.merged.capacity()) * size_of::<Range>()
    }
}

/// Merges sorted ranges in place; returns how many remain.
fn coalesce(ranges: &mut [Range]) -> usize {
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

    fn merged(declared: &[(u32, u64, u32)]) -> Vec<(u32, u64, u32)> {
        let mut ranges = Ranges::default();
        for (region, offset, length) in declared {
            ranges.declare(*region, *offset, *length);
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
        fn the_fresh_parts_cover_each_byte_before_its_first_use(
            declared in proptest::collection::vec((0u64..50, 1u32..20), 0..40)
        ) {
            let mut ranges = Ranges::default();
            let mut captured = std::collections::BTreeSet::new();
            let mut total = 0u64;
            for (offset, length) in declared {
                let (fresh, count) = ranges.declare(0, offset, length);
                total += u64::from(count);
                captured.extend(fresh..fresh + u64::from(count));
                for at in offset..offset + u64::from(length) {
                    prop_assert!(captured.contains(&at));
                }
            }
            let declared: u64 = ranges.declared().iter().map(|range| u64::from(range.length)).sum();
            prop_assert_eq!(declared, total, "the undo bytes match the declared ranges");
        }
    }
}
