//! What a node's threads share: its memory, the machine under its lock, and how one is told and the others hear of it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use netram_proto::time::Time;
use netram_rvm::{RealStorage, Region, Rvm};
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::Fate;
use netram_shared_machine::node::Waited;
use netram_shared_machine::{LockId, NodeId, Number, RegionId};
use netram_transport::{WaitPolicy, WaitStep};

use super::clock::Clock;
use super::core::{Afterwards, Core, Sleeper};
use super::error::{AcquireError, Gone};
use super::hands::Hands;
use super::mark::Mark;
use super::news::News;
use super::old::LeftBehind;
use super::peers::{Listening, Peers};
use super::tails::Tails;
use super::txn::Stores;
use crate::channel::Bell;
use crate::server::{Span, Spans};

/// Who waits for a lock looks up this often: a forgotten wake-up costs a delay, not a hang.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// An answer that does not come is asked for again this often: the link may have broken.
const ASK_EVERY: Duration = Duration::from_millis(500);
/// A question that nobody can answer yet is asked again this often.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// See the module.
pub(super) struct Shared {
    pub(super) region: Arc<Region>,
    pub(super) rvm: Rvm<Tails, RealStorage>,
    pub(super) spans: Spans,
    /// The same, ascending by offset.
    pub(super) places: Vec<Span>,
    pub(super) id: NodeId,
    core: Mutex<Core>,
    told: Condvar,
    /// For whoever waits until something is visible.
    pub(super) news: News,
    /// Peers, for a node that takes records of them.
    pub(super) peers: OnceLock<Peers>,
    pub(super) hands: Hands,
    /// Ends the rest of the link's thread, while it has one.
    bell: Mutex<Option<Arc<Bell>>>,
    /// There is something to send: the link's thread need not take the lock to know.
    pub(super) post: AtomicBool,
    /// Somebody may wait for the server to have that.
    pub(super) hurry: AtomicBool,
    /// The link's thread sends nothing for a moment, unless it is to hurry.
    pub(super) pauses: AtomicBool,
    /// The machine holds the link to be silent: the link's thread is to see to it.
    pub(super) silent: AtomicBool,
    /// There is no node any more.
    over: AtomicBool,
    stopping: AtomicBool,
    clock: Clock,
    pub(super) wait: WaitPolicy,
    pub(super) mark: Mark,
    pub(super) stores: Stores,
    pub(super) birth: Birth,
    /// Transactions that may store, and how many have ever been.
    pub(super) writers: AtomicUsize,
    pub(super) entered: AtomicU64,
    /// What earlier processes left.
    left: Mutex<Vec<LeftBehind>>,
}

/// What the node was told of the region when it joined, and what it called itself.
pub(super) struct Birth {
    pub(super) region: RegionId,
    pub(super) address: u64,
    pub(super) settings: String,
    pub(super) name: String,
}

/// What [`Shared`] is made of.
pub(super) struct Parts {
    pub(super) region: Region,
    pub(super) rvm: Rvm<Tails, RealStorage>,
    pub(super) spans: Spans,
    pub(super) id: NodeId,
    pub(super) core: Core,
    pub(super) clock: Clock,
    pub(super) wait: WaitPolicy,
    pub(super) mark: Mark,
    pub(super) stores: Stores,
    pub(super) birth: Birth,
}

impl Shared {
    pub(super) fn new(parts: Parts) -> Shared {
        let mut places: Vec<Span> = parts.spans.iter().copied().collect();
        places.sort_unstable_by_key(|span| span.offset);
        Shared {
            region: Arc::new(parts.region),
            rvm: parts.rvm,
            spans: parts.spans,
            places,
            id: parts.id,
            core: Mutex::new(parts.core),
            told: Condvar::new(),
            news: News::default(),
            peers: OnceLock::new(),
            hands: Hands::default(),
            bell: Mutex::new(None),
            // What joining had to say.
            post: AtomicBool::new(true),
            hurry: AtomicBool::new(true),
            pauses: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            over: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            clock: parts.clock,
            wait: parts.wait,
            mark: parts.mark,
            stores: parts.stores,
            birth: parts.birth,
            writers: AtomicUsize::new(0),
            entered: AtomicU64::new(0),
            left: Mutex::default(),
        }
    }

    pub(super) fn left(&self) -> MutexGuard<'_, Vec<LeftBehind>> {
        self.left.lock().expect("nothing panics under this lock")
    }

    pub(super) fn set_left(&self, roots: Vec<PathBuf>) {
        let left = roots.into_iter().map(|path| LeftBehind { path, failed: None });
        *self.left() = left.collect();
    }

    /// Tells the machine something, and sees to what comes of it.
    pub(super) fn with<T>(&self, tell: impl FnOnce(&mut Core, Time) -> T) -> T {
        let mut core = self.core();
        let told = tell(&mut core, self.now());
        let afterwards = core.settle(&self.hands, self.peers.get());
        if core.gone.is_some() {
            self.over.store(true, Ordering::Release);
        }
        drop(core);
        self.follow(afterwards);
        self.news.tell();
        told
    }

    #[inline]
    fn follow(&self, afterwards: Afterwards) {
        if let Some(kept) = afterwards.kept {
            self.rvm.log().on_kept(kept);
        }
        if afterwards.fenced {
            self.rvm.log().journal().set_fenced_by_server();
        }
        if afterwards.straight
            && let Some(peers) = self.peers.get()
        {
            peers.send();
        }
        if afterwards.sends {
            self.post.store(true, Ordering::SeqCst);
            if afterwards.hurries {
                self.hurry.store(true, Ordering::SeqCst);
                self.ring();
            } else if !self.pauses.load(Ordering::SeqCst) {
                self.ring();
            }
        }
        if afterwards.applies {
            match self.hands.try_catch_up(&self.region) {
                Ok(true) => {}
                Ok(false) => self.hands.wake(),
                Err(gone) => self.fail(gone),
            }
        }
        if afterwards.news {
            self.told.notify_all();
        }
    }

    /// The node's lock. A thread that panicked under it broke an invariant of ours: so does whoever comes next.
    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("a thread of this node panicked")
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// The node is none any more. What it has appended and nobody acknowledged is of unknown outcome from now on.
    pub(super) fn fail(&self, gone: Gone) {
        self.core().fail(gone);
        self.over.store(true, Ordering::Release);
        self.rvm.log().journal().set_fenced_by_server();
        self.told.notify_all();
        self.news.tell();
        self.ring();
    }

    /// Everything that the machine said is to be applied is in the memory. No guard of the region may be held.
    #[inline]
    pub(super) fn catch_up(&self) -> Result<(), Gone> {
        let caught_up = self.hands.catch_up(&self.region);
        caught_up.inspect_err(|gone| self.fail(gone.clone()))
    }

    /// Waits until a transaction's waiting has ended.
    pub(super) fn sleep(&self, txn: TxnId, sleeper: &Sleeper) -> Result<(), AcquireError> {
        let since = Instant::now();
        let mut listening = Some(Listening::begin(self));
        while !sleeper.done.load(Ordering::Acquire) {
            match self.wait.step(since.elapsed()) {
                WaitStep::Block => {
                    if let Some(listening) = listening.take() {
                        listening.hand_back();
                    }
                    std::thread::park_timeout(SLEEP_MAX);
                }
                step => self.listen(listening.as_ref(), step),
            }
        }
        let mut core = self.core();
        match core.fetch_waited(txn) {
            Some(Waited::Held(_)) => Ok(()),
            Some(Waited::Died(_, lock)) => Err(AcquireError::Died(lock)),
            Some(Waited::TimedOut(_, lock)) => Err(AcquireError::TimedOut(lock)),
            Some(Waited::Lost(_)) => Err(core
                .alive()
                .map_or_else(AcquireError::Gone, |()| AcquireError::Lost)),
            None => Err(core
                .alive()
                .map_or_else(AcquireError::Gone, |()| AcquireError::Lost)),
        }
    }

    /// The span that has this byte, or the next above it.
    pub(super) fn span_at(&self, offset: u64) -> Option<&Span> {
        let place = self.places.partition_point(|span| span.end() <= offset);
        self.places.get(place)
    }

    pub(super) fn lock_at(&self, offset: u64) -> Option<LockId> {
        let span = self.span_at(offset)?;
        (span.offset <= offset).then_some(span.lock)
    }

    /// Waits until `look` finds what it looks for, the time is over, or the node's threads are to end.
    pub(super) fn wait_told<T>(
        &self,
        until: Instant,
        mut look: impl FnMut(&mut Core) -> Option<T>,
    ) -> Option<T> {
        let mut core = self.core();
        loop {
            if let Some(found) = look(&mut core) {
                return Some(found);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.is_stopping() {
                return None;
            }
            let waited = self.told.wait_timeout(core, left);
            core = waited.expect("a thread of this node panicked").0;
        }
    }

    /// Asks the server what became of a record until it knows, or the time is over.
    pub(super) fn outcome(&self, node: NodeId, number: Number, until: Instant) -> Result<Fate, Gone> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.ask(node, number, left.min(ASK_EVERY))? {
                Some(fate) if fate != Fate::Open => return Ok(fate),
                _ if Instant::now() >= until || self.is_stopping() => return Ok(Fate::Open),
                _ => std::thread::sleep(ASK_AGAIN),
            }
        }
    }

    /// Asks once. `None`: there was no answer in time.
    pub(super) fn ask(&self, node: NodeId, number: Number, patience: Duration) -> Result<Option<Fate>, Gone> {
        self.with(|core, _| {
            core.alive()?;
            core.fates.remove(&(node, number));
            core.machine.ask_outcome(node, number);
            Ok::<(), Gone>(())
        })?;
        let answer = self.wait_told(Instant::now() + patience, |core| {
            match core.fates.remove(&(node, number)) {
                Some(fate) => Some(Ok(fate)),
                None => core.alive().err().map(Err),
            }
        });
        answer.transpose()
    }

    pub(super) fn set_bell(&self, bell: Option<Arc<Bell>>) {
        *self.bell.lock().expect("nothing panics under this lock") = bell;
    }

    fn ring(&self) {
        if let Some(bell) = &*self.bell.lock().expect("nothing panics under this lock") {
            bell.ring();
        }
    }

    /// Ends the node's threads, soon.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        if let Some(peers) = self.peers.get() {
            peers.ring();
        }
        self.ring();
        self.hands.wake();
        // Whoever has looked before waits by now.
        drop(self.core.lock());
        self.told.notify_all();
    }

    /// Whether the link is of no use any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.is_stopping()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}
