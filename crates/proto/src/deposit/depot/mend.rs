//! Where pages go, and pages that have fewer places than they should.
//!
//! A place counts if its lender is there, or has been away for only a moment, and does not stop. A page that has too few is *short*. If its
//! bytes are aside it is put in another place as soon as one is to be had; else it is fetched for that, a few at a time.

use alloc::vec::Vec;
use core::ops::Bound;

use super::lender::Lender;
use super::{Depot, Entry, Get, Item, LenderSet, News, Page, Spot};
use crate::limit::{COPIES_MAX, MEND_LOOK_MAX, MENDS_MAX};
use crate::planted::Fault;

impl Depot {
    /// Gives a page whose bytes are aside as many places as it should have, as far as there are.
    pub(super) fn place(&mut self, page: Page) {
        let index = page.0 as usize;
        assert!(self.pages[index].aside);
        while self.counted(&self.pages[index]) < self.copies
            && let Some(lender) = self.candidate(page)
            && let Some(slot) = self.lenders[lender].take()
        {
            let entry = &mut self.pages[index];
            // A place that does not count makes room: the bytes are here.
            let lenders = &self.lenders;
            let useless =
                |spot: &Option<Spot>| spot.is_none_or(|spot| !lenders[usize::from(spot.lender)].counts());
            let Some(at) = entry.spots[..self.copies].iter().position(useless) else {
                unreachable!("fewer places count than there are")
            };
            let version = entry.version;
            let spot = Spot {
                lender: lender as u8,
                held: false,
                slot,
            };
            if let Some(old) = entry.spots[at].replace(spot) {
                self.lenders[usize::from(old.lender)].give(old.slot);
            }
            self.lenders[lender].put(Item { page, version, slot });
            self.turn = lender + 1;
        }
        if self.counted(&self.pages[index]) < self.copies {
            self.short.insert(page);
            self.waiting.insert(page);
        } else {
            self.short.remove(&page);
            self.waiting.remove(&page);
        }
    }

    /// Whether the bytes of a page need not be kept aside any more: everybody who is to have them has, and nobody else may be found soon.
    pub(super) fn settle(&mut self, page: Page) {
        let entry = &self.pages[page.0 as usize];
        let mut spots = entry.spots.iter().flatten();
        let held = { spots.clone() }.filter(|spot| spot.held).count();
        let all = held > 0 && spots.all(|spot| spot.held);
        let waits = self.counted(entry) < self.copies && self.may_find(entry);
        if !entry.aside || waits || !(all || self.planted.is(Fault::GoneBeforeStashed)) {
            return;
        }
        let version = entry.version;
        self.waiting.remove(&page);
        self.pages[page.0 as usize].aside = false;
        self.news.push_back(News::Stashed(page, version, held));
    }

    /// A lender that could take the page now.
    pub(super) fn candidate(&self, page: Page) -> Option<usize> {
        let entry = &self.pages[page.0 as usize];
        let count = self.lenders.len();
        let order = (0..count).map(|step| (self.turn + step) % count);
        { order }.find(|&lender| {
            let other = !entry
                .spots
                .iter()
                .flatten()
                .any(|spot| usize::from(spot.lender) == lender);
            other && self.lenders[lender].takes() && !self.lenders[lender].free().is_empty()
        })
    }

    /// Whether a lender that is there may take the page once it has been asked for room.
    fn may_find(&self, entry: &Entry) -> bool {
        self.lenders.iter().enumerate().any(|(index, lender)| {
            let other = !entry
                .spots
                .iter()
                .flatten()
                .any(|spot| usize::from(spot.lender) == index);
            other && lender.takes() && (!lender.free().is_empty() || lender.may_grow())
        })
    }

    /// Places of the page that count.
    fn counted(&self, entry: &Entry) -> usize {
        let spots = entry.spots.iter().flatten();
        { spots }
            .filter(|spot| self.lenders[usize::from(spot.lender)].counts())
            .count()
    }

    /// Something has changed for those whose bytes wait here: places may be had, or none will be.
    pub(super) fn replace_all(&mut self) {
        let pages: Vec<Page> = self.waiting.iter().copied().collect();
        for page in pages {
            self.place(page);
            self.settle(page);
        }
    }

    /// Fetches short pages that can have another place, a few at a time, from where it stopped the last time.
    pub(super) fn mend(&mut self) {
        let coming = |get: &&Get| get.mend && get.at.is_some();
        let mut room = MENDS_MAX.saturating_sub(self.gets.values().filter(coming).count());
        let (mut whole, mut found) = (Vec::new(), Vec::new());
        let behind = (Bound::Excluded(self.mend_from), Bound::Unbounded);
        let order = self
            .short
            .range(behind)
            .chain(self.short.range(..=self.mend_from));
        for &page in order.take(MEND_LOOK_MAX) {
            if room == 0 {
                break;
            }
            self.mend_from = page;
            let entry = &self.pages[page.0 as usize];
            if self.counted(entry) >= self.copies {
                // Who had been away for too long has come back.
                whole.push(page);
            } else if !entry.aside && self.reachable(entry).is_some() && self.candidate(page).is_some() {
                let known = self.gets.get(&page).as_ref().is_some_and(coming);
                room -= usize::from(!known);
                found.push(page);
            }
        }
        for page in whole {
            self.short.remove(&page);
        }
        for page in found {
            let get = self.gets.entry(page).or_default();
            get.mend = true;
            if get.at.is_none() {
                self.route(page);
            }
        }
    }

    /// A lender's places count no more, though they may still be read.
    pub(super) fn shun(&mut self, lender: usize) {
        self.lenders[lender].shunned = true;
        for (index, entry) in self.pages.iter().enumerate() {
            if entry
                .spots
                .iter()
                .flatten()
                .any(|spot| usize::from(spot.lender) == lender)
            {
                self.short.insert(Page(index as u32));
                if entry.aside {
                    self.waiting.insert(Page(index as u32));
                }
            }
        }
    }

    /// Everything that was at a lender is gone.
    pub(super) fn lose_all(&mut self, lender: usize) {
        for index in 0..self.pages.len() as u32 {
            self.drop_spots(Page(index), lender);
        }
        self.lenders[lender].forget();
    }

    /// A page's place at a lender is gone. It is looked for elsewhere, or lost.
    pub(super) fn drop_spots(&mut self, page: Page, lender: usize) {
        let entry = &mut self.pages[page.0 as usize];
        let mut gone = false;
        for spot in &mut entry.spots {
            if let Some(place) = spot.filter(|place| usize::from(place.lender) == lender) {
                entry.lost.insert(lender);
                self.lenders[lender].give(place.slot);
                (*spot, gone) = (None, true);
            }
        }
        if !gone {
            return;
        }
        let (aside, nowhere) = (entry.aside, entry.spots == [None; COPIES_MAX]);
        let lost: LenderSet = entry.lost;
        if aside {
            self.place(page);
            self.settle(page);
        } else if nowhere {
            self.short.remove(&page);
            if self.gets.remove(&page).is_some_and(|get| get.wanted) {
                self.news.push_back(News::Lost(page, lost));
            }
        } else {
            self.short.insert(page);
            // Who is asked another place for it already is not asked twice.
            if let Some(get) = self
                .gets
                .get_mut(&page)
                .filter(|get| get.at == Some(lender as u8))
            {
                get.at = None;
                self.route(page);
            }
        }
    }
}

impl Lender {
    /// Whether a place there counts.
    pub(super) fn counts(&self) -> bool {
        !self.shunned
    }
}
