//! Which page is to leave local memory.
//!
//! What a policy knows of references is a time a page, which each reference in local memory sets to the
//! present: a single store. All the rest is done when a page has to leave.
//!
//! **LRU** is exact: a heap has every page with a time at which it was referenced; the least comes out, and
//! goes in again if its page has been referenced since. A page goes in again at most once between two
//! references to it, so that this is cheap where references are far more frequent than faults. **Clock** is a
//! queue: a page that was referenced since it was last in front goes to the back. **Dueling** (`duel.rs`)
//! knows of no references, only of pages that come.

mod duel;

use alloc::collections::{BTreeSet, BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::Page;
use duel::Duel;

/// What replacement knows of pages.
pub(crate) trait ReferenceTimes {
    /// When it was last referenced; 0: not since [`ReferenceTimes::untouch`].
    fn touched(&self, page: Page) -> u64;
    /// From now on it counts as not referenced.
    fn untouch(&mut self, page: Page);
    /// Whether it may leave: it is in local memory.
    fn is_local(&self, page: Page) -> bool;
}

/// So many pages that have left are no reason to look for them.
const TIDY_SLACK: usize = 64;

/// How a page is chosen to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replacement {
    /// The one whose last reference is longest ago.
    #[default]
    Lru,
    /// The first, in turn, that has not been referenced since its last turn.
    Clock,
    /// Any.
    Random,
    /// The one that came first.
    Fifo,
    /// The one that came first, or last: whichever has had to be brought again less often of late.
    Dueling,
}

/// The pages in local memory. One that has left by another way stays here until its turn comes.
#[derive(Clone, Debug)]
pub(crate) enum ReplacementQueue {
    Lru(BinaryHeap<Reverse<(u64, Page)>>),
    Clock(VecDeque<Page>),
    /// The pages, and the state of the generator.
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

    /// A page that was in local memory once has to be brought again.
    pub(crate) fn missed(&mut self, page: Page) {
        if let ReplacementQueue::Dueling(duel) = self {
            duel.missed(page);
        }
    }

    /// A page that has been brought is in local memory from now on.
    pub(crate) fn add(&mut self, page: Page, now: u64) {
        self.put(page, now, false);
    }

    /// A page that was to leave, and was referenced before it had, is in local memory from now on; or one
    /// that may not leave.
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

    /// The page that is to leave; it is in local memory. `None`: there is none.
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

    /// Forgets what has left by another way, once that is more than what is here: who comes and goes without
    /// ever being chosen would be here once for each time. Of a page that is here more than once the last
    /// coming counts.
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

/// SplitMix64: a number that is as good as random.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
