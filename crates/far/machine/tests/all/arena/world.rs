//! A program's threads, its memory, and movers that do one step at a time in any order.
//!
//! Content is the number of the write that made it, 0 before all. A thread is woken only as by the kernel: by
//! mapping its page or by an explicit wake. A forgotten wake therefore leaves a thread waiting forever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use netram_far_machine::arena::{
    ArenaMachine, ArenaSettings, ArrivalAction, EvictionWork, FaultAction, MoveFollowUp, Page, StagingFrame,
    WordSource,
};
use netram_far_machine::limit::{BLOCK_BYTES, PACK_PAGE_BYTES, PAGE_BYTES};

pub(crate) const PAGES: u32 = 400;
/// Bytes of a compressed page.
const PACKED: u32 = 1300;
/// Offset of a page's content, which lies in two blocks.
const AT: usize = 12;
/// Initial value of counters.
const COUNTER: u32 = 9;

/// Next operation of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadAction {
    Read(Page),
    Write(Page),
    /// Read one word, wherever the page is.
    Get(Page),
    Set(Page),
    /// Announce this page and those after it, without waiting for them.
    Soon(Page),
    /// Discard the page; the mapping is dropped at the thread's next step.
    Discard(Page),
}

/// Number of pages that are announced together.
const SOON: u32 = 8;

/// A step that is still to be done.
#[derive(Clone, Copy, Debug)]
enum PendingStep {
    Fault(usize, Page),
    Fetch(Page),
    Arrive(Page, u64),
    Show(Page, StagingFrame),
    Came(Page),
    Hold(Page),
    Hide(Page, StagingFrame),
    Hid(Page, bool),
    Send(Page, StagingFrame),
    Sent(Page, bool),
    Packed(Page, u64),
    Unpack(Page),
    Pass(Page),
    Passed(Page),
    Drop(StagingFrame),
}

/// Stored content of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteCopy {
    Content(u64),
    Lost,
}

pub(crate) struct ArenaWorld {
    pub(crate) arena: ArenaMachine,
    settings: ArenaSettings,
    seed: u64,
    visible: BTreeMap<Page, u64>,
    poisoned: BTreeSet<Page>,
    staging: BTreeMap<StagingFrame, u64>,
    compressed: BTreeMap<Page, u64>,
    pub(crate) remote: BTreeMap<Page, RemoteCopy>,
    stash: BTreeSet<Page>,
    written: BTreeMap<Page, u64>,
    writes: u64,
    /// Operation that each thread waits to do.
    blocked: Vec<Option<ThreadAction>>,
    steps: VecDeque<PendingStep>,
    /// Eviction moves in flight: it takes the next work when there are none.
    evicting: u32,
    pub(crate) bus_errors: u32,
    /// Whether lenders accept pages.
    pub(crate) stashes: bool,
}

impl ArenaWorld {
    pub(crate) fn new(settings: ArenaSettings, threads: usize, seed: u64) -> ArenaWorld {
        let mut arena = ArenaMachine::new(settings);
        // Packing is made extremely valuable, so that it is on most of the time.
        (0..200).for_each(|_| arena.fetch_took(1 << 30));
        (0..200).for_each(|_| arena.packing_took(1, PACKED));
        ArenaWorld {
            arena,
            settings,
            seed,
            visible: BTreeMap::new(),
            poisoned: BTreeSet::new(),
            staging: BTreeMap::new(),
            compressed: BTreeMap::new(),
            remote: BTreeMap::new(),
            stash: BTreeSet::new(),
            written: BTreeMap::new(),
            writes: 0,
            blocked: vec![None; threads],
            steps: VecDeque::new(),
            evicting: 0,
            bus_errors: 0,
            stashes: true,
        }
    }

    /// A random number below `bound`.
    pub(crate) fn any(&mut self, bound: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.seed >> 33) % u64::from(bound)) as u32
    }

    /// Whether threads read and write words of remote pages.
    pub(crate) fn has_words(&self) -> bool {
        self.settings.patched > 0
    }

    pub(crate) fn is_blocked(&self, thread: usize) -> bool {
        self.blocked[thread].is_some()
    }

    /// The thread does this operation, or waits to do it.
    pub(crate) fn act(&mut self, thread: usize, act: ThreadAction) {
        assert!(
            self.blocked[thread].is_none(),
            "a thread has one operation at a time"
        );
        match act {
            ThreadAction::Read(page) | ThreadAction::Write(page) => self.reference(thread, act, page),
            ThreadAction::Get(page) if self.get_word(page) => (),
            ThreadAction::Get(page) => self.reference(thread, ThreadAction::Read(page), page),
            ThreadAction::Set(page) if self.set_word(page) => (),
            ThreadAction::Set(page) => self.reference(thread, ThreadAction::Write(page), page),
            ThreadAction::Soon(page) => self.arena.will_need((page.0..PAGES.min(page.0 + SOON)).map(Page)),
            ThreadAction::Discard(page) => {
                self.discard(page);
                self.written.remove(&page);
                self.blocked[thread] = Some(act);
            }
        }
    }

    fn discard(&mut self, page: Page) {
        let discarded = self.arena.discard(page);
        if discarded.forget {
            self.forget(page);
        }
        if discarded.packed {
            self.compressed.remove(&page).expect("the page is in the pack");
        }
        self.steps.extend(discarded.drop.map(PendingStep::Drop));
    }

    /// Reads a word. `false`: its page must be brought.
    fn get_word(&mut self, page: Page) -> bool {
        if self.arena.word_source(page, 2, COUNTER) != WordSource::Words {
            return false;
        }
        let Some(RemoteCopy::Content(content)) = self.remote.get(&page).copied() else {
            return false;
        };
        let mut bytes = paged(content);
        if let Some(patch) = self.arena.patched(page, 0..2) {
            for (number, block) in bytes.chunks_exact_mut(BLOCK_BYTES).enumerate().take(2) {
                patch.overlay(number as u8, block);
            }
        }
        let expected = self.written.get(&page).copied().unwrap_or(0);
        assert_eq!(
            content_of(&bytes),
            expected,
            "a word of {page:?} is not the last write"
        );
        true
    }

    /// Writes a word. `false`: its page must be brought.
    fn set_word(&mut self, page: Page) -> bool {
        let races = self.blocked.contains(&Some(ThreadAction::Discard(page)));
        if races || !self.arena.may_patch(page, 2, COUNTER) {
            return false;
        }
        self.writes += 1;
        self.arena.patch(page, AT, &self.writes.to_le_bytes());
        self.written.insert(page, self.writes);
        true
    }

    /// Arrived content, with the patch merged.
    fn repaired(&mut self, page: Page, content: u64) -> u64 {
        let mut bytes = paged(content);
        if let Some(patch) = self.arena.take_patch(page) {
            patch.apply(&mut bytes);
        }
        content_of(&bytes)
    }

    fn reference(&mut self, thread: usize, act: ThreadAction, page: Page) {
        // A reference that races with a discard by another thread may see either state.
        let races = self.blocked.contains(&Some(ThreadAction::Discard(page)));
        if races {
            return;
        }
        if self.poisoned.contains(&page) {
            assert_eq!(
                self.remote.get(&page),
                Some(&RemoteCopy::Lost),
                "{page:?} was not lost"
            );
            self.bus_errors += 1;
            return;
        }
        let Some(content) = self.visible.get_mut(&page) else {
            self.blocked[thread] = Some(act);
            self.steps.push_back(PendingStep::Fault(thread, page));
            return;
        };
        let expected = self.written.get(&page).copied().unwrap_or(0);
        assert_eq!(*content, expected, "{page:?} is not the last write");
        if matches!(act, ThreadAction::Write(_)) {
            self.writes += 1;
            *content = self.writes;
            self.written.insert(page, self.writes);
        }
    }

    /// Lets every thread that waits for the page retry.
    fn wake(&mut self, page: Page) {
        for thread in 0..self.blocked.len() {
            if let Some(act @ (ThreadAction::Read(at) | ThreadAction::Write(at))) = self.blocked[thread]
                && at == page
            {
                self.blocked[thread] = None;
                self.reference(thread, act, page);
            }
        }
    }

    /// Does any one of the possible steps. `false`: there is none.
    pub(crate) fn step(&mut self) -> bool {
        self.evict();
        while let Some((page, serve)) = self.arena.next_starved() {
            self.serve(page, serve);
        }
        for page in self.arena.next_ahead(usize::MAX) {
            self.steps.push_back(PendingStep::Fetch(page));
        }
        let discards: Vec<usize> = (0..self.blocked.len())
            .filter(|thread| matches!(self.blocked[*thread], Some(ThreadAction::Discard(_))))
            .collect();
        let stashed = if self.stashes { self.stash.len() } else { 0 };
        let choices = self.steps.len() + discards.len() + usize::from(stashed > 0);
        if choices == 0 {
            return false;
        }
        let choice = self.any(choices as u32) as usize;
        if choice < self.steps.len() {
            let step = self.steps.remove(choice).unwrap();
            self.take(step);
        } else if let Some(thread) = discards.get(choice - self.steps.len()) {
            if let Some(ThreadAction::Discard(page)) = self.blocked[*thread].take() {
                self.visible.remove(&page);
                self.poisoned.remove(&page);
            }
        } else {
            self.stash.pop_first();
            self.tell_stashing();
        }
        self.check();
        true
    }

    fn evict(&mut self) {
        if self.evicting > 0 {
            return;
        }
        let steps: Vec<PendingStep> = match self.arena.work() {
            None => return,
            Some(EvictionWork::Deactivate(pages)) => pages
                .into_iter()
                .map(|(page, berth)| PendingStep::Hide(page, berth))
                .collect(),
            Some(EvictionWork::Send(pages)) => pages
                .into_iter()
                .map(|(page, berth)| PendingStep::Send(page, berth))
                .collect(),
            Some(EvictionWork::Pass(pages)) => pages.into_iter().map(PendingStep::Pass).collect(),
        };
        self.evicting = steps.len() as u32;
        self.steps.extend(steps);
    }

    fn take(&mut self, step: PendingStep) {
        match step {
            PendingStep::Fault(thread, page) => {
                let serve = self.arena.fault(page);
                self.arena.note(
                    thread as u32,
                    u64::from(page.0) * PAGE_BYTES as u64,
                    serve,
                    &(0..PAGES),
                );
                self.serve(page, serve);
            }
            PendingStep::Fetch(page) => match self.remote.get(&page).copied() {
                Some(RemoteCopy::Content(content)) => {
                    let content = self.repaired(page, content);
                    self.steps.push_back(PendingStep::Arrive(page, content));
                }
                Some(RemoteCopy::Lost) => self.lose(page),
                None => self.steps.push_back(PendingStep::Arrive(page, 0)),
            },
            PendingStep::Arrive(page, content) => match self.arena.arrive(page) {
                ArrivalAction::Bytes => self.map_page(page, content),
                ArrivalAction::Zeros => self.map_zeros(page),
                ArrivalAction::Stage(berth) => {
                    assert!(
                        self.staging.insert(berth, content).is_none(),
                        "{berth:?} has a page"
                    );
                    self.steps.push_back(PendingStep::Hold(page));
                }
            },
            PendingStep::Show(page, berth) => {
                let content = self
                    .staging
                    .remove(&berth)
                    .expect("an inactive page is in its staging frame");
                match self.arena.arrive(page) {
                    ArrivalAction::Bytes => self.map_page(page, content),
                    ArrivalAction::Zeros => self.map_zeros(page),
                    ArrivalAction::Stage(_) => panic!("an activated page is not staged"),
                }
            }
            PendingStep::Came(page) => {
                let next = self.arena.came(page);
                self.next(page, next);
            }
            PendingStep::Hold(page) => {
                let next = self.arena.staged(page);
                self.next(page, next);
            }
            PendingStep::Unpack(page) => {
                let content = self
                    .compressed
                    .remove(&page)
                    .expect("a packed page is in the pack");
                self.steps.push_back(PendingStep::Arrive(page, content));
            }
            step => self.take_eviction(step),
        }
    }

    /// Does a step of eviction.
    fn take_eviction(&mut self, step: PendingStep) {
        match step {
            PendingStep::Hide(page, berth) => {
                let stays = self.any(8) == 0;
                let content = if stays { None } else { self.visible.remove(&page) };
                if let Some(content) = content {
                    assert!(
                        self.staging.insert(berth, content).is_none(),
                        "{berth:?} has a page"
                    );
                }
                if !stays && content.is_none() {
                    // A missing page was discarded.
                    self.discard(page);
                }
                self.steps.push_back(PendingStep::Hid(page, content.is_some()));
            }
            PendingStep::Hid(page, moved) => {
                self.evicting -= 1;
                let next = self.arena.deactivated(page, moved);
                self.next(page, next);
            }
            PendingStep::Send(page, berth) => {
                let content = self.staging[&berth];
                // Some pages never compress.
                if self.arena.packs() && content != 0 && !page.0.is_multiple_of(3) {
                    self.steps.push_back(PendingStep::Packed(page, content));
                    return;
                }
                if content == 0 {
                    self.forget(page);
                } else {
                    self.keep(page, content);
                }
                self.steps.push_back(PendingStep::Sent(page, content != 0));
            }
            PendingStep::Sent(page, kept) => {
                self.evicting -= 1;
                let next = self.arena.sent(page, kept);
                self.next(page, next);
            }
            PendingStep::Packed(page, content) => {
                self.evicting -= 1;
                let next = self.arena.packed(page, PACKED);
                if self.arena.is_packed(page) {
                    assert!(
                        self.compressed.insert(page, content).is_none(),
                        "{page:?} is packed once"
                    );
                }
                self.next(page, next);
            }
            PendingStep::Pass(page) => {
                let content = self.compressed[&page];
                self.keep(page, content);
                self.steps.push_back(PendingStep::Passed(page));
            }
            PendingStep::Passed(page) => {
                self.evicting -= 1;
                self.compressed.remove(&page).expect("only this step removes it");
                let next = self.arena.passed(page);
                self.next(page, next);
            }
            PendingStep::Drop(berth) => {
                self.staging.remove(&berth).expect("a page is dropped once");
                self.arena.dropped(berth);
            }
            step => unreachable!("{step:?} is not a step of eviction"),
        }
    }

    fn keep(&mut self, page: Page, content: u64) {
        if self.remote.insert(page, RemoteCopy::Content(content)) != Some(RemoteCopy::Content(content)) {
            self.stash.insert(page);
            self.tell_stashing();
        }
    }

    fn serve(&mut self, page: Page, serve: FaultAction) {
        match serve {
            FaultAction::Resident => panic!("only `want` returns this"),
            FaultAction::Wait | FaultAction::Starved => (),
            FaultAction::Zero | FaultAction::Check => self.steps.push_back(PendingStep::Arrive(page, 0)),
            FaultAction::Activate(berth) => self.steps.push_back(PendingStep::Show(page, berth)),
            FaultAction::Fetch => self.steps.push_back(PendingStep::Fetch(page)),
            FaultAction::Unpack => self.steps.push_back(PendingStep::Unpack(page)),
            // A bus error, if the page is still lost when the thread retries.
            FaultAction::Lost => self.wake(page),
        }
    }

    fn next(&mut self, page: Page, next: MoveFollowUp) {
        match next {
            MoveFollowUp::Done => (),
            MoveFollowUp::Wake => self.wake(page),
            MoveFollowUp::Zero => self.serve(page, FaultAction::Zero),
            MoveFollowUp::Activate(berth) => self.serve(page, FaultAction::Activate(berth)),
            MoveFollowUp::Drop(berth) => self.steps.push_back(PendingStep::Drop(berth)),
            MoveFollowUp::Abandon => self.forget(page),
            MoveFollowUp::Forget(berth) => {
                self.forget(page);
                self.steps.push_back(PendingStep::Drop(berth));
            }
        }
    }

    fn lose(&mut self, page: Page) {
        match self.arena.arrive_lost(page) {
            ArrivalAction::Zeros => self.map_zeros(page),
            ArrivalAction::Stage(_) => panic!("a lost page cannot be staged"),
            ArrivalAction::Bytes => {
                self.poisoned.insert(page);
                let next = self.arena.lost(page);
                self.wake(page);
                self.next(page, next);
            }
        }
    }

    fn map_zeros(&mut self, page: Page) {
        self.forget(page);
        self.map_page(page, 0);
    }

    fn map_page(&mut self, page: Page, content: u64) {
        self.visible.entry(page).or_insert(content);
        self.steps.push_back(PendingStep::Came(page));
        self.wake(page);
    }

    /// Lenders lose a page that they have.
    pub(crate) fn lose_at_lenders(&mut self, page: Page) {
        if !self.stash.contains(&page)
            && let Some(kept) = self.remote.get_mut(&page)
        {
            *kept = RemoteCopy::Lost;
        }
    }

    fn forget(&mut self, page: Page) {
        self.remote.remove(&page);
        self.stash.remove(&page);
        self.tell_stashing();
    }

    fn tell_stashing(&mut self) {
        self.arena.stashing(self.stash.len() as u32);
    }

    fn check(&self) {
        let packed = self.compressed.len() * (PACKED + PACK_PAGE_BYTES) as usize;
        let here = self.visible.len() + self.staging.len() + self.stash.len();
        let frames = here + packed.div_ceil(PAGE_BYTES) + self.arena.patch_frames() as usize;
        let moving = netram_far_machine::limit::EVICT_PAGES + self.blocked.len();
        assert!(
            frames <= self.settings.frames as usize + moving,
            "{frames} frames are taken"
        );
    }

    /// Completes everything that has begun.
    pub(crate) fn drain(&mut self) {
        while self.step() {}
        let waits = self.blocked.iter().flatten().next();
        assert!(waits.is_none(), "{waits:?} waits forever");
        // A page that was discarded just on arrival is counted until it is looked up.
        assert!(self.arena.used() as usize >= self.visible.len() + self.staging.len());
    }
}

/// A page with this content.
fn paged(content: u64) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    bytes[AT..AT + 8].copy_from_slice(&content.to_le_bytes());
    bytes
}

fn content_of(bytes: &[u8; PAGE_BYTES]) -> u64 {
    u64::from_le_bytes(bytes[AT..AT + 8].try_into().unwrap())
}
