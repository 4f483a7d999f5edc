//! Fetches of pages that threads wait for.

use std::time::Instant;

use netram_far_machine::arena::{FaultAction, Page};
use netram_telemetry::TimedCall;

use super::moves::{ArenaCore, ZEROS};
use crate::remote_pages::PageGetError;
use crate::seal::PageBytes;

/// One fetch in this many is measured if words do not depend on the measurement, which takes 0.1 µs.
const MEASURED: u32 = 8;

/// A page that is fetched for a thread that waits for it.
pub(super) struct PageFetch<'a> {
    pub(super) page: Page,
    /// `None`: the time is not measured. The word counters and packing depend on it.
    began: Option<Instant>,
    _timed: Option<TimedCall<'a>>,
}

impl PageFetch<'_> {
    pub(super) fn new(core: &ArenaCore, page: Page) -> PageFetch<'_> {
        let measured = core.measures || page.0.is_multiple_of(MEASURED);
        PageFetch {
            page,
            began: measured.then(Instant::now),
            _timed: core.times.begin(FaultAction::Fetch),
        }
    }
}

impl ArenaCore {
    /// Fetches a page from lenders.
    pub(super) fn fetch(&self, page: Page) {
        let fetch = PageFetch::new(self, page);
        let mut bytes = ZEROS;
        let came = self.remote_pages.get(page, &mut bytes);
        self.fetched(fetch, came.map(|_| bytes));
    }

    /// Maps a page that a lender returned.
    pub(super) fn fetched(&self, fetch: PageFetch<'_>, came: Result<PageBytes, PageGetError>) {
        match came {
            Ok(mut bytes) => {
                self.apply_patch(fetch.page, &mut bytes);
                self.map_page(fetch.page, &bytes);
            }
            Err(error) => self.not_fetched(fetch.page, &error),
        }
        if let Some(began) = fetch.began {
            let ns = began.elapsed().as_nanos() as u64;
            let mut state = self.monitor.lock();
            state.costs.page_took(ns);
            state.machine.fetch_took(ns);
        }
    }

    pub(super) fn not_fetched(&self, page: Page, error: &PageGetError) {
        match error {
            PageGetError::Lost { .. } => self.lose(page, error),
            PageGetError::Failed if self.monitor.is_stopping() => (),
            PageGetError::Failed => panic!("the links to lenders have failed, and with them the arena"),
        }
    }
}
