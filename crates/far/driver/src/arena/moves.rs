//! What an arena's threads share, and the moves that they do: each on a page that the machine has given to
//! them alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use netram_far_machine::arena::{
    ArenaMachine as Machine, ArrivalAction, CostModel, FaultAction, MoveFollowUp, Page, StagingFrame,
};
use netram_far_machine::limit::PAGE_BYTES;
use netram_transport::Waker;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::compression::PlainPage;
use crate::remote_pages::{IdleWork, PageGetError, RemotePages};
use crate::seal::PageBytes;
use crate::sys::{MappedMemory, Uffd, UffdMessage, signal_thread};

pub(super) static ZEROS: PageBytes = [0; PAGE_BYTES];

/// How often a thread that waits looks whether its patience is over.
const PATIENCE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// One page in so many is measured where words are not counted by what it costs: that takes 0.1 us.
const MEASURED: u32 = 8;
/// Between two attempts when the machine has no memory at all.
const NO_MEMORY_WAIT: Duration = Duration::from_millis(5);

/// What is decided, and who waits for it.
pub(super) struct ArenaMonitor {
    state: Mutex<ArenaState>,
    /// A page has come, or is lost, or all is over.
    pub(super) changed: Condvar,
    /// Eviction has work, or the depot has less aside.
    pub(super) evict: Condvar,
    /// Pages are to be brought ahead.
    pub(super) ahead: Condvar,
    /// A handler that does not hear is to look.
    pub(super) idle: Condvar,
    /// Faults wait that no message tells of, and whoever hears sleeps.
    pub(super) waker: Waker,
    /// Nothing is evicted or brought ahead any more.
    pub(super) stopping: AtomicBool,
    /// No fault is served any more. It comes after: eviction waits for what only handlers read.
    pub(super) ended: AtomicBool,
}

pub(super) struct ArenaState {
    pub(super) machine: Machine,
    /// What pages and words cost.
    pub(super) costs: CostModel,
    /// Faults that were read by who had no time for them.
    pub(super) deferred: VecDeque<PageFault>,
    /// A handler hears of faults.
    pub(super) listening: bool,
    /// It sleeps until it does.
    pub(super) sleeps: bool,
    /// Handlers that wait for [`ArenaMonitor::idle`].
    pub(super) idle: usize,
    /// Threads of the program that wait for [`ArenaMonitor::changed`].
    pub(super) waiting: usize,
    /// Threads that serve the arena. Whatever they need must not lie in it.
    pub(super) own_threads: Vec<u32>,
    /// The one of them that copies pages out, where pages cannot be moved.
    pub(super) copier: Option<u32>,
    /// A page that it empties: the kernel tells of that as if the program did.
    pub(super) emptying: Option<Page>,
}

/// A thread waits for a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageFault {
    pub(super) page: Page,
    /// The byte of the arena, if the kernel tells it; else where the page begins.
    pub(super) at: u64,
    pub(super) thread: u32,
}

pub(super) struct ArenaCore {
    pub(super) monitor: Arc<ArenaMonitor>,
    pub(super) remote_pages: RemotePages,
    /// What the program sees.
    pub(super) memory: Arc<MappedMemory>,
    /// The berths.
    pub(super) staging: MappedMemory,
    pub(super) uffd: Uffd,
    /// By this pages are moved into berths. `None`: the kernel cannot; they are copied.
    pub(super) move_uffd: Option<Uffd>,
    /// What a page costs is measured, for words are counted by it.
    pub(super) measures: bool,
    /// Pages that leave are compressed: to stay here, or to take less of a link.
    pub(super) compresses: bool,
    /// Pages stay here compressed.
    pub(super) packs: bool,
    /// Those that do. Whoever has the hub may take this, and never the other way round.
    pub(super) pack: Mutex<BTreeMap<Page, PlainPage>>,
    /// A lost page can be made a bus error once and for all.
    pub(super) poisons: bool,
    /// Held to read messages, and shared to put pages into sight: what the program throws away is known
    /// before it is asked whether a page may come, or is thrown away after it came.
    pub(super) layout_lock: RwLock<()>,
}

impl ArenaMonitor {
    pub(super) fn new(machine: Machine, bell: Waker) -> ArenaMonitor {
        ArenaMonitor {
            state: Mutex::new(ArenaState {
                machine,
                costs: CostModel::default(),
                deferred: VecDeque::new(),
                listening: false,
                sleeps: false,
                idle: 0,
                waiting: 0,
                own_threads: Vec::new(),
                copier: None,
                emptying: None,
            }),
            changed: Condvar::new(),
            evict: Condvar::new(),
            ahead: Condvar::new(),
            idle: Condvar::new(),
            waker: bell,
            stopping: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ArenaState> {
        // A panic of a thread that serves ends the process (`handler.rs`).
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// A handler looks what it can do: one that has nothing to do, or else the one that hears.
    pub(super) fn notify_handler(&self, state: &ArenaState) {
        match state.idle {
            0 if state.sleeps => self.wake_listener(),
            0 => (),
            _ => self.idle.notify_one(),
        }
    }

    /// All handlers look.
    pub(super) fn notify_all_handlers(&self) {
        self.idle.notify_all();
        self.wake_listener();
    }

    fn wake_listener(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the arena's handlers could not be woken");
        }
    }

    /// Another one is to serve it.
    pub(super) fn defer(&self, fault: PageFault) {
        let mut state = self.lock();
        state.deferred.push_back(fault);
        self.notify_handler(&state);
    }

    /// Waits until something has come, or room has been made; or for a little, for patience ends without
    /// word.
    pub(super) fn wait_a_while<'a>(
        &'a self,
        mut state: MutexGuard<'a, ArenaState>,
    ) -> MutexGuard<'a, ArenaState> {
        state.waiting += 1;
        let waited = self.changed.wait_timeout(state, PATIENCE_POLL_INTERVAL);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    /// A page may leave that could not a moment ago: it has come, or somebody has let it go. While somebody
    /// waits for a frame, the evictor looks again. It may have found none that may leave, and heard of
    /// nothing since.
    pub(super) fn may_leave(&self, state: &ArenaState) {
        if state.machine.has_starved() {
            self.evict.notify_one();
        }
    }

    /// Whoever has something to do after a fault was noted is woken.
    pub(super) fn notify_waiting(&self, state: &ArenaState) {
        if state.machine.is_low() && !state.machine.has_enough_in_flight() {
            self.evict.notify_one();
        }
        if state.machine.has_ahead() {
            self.ahead.notify_one();
        }
    }
}

impl ArenaState {
    /// Whether there are faults that no message tells of, and that can be served.
    pub(super) fn has_waiting(&self) -> bool {
        !self.deferred.is_empty() || self.machine.has_starved() && self.machine.free() > 0
    }
}

impl ArenaCore {
    /// How many pages it has.
    pub(super) fn pages(&self) -> u32 {
        (self.memory.bytes() / PAGE_BYTES) as u32
    }

    /// Gives a fault what the machine says.
    pub(super) fn serve(&self, page: Page, serve: FaultAction, thread: u32, meanwhile: &mut dyn IdleWork) {
        match serve {
            FaultAction::Resident | FaultAction::Wait | FaultAction::Starved => (),
            FaultAction::Check | FaultAction::Zero => self.map_page(page, &ZEROS),
            FaultAction::Activate(berth) => self.activate(page, berth),
            FaultAction::Unpack => self.unpack(page),
            // By what a page costs words are counted, and pages are packed.
            FaultAction::Fetch if self.measures || page.0.is_multiple_of(MEASURED) => {
                self.fetch_measured(page, meanwhile);
            }
            FaultAction::Fetch => self.fetch(page, meanwhile),
            FaultAction::Lost if self.poisons => self.wake(page),
            FaultAction::Lost => signal_thread(thread, Signal::BUS),
        }
    }

    /// Brings a page from the pack.
    fn unpack(&self, page: Page) {
        let packed = self.pack().remove(&page);
        let mut bytes = ZEROS;
        packed
            .expect("a page that is packed is in the pack")
            .unpack(&mut bytes);
        self.map_page(page, &bytes);
    }

    pub(super) fn pack(&self) -> MutexGuard<'_, BTreeMap<Page, PlainPage>> {
        // A panic of a thread that serves ends the process (`handler.rs`).
        self.pack.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings a page that somebody waits for.
    fn fetch_measured(&self, page: Page, meanwhile: &mut dyn IdleWork) {
        let began = Instant::now();
        self.fetch(page, meanwhile);
        let ns = began.elapsed().as_nanos() as u64;
        let mut state = self.monitor.lock();
        state.costs.page_took(ns);
        state.machine.fetch_took(ns);
    }

    /// Brings a page from the depot.
    pub(super) fn fetch(&self, page: Page, meanwhile: &mut dyn IdleWork) {
        let mut bytes = ZEROS;
        match self.remote_pages.get_while(page, &mut bytes, meanwhile) {
            Ok(_) => {
                self.apply_patch(page, &mut bytes);
                self.map_page(page, &bytes);
            }
            Err(error) => self.not_fetched(page, &error),
        }
    }

    pub(super) fn not_fetched(&self, page: Page, error: &PageGetError) {
        match error {
            PageGetError::Lost { .. } => self.lose(page, error),
            PageGetError::Failed if self.monitor.is_stopping() => (),
            PageGetError::Failed => panic!("the depot has failed, and with it the arena"),
        }
    }

    pub(super) fn map_page(&self, page: Page, bytes: &PageBytes) {
        let mut bytes = bytes;
        loop {
            let shape = self.layout_lock.read().unwrap_or_else(PoisonError::into_inner);
            let put = match self.arrive(page) {
                ArrivalAction::Bytes => self.uffd.copy(&self.memory, offset(page), bytes),
                ArrivalAction::Zeros => {
                    bytes = &ZEROS;
                    self.uffd.copy(&self.memory, offset(page), bytes)
                }
                ArrivalAction::Stage(berth) => {
                    drop(shape);
                    return self.stage(page, berth, bytes);
                }
            };
            drop(shape);
            if self.is_done(put, page) {
                return self.came(page);
            }
        }
    }

    /// Shows a page that was hidden.
    pub(super) fn activate(&self, page: Page, berth: StagingFrame) {
        let mut zeros = false;
        loop {
            let shape = self.layout_lock.read().unwrap_or_else(PoisonError::into_inner);
            zeros |= self.arrive(page) == ArrivalAction::Zeros;
            let put = match zeros {
                true => self.uffd.copy(&self.memory, offset(page), &ZEROS).map(|()| false),
                false => self.move_in(page, berth),
            };
            drop(shape);
            let moved = put == Ok(true);
            if self.is_done(put.map(|_| ()), page) {
                if !moved {
                    self.empty(&[berth]);
                }
                return self.came(page);
            }
        }
    }

    /// Whether the berth is empty by that.
    fn move_in(&self, page: Page, berth: StagingFrame) -> Result<bool, Errno> {
        let (to, from) = (offset(page), staging_offset(berth));
        if self.move_uffd.is_some() {
            let moved = self.uffd.take(&self.memory, to, &self.staging, from, PAGE_BYTES);
            // Somebody has it in use, or has locked the arena: it is copied.
            if !matches!(moved, Err(Errno::BUSY | Errno::INVAL)) {
                return moved.map(|()| true);
            }
        }
        self.uffd
            .copy_from(&self.memory, to, &self.staging, from, PAGE_BYTES)
            .map(|()| false)
    }

    /// Whether a page is where it was to be put. If not, it is to be tried again.
    fn is_done(&self, put: Result<(), Errno>, page: Page) -> bool {
        match put {
            Ok(()) => true,
            // What is there is newer; or nothing is there any more, for the program has unmapped it.
            Err(Errno::EXIST | Errno::NOENT) => {
                self.wake(page);
                true
            }
            // The program is throwing something away, and waits until somebody has read that.
            Err(Errno::AGAIN) => {
                if let Some(fault) = self.next_fault() {
                    self.monitor.defer(fault);
                }
                std::thread::yield_now();
                false
            }
            Err(Errno::NOMEM) => {
                tracing::warn!("this machine has no memory for a page; it is tried again");
                std::thread::sleep(NO_MEMORY_WAIT);
                false
            }
            // The process is ending.
            Err(Errno::SRCH) => true,
            Err(error) => panic!("page {} could not be put into sight: {error}", page.0),
        }
    }

    /// Keeps a page that nobody waits for out of sight.
    pub(super) fn stage(&self, page: Page, berth: StagingFrame, bytes: &PageBytes) {
        let held = match &self.move_uffd {
            Some(exchange) => loop {
                match exchange.copy(&self.staging, staging_offset(berth), bytes) {
                    Err(Errno::NOMEM | Errno::AGAIN) => std::thread::sleep(NO_MEMORY_WAIT),
                    held => break held,
                }
            },
            None => {
                self.staging.write(staging_offset(berth), bytes);
                Ok(())
            }
        };
        if let Err(error) = held {
            panic!("a free berth took no page: {error}");
        }
        let next = self.tell(page, |machine| machine.staged(page));
        self.follow(page, next);
    }

    fn lose(&self, page: Page, why: &PageGetError) {
        let shape = self.layout_lock.read().unwrap_or_else(PoisonError::into_inner);
        if self.arrive_by(page, Machine::arrive_lost) == ArrivalAction::Zeros {
            drop(shape);
            return self.map_page(page, &ZEROS);
        }
        tracing::error!(error = %why, "a reference to it is a bus error");
        let poisoned = match self.poisons {
            true => self.uffd.poison(&self.memory, offset(page), PAGE_BYTES),
            false => Ok(()),
        };
        drop(shape);
        if let Err(Errno::AGAIN) = poisoned {
            self.is_done(poisoned, page);
            return self.lose(page, why);
        }
        let next = self.tell(page, |machine| machine.lost(page));
        self.wake(page);
        self.follow(page, next);
    }

    fn came(&self, page: Page) {
        let next = self.tell(page, |machine| machine.came(page));
        self.follow(page, next);
    }

    /// Tells the machine of the same move of each of these, and does what is left to do for them; berths are
    /// emptied together.
    pub(super) fn tell_all(
        &self,
        pages: impl Iterator<Item = Page>,
        what: impl Fn(&mut Machine, Page) -> MoveFollowUp,
    ) {
        let mut state = self.monitor.lock();
        let tell = |page| (page, self.ask(&mut state, page, |machine| what(machine, page)));
        let next: Vec<(Page, MoveFollowUp)> = pages.map(tell).collect();
        self.wake_after_tell(&state);
        drop(state);
        let mut dropped = Vec::new();
        for (page, next) in next {
            match next {
                MoveFollowUp::Done => (),
                MoveFollowUp::Drop(berth) | MoveFollowUp::Forget(berth) => dropped.push(berth),
                next => self.follow(page, next),
            }
        }
        self.drop_staging(dropped);
    }

    /// Does what is left to do for a page.
    pub(super) fn follow(&self, page: Page, next: MoveFollowUp) {
        match next {
            MoveFollowUp::Done | MoveFollowUp::Abandon => (),
            MoveFollowUp::Wake => self.wake(page),
            MoveFollowUp::Zero => self.map_page(page, &ZEROS),
            MoveFollowUp::Activate(berth) => self.activate(page, berth),
            MoveFollowUp::Drop(berth) | MoveFollowUp::Forget(berth) => self.drop_staging(vec![berth]),
        }
    }

    /// Tells the machine of a move; what the depot is to forget is forgotten before anybody else asks.
    pub(super) fn tell(&self, page: Page, what: impl FnOnce(&mut Machine) -> MoveFollowUp) -> MoveFollowUp {
        let mut state = self.monitor.lock();
        let next = self.ask(&mut state, page, what);
        self.wake_after_tell(&state);
        next
    }

    fn ask(
        &self,
        state: &mut ArenaState,
        page: Page,
        what: impl FnOnce(&mut Machine) -> MoveFollowUp,
    ) -> MoveFollowUp {
        let next = what(&mut state.machine);
        if let MoveFollowUp::Forget(_) | MoveFollowUp::Abandon = next {
            self.remote_pages.forget(page);
        }
        next
    }

    fn wake_after_tell(&self, state: &ArenaState) {
        if state.waiting > 0 {
            self.monitor.changed.notify_all();
        }
        if state.has_waiting() {
            self.monitor.notify_handler(state);
        }
        self.monitor.may_leave(state);
    }

    pub(super) fn arrive(&self, page: Page) -> ArrivalAction {
        self.arrive_by(page, Machine::arrive)
    }

    fn arrive_by(
        &self,
        page: Page,
        arrive: impl FnOnce(&mut Machine, Page) -> ArrivalAction,
    ) -> ArrivalAction {
        let mut state = self.monitor.lock();
        let arrive = arrive(&mut state.machine, page);
        if arrive == ArrivalAction::Zeros {
            self.remote_pages.forget(page);
        }
        arrive
    }

    pub(super) fn wake(&self, page: Page) {
        // What is not there any more has nobody waiting.
        let _ = self.uffd.wake(&self.memory, offset(page), PAGE_BYTES);
    }

    /// Empties berths, and tells who waits for a frame.
    pub(super) fn drop_staging(&self, mut berths: Vec<StagingFrame>) {
        if berths.is_empty() {
            return;
        }
        berths.sort_unstable();
        self.empty(&berths);
        let mut state = self.monitor.lock();
        berths.iter().for_each(|berth| state.machine.dropped(*berth));
        if state.machine.has_starved() {
            self.monitor.notify_handler(&state);
        }
    }

    /// Berths that stand together are emptied together. They are in order.
    fn empty(&self, berths: &[StagingFrame]) {
        for run in berths.chunk_by(|one, next| one.0 + 1 == next.0) {
            let Some(first) = run.first() else { continue };
            if let Err(error) = self.staging.empty(first.0 as usize, run.len()) {
                panic!("berths could not be emptied: {error}");
            }
        }
    }

    /// Reads what the kernel tells, up to the next fault. `None`: it tells nothing more.
    pub(super) fn next_fault(&self) -> Option<PageFault> {
        loop {
            let mut dropped = Vec::new();
            let shape = self.layout_lock.write().unwrap_or_else(PoisonError::into_inner);
            let message = match self.uffd.read() {
                Ok(message) => message?,
                Err(error) => panic!("the kernel does not tell of faults any more: {error}"),
            };
            match message {
                UffdMessage::Fault { address, thread, .. } => {
                    if let Some((page, at)) = self.page_at(address) {
                        return Some(PageFault { page, at, thread });
                    }
                    // A part of the arena that was moved away from it.
                    signal_thread(thread, Signal::BUS);
                }
                UffdMessage::Removed { start, end } | UffdMessage::Unmapped { start, end } => {
                    dropped = self.discard_range(start, end);
                }
                UffdMessage::Remapped { from, bytes } => {
                    tracing::error!(
                        "a part of an arena was moved by mremap: what was not here of it is a bus error"
                    );
                    dropped = self.discard_range(from, from + bytes);
                }
            }
            drop(shape);
            self.drop_staging(dropped);
        }
    }

    /// The program throws away what is there. What is to be dropped for it.
    fn discard_range(&self, start: usize, end: usize) -> Vec<StagingFrame> {
        let base = self.memory.address();
        let page = |address: usize| (address.max(base) - base) / PAGE_BYTES;
        let mut state = self.monitor.lock();
        let known = state.machine.extent() as usize;
        let pages = page(start).min(known)..page(end).min(known);
        let single = pages.len() == 1;
        let mut dropped = Vec::new();
        for page in pages.map(|page| Page(page as u32)) {
            if single && state.emptying == Some(page) {
                state.emptying = None;
                continue;
            }
            dropped.extend(self.discard(&mut state, page));
        }
        dropped
    }

    pub(super) fn discard(&self, state: &mut ArenaState, page: Page) -> Option<StagingFrame> {
        let discarded = state.machine.discard(page);
        if discarded.forget {
            self.remote_pages.forget(page);
        }
        if discarded.packed {
            self.pack().remove(&page);
        }
        discarded.drop
    }

    fn page_at(&self, address: usize) -> Option<(Page, u64)> {
        let offset = address.checked_sub(self.memory.address())?;
        (offset < self.memory.bytes()).then_some((Page((offset / PAGE_BYTES) as u32), offset as u64))
    }
}

/// Where a page is in the arena.
pub(super) fn offset(page: Page) -> usize {
    page.0 as usize * PAGE_BYTES
}

pub(super) fn staging_offset(berth: StagingFrame) -> usize {
    berth.0 as usize * PAGE_BYTES
}
