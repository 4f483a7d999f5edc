//! What comes before anybody waits for it: where a thread's faults go ([`FaultTrend`]), and what somebody
//! says that he will want.

use alloc::vec::Vec;
use core::ops::Range;

use super::compression_model::ArrivalSource;
use super::pages::{ArenaMachine, PageState, left_since};
use super::{FaultAction, Page};
use crate::limit::{PAGE_BYTES, PREFETCH_SCAN_MAX, TRENDS_MAX};

impl ArenaMachine {
    /// What a thread has referenced, at this byte of the arena, was served so. If it comes from elsewhere,
    /// what the thread will want next, in an area of this extent, is asked for ahead.
    pub fn note(&mut self, thread: u32, at: u64, serve: FaultAction, area: &Range<u32>) {
        // What comes as zeros costs no link, and so is no reason to look ahead.
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
            // Numbers of threads that have ended are the reason that there are so many.
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
                // Without a frame to spare the marker still tells whether the course goes on.
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

    /// A page that is away is to be brought before anybody waits for it.
    pub(super) fn ask_ahead(&mut self, page: Page, marker: bool) {
        self.frames.missed(page);
        let record = self.records.of(page);
        self.compression
            .came_back(left_since(self.now, record), ArrivalSource::Ahead);
        record.state = PageState::Arriving;
        // One that a thread waits for comes into sight: nothing else would wake it.
        record.marker = marker && !record.queued;
        self.used += 1;
        self.ahead.push_back(page);
    }

    /// Somebody will wait for these pages, in this order: those that are away are asked for ahead, while
    /// frames can be spared for them.
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

    /// Pages to be brought that nobody waits for yet, at most so many: each by [`ArenaMachine::arrive`], or
    /// [`ArenaMachine::lost`].
    pub fn next_ahead(&mut self, pages: usize) -> Vec<Page> {
        self.ahead.drain(..pages.min(self.ahead.len())).collect()
    }
}
