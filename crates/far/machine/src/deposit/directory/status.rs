//! How pages and lenders stand.

use super::{LenderSet, LenderState, Page, PageDirectory, PageDirectoryStatus, PageEntry};
use crate::limit::COPIES_MAX;
use netram_proto::id::Epoch;
use netram_proto::time::Time;

impl PageDirectory {
    /// Whether a lender has owed an answer for [`DEPOSIT_SILENCE`](crate::limit::DEPOSIT_SILENCE): its link
    /// is to be closed, whatever else comes over it.
    pub fn is_silent(&self, lender: usize, now: Time) -> bool {
        self.lenders[lender].is_silent(now)
    }

    /// The number of the session that was begun last with the lender.
    pub fn session(&self, lender: usize) -> Epoch {
        self.lenders[lender].epoch
    }

    /// Whether a session with the lender stands.
    pub fn is_linked(&self, lender: usize) -> bool {
        self.lenders[lender].linked
    }

    /// The page's version; `None`: it was never put.
    pub fn version(&self, page: Page) -> Option<u64> {
        Some(self.entry(page)?.version)
    }

    /// How the pages stand. Walks over all of them.
    pub fn status(&self) -> PageDirectoryStatus {
        let lost =
            |entry: &&PageEntry| entry.version > 0 && !entry.pending && entry.copies == [None; COPIES_MAX];
        PageDirectoryStatus {
            pending: self.pages.iter().filter(|entry| entry.pending).count() as u64,
            short: self.short.len() as u64,
            lost: self.pages.iter().filter(lost).count() as u64,
            lenders: self.lenders[..self.lender_count()]
                .iter()
                .map(LenderState::status)
                .collect(),
            spill: self.spill.map(|spill| self.lenders[spill].status()),
        }
    }

    /// The spill file's number.
    pub fn spill(&self) -> Option<usize> {
        self.spill
    }

    /// Lenders, without the spill file.
    pub(super) fn lender_count(&self) -> usize {
        self.spill.unwrap_or(self.lenders.len())
    }

    /// The places of a page: lender, slot, whether it is known to be there. For tests.
    pub fn places(&self, page: Page) -> impl Iterator<Item = (usize, u32, bool)> {
        let spots = self.entry(page).into_iter().flat_map(|entry| entry.copies);
        spots
            .flatten()
            .map(|spot| (usize::from(spot.lender), spot.slot, spot.confirmed))
    }

    /// Of whom a page is asked that is on its way here. For tests.
    pub fn asked(&self, page: Page) -> LenderSet {
        self.gets
            .get(&page)
            .map_or(LenderSet::default(), |get| get.requested)
    }

    /// Slots of a lender that no page has. For tests.
    pub fn free_slots(&self, lender: usize) -> impl Iterator<Item = u32> {
        self.lenders[lender].slots.vacant()
    }
}
