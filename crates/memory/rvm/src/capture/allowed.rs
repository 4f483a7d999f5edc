//! Splitting found stores at the borders of the bytes that a transaction may change.

use super::ByteRun;

/// The bytes that a transaction may change: runs in order, apart or adjacent, none empty.
#[derive(Debug)]
pub(crate) struct AllowedRanges(Vec<ByteRun>);

impl AllowedRanges {
    /// Takes ranges in order and without overlaps.
    pub(crate) fn new(ranges: &[std::ops::Range<usize>]) -> AllowedRanges {
        assert!(ranges.is_sorted_by(|before, after| before.end <= after.start));
        AllowedRanges(
            ranges
                .iter()
                .filter(|range| !range.is_empty())
                .map(|range| (range.start, range.len()))
                .collect(),
        )
    }

    /// Passes the parts of a run that may change to `inside` and the others to `outside`, in order.
    pub(super) fn cut(
        &self,
        (start, length): ByteRun,
        mut inside: impl FnMut(ByteRun),
        mut outside: impl FnMut(ByteRun),
    ) {
        let end = start + length;
        let mut at = start;
        let first = self.0.partition_point(|(from, count)| from + count <= start);
        for (from, count) in self.0[first..].iter().take_while(|(from, _)| *from < end) {
            let (from, to) = ((*from).max(start), (from + count).min(end));
            if at < from {
                outside((at, from - at));
            }
            inside((from, to - from));
            at = to;
        }
        if at < end {
            outside((at, end - at));
        }
    }

    /// Whether all of a run may change.
    pub(super) fn has(&self, run: ByteRun) -> bool {
        let mut all = true;
        self.cut(run, |_| {}, |_| all = false);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_run_is_cut_into_all_of_its_bytes(
            start in 0usize..60, length in 1usize..60,
            borders in proptest::collection::btree_set(0usize..130, 0..12),
        ) {
            let borders: Vec<usize> = borders.into_iter().collect();
            let ranges: Vec<_> = borders.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect();
            let within = AllowedRanges::new(&ranges);
            let (mut inside, mut outside) = (Vec::new(), Vec::new());
            within.cut(
                (start, length),
                |(at, count)| inside.extend(at..at + count),
                |(at, count)| outside.extend(at..at + count),
            );
            let may = |at: &usize| ranges.iter().any(|range| range.contains(at));
            prop_assert_eq!(&inside, &(start..start + length).filter(may).collect::<Vec<_>>());
            prop_assert_eq!(&outside, &(start..start + length).filter(|at| !may(at)).collect::<Vec<_>>());
            prop_assert_eq!(within.has((start, length)), outside.is_empty());
        }
    }

    #[test]
    fn adjacent_ranges_allow_a_run_across_their_border() {
        let within = AllowedRanges::new(&[0..8, 8..16]);
        assert!(within.has((4, 8)));
        assert!(!within.has((8, 9)));
    }
}
