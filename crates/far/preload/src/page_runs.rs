//! Which pages of the arena an allocation gets. A value: what it decides is done elsewhere.
//!
//! A page is free, held, or neither: it was cut off what held it, and what it has is being thrown away. What
//! is free is zeros, so that memory that must be zeros costs nothing. All of this is known outside of the
//! arena: looking for room brings no page.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Pages, by number.
pub(crate) type PageRange = Range<u32>;

#[derive(Debug)]
pub(crate) struct PageRuns {
    /// The number that the first page has among all addresses: by it pages are aligned.
    origin: u64,
    /// Free pages: the first of a run, and how many. No two runs touch.
    free: BTreeMap<u32, u32>,
    /// The same: how many, and the first.
    sizes: BTreeSet<(u32, u32)>,
    /// Held pages.
    taken: BTreeMap<u32, u32>,
    /// Pages whose addresses the program has given to a mapping of another kind. They are nobody's here for
    /// good.
    lent: BTreeMap<u32, u32>,
}

impl PageRuns {
    /// So many pages, all free.
    pub(crate) fn new(pages: u32, origin: u64) -> PageRuns {
        let mut runs = PageRuns {
            origin,
            free: BTreeMap::new(),
            sizes: BTreeSet::new(),
            taken: BTreeMap::new(),
            lent: BTreeMap::new(),
        };
        runs.insert(0, pages);
        runs
    }

    /// The smallest free run that has so many pages from an address on that is a multiple of `align` pages,
    /// and of equals the first. `None`: there is none.
    ///
    /// Small runs are used up before large ones are broken, and low pages before high ones: what is known of
    /// pages is kept up to the highest.
    pub(crate) fn take(&mut self, pages: u32, align: u64) -> Option<u32> {
        assert!(align.is_power_of_two(), "pages are aligned to powers of two");
        let wanted = pages.max(1);
        let found = self.sizes.range((wanted, 0)..).find_map(|(length, first)| {
            let place = self.origin + u64::from(*first);
            let lost = u32::try_from(place.checked_next_multiple_of(align)? - place).ok()?;
            let aligned = first.checked_add(lost)?;
            (length.checked_sub(lost)? >= wanted).then_some((*first, *length, aligned))
        });
        let (first, length, aligned) = found?;
        self.remove(first, length);
        self.insert(first, aligned - first);
        let after = aligned + wanted;
        self.insert(after, first + length - after);
        self.taken.insert(aligned, wanted);
        Some(aligned)
    }

    /// How many pages the holder of this one has, if it is his first.
    pub(crate) fn pages(&self, first: u32) -> Option<u32> {
        self.taken.get(&first).copied()
    }

    /// Whether somebody holds all of these.
    pub(crate) fn has_all(&self, pages: PageRange) -> bool {
        let mut next = pages.start;
        while next < pages.end {
            match end_in(&self.taken, next) {
                Some(end) => next = end,
                None => return false,
            }
        }
        true
    }

    /// Makes these pages somebody's who maps memory there: what of them is free is held from now on. `false`:
    /// some are neither free nor held, and nothing has changed.
    pub(crate) fn claim(&mut self, pages: PageRange) -> bool {
        let mut next = pages.start;
        while next < pages.end {
            let Some(end) = end_in(&self.taken, next).or_else(|| end_in(&self.free, next)) else {
                return false;
            };
            next = end;
        }
        while let Some((first, length)) = overlap(&self.free, &pages) {
            self.remove(first, length);
            let (start, end) = (first.max(pages.start), (first + length).min(pages.end));
            self.insert(first, start - first);
            self.insert(end, first + length - end);
            self.taken.insert(start, end - start);
        }
        true
    }

    /// Whether all of these are free.
    pub(crate) fn are_free(&self, pages: &PageRange) -> bool {
        end_in(&self.free, pages.start).is_some_and(|end| end >= pages.end)
    }

    /// Gives the addresses of held pages away for good, to a mapping that is not the arena's.
    pub(crate) fn lend(&mut self, pages: PageRange) {
        let mut rest = pages;
        while let Some(cut) = self.cut(&rest) {
            rest.start = cut.end;
            let before = self.lent.range(..cut.start).next_back();
            let first = match before.map(|(first, length)| (*first, first + length)) {
                Some((first, end)) if end == cut.start => first,
                _ => cut.start,
            };
            let after = self.lent.remove(&cut.end).unwrap_or(0);
            self.lent.insert(first, cut.end + after - first);
        }
    }

    /// The first of these that are lent, as many as are in a row.
    pub(crate) fn next_lent(&self, pages: &PageRange) -> Option<PageRange> {
        let (first, length) = overlap(&self.lent, pages)?;
        Some(first.max(pages.start)..(first + length).min(pages.end))
    }

    /// Gives a holder more pages where his end, if they are free. `false`: they are not.
    pub(crate) fn grow(&mut self, first: u32, pages: u32) -> bool {
        let Some(had) = self.pages(first) else {
            return false;
        };
        let (end, more) = (first + had, pages.saturating_sub(had));
        match self.free.get(&end).copied() {
            _ if more == 0 => true,
            Some(length) if length >= more => {
                self.remove(end, length);
                self.insert(end + more, length - more);
                self.taken.insert(first, pages);
                true
            }
            _ => false,
        }
    }

    /// Takes pages away from whoever holds the first of these that is held. What was cut off of that holder;
    /// nobody gets it before [`PageRuns::give`]. `None`: nobody holds any.
    ///
    /// One holder at a time, for a list of them would be an allocation, and where there are many one that
    /// comes back here.
    pub(crate) fn cut(&mut self, pages: &PageRange) -> Option<PageRange> {
        let (first, length) = overlap(&self.taken, pages)?;
        self.taken.remove(&first);
        let end = first + length;
        if first < pages.start {
            self.taken.insert(first, pages.start - first);
        }
        if end > pages.end {
            self.taken.insert(pages.end, end - pages.end);
        }
        Some(first.max(pages.start)..end.min(pages.end))
    }

    /// Makes pages free that were cut off, and are zeros by now.
    pub(crate) fn give(&mut self, pages: PageRange) {
        let (mut first, mut length) = (pages.start, pages.end - pages.start);
        let before = self.free.range(..first).next_back();
        if let Some((start, pages)) = before.map(|(start, pages)| (*start, *pages))
            && start + pages == first
        {
            self.remove(start, pages);
            (first, length) = (start, length + pages);
        }
        if let Some(pages) = self.free.get(&(first + length)).copied() {
            self.remove(first + length, pages);
            length += pages;
        }
        self.insert(first, length);
    }

    /// How many pages are held.
    pub(crate) fn taken_pages(&self) -> u64 {
        self.taken.values().copied().map(u64::from).sum()
    }

    fn insert(&mut self, first: u32, pages: u32) {
        if pages > 0 {
            self.free.insert(first, pages);
            self.sizes.insert((pages, first));
        }
    }

    fn remove(&mut self, first: u32, pages: u32) {
        self.free.remove(&first);
        self.sizes.remove(&(pages, first));
    }
}

/// The first of these spans that has any of the pages.
fn overlap(spans: &BTreeMap<u32, u32>, pages: &PageRange) -> Option<(u32, u32)> {
    if pages.is_empty() {
        return None;
    }
    let touches = |(first, length): &(u32, u32)| first + length > pages.start && *first < pages.end;
    let pair = |(first, length): (&u32, &u32)| (*first, *length);
    let before = spans.range(..pages.start).next_back().map(pair);
    let next = || spans.range(pages.start..).next().map(pair);
    before.filter(touches).or_else(|| next().filter(touches))
}

/// The end of the span that has this page.
fn end_in(spans: &BTreeMap<u32, u32>, page: u32) -> Option<u32> {
    let (first, length) = spans.range(..=page).next_back()?;
    Some(first + length).filter(|end| *end > page)
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;

    fn free(runs: &mut PageRuns, mut pages: PageRange) {
        while let Some(cut) = runs.cut(&pages) {
            pages.start = cut.end;
            runs.give(cut);
        }
    }

    /// What was held of these, in order.
    fn cut(runs: &mut PageRuns, pages: PageRange) -> Vec<PageRange> {
        iter::from_fn(|| runs.cut(&pages)).collect()
    }

    #[test]
    fn the_smallest_run_that_fits_is_taken_and_neighbours_become_one_again() {
        let mut runs = PageRuns::new(100, 0);
        let all: Vec<u32> = [10, 5, 20, 5, 60]
            .map(|pages| runs.take(pages, 1).unwrap())
            .into();
        assert_eq!(all, [0, 10, 15, 35, 40]);
        assert_eq!(runs.take(1, 1), None);
        free(&mut runs, 0..10);
        free(&mut runs, 15..35);
        assert_eq!(runs.take(8, 1), Some(0), "of 10 and 20 the smaller");
        assert_eq!(runs.take(8, 1), Some(15));
        assert_eq!(runs.cut(&(15..23)), Some(15..23));
        assert_eq!(runs.take(13, 1), None, "what is not zeros yet is nobody's");
        runs.give(15..23);
        assert_eq!(runs.take(13, 1), Some(15));
        free(&mut runs, 0..100);
        assert_eq!(runs.take(100, 1), Some(0));
    }

    #[test]
    fn a_part_of_what_is_held_can_be_given_back() {
        let mut runs = PageRuns::new(64, 0);
        assert_eq!((runs.take(16, 1), runs.take(16, 1)), (Some(0), Some(16)));
        assert_eq!(cut(&mut runs, 12..20), [12..16, 16..20]);
        assert_eq!((runs.pages(0), runs.pages(20)), (Some(12), Some(12)));
        assert!(runs.has_all(0..12) && runs.has_all(20..32));
        assert!(!runs.has_all(0..13) && !runs.has_all(19..21));
        runs.give(12..16);
        runs.give(16..20);
        assert!(runs.grow(0, 20));
        assert!(!runs.grow(0, 21), "somebody has it");
        assert!(runs.has_all(0..32), "by two holders");
        assert_eq!(runs.cut(&(40..50)), None, "nobody had it");
        assert_eq!(runs.cut(&(25..25)), None, "nothing of it");
        assert_eq!(runs.pages(20), Some(12), "it is whole still");
        assert_eq!(runs.taken_pages(), 32);
    }

    #[test]
    fn what_must_be_aligned_is_and_what_that_leaves_is_free() {
        let mut runs = PageRuns::new(1024, 0);
        assert_eq!(runs.take(3, 1), Some(0));
        assert_eq!(runs.take(100, 256), Some(256));
        assert_eq!(runs.take(253, 1), Some(3));
        assert_eq!(runs.take(600, 256), None, "from 512 on there are 512");
        assert_eq!(runs.take(512, 512), Some(512));
    }

    /// An arena begins wherever the kernel has room for it.
    #[test]
    fn addresses_are_aligned_and_not_numbers_of_pages() {
        let mut runs = PageRuns::new(1 << 16, 0x7_1234_5601);
        for align in [1, 256, 1 << 14] {
            let first = runs.take(3, align).unwrap();
            assert_eq!((0x7_1234_5601 + u64::from(first)) % align, 0, "{align}");
        }
        assert_eq!(runs.take(1, 1 << 40), None);
        assert_eq!(runs.take(1, 1 << 63), None);
    }

    #[test]
    fn holes_can_be_claimed_and_what_is_lent_is_nobodys_here() {
        let mut runs = PageRuns::new(64, 0);
        assert_eq!(runs.take(32, 1), Some(0));
        free(&mut runs, 8..16);
        assert!(runs.are_free(&(8..16)) && !runs.are_free(&(7..16)));
        assert!(runs.claim(4..20), "held, free, and held");
        assert!(runs.has_all(0..32) && !runs.has_all(0..33));
        assert!(runs.claim(30..40) && runs.has_all(0..40));
        runs.lend(10..12);
        runs.lend(11..14);
        assert!(!runs.claim(13..20), "a page of it is lent");
        assert_eq!(runs.next_lent(&(0..64)), Some(10..14), "two are one");
        assert_eq!(runs.next_lent(&(12..13)), Some(12..13));
        free(&mut runs, 0..64);
        assert_eq!(runs.taken_pages(), 0);
        assert_eq!(runs.take(60, 1), None, "two parts, and what is lent between them");
        assert_eq!(runs.take(50, 1), Some(14));
    }

    /// Against a plain picture of who has which page.
    #[test]
    fn no_page_has_two_holders_and_none_gets_lost() {
        const PAGES: u32 = 200;
        let mut runs = PageRuns::new(PAGES, 0);
        let mut owner = vec![0_u32; PAGES as usize];
        let mut state = 7_u64;
        let mut draw = |below: u32| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as u32 % below
        };
        for step in 1..20_000 {
            if draw(2) == 0 {
                let (pages, align) = (1 + draw(20), 1 << draw(4));
                if let Some(first) = runs.take(pages, align) {
                    assert_eq!(u64::from(first) % align, 0);
                    let taken = &mut owner[first as usize..(first + pages) as usize];
                    assert!(taken.iter().all(|holder| *holder == 0), "step {step}");
                    taken.fill(step);
                }
            } else {
                let start = draw(PAGES);
                let end = (start + 1 + draw(30)).min(PAGES);
                let whole = owner[start as usize..end as usize]
                    .iter()
                    .all(|holder| *holder > 0);
                assert_eq!(runs.has_all(start..end), whole, "step {step}");
                for pages in cut(&mut runs, start..end) {
                    let cut = &mut owner[pages.start as usize..pages.end as usize];
                    assert!(cut.iter().all(|holder| *holder > 0), "step {step}");
                    cut.fill(0);
                    runs.give(pages);
                }
                assert!(
                    owner[start as usize..end as usize]
                        .iter()
                        .all(|holder| *holder == 0)
                );
            }
            let held = owner.iter().filter(|holder| **holder > 0).count() as u64;
            assert_eq!(runs.taken_pages(), held, "step {step}");
        }
        free(&mut runs, 0..PAGES);
        assert_eq!(runs.take(PAGES, 1), Some(0), "all of it is one again");
    }
}
