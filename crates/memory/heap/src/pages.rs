//! Free pages, as extents: allocated best fit by size, merged by address. Volatile; rebuilt from the table at
//! every opening.

use std::collections::{BTreeMap, BTreeSet};

/// The free extents of a heap, in a tree by address and one by size, so that taking and giving cost
/// logarithmic time. Slots of runs are not managed here.
#[derive(Debug, Default)]
pub(crate) struct FreePages {
    /// Start to length.
    by_start: BTreeMap<u32, u32>,
    /// Length, then start.
    by_length: BTreeSet<(u32, u32)>,
    total: u64,
}

impl FreePages {
    /// Takes `pages` pages from the smallest free extent that has them, the lowest of several.
    pub(crate) fn take(&mut self, pages: u32) -> Option<u32> {
        let (length, start) = *self.by_length.range((pages, 0)..).next()?;
        self.remove(start, length);
        if length > pages {
            self.insert(start + pages, length - pages);
        }
        Some(start)
    }

    /// Takes exactly the pages from `start` on, if all are free.
    pub(crate) fn take_at(&mut self, start: u32, pages: u32) -> bool {
        let Some((at, length)) = self.by_start.range(..=start).next_back() else {
            return false;
        };
        let (at, length) = (*at, *length);
        let (Some(end), Some(needed)) = (at.checked_add(length), start.checked_add(pages)) else {
            return false;
        };
        if needed > end {
            return false;
        }
        self.remove(at, length);
        if start > at {
            self.insert(at, start - at);
        }
        if end > needed {
            self.insert(needed, end - needed);
        }
        true
    }

    /// Gives pages back and merges them with free neighbours.
    pub(crate) fn give(&mut self, start: u32, pages: u32) {
        let (mut from, mut length) = (start, pages);
        if let Some((before, count)) = self.by_start.range(..start).next_back() {
            let (before, count) = (*before, *count);
            assert!(before + count <= start, "pages are given back once");
            if before + count == start {
                self.remove(before, count);
                (from, length) = (before, count + length);
            }
        }
        if let Some((after, count)) = self.by_start.range(start..).next() {
            let (after, count) = (*after, *count);
            assert!(start + pages <= after, "pages are given back once");
            if start + pages == after {
                self.remove(after, count);
                length += count;
            }
        }
        self.insert(from, length);
    }

    /// Whether a page is free.
    pub(crate) fn has(&self, page: u32) -> bool {
        let before = self.by_start.range(..=page).next_back();
        before.is_some_and(|(start, length)| page - start < *length)
    }

    /// Number of pages of the largest extent.
    pub(crate) fn largest(&self) -> u32 {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    /// Number of free pages.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Number of extents.
    pub(crate) fn extents(&self) -> usize {
        self.by_start.len()
    }

    fn insert(&mut self, start: u32, length: u32) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
        self.total += u64::from(length);
    }

    fn remove(&mut self, start: u32, length: u32) {
        let known = self.by_start.remove(&start);
        assert_eq!(known, Some(length), "both trees hold the same extents");
        self.by_length.remove(&(length, start));
        self.total -= u64::from(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_smallest_extent_that_fits_is_taken() {
        let mut free = FreePages::default();
        free.give(10, 5);
        free.give(20, 3);
        free.give(30, 3);
        assert_eq!(free.take(3), Some(20));
        assert_eq!(free.take(2), Some(30));
        assert_eq!(free.take(2), Some(10));
        assert_eq!(free.take(4), None);
        assert_eq!((free.largest(), free.total(), free.extents()), (3, 4, 2));
    }

    #[test]
    #[should_panic(expected = "given back once")]
    fn giving_pages_back_twice_panics() {
        let mut free = FreePages::default();
        free.give(10, 5);
        free.give(12, 1);
    }

    proptest! {
        #[test]
        fn the_free_pages_equal_a_model_set(
            steps in proptest::collection::vec((0u8..3, 0u32..100, 1u32..12), 1..200),
        ) {
            let mut free = FreePages::default();
            let mut model = [false; 128];
            for (what, at, pages) in steps {
                let span = at as usize..(at + pages) as usize;
                match what {
                    0 => if let Some(start) = free.take(pages) {
                        let taken = &mut model[start as usize..(start + pages) as usize];
                        prop_assert!(taken.iter().all(|page| *page));
                        taken.fill(false);
                    } else {
                        prop_assert!(!model.windows(pages as usize).any(|span| span.iter().all(|page| *page)));
                    },
                    1 => {
                        let all = model[span.clone()].iter().all(|page| *page);
                        prop_assert_eq!(free.take_at(at, pages), all);
                        if all { model[span].fill(false); }
                    }
                    _ => if model[span.clone()].iter().all(|page| !*page) {
                        free.give(at, pages);
                        model[span].fill(true);
                    },
                }
                let count = model.iter().filter(|page| **page).count();
                prop_assert_eq!(free.total(), count as u64);
                let stretches = model.chunk_by(|a, b| a == b).filter(|part| part[0]);
                prop_assert_eq!(free.extents(), stretches.clone().count());
                prop_assert_eq!(free.largest() as usize, stretches.map(<[bool]>::len).max().unwrap_or(0));
                for (page, is_free) in model.iter().enumerate() {
                    prop_assert_eq!(free.has(page as u32), *is_free);
                }
            }
        }
    }
}
