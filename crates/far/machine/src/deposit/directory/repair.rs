//! Placement of pages, and repair of pages with too few copies.
//!
//! A copy counts if its lender is linked or has been away only briefly, and is not about to stop. A page with
//! too few copies is *short*. If it is pending, it gets another copy as soon as there is room; otherwise it
//! is fetched for that, a few pages at a time.
//!
//! A copy in the spill file counts like any other. It is made only if no lender may take the page, and moves
//! when one has room. A copy in a slot that its lender wants back counts as well, and moves to any other
//! place.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Bound;

use super::lender::LenderState;
use super::{DirectoryEvent, LenderSet, Page, PageCopy, PageDirectory, PageEntry, PageGet, SlotPage};
use crate::limit::{COPIES_MAX, MOVES_QUEUED_MAX, REPAIR_PAGES_MAX, REPAIR_SCAN_MAX};
use netram_proto::planted::PlantedFault;

impl PageDirectory {
    /// Gives a pending page as many copies as it should have, as far as there is room.
    pub(super) fn place(&mut self, page: Page) {
        let index = page.0 as usize;
        assert!(self.pages[index].pending);
        while let Some(lender) = self.next_place(page)
            && let Some(slot) = self.lenders[lender].take()
        {
            let Some(at) = self.vacancy(&self.pages[index], lender) else {
                unreachable!("a page with a copy to give up exists")
            };
            let entry = &mut self.pages[index];
            let version = entry.version;
            let spot = PageCopy {
                lender: lender as u8,
                confirmed: false,
                slot,
            };
            // A lender that lost an earlier version has a copy again. Its later removal is not a loss.
            entry.lost.remove(lender);
            if let Some(old) = entry.copies[at].replace(spot) {
                self.lenders[usize::from(old.lender)].give(old.slot);
            }
            self.lenders[lender].put(SlotPage { page, version, slot });
            if self.spill != Some(lender) {
                self.turn = lender + 1;
            }
        }
        if self.counted(&self.pages[index]) < self.copies {
            self.short.insert(page);
            self.waiting.insert(page);
        } else {
            self.short.remove(&page);
            self.waiting.remove(&page);
        }
        self.note(page);
    }

    /// Next lender for a page that is at too few; the spill file only if no lender may take it.
    pub(super) fn next_place(&self, page: Page) -> Option<usize> {
        let entry = &self.pages[page.0 as usize];
        let counted = self.counted(entry);
        let second = self.counted_if(entry, |spot| self.is_second(spot));
        let wanted_back = self.counted_if(entry, |spot| self.wants_back(spot));
        let lender = { self.candidate(page) }.filter(|_| counted - second < self.copies);
        lender.or_else(|| { self.spill_for(entry) }.filter(|_| counted - wanted_back < self.copies))
    }

    /// The spill file, if it may take the page and no lender may.
    fn spill_for(&self, entry: &PageEntry) -> Option<usize> {
        let file = &self.lenders[self.spill?];
        let may = file.has_free() || file.takes() && file.may_grow();
        { self.spill }.filter(|spill| may && !self.has_at(entry, *spill) && !self.may_find_lender(entry))
    }

    /// Index of the copy that a new one replaces. In order of preference: the copy at the same lender, if the
    /// page goes to a lower slot there; an empty one, if there are too few; one that does not count; one that
    /// is wanted back; the one in the spill file. The page is pending.
    fn vacancy(&self, entry: &PageEntry, lender: usize) -> Option<usize> {
        let of = |spot: &Option<PageCopy>| spot.map(|spot| usize::from(spot.lender));
        let same = |spot: &Option<PageCopy>| of(spot) == Some(lender);
        let useless = |spot: &Option<PageCopy>| of(spot).is_none_or(|at| !self.lenders[at].counts());
        let wanted_back = |spot: &Option<PageCopy>| spot.is_some_and(|spot| self.wants_back(&spot));
        let spilled = |spot: &Option<PageCopy>| of(spot).is_some() && of(spot) == self.spill;
        let spots = &entry.copies[..self.copies];
        { spots.iter().position(same) }
            .or_else(|| spots.iter().position(useless))
            .or_else(|| spots.iter().position(wanted_back))
            .or_else(|| spots.iter().position(spilled))
    }

    fn has_at(&self, entry: &PageEntry, lender: usize) -> bool {
        let mut spots = entry.copies.iter().flatten();
        spots.any(|spot| usize::from(spot.lender) == lender)
    }

    /// Ends the pending state if all copies are confirmed, no further copy can be expected soon, and a linked
    /// lender has one. A lender that is away may be gone with its copy.
    pub(super) fn settle(&mut self, page: Page) {
        let entry = &self.pages[page.0 as usize];
        let mut spots = entry.copies.iter().flatten();
        let held = { spots.clone() }.filter(|spot| spot.confirmed).count();
        let all = held > 0 && spots.all(|spot| spot.confirmed);
        let waits = self.counted(entry) < self.copies && self.may_find(entry);
        if !entry.pending || waits || !(all || self.planted.is(PlantedFault::EvictedBeforeStored)) {
            return;
        }
        let is_there = |spot: &PageCopy| spot.confirmed && self.lenders[usize::from(spot.lender)].linked;
        if all && !entry.copies.iter().flatten().any(is_there) {
            self.waiting.insert(page);
            return;
        }
        let version = entry.version;
        self.waiting.remove(&page);
        self.pages[page.0 as usize].pending = false;
        self.events
            .push_back(DirectoryEvent::Stashed(page, version, held));
    }

    /// A lender that could take the page now: one that wants back its slot and has a lower one, or one
    /// without a copy.
    fn candidate(&self, page: Page) -> Option<usize> {
        let entry = &self.pages[page.0 as usize];
        let count = self.lender_count();
        let mut order = (0..count).map(|step| (self.turn + step) % count);
        let other = |lender: &usize| !self.has_at(entry, *lender) && self.lenders[*lender].has_free();
        { self.lower_slot(entry) }.or_else(|| order.find(other))
    }

    /// Whether the page may get another copy, perhaps after a lender was asked for room.
    fn may_find(&self, entry: &PageEntry) -> bool {
        self.may_find_lender(entry) || self.spill_for(entry).is_some()
    }

    fn may_find_lender(&self, entry: &PageEntry) -> bool {
        let mut lenders = self.lenders[..self.lender_count()].iter().enumerate();
        let other = |(index, lender): (usize, &LenderState)| {
            let room = lender.has_free() || lender.takes() && lender.may_grow();
            room && !self.has_at(entry, index)
        };
        self.lower_slot(entry).is_some() || lenders.any(other)
    }

    /// Number of copies that count.
    fn counted(&self, entry: &PageEntry) -> usize {
        self.counted_if(entry, |_| true)
    }

    fn counted_if(&self, entry: &PageEntry, which: impl Fn(&PageCopy) -> bool) -> usize {
        let counts = |spot: &&PageCopy| self.lenders[usize::from(spot.lender)].counts() && which(spot);
        entry.copies.iter().flatten().filter(counts).count()
    }

    /// Places waiting pages again after room appeared, or can no longer appear.
    pub(super) fn replace_all(&mut self) {
        let pages: Vec<Page> = self.waiting.iter().copied().collect();
        for page in pages {
            self.place(page);
            self.settle(page);
        }
    }

    /// Fetches short pages that can get another copy, then pages that move; a few at a time, continuing where
    /// the last search stopped.
    pub(super) fn repair(&mut self) {
        let mut found = Vec::new();
        let (mut whole, mut looks) = (Vec::new(), REPAIR_SCAN_MAX);
        let mut room = self.repair_room();
        let mut narrow = None;
        for &page in round(&self.short, self.repair_from) {
            if room == 0 || looks == 0 {
                break;
            }
            looks -= 1;
            self.repair_from = page;
            if self.counted(&self.pages[page.0 as usize]) >= self.copies {
                // A lender that had been away for too long is back.
                whole.push(page);
            } else if self.can_move(page, &mut narrow) {
                room -= usize::from(!self.comes(page));
                found.push(page);
            }
        }
        let queued: usize = self.lenders.iter().map(LenderState::queued).sum();
        let moves = queued < MOVES_QUEUED_MAX;
        for &page in round(&self.moving, self.move_from) {
            if room == 0 || looks == 0 || !moves {
                break;
            }
            looks -= 1;
            self.move_from = page;
            if !self.short.contains(&page) && self.can_move(page, &mut narrow) {
                room -= usize::from(!self.comes(page));
                found.push(page);
            }
        }
        if let Some(lender) = narrow {
            self.lenders[lender].want_room();
        }
        for page in whole {
            self.short.remove(&page);
        }
        for page in found {
            let get = self.gets.entry(page).or_default();
            get.repair = true;
            if get.requested.is_empty() {
                self.route(page);
            }
        }
    }

    /// Number of further pages that may be fetched for repair.
    fn repair_room(&self) -> usize {
        let coming = |get: &&PageGet| get.repair && !get.requested.is_empty();
        REPAIR_PAGES_MAX.saturating_sub(self.gets.values().filter(coming).count())
    }

    /// Whether the page is being fetched for repair.
    fn comes(&self, page: Page) -> bool {
        let get = self.gets.get(&page);
        get.is_some_and(|get| get.repair && !get.requested.is_empty())
    }

    /// Whether the page can be fetched and has somewhere to go. `narrow` gets the lender that would take it
    /// if it had room.
    fn can_move(&self, page: Page, narrow: &mut Option<usize>) -> bool {
        let entry = &self.pages[page.0 as usize];
        if entry.pending || self.reachable(entry).is_none() {
            return false;
        }
        let Some(lender) = self.next_place(page) else {
            return false;
        };
        let free = self.lenders[lender].has_free();
        *narrow = { *narrow }.or((!free).then_some(lender));
        free
    }

    /// A lender's copies stop to count, though they may still be read.
    pub(super) fn shun(&mut self, lender: usize) {
        self.lenders[lender].shunned = true;
        for (index, entry) in self.pages.iter().enumerate() {
            let spots = &entry.copies;
            if { spots.iter().flatten() }.any(|spot| usize::from(spot.lender) == lender) {
                self.short.insert(Page(index as u32));
                if entry.pending {
                    self.waiting.insert(Page(index as u32));
                }
            }
        }
    }

    /// Everything stored at a lender is gone.
    pub(super) fn lose_all(&mut self, lender: usize) {
        for index in 0..self.pages.len() as u32 {
            self.drop_copies(Page(index), lender);
        }
        self.lenders[lender].forget();
    }

    /// Drops a page's copy at a lender. The page is requested elsewhere, or lost.
    pub(super) fn drop_copies(&mut self, page: Page, lender: usize) {
        let entry = &mut self.pages[page.0 as usize];
        let mut gone = false;
        for spot in &mut entry.copies {
            if let Some(place) = spot.filter(|place| usize::from(place.lender) == lender) {
                entry.lost.insert(lender);
                self.lenders[lender].give(place.slot);
                (*spot, gone) = (None, true);
            }
        }
        if !gone {
            return;
        }
        self.note(page);
        let entry = &self.pages[page.0 as usize];
        let (aside, nowhere) = (entry.pending, entry.copies == [None; COPIES_MAX]);
        let lost: LenderSet = entry.lost;
        if aside {
            self.cancel_picks(page);
            self.place(page);
            self.settle(page);
        } else if nowhere {
            self.short.remove(&page);
            self.lose_picks(page, lost);
            if self.gets.remove(&page).is_some_and(|get| get.wanted) {
                self.events.push_back(DirectoryEvent::Lost(page, lost));
            }
        } else {
            self.short.insert(page);
            self.reroute_picks_of(page, lender);
            // A lender that was asked for another copy already is not asked twice.
            if let Some(get) = { self.gets.get_mut(&page) }.filter(|get| get.requested.contains(lender)) {
                get.requested.remove(lender);
                if get.requested.is_empty() {
                    self.route(page);
                }
            }
        }
    }
}

/// All pages in a circle, starting after `from`.
fn round(pages: &BTreeSet<Page>, from: Page) -> impl Iterator<Item = &Page> {
    let behind = (Bound::Excluded(from), Bound::Unbounded);
    pages.range(behind).chain(pages.range(..=from))
}

impl LenderState {
    /// Whether copies there count.
    pub(super) fn counts(&self) -> bool {
        !self.shunned
    }
}
