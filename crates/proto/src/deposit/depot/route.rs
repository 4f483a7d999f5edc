//! Of whom a page is asked, and with which frame.

use alloc::vec::Vec;

use super::{Depot, Entry, Get, Item, Page, Send, Spot};
use crate::planted::Fault;
use crate::time::Time;

impl Depot {
    /// Whether the page is asked of this lender by this version.
    pub(super) fn awaits(&self, page: Page, version: u64, lender: usize) -> bool {
        let asked = self
            .gets
            .get(&page)
            .is_some_and(|get| get.at == Some(lender as u8));
        asked
            && self
                .entry(page)
                .is_some_and(|entry| entry.version == version && !entry.aside)
    }

    /// Asks somebody linked for a page that is wanted.
    pub(super) fn route(&mut self, page: Page) {
        let Some(entry) = self.pages.get(page.0 as usize) else {
            return;
        };
        let ready = self.reachable(entry);
        let version = entry.version;
        match self.gets.get_mut(&page) {
            Some(get) if ready.is_some() || get.wanted => get.at = ready.map(|spot| spot.lender),
            // Nobody waits for it: it is looked for again when it can be fetched.
            _ => {
                self.gets.remove(&page);
            }
        }
        if let Some(spot) = ready {
            self.lenders[usize::from(spot.lender)].get(Item {
                page,
                version,
                slot: spot.slot,
            });
        }
    }

    /// Where the page can be had now: of two places the one with less on its way, for it answers sooner; of the spill file only if nowhere else.
    pub(super) fn reachable(&self, entry: &Entry) -> Option<Spot> {
        let held = entry.spots.iter().flatten().filter(|spot| spot.held);
        { held }
            .filter(|spot| self.lenders[usize::from(spot.lender)].linked)
            .min_by_key(|spot| {
                let lender = usize::from(spot.lender);
                (self.spill == Some(lender), self.lenders[lender].flights.len())
            })
            .copied()
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
        let asked = |item: &Item| {
            gets.get(&item.page)
                .is_some_and(|get| get.at == Some(lender as u8))
        };
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
        let homeless = |(page, get): (&Page, &Get)| get.at.is_none().then_some(*page);
        let pages: Vec<Page> = self.gets.iter().filter_map(homeless).collect();
        for page in pages {
            self.route(page);
        }
    }
}
