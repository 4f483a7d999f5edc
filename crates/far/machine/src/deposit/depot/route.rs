//! Of whom a page is asked, and with which frame.

use alloc::vec::Vec;

use super::lender::Lender;
use super::{Depot, Entry, Get, Item, Page, Send, Spot};
use crate::limit::HEDGES_AT_ONCE;
use netram_proto::planted::Fault;
use netram_proto::time::Time;

impl Depot {
    /// Whether the page is asked of this lender by this version.
    pub(super) fn awaits(&self, page: Page, version: u64, lender: usize) -> bool {
        let asked = |get: &Get| get.asked.contains(lender);
        self.gets.get(&page).is_some_and(asked)
            && self
                .entry(page)
                .is_some_and(|entry| entry.version == version && !entry.aside)
    }

    /// Asks somebody linked for a page that is wanted.
    pub(super) fn route(&mut self, page: Page) {
        let Some(entry) = self.pages.get(page.0 as usize) else {
            return;
        };
        match self.reachable(entry) {
            Some(spot) => self.ask(page, spot),
            // Nobody waits for it: it is looked for again when it can be fetched.
            None if !self.gets.get(&page).is_some_and(|get| get.wanted) => drop(self.gets.remove(&page)),
            None => (),
        }
    }

    fn ask(&mut self, page: Page, spot: Spot) {
        let Some(get) = self.gets.get_mut(&page) else {
            return;
        };
        get.asked.insert(spot.lender.into());
        let version = self.pages[page.0 as usize].version;
        self.lenders[usize::from(spot.lender)].get(Item {
            page,
            version,
            slot: spot.slot,
        });
    }

    /// Where the page can be had now: not of who is late; of two places the one with less on its way, for it
    /// answers sooner; of the spill file only if nowhere else.
    pub(super) fn reachable(&self, entry: &Entry) -> Option<Spot> {
        self.readable(entry).min_by_key(|spot| {
            let lender = usize::from(spot.lender);
            let Lender { flights, .. } = &self.lenders[lender];
            (
                self.lenders[lender].is_late(),
                self.spill == Some(lender),
                flights.len(),
            )
        })
    }

    fn readable(&self, entry: &Entry) -> impl Iterator<Item = Spot> {
        let spots = entry.spots.into_iter().flatten();
        spots.filter(|spot| spot.held && self.lenders[usize::from(spot.lender)].linked)
    }

    /// Pages that somebody waits for, and of whom only those were asked who are late, are asked of another
    /// one as well: whoever answers first counts.
    pub(super) fn hedge(&mut self) {
        if !self.lenders.iter().any(Lender::is_late) || self.planted.is(Fault::LateAwaited) {
            return;
        }
        self.hedge_picks();
        let late = |lender: usize| self.lenders[lender].is_late();
        let waits = |get: &Get| get.wanted && !get.asked.is_empty() && get.asked.iter().all(late);
        let other = |page: Page| {
            let mut spots = self.readable(self.entry(page)?);
            spots.find(|spot| !late(spot.lender.into()))
        };
        let waiting = self.gets.iter().filter(|(_, get)| waits(get));
        let found = waiting.filter_map(|(page, _)| Some((*page, other(*page)?)));
        for (page, spot) in found.take(HEDGES_AT_ONCE).collect::<Vec<_>>() {
            self.ask(page, spot);
        }
    }

    /// The next frame of pages for a lender, or `Resize`.
    pub(super) fn poll_pages(&mut self, lender: usize, now: Time) -> Option<Send> {
        let (pages, gets) = (&self.pages, &self.gets);
        let current = |item: &Item, held: bool| {
            pages.get(item.page.0 as usize).is_some_and(|entry| {
                let spots = entry.spots.iter().flatten();
                let there = |spot: &Spot| spot.is(lender, item.slot) && spot.held == held;
                entry.version == item.version && { spots }.any(there)
            })
        };
        let asked = |item: &Item| gets.get(&item.page).is_some_and(|get| get.asked.contains(lender));
        let send = self.lenders[lender].poll(
            now,
            |item| current(item, false),
            |item| asked(item) && current(item, true),
        );
        if let Some(Send::Resize(slots)) = send
            && !self.planted.is(Fault::GivenUpIsCounted)
        {
            self.lenders[lender].on_given_up(slots);
        }
        send
    }

    pub(super) fn reroute(&mut self) {
        self.reroute_picks();
        let homeless = |(page, get): (&Page, &Get)| get.asked.is_empty().then_some(*page);
        let pages: Vec<Page> = self.gets.iter().filter_map(homeless).collect();
        for page in pages {
            self.route(page);
        }
    }
}
