//! State shared by an arena's threads, and the moves they make: each of a page that the machine has assigned
//! to the caller alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use netram_far_machine::arena::{
    ArenaMachine as Machine, ArrivalAction, CostModel, FaultAction, MoveFollowUp, Page, StagingFrame,
};
use netram_far_machine::limit::PAGE_BYTES;
use netram_transport::Waker;
use rustix::io::Errno;
use rustix::process::Signal;

use super::fault_listener::PageFault;
use super::metrics::ArenaTimes;
use crate::compression::PlainPage;
use crate::remote_pages::{PageGetError, RemotePages};
use crate::seal::PageBytes;
use crate::sys::{MappedMemory, Uffd, UffdMessage, signal_thread};

pub(super) static ZEROS: PageBytes = [0; PAGE_BYTES];

/// Interval at which a waiting thread checks its patience.
const PATIENCE_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Delay between two attempts when the machine has no free memory.
const NO_MEMORY_WAIT: Duration = Duration::from_millis(5);

/// The state of an arena, with its condition variables.
pub(super) struct ArenaMonitor {
    state: Mutex<ArenaState>,
    /// Signalled when a page arrived or is lost, and at the end.
    pub(super) changed: Condvar,
    /// Signalled when the evictor has work, or fewer pages are pending.
    pub(super) evict: Condvar,
    /// Signalled when pages are to be prefetched.
    pub(super) ahead: Condvar,
    /// Signalled when an idle handler has work.
    pub(super) idle: Condvar,
    /// Wakes the listening handler for faults without a message.
    pub(super) waker: Waker,
    /// Stops the evictor and the prefetcher.
    pub(super) stopping: AtomicBool,
    /// Stops the handlers. Set later, because the evictor waits for messages that only handlers read.
    pub(super) ended: AtomicBool,
}

pub(super) struct ArenaState {
    pub(super) machine: Machine,
    /// Measured costs of pages and words.
    pub(super) costs: CostModel,
    /// Faults read by a thread that was busy.
    pub(super) deferred: VecDeque<PageFault>,
    /// Whether a handler listens for faults.
    pub(super) listening: bool,
    /// Whether the listening handler sleeps.
    pub(super) sleeps: bool,
    /// Number of handlers that wait for [`ArenaMonitor::idle`].
    pub(super) idle: usize,
    /// Number of the program's threads that wait for [`ArenaMonitor::changed`].
    pub(super) waiting: usize,
    /// Ids of the threads that serve the arena. Memory that they need must not be in it.
    pub(super) own_threads: Vec<u32>,
    /// Id of the thread that copies pages out if the kernel cannot move them.
    pub(super) copier: Option<u32>,
    /// Page that the evictor is discarding. The kernel reports that like a discard by the program, and it
    /// must be ignored.
    pub(super) emptying: Option<Page>,
}

pub(super) struct ArenaCore {
    pub(super) monitor: Arc<ArenaMonitor>,
    pub(super) remote_pages: RemotePages,
    /// Memory that the program sees.
    pub(super) memory: Arc<MappedMemory>,
    /// Memory of the staging frames.
    pub(super) staging: MappedMemory,
    pub(super) uffd: Uffd,
    /// Moves pages to staging frames. `None`: the kernel cannot; pages are copied.
    pub(super) move_uffd: Option<Uffd>,
    /// Whether page fetches are measured for the word counters.
    pub(super) measures: bool,
    /// Whether evicted pages are compressed, to be packed or to save transfer time.
    pub(super) compresses: bool,
    /// Whether pages are packed.
    pub(super) packs: bool,
    /// The packed pages. Lock order: the monitor before this.
    pub(super) pack: Mutex<BTreeMap<Page, PlainPage>>,
    /// Whether a lost page can be poisoned, so that each reference raises a bus error.
    pub(super) poisons: bool,
    /// Held exclusively to read kernel messages, and shared to map pages. A discard is thus recorded either
    /// before a page may arrive or after it has.
    pub(super) layout_lock: RwLock<()>,
    /// The cap in pages.
    pub(super) frames: u32,
    pub(super) times: ArenaTimes,
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
        // A panic of a serving thread ends the process (`handler.rs`).
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Has a handler look for work: an idle one if there is one, otherwise the listener.
    pub(super) fn notify_handler(&self, state: &ArenaState) {
        match state.idle {
            0 if state.sleeps => self.wake_listener(),
            0 => (),
            _ => self.idle.notify_one(),
        }
    }

    /// Has all handlers look for work.
    pub(super) fn notify_all_handlers(&self) {
        self.idle.notify_all();
        self.wake_listener();
    }

    fn wake_listener(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the handlers of far memory could not be woken");
        }
    }

    /// Leaves a fault to another handler.
    pub(super) fn defer(&self, fault: PageFault) {
        let mut state = self.lock();
        state.deferred.push_back(fault);
        self.notify_handler(&state);
    }

    /// Waits until a page has arrived or a frame is free, but not longer than the interval at which patience
    /// is checked.
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

    /// Notes that a page may be evictable now. If threads wait for a frame, the evictor looks again: it may
    /// have found no evictable page, and not been told since.
    pub(super) fn may_leave(&self, state: &ArenaState) {
        if state.machine.has_starved() {
            self.evict.notify_one();
        }
    }

    /// Wakes the threads that have work after a fault was noted.
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
    /// Whether there are faults without a message that can be served.
    pub(super) fn has_waiting(&self) -> bool {
        !self.deferred.is_empty() || self.machine.has_starved() && self.machine.free() > 0
    }
}

impl ArenaCore {
    /// Number of pages.
    pub(super) fn pages(&self) -> u32 {
        (self.memory.bytes() / PAGE_BYTES) as u32
    }

    /// Carries out the machine's action for a fault.
    pub(super) fn serve(&self, page: Page, serve: FaultAction, thread: u32) {
        if serve == FaultAction::Fetch {
            return self.fetch(page);
        }
        let _timed = self.times.begin(serve);
        match serve {
            FaultAction::Resident | FaultAction::Wait | FaultAction::Starved | FaultAction::Fetch => (),
            FaultAction::Check | FaultAction::Zero => self.map_page(page, &ZEROS),
            FaultAction::Activate(berth) => self.activate(page, berth),
            FaultAction::Unpack => self.unpack(page),
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
        // A panic of a serving thread ends the process (`handler.rs`).
        self.pack.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Maps an inactive page.
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

    /// Maps the page of a staging frame. Returns whether the frame is empty then.
    fn move_in(&self, page: Page, berth: StagingFrame) -> Result<bool, Errno> {
        let (to, from) = (offset(page), staging_offset(berth));
        if self.move_uffd.is_some() {
            let moved = self.uffd.take(&self.memory, to, &self.staging, from, PAGE_BYTES);
            // The page is in use, or the arena is locked: copy it.
            if !matches!(moved, Err(Errno::BUSY | Errno::INVAL)) {
                return moved.map(|()| true);
            }
        }
        self.uffd
            .copy_from(&self.memory, to, &self.staging, from, PAGE_BYTES)
            .map(|()| false)
    }

    /// Whether a page was mapped; otherwise the attempt is to be repeated.
    fn is_done(&self, put: Result<(), Errno>, page: Page) -> bool {
        match put {
            Ok(()) => true,
            // A newer page is mapped there already, or the program has unmapped the range.
            Err(Errno::EXIST | Errno::NOENT) => {
                self.wake(page);
                true
            }
            // The program is discarding memory, and waits until that message is read.
            Err(Errno::AGAIN) => {
                if let Some(fault) = self.next_fault() {
                    self.monitor.defer(fault);
                }
                std::thread::yield_now();
                false
            }
            Err(Errno::NOMEM) => {
                tracing::warn!("this machine has no free memory for a page; retrying");
                std::thread::sleep(NO_MEMORY_WAIT);
                false
            }
            // The process is ending.
            Err(Errno::SRCH) => true,
            Err(error) => panic!("page {} of far memory could not be mapped: {error}", page.0),
        }
    }

    /// Puts a prefetched page into a staging frame.
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
            panic!("a free staging frame rejected a page: {error}");
        }
        let next = self.tell(page, |machine| machine.staged(page));
        self.follow(page, next);
    }

    pub(super) fn lose(&self, page: Page, why: &PageGetError) {
        let shape = self.layout_lock.read().unwrap_or_else(PoisonError::into_inner);
        if self.arrive_by(page, Machine::arrive_lost) == ArrivalAction::Zeros {
            drop(shape);
            return self.map_page(page, &ZEROS);
        }
        tracing::error!(error = %why, "a page of far memory is lost; the program gets a bus error (SIGBUS) where it references it");
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

    /// Reports the same move of several pages to the machine, and does what follows from it. Staging frames
    /// are emptied together.
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

    /// Does what follows from a move.
    pub(super) fn follow(&self, page: Page, next: MoveFollowUp) {
        match next {
            MoveFollowUp::Done | MoveFollowUp::Abandon => (),
            MoveFollowUp::Wake => self.wake(page),
            MoveFollowUp::Zero => self.map_page(page, &ZEROS),
            MoveFollowUp::Activate(berth) => self.activate(page, berth),
            MoveFollowUp::Drop(berth) | MoveFollowUp::Forget(berth) => self.drop_staging(vec![berth]),
        }
    }

    /// Reports a move to the machine. If the page client is to forget the page, that happens before any other
    /// thread asks.
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
        // The range may be unmapped; then no thread waits.
        let _ = self.uffd.wake(&self.memory, offset(page), PAGE_BYTES);
    }

    /// Empties staging frames, and notifies threads that wait for a frame.
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

    /// Empties contiguous staging frames with one call. They must be sorted.
    fn empty(&self, berths: &[StagingFrame]) {
        for run in berths.chunk_by(|one, next| one.0 + 1 == next.0) {
            let Some(first) = run.first() else { continue };
            if let Err(error) = self.staging.empty(first.0 as usize, run.len()) {
                panic!("staging frames could not be emptied: {error}");
            }
        }
    }

    /// Reads the kernel's messages up to the next fault. `None`: there is no further message.
    pub(super) fn next_fault(&self) -> Option<PageFault> {
        loop {
            let mut dropped = Vec::new();
            let shape = self.layout_lock.write().unwrap_or_else(PoisonError::into_inner);
            let message = match self.uffd.read() {
                Ok(message) => message?,
                Err(error) => panic!("reading faults from the kernel failed: {error}"),
            };
            match message {
                UffdMessage::Fault { address, thread, .. } => {
                    if let Some((page, at)) = self.page_at(address) {
                        return Some(PageFault { page, at, thread });
                    }
                    // The fault is in a part of the arena that was moved away.
                    signal_thread(thread, Signal::BUS);
                }
                UffdMessage::Removed { start, end } | UffdMessage::Unmapped { start, end } => {
                    dropped = self.discard_range(start, end);
                }
                UffdMessage::Remapped { from, bytes } => {
                    tracing::error!(
                        "the program moved a part of far memory with mremap; references to its remote pages raise a bus error (SIGBUS)"
                    );
                    dropped = self.discard_range(from, from + bytes);
                }
            }
            drop(shape);
            self.drop_staging(dropped);
        }
    }

    /// Records a discard by the program. Returns the staging frames to empty.
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

/// Offset of a page in the arena, in bytes.
pub(super) fn offset(page: Page) -> usize {
    page.0 as usize * PAGE_BYTES
}

pub(super) fn staging_offset(berth: StagingFrame) -> usize {
    berth.0 as usize * PAGE_BYTES
}
