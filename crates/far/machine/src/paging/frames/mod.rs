//! Replacement: which page leaves local memory.
//!
//! A policy knows the time of each page's last reference, which a reference in local memory sets with a
//! single store. All other work is done when a page must leave.
//!
//! **LRU** is exact: a heap holds every page with a time of reference. The smallest is taken, and inserted
//! again if its page was referenced since. A page is inserted at most once between two references, which is
//! cheap where references are far more frequent than faults. **Clock** is a queue: a page referenced since
//! its last turn goes to the back. **Dueling** (`duel.rs`) sees no references, only arrivals.

mod duel;

use alloc::collections::{BTreeSet, BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Page;
use duel::Duel;

/// Reference times of pages.
pub(crate) trait ReferenceTimes {
    /// Time of the last reference; 0: none since [`ReferenceTimes::untouch`].
    fn touched(&self, page: Page) -> u64;
    /// Marks the page as not referenced.
    fn untouch(&mut self, page: Page);
    /// Whether the page is in local memory and may leave.
    fn is_local(&self, page: Page) -> bool;
}

/// Number of stale entries that does not trigger a clean-up.
const TIDY_SLACK: usize = 64;

/// Replacement policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replacement {
    /// The least recently referenced page.
    #[default]
    Lru,
    /// The first page, in turn, that was not referenced since its last turn.
    Clock,
    /// A random page.
    Random,
    /// The page that arrived first.
    Fifo,
    /// The page that arrived first or last, whichever policy needed fewer fetches lately.
    Dueling,
}

/// The pages in local memory. A page that left by another way stays here until its turn comes.
#[derive(Clone, Debug)]
pub(crate) enum ReplacementQueue {
    Lru(BinaryHeap<Reverse<(u64, Page)>>),
    Clock(VecDeque<Page>),
    /// The pages, and the state of the random generator.
    Random(Vec<Page>, u64),
    Fifo(VecDeque<Page>),
    Dueling(Duel),
}

impl ReplacementQueue {
    pub(crate) fn new(replacement: Replacement, seed: u64) -> ReplacementQueue {
        match replacement {
            Replacement::Lru => ReplacementQueue::Lru(BinaryHeap::new()),
            Replacement::Clock => ReplacementQueue::Clock(VecDeque::new()),
            Replacement::Random => ReplacementQueue::Random(Vec::new(), seed),
            Replacement::Fifo => ReplacementQueue::Fifo(VecDeque::new()),
            Replacement::Dueling => ReplacementQueue::Dueling(Duel::new(seed)),
        }
    }

    /// Counts a page that must be fetched again.
    pub(crate) fn missed(&mut self, page: Page) {
        if let ReplacementQueue::Dueling(duel) = self {
            duel.missed(page);
        }
    }

    /// Adds a page that arrived.
    pub(crate) fn add(&mut self, page: Page, now: u64) {
        self.put(page, now, false);
    }

    /// Adds a page that was referenced before its eviction was complete, or that may not leave.
    pub(crate) fn add_again(&mut self, page: Page, now: u64) {
        self.put(page, now, true);
    }

    fn put(&mut self, page: Page, now: u64, again: bool) {
        match self {
            ReplacementQueue::Dueling(duel) => duel.add(page, again),
            ReplacementQueue::Lru(heap) => heap.push(Reverse((now, page))),
            ReplacementQueue::Clock(queue) | ReplacementQueue::Fifo(queue) => queue.push_back(page),
            ReplacementQueue::Random(pages, _) => pages.push(page),
        }
    }

    /// Takes the page to evict, which is in local memory. `None`: there is none.
    pub(crate) fn take(&mut self, known: &mut impl ReferenceTimes) -> Option<Page> {
        loop {
            let page = match self {
                ReplacementQueue::Lru(heap) => pop_oldest(heap, known)?,
                ReplacementQueue::Clock(queue) => pop_unreferenced(queue, known)?,
                ReplacementQueue::Random(pages, state) => pop_any(pages, state)?,
                ReplacementQueue::Fifo(queue) => queue.pop_front()?,
                ReplacementQueue::Dueling(duel) => duel.take()?,
            };
            if known.is_local(page) {
                return Some(page);
            }
        }
    }

    /// Drops entries of pages that left by another way, once there are more of those than of pages. Otherwise
    /// a page that comes and goes without being chosen would add an entry each time. Of several entries of a
    /// page the last counts.
    pub(crate) fn tidy(&mut self, local: usize, known: &impl ReferenceTimes) {
        if self.length() <= 2 * local + TIDY_SLACK {
            return;
        }
        let mut seen = BTreeSet::new();
        let mut stays = |page: &Page| known.is_local(*page) && seen.insert(*page);
        match self {
            ReplacementQueue::Lru(heap) => heap.retain(|Reverse((_, page))| stays(page)),
            ReplacementQueue::Clock(queue) | ReplacementQueue::Fifo(queue) => {
                let kept: Vec<Page> = queue.iter().rev().copied().filter(stays).collect();
                *queue = kept.into_iter().rev().collect();
            }
            ReplacementQueue::Random(pages, _) => pages.retain(stays),
            ReplacementQueue::Dueling(duel) => duel.retain(stays),
        }
    }

    fn length(&self) -> usize {
        match self {
            ReplacementQueue::Lru(heap) => heap.len(),
            ReplacementQueue::Clock(queue) | ReplacementQueue::Fifo(queue) => queue.len(),
            ReplacementQueue::Random(pages, _) => pages.len(),
            ReplacementQueue::Dueling(duel) => duel.length(),
        }
    }
}

fn pop_oldest(heap: &mut BinaryHeap<Reverse<(u64, Page)>>, known: &impl ReferenceTimes) -> Option<Page> {
    loop {
        let mut oldest = heap.peek_mut()?;
        let Reverse((time, page)) = *oldest;
        let touched = known.touched(page);
        if touched == time {
            alloc::collections::binary_heap::PeekMut::pop(oldest);
            return Some(page);
        }
        *oldest = Reverse((touched, page));
    }
}

fn pop_unreferenced(queue: &mut VecDeque<Page>, known: &mut impl ReferenceTimes) -> Option<Page> {
    loop {
        let page = queue.pop_front()?;
        if known.touched(page) == 0 {
            return Some(page);
        }
        known.untouch(page);
        queue.push_back(page);
    }
}

fn pop_any(pages: &mut Vec<Page>, state: &mut u64) -> Option<Page> {
    let length = u64::try_from(pages.len()).ok().filter(|length| *length > 0)?;
    let place = (u128::from(split_mix(state)) * u128::from(length)) >> 64;
    Some(pages.swap_remove(place as usize))
}

/// SplitMix64, a pseudo-random generator.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
