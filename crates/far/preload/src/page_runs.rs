//! Decides which pages of the arena an allocation gets. A value; the effects are elsewhere.
//!
//! A page is free, allocated, or neither: cut off from an allocation while its content is being discarded.
//! Free pages are zeros, so memory that must be zeros costs nothing. All records are outside of the arena, so
//! searching touches no page of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A range of page numbers.
pub(crate) type PageRange = Range<u32>;

#[derive(Debug)]
pub(crate) struct PageRuns {
    /// Number of the first page among all addresses, to which alignment refers.
    origin: u64,
    /// Free runs: first page → number of pages. No two runs touch.
    free: BTreeMap<u32, u32>,
    /// The same runs by size: number of pages, first page.
    sizes: BTreeSet<(u32, u32)>,
    /// Allocated runs: first page → number of pages.
    taken: BTreeMap<u32, u32>,
    /// Runs whose addresses the program has given to a mapping of another kind. They are never used here
    /// again.
    lent: BTreeMap<u32, u32>,
}

impl PageRuns {
    /// `pages` pages, all free.
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

    /// Takes the smallest free run that contains `pages` pages at a multiple of `align` pages; of equals the
    /// first. `None`: there is none.
    ///
    /// Small runs are used up before large ones are split. Low pages are used before high ones, since records
    /// of pages are kept up to the highest.
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

    /// Number of pages of the allocation that begins at this page.
    pub(crate) fn pages(&self, first: u32) -> Option<u32> {
        self.taken.get(&first).copied()
    }

    /// Whether all of these pages are allocated.
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

    /// Allocates the free ones of these pages for a mapping at their addresses. `false`: some are neither
    /// free nor allocated, and nothing has changed.
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

    /// Whether all of these pages are free.
    pub(crate) fn are_free(&self, pages: &PageRange) -> bool {
        end_in(&self.free, pages.start).is_some_and(|end| end >= pages.end)
    }

    /// Lends allocated pages to a mapping of another kind, for good.
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

    /// The first contiguous lent part of these pages.
    pub(crate) fn next_lent(&self, pages: &PageRange) -> Option<PageRange> {
        let (first, length) = overlap(&self.lent, pages)?;
        Some(first.max(pages.start)..(first + length).min(pages.end))
    }

    /// Extends an allocation if the pages after it are free. Returns whether they were.
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

    /// Cuts pages off the first allocation that overlaps the range. Returns the part cut off, which is not
    /// allocated before [`PageRuns::give`]. `None`: none is allocated.
    ///
    /// One allocation per call: a list of several would itself be an allocation, which could call back here.
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

    /// Frees pages that were cut off and are zeros now.
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

    /// Number of allocated pages.
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

/// The first of these runs that overlaps the pages.
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

/// End of the run that contains a page.
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

    /// The allocated parts of a range, in order.
    fn cut(runs: &mut PageRuns, pages: PageRange) -> Vec<PageRange> {
        iter::from_fn(|| runs.cut(&pages)).collect()
    }

    #[test]
    fn the_smallest_fitting_run_is_taken_and_freed_runs_merge() {
        let mut runs = PageRuns::new(100, 0);
        let all: Vec<u32> = [10, 5, 20, 5, 60]
            .map(|pages| runs.take(pages, 1).unwrap())
            .into();
        assert_eq!(all, [0, 10, 15, 35, 40]);
        assert_eq!(runs.take(1, 1), None);
        free(&mut runs, 0..10);
        free(&mut runs, 15..35);
        assert_eq!(runs.take(8, 1), Some(0), "the smaller of 10 and 20");
        assert_eq!(runs.take(8, 1), Some(15));
        assert_eq!(runs.cut(&(15..23)), Some(15..23));
        assert_eq!(
            runs.take(13, 1),
            None,
            "pages that are not zeros yet are not free"
        );
        runs.give(15..23);
        assert_eq!(runs.take(13, 1), Some(15));
        free(&mut runs, 0..100);
        assert_eq!(runs.take(100, 1), Some(0));
    }

    #[test]
    fn a_part_of_an_allocation_can_be_freed() {
        let mut runs = PageRuns::new(64, 0);
        assert_eq!((runs.take(16, 1), runs.take(16, 1)), (Some(0), Some(16)));
        assert_eq!(cut(&mut runs, 12..20), [12..16, 16..20]);
        assert_eq!((runs.pages(0), runs.pages(20)), (Some(12), Some(12)));
        assert!(runs.has_all(0..12) && runs.has_all(20..32));
        assert!(!runs.has_all(0..13) && !runs.has_all(19..21));
        runs.give(12..16);
        runs.give(16..20);
        assert!(runs.grow(0, 20));
        assert!(!runs.grow(0, 21), "the next page is allocated");
        assert!(runs.has_all(0..32), "by two allocations");
        assert_eq!(runs.cut(&(40..50)), None, "it was not allocated");
        assert_eq!(runs.cut(&(25..25)), None, "an empty range");
        assert_eq!(runs.pages(20), Some(12), "it is unchanged");
        assert_eq!(runs.taken_pages(), 32);
    }

    #[test]
    fn alignment_leaves_the_skipped_pages_free() {
        let mut runs = PageRuns::new(1024, 0);
        assert_eq!(runs.take(3, 1), Some(0));
        assert_eq!(runs.take(100, 256), Some(256));
        assert_eq!(runs.take(253, 1), Some(3));
        assert_eq!(runs.take(600, 256), None, "only 512 pages follow page 512");
        assert_eq!(runs.take(512, 512), Some(512));
    }

    /// An arena may begin at any page of the address space.
    #[test]
    fn alignment_refers_to_addresses() {
        let mut runs = PageRuns::new(1 << 16, 0x7_1234_5601);
        for align in [1, 256, 1 << 14] {
            let first = runs.take(3, align).unwrap();
            assert_eq!((0x7_1234_5601 + u64::from(first)) % align, 0, "{align}");
        }
        assert_eq!(runs.take(1, 1 << 40), None);
        assert_eq!(runs.take(1, 1 << 63), None);
    }

    #[test]
    fn free_pages_can_be_claimed_and_lent_ones_cannot() {
        let mut runs = PageRuns::new(64, 0);
        assert_eq!(runs.take(32, 1), Some(0));
        free(&mut runs, 8..16);
        assert!(runs.are_free(&(8..16)) && !runs.are_free(&(7..16)));
        assert!(runs.claim(4..20), "allocated, free and allocated pages");
        assert!(runs.has_all(0..32) && !runs.has_all(0..33));
        assert!(runs.claim(30..40) && runs.has_all(0..40));
        runs.lend(10..12);
        runs.lend(11..14);
        assert!(!runs.claim(13..20), "one page is lent");
        assert_eq!(runs.next_lent(&(0..64)), Some(10..14), "two are one");
        assert_eq!(runs.next_lent(&(12..13)), Some(12..13));
        free(&mut runs, 0..64);
        assert_eq!(runs.taken_pages(), 0);
        assert_eq!(runs.take(60, 1), None, "lent pages lie between two free parts");
        assert_eq!(runs.take(50, 1), Some(14));
    }

    /// Compares with a simple table of owners.
    #[test]
    fn every_page_has_at_most_one_owner() {
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
        assert_eq!(runs.take(PAGES, 1), Some(0), "all pages form one run again");
    }
}
