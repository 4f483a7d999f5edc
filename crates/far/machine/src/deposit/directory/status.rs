//! Figures of pages and lenders.

use super::{LenderSet, LenderState, Page, PageDirectory, PageDirectoryStatus, PageEntry};
use crate::limit::COPIES_MAX;
use netram_proto::id::Epoch;
use netram_proto::time::Time;

impl PageDirectory {
    /// Whether a lender has owed an answer for [`DEPOSIT_TIMEOUT`](crate::limit::DEPOSIT_TIMEOUT). Its link
    /// must be closed, whatever else comes over it.
    pub fn is_silent(&self, lender: usize, now: Time) -> bool {
        self.lenders[lender].is_silent(now)
    }

    /// Number of the last session with the lender.
    pub fn session(&self, lender: usize) -> Epoch {
        self.lenders[lender].epoch
    }

    /// Whether a session with the lender stands.
    pub fn is_linked(&self, lender: usize) -> bool {
        self.lenders[lender].linked
    }

    /// Version of a page. `None`: it was never put.
    pub fn version(&self, page: Page) -> Option<u64> {
        Some(self.entry(page)?.version)
    }

    /// Figures of all pages and lenders. Walks over all pages.
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

    /// Index of the spill file.
    pub fn spill(&self) -> Option<usize> {
        self.spill
    }

    /// Number of lenders without the spill file.
    pub(super) fn lender_count(&self) -> usize {
        self.spill.unwrap_or(self.lenders.len())
    }

    /// Copies of a page: lender, slot, and whether it is confirmed. For tests.
    pub fn places(&self, page: Page) -> impl Iterator<Item = (usize, u32, bool)> {
        let spots = self.entry(page).into_iter().flat_map(|entry| entry.copies);
        spots
            .flatten()
            .map(|spot| (usize::from(spot.lender), spot.slot, spot.confirmed))
    }

    /// Lenders that were asked for a page. For tests.
    pub fn asked(&self, page: Page) -> LenderSet {
        self.gets
            .get(&page)
            .map_or(LenderSet::default(), |get| get.requested)
    }

    /// Empty slots at a lender. For tests.
    pub fn free_slots(&self, lender: usize) -> impl Iterator<Item = u32> {
        self.lenders[lender].slots.vacant()
    }
}
