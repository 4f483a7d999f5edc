//! The prefetcher: a thread that brings pages before the program waits for them. Contiguous pages that have
//! arrived are mapped together, which takes half the time of single pages.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use netram_far_machine::arena::{ArenaMachine as Machine, ArrivalAction, Page};
use netram_far_machine::limit::{PAGE_BYTES, PREFETCH_PAGES_MAX};

use super::handler::{HandlerGuard, enlist};
use super::moves::{ArenaCore, ZEROS, offset};
use crate::seal::PageBytes;

/// Maximum number of pages mapped together: a thread that waits for the first waits for all of them.
const TOGETHER: usize = 16;

/// Maximum number of requested pages that have not arrived. The next run is requested before the last one is
/// complete, so that the link is never idle.
const AWAITED_MAX: usize = 2 * PREFETCH_PAGES_MAX as usize;

pub(super) fn run(core: &Arc<ArenaCore>) {
    let _guard = HandlerGuard::here();
    enlist(core);
    let mut room = vec![ZEROS; TOGETHER];
    let mut awaited: VecDeque<Page> = VecDeque::with_capacity(AWAITED_MAX);
    let mut pace = FetchRate::default();
    loop {
        let idle = |state: &mut super::moves::ArenaState| {
            awaited.is_empty() && !core.monitor.is_stopping() && !state.machine.has_ahead()
        };
        let waited = core.monitor.ahead.wait_while(core.monitor.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if core.monitor.is_stopping() {
            return;
        }
        let pages = state.machine.next_ahead(AWAITED_MAX - awaited.len());
        drop(state);
        if !pages.is_empty() {
            core.remote_pages.prefetch(pages.iter().copied());
            awaited.extend(pages);
        }
        let all = awaited.make_contiguous();
        let run = { all.chunk_by(|one, next| one.0 + 1 == next.0) }.next();
        if let Some(run) = run {
            let came = core.fetch_run(&run[..run.len().min(TOGETHER)], &mut room);
            awaited.drain(..came);
            pace.came(core, came, awaited.is_empty());
        }
    }
}

/// Measures how fast pages arrive, in ns per page, while more are awaited.
#[derive(Debug, Default)]
struct FetchRate {
    since: Option<Instant>,
    pages: u32,
}

impl FetchRate {
    /// Number of pages per measurement, which makes the cost of clock and lock negligible.
    const TOGETHER: u32 = 64;

    fn came(&mut self, core: &ArenaCore, pages: usize, last: bool) {
        self.pages += pages as u32;
        if let Some(since) = self.since
            && self.pages >= Self::TOGETHER
        {
            let ns = since.elapsed().as_nanos() as u64 / u64::from(self.pages);
            core.monitor.lock().machine.ahead_took(ns);
            self.since = None;
        }
        if last {
            self.since = None;
        } else if self.since.is_none() {
            (self.since, self.pages) = (Some(Instant::now()), 0);
        }
    }
}

impl ArenaCore {
    /// Fetches the first of these pages, together with those after it that have arrived. Returns their
    /// number.
    fn fetch_run(&self, pages: &[Page], room: &mut [PageBytes]) -> usize {
        let count = match self.remote_pages.get_run(pages, room) {
            Ok(count) => count,
            Err(error) => {
                self.not_fetched(pages[0], &error);
                return 1;
            }
        };
        for (page, bytes) in pages.iter().zip(&mut room[..count]) {
            self.apply_patch(*page, bytes);
        }
        self.map_run(&pages[..count], &room[..count]);
        count
    }

    fn map_run(&self, pages: &[Page], bytes: &[PageBytes]) {
        let shape = self.layout_lock.read().unwrap_or_else(PoisonError::into_inner);
        let arrivals: Vec<ArrivalAction> = pages.iter().map(|page| self.arrive(*page)).collect();
        let mut put = vec![false; pages.len()];
        let mut from = 0;
        for run in arrivals.chunk_by(|one, next| one == next) {
            let together = from..from + run.len();
            from = together.end;
            if run.first() == Some(&ArrivalAction::Bytes) {
                let all = bytes[together.clone()].as_flattened();
                let done = self
                    .uffd
                    .copy_run(&self.memory, offset(pages[together.start]), all);
                put[together][..done / PAGE_BYTES].fill(true);
            }
        }
        drop(shape);
        let put_pages = { pages.iter().zip(&put) }.filter_map(|(page, put)| put.then_some(*page));
        self.tell_all(put_pages, Machine::came);
        for (((page, bytes), arrive), put) in pages.iter().zip(bytes).zip(arrivals).zip(put) {
            match arrive {
                ArrivalAction::Stage(berth) => self.stage(*page, berth, bytes),
                ArrivalAction::Zeros => self.map_page(*page, &ZEROS),
                ArrivalAction::Bytes if !put => self.map_page(*page, bytes),
                ArrivalAction::Bytes => (),
            }
        }
    }
}
