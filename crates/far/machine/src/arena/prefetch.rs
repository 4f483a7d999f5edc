//! Prefetch: pages on the course of a thread's faults (`trend.rs`), and pages that a caller announces.

use alloc::vec::Vec;
use core::ops::Range;

use super::compression_model::ArrivalSource;
use super::pages::{ArenaMachine, PageState, left_since};
use super::{FaultAction, Page};
use crate::limit::{PAGE_BYTES, PREFETCH_SCAN_MAX, TRENDS_MAX};

impl ArenaMachine {
    /// Notes how a thread's reference at a byte of the arena was served. If the page was not blank, the pages
    /// that the thread will reference next, within `area`, are prefetched.
    pub fn note(&mut self, thread: u32, at: u64, serve: FaultAction, area: &Range<u32>) {
        // Blank pages cost no network, so they are no reason to prefetch.
        let from_elsewhere = matches!(
            serve,
            FaultAction::Fetch | FaultAction::Activate(_) | FaultAction::Unpack | FaultAction::Wait
        );
        if self.settings.looks_ahead && from_elsewhere {
            self.look_ahead(thread, at, area);
        }
    }

    fn look_ahead(&mut self, thread: u32, at: u64, area: &Range<u32>) {
        let spare = self.watermarks.spare(self.free());
        if self.trends.len() >= TRENDS_MAX && !self.trends.contains_key(&thread) {
            // There are this many because of threads that have ended.
            self.trends.clear();
        }
        let trend = self.trends.entry(thread).or_default();
        let Some(ahead) = trend.on_fault(at, spare) else {
            return;
        };
        self.tally.proved += u64::from(ahead.proved);
        let page_of = |place: u64| u32::try_from(place / PAGE_BYTES as u64).ok();
        let (mut last, mut marker, mut pages) = (at, None, Vec::new());
        for place in ahead.places().take(PREFETCH_SCAN_MAX) {
            let Some(page) = page_of(place).filter(|page| area.contains(page)).map(Page) else {
                break;
            };
            if self.records.state(page) == PageState::Remote {
                if marker.is_some() && pages.len() >= ahead.count as usize {
                    break;
                }
                // Without a spare frame, the marker still shows whether the stream continues.
                marker.get_or_insert(page);
                pages.extend((ahead.count > 0).then_some(page));
            }
            last = place;
        }
        trend.issued(ahead, marker, last);
        self.tally.ahead += pages.len() as u64;
        for (index, page) in pages.into_iter().enumerate() {
            self.ask_ahead(page, index == 0);
        }
    }

    /// Requests a remote page before a thread waits for it.
    pub(super) fn ask_ahead(&mut self, page: Page, marker: bool) {
        self.frames.missed(page);
        let record = self.records.of(page);
        self.compression
            .came_back(left_since(self.now, record), ArrivalSource::Ahead);
        record.state = PageState::Arriving;
        // A page that a thread waits for must be mapped: nothing else would wake the thread.
        record.marker = marker && !record.queued;
        self.used += 1;
        self.ahead.push_back(page);
    }

    /// Announces pages that a thread will reference in this order. Remote ones are prefetched while frames
    /// can be spared.
    pub fn will_need(&mut self, pages: impl IntoIterator<Item = Page>) {
        for page in pages {
            if self.watermarks.spare(self.free()) == 0 {
                return;
            }
            if self.records.state(page) == PageState::Remote {
                self.tally.ahead += 1;
                self.ask_ahead(page, false);
            }
        }
    }

    /// At most `pages` prefetched pages to bring, each followed by [`ArenaMachine::arrive`] or
    /// [`ArenaMachine::lost`].
    pub fn next_ahead(&mut self, pages: usize) -> Vec<Page> {
        self.ahead.drain(..pages.min(self.ahead.len())).collect()
    }
}
