//! Slots that a lender wants back, and pages that move out of them.
//!
//! The lender requests, and does not order. Pages in those slots move as those in the spill file do: to
//! another lender, to a lower slot of this one, or into the spill file. When the slots are vacated they are
//! given up, all at once. A page without another place stays, with its slot. Meanwhile nothing new goes there
//! and no slots are requested. The request ends when the lender withdraws it, or with its session.
use alloc::vec::Vec;

use super::{Page, PageCopy, PageDirectory, PageEntry};
use netram_proto::planted::PlantedFault;

impl PageDirectory {
    /// The lender wants back all slots from `keep` on. Walks over all pages.
    pub fn on_asked_back(&mut self, lender: usize, keep: u32) {
        if !self.lenders[lender].linked || keep == self.lenders[lender].slots.keep() {
            return;
        }
        self.lenders[lender].on_asked_back(keep);
        if self.planted.is(PlantedFault::SlotsBeforePages) && keep < self.lenders[lender].slots.count() {
            self.lenders[lender].want(keep);
        }
        for page in self.note_all(lender) {
            if self.pages[page.0 as usize].pending {
                self.place(page);
                self.settle(page);
            }
        }
        self.lenders[lender].want_fewer();
        self.repair();
    }

    /// Whether the page is pending. For tests.
    pub fn is_pending(&self, page: Page) -> bool {
        self.entry(page).is_some_and(|entry| entry.pending)
    }

    /// Updates which pages move after a lender's reclaim request changed. Returns the pages at that lender.
    pub(super) fn note_all(&mut self, lender: usize) -> Vec<Page> {
        let there = |entry: &PageEntry| {
            { entry.copies.iter().flatten() }.any(|spot| usize::from(spot.lender) == lender)
        };
        let pages = (0..).map(Page).zip(&self.pages);
        let pages = pages.filter_map(|(page, entry)| there(entry).then_some(page));
        let pages: Vec<Page> = pages.collect();
        pages.iter().for_each(|page| self.note(*page));
        pages
    }

    /// Updates whether the page moves, after its copies or their worth changed.
    pub(super) fn note(&mut self, page: Page) {
        let spots = &self.pages[page.0 as usize].copies;
        if spots.iter().flatten().any(|spot| self.is_second(spot)) {
            self.moving.insert(page);
        } else {
            self.moving.remove(&page);
        }
    }

    /// Whether a copy is of the second class: it counts, but its page moves when there is room.
    pub(super) fn is_second(&self, spot: &PageCopy) -> bool {
        self.spill == Some(spot.lender.into()) || self.wants_back(spot)
    }

    /// Whether the copy's lender wants its slot back.
    pub(super) fn wants_back(&self, spot: &PageCopy) -> bool {
        self.lenders[usize::from(spot.lender)].wants_back(spot.slot)
    }

    /// A lender that wants back the page's slot and has another one for it.
    pub(super) fn lower_slot(&self, entry: &PageEntry) -> Option<usize> {
        let mut spots = entry.copies.iter().flatten().filter(|spot| self.wants_back(spot));
        let lower = |spot: &PageCopy| self.lenders[usize::from(spot.lender)].has_free();
        spots.find(|spot| lower(spot)).map(|spot| spot.lender.into())
    }
}
