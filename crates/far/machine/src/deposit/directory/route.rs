//! Choice of the lender that is asked for a page, and of the frame that asks.

use alloc::vec::Vec;

use super::lender::LenderState;
use super::{DepositCommand, Page, PageCopy, PageDirectory, PageEntry, PageGet, SlotPage};
use crate::limit::HEDGES_MAX;
use netram_proto::planted::PlantedFault;
use netram_proto::time::Time;

impl PageDirectory {
    /// Whether the page was requested from this lender in this version.
    pub(super) fn awaits(&self, page: Page, version: u64, lender: usize) -> bool {
        let asked = |get: &PageGet| get.requested.contains(lender);
        self.gets.get(&page).is_some_and(asked)
            && self
                .entry(page)
                .is_some_and(|entry| entry.version == version && !entry.pending)
    }

    /// Requests a wanted page from a linked lender.
    pub(super) fn route(&mut self, page: Page) {
        let Some(entry) = self.pages.get(page.0 as usize) else {
            return;
        };
        match self.reachable(entry) {
            Some(spot) => self.ask(page, spot),
            // No thread waits for it: the search finds it again when it can be fetched.
            None if !self.gets.get(&page).is_some_and(|get| get.wanted) => drop(self.gets.remove(&page)),
            None => (),
        }
    }

    fn ask(&mut self, page: Page, spot: PageCopy) {
        let Some(get) = self.gets.get_mut(&page) else {
            return;
        };
        get.requested.insert(spot.lender.into());
        let version = self.pages[page.0 as usize].version;
        self.lenders[usize::from(spot.lender)].get(SlotPage {
            page,
            version,
            slot: spot.slot,
        });
    }

    /// The copy to request: not at a late lender; of two, the one at the lender with less in flight, which
    /// answers sooner; the spill file last.
    pub(super) fn reachable(&self, entry: &PageEntry) -> Option<PageCopy> {
        self.readable(entry).min_by_key(|spot| {
            let lender = usize::from(spot.lender);
            let LenderState {
                in_flight: flights, ..
            } = &self.lenders[lender];
            (
                self.lenders[lender].is_late(),
                self.spill == Some(lender),
                flights.len(),
            )
        })
    }

    fn readable(&self, entry: &PageEntry) -> impl Iterator<Item = PageCopy> {
        let spots = entry.copies.into_iter().flatten();
        spots.filter(|spot| spot.confirmed && self.lenders[usize::from(spot.lender)].linked)
    }

    /// Requests pages that a thread waits for, and that only late lenders were asked for, from another lender
    /// too. The first answer counts.
    pub(super) fn hedge(&mut self) {
        if !self.lenders.iter().any(LenderState::is_late) || self.planted.is(PlantedFault::LateAwaited) {
            return;
        }
        self.hedge_picks();
        let late = |lender: usize| self.lenders[lender].is_late();
        let waits = |get: &PageGet| get.wanted && !get.requested.is_empty() && get.requested.iter().all(late);
        let other = |page: Page| {
            let mut spots = self.readable(self.entry(page)?);
            spots.find(|spot| !late(spot.lender.into()))
        };
        let waiting = self.gets.iter().filter(|(_, get)| waits(get));
        let found = waiting.filter_map(|(page, _)| Some((*page, other(*page)?)));
        for (page, spot) in found.take(HEDGES_MAX).collect::<Vec<_>>() {
            self.ask(page, spot);
        }
    }

    /// The next frame of pages for a lender, or a `Resize`.
    pub(super) fn poll_pages(&mut self, lender: usize, now: Time) -> Option<DepositCommand> {
        let (pages, gets) = (&self.pages, &self.gets);
        let current = |item: &SlotPage, held: bool| {
            pages.get(item.page.0 as usize).is_some_and(|entry| {
                let spots = entry.copies.iter().flatten();
                let there = |spot: &PageCopy| spot.is(lender, item.slot) && spot.confirmed == held;
                entry.version == item.version && { spots }.any(there)
            })
        };
        let asked = |item: &SlotPage| {
            gets.get(&item.page)
                .is_some_and(|get| get.requested.contains(lender))
        };
        let send = self.lenders[lender].poll(
            now,
            |item| current(item, false),
            |item| asked(item) && current(item, true),
        );
        if let Some(DepositCommand::Resize(slots)) = send
            && !self.planted.is(PlantedFault::GivenUpIsCounted)
        {
            self.lenders[lender].on_given_up(slots);
        }
        send
    }

    pub(super) fn reroute(&mut self) {
        self.reroute_picks();
        let homeless = |(page, get): (&Page, &PageGet)| get.requested.is_empty().then_some(*page);
        let pages: Vec<Page> = self.gets.iter().filter_map(homeless).collect();
        for page in pages {
            self.route(page);
        }
    }
}
