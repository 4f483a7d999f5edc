//! State that a node's threads share: its memory, the machine under its lock, and the notification of waiting
//! threads.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use netram_proto::time::Time;
use netram_rvm::{RealStorage, Region, Rvm};
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::node::WaitOutcome;
use netram_shared_machine::{LockId, NodeId, RecordNumber, RegionId};
use netram_transport::{WaitPolicy, WaitStep};

use super::apply::RecordApplier;
use super::clock::Clock;
use super::core::{DeferredWork, NodeCore, Sleeper};
use super::error::{AcquireError, NodeGone};
use super::event_count::EventCount;
use super::mark::JournalMark;
use super::metrics::NodeTimes;
use super::node_log::NodeLog;
use super::orphans::OrphanStatus;
use super::peers::{PeerListener, Peers};
use super::txn::StoreTracking;
use crate::channel::ThreadWaker;
use crate::server::{Span, Spans};

/// Maximum sleep of a thread that waits for a lock: a missed wake-up costs a delay, not a hang.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// Pause before a question without an answer is repeated: the link may have broken.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before a question is repeated whose answer is not known yet.
const UNKNOWN_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// State of a node that all its threads share.
pub(super) struct NodeInner {
    pub(super) region: Arc<Region>,
    pub(super) rvm: Rvm<NodeLog, RealStorage>,
    pub(super) spans: Spans,
    /// The spans of `spans`, ascending by offset.
    pub(super) spans_by_offset: Vec<Span>,
    pub(super) id: NodeId,
    core: Mutex<NodeCore>,
    reply_arrived: Condvar,
    /// Notifies threads that wait until something is visible.
    pub(super) event_count: EventCount,
    /// Peers, for a node with direct records.
    pub(super) peers: OnceLock<Peers>,
    pub(super) applier: RecordApplier,
    /// Waker of the link's thread, while it has a link.
    waker: Mutex<Option<Arc<ThreadWaker>>>,
    /// Whether there is something to send. The link's thread reads it without the lock.
    pub(super) has_outgoing: AtomicBool,
    /// Whether a transaction may be waiting for the server to have that.
    pub(super) urgent: AtomicBool,
    /// Whether the link's thread delays sending, unless something is urgent.
    pub(super) pauses: AtomicBool,
    /// Whether the machine considers the link silent; the link's thread has to check.
    pub(super) silent: AtomicBool,
    /// Whether the node has ended.
    over: AtomicBool,
    stopping: AtomicBool,
    clock: Clock,
    pub(super) wait: WaitPolicy,
    pub(super) mark: JournalMark,
    pub(super) stores: StoreTracking,
    pub(super) join_info: JoinInfo,
    pub(super) times: NodeTimes,
    /// Number of transactions that may store now, and in all so far.
    pub(super) writers: AtomicUsize,
    pub(super) entered: AtomicU64,
    /// Journals of earlier processes.
    orphans: Mutex<Vec<OrphanStatus>>,
}

/// Facts about the region and the node's name, as of joining.
pub(super) struct JoinInfo {
    pub(super) region: RegionId,
    pub(super) address: u64,
    pub(super) settings: String,
    pub(super) name: String,
}

/// Parts of a [`NodeInner`].
pub(super) struct NodeParts {
    pub(super) region: Region,
    pub(super) rvm: Rvm<NodeLog, RealStorage>,
    pub(super) spans: Spans,
    pub(super) id: NodeId,
    pub(super) core: NodeCore,
    pub(super) clock: Clock,
    pub(super) wait: WaitPolicy,
    pub(super) mark: JournalMark,
    pub(super) stores: StoreTracking,
    pub(super) join_info: JoinInfo,
}

impl NodeInner {
    pub(super) fn new(parts: NodeParts) -> NodeInner {
        let mut places: Vec<Span> = parts.spans.iter().copied().collect();
        places.sort_unstable_by_key(|span| span.offset);
        NodeInner {
            region: Arc::new(parts.region),
            rvm: parts.rvm,
            spans: parts.spans,
            spans_by_offset: places,
            id: parts.id,
            core: Mutex::new(parts.core),
            reply_arrived: Condvar::new(),
            event_count: EventCount::default(),
            peers: OnceLock::new(),
            applier: RecordApplier::default(),
            waker: Mutex::new(None),
            // Messages of the joining phase.
            has_outgoing: AtomicBool::new(true),
            urgent: AtomicBool::new(true),
            pauses: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            over: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            clock: parts.clock,
            wait: parts.wait,
            mark: parts.mark,
            stores: parts.stores,
            join_info: parts.join_info,
            times: NodeTimes::default(),
            writers: AtomicUsize::new(0),
            entered: AtomicU64::new(0),
            orphans: Mutex::default(),
        }
    }

    pub(super) fn orphans(&self) -> MutexGuard<'_, Vec<OrphanStatus>> {
        self.orphans.lock().expect("nothing panics under this lock")
    }

    pub(super) fn set_orphans(&self, roots: Vec<PathBuf>) {
        let left = roots.into_iter().map(|path| OrphanStatus { path, failed: None });
        *self.orphans() = left.collect();
    }

    /// Calls `tell` with the machine under its lock, and carries out the resulting actions.
    pub(super) fn with<T>(&self, tell: impl FnOnce(&mut NodeCore, Time) -> T) -> T {
        let mut core = self.core();
        let told = tell(&mut core, self.now());
        let afterwards = core.settle(&self.applier, self.peers.get());
        if core.gone.is_some() {
            self.over.store(true, Ordering::Release);
        }
        drop(core);
        self.follow(afterwards);
        self.event_count.notify();
        told
    }

    #[inline]
    fn follow(&self, afterwards: DeferredWork) {
        if let Some(kept) = afterwards.kept {
            self.rvm.log().on_durable(kept);
        }
        if afterwards.fenced {
            self.rvm.log().journal().set_fenced_by_server();
        }
        if afterwards.to_peers
            && let Some(peers) = self.peers.get()
        {
            peers.send();
        }
        if afterwards.sends {
            self.has_outgoing.store(true, Ordering::SeqCst);
            if afterwards.urgent {
                self.urgent.store(true, Ordering::SeqCst);
                self.wake_link();
            } else if !self.pauses.load(Ordering::SeqCst) {
                self.wake_link();
            }
        }
        if afterwards.applies {
            match self.applier.try_catch_up(&self.region) {
                Ok(true) => {}
                Ok(false) => self.applier.wake(),
                Err(gone) => self.fail(gone),
            }
        }
        if afterwards.wake_watchers {
            self.reply_arrived.notify_all();
        }
    }

    /// The node's lock. A thread that panicked under it broke an invariant, so every later caller panics,
    /// too.
    pub(super) fn core(&self) -> MutexGuard<'_, NodeCore> {
        self.core.lock().expect("a thread of this node panicked")
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Ends the node. Records that are appended and not acknowledged are of unknown outcome from now on.
    pub(super) fn fail(&self, gone: NodeGone) {
        self.core().fail(gone);
        self.over.store(true, Ordering::Release);
        self.rvm.log().journal().set_fenced_by_server();
        self.reply_arrived.notify_all();
        self.event_count.notify();
        self.wake_link();
    }

    /// Returns when every record that the machine has accepted is in the memory. The caller must hold no
    /// guard of the region.
    #[inline]
    pub(super) fn catch_up(&self) -> Result<(), NodeGone> {
        let caught_up = self.applier.catch_up(&self.region);
        caught_up.inspect_err(|gone| self.fail(gone.clone()))
    }

    /// Waits until a transaction's wait for locks has ended.
    pub(super) fn sleep(&self, txn: TxnId, sleeper: &Sleeper) -> Result<(), AcquireError> {
        let since = Instant::now();
        let mut listening = Some(PeerListener::begin(self));
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
        self.times.lock_wait.record(since.elapsed());
        let outcome = self.wait_outcome(txn);
        if outcome.is_err() {
            self.times.locks_failed.add(1);
        }
        outcome
    }

    fn wait_outcome(&self, txn: TxnId) -> Result<(), AcquireError> {
        let mut core = self.core();
        match core.take_wait_outcome(txn) {
            Some(WaitOutcome::Acquired(_)) => Ok(()),
            Some(WaitOutcome::Died(_, lock)) => Err(AcquireError::Died(lock)),
            Some(WaitOutcome::TimedOut(_, lock)) => Err(AcquireError::TimedOut(lock)),
            Some(WaitOutcome::Lost(_)) => Err(core
                .alive()
                .map_or_else(AcquireError::Gone, |()| AcquireError::Lost)),
            None => Err(core
                .alive()
                .map_or_else(AcquireError::Gone, |()| AcquireError::Lost)),
        }
    }

    /// The span that contains this byte, or else the next one above it.
    pub(super) fn span_at(&self, offset: u64) -> Option<&Span> {
        let place = self.spans_by_offset.partition_point(|span| span.end() <= offset);
        self.spans_by_offset.get(place)
    }

    pub(super) fn lock_at(&self, offset: u64) -> Option<LockId> {
        let span = self.span_at(offset)?;
        (span.offset <= offset).then_some(span.lock)
    }

    /// Waits until `look` returns something, the time is over, or the node's threads have to end.
    pub(super) fn wait_reply<T>(
        &self,
        until: Instant,
        mut look: impl FnMut(&mut NodeCore) -> Option<T>,
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
            let waited = self.reply_arrived.wait_timeout(core, left);
            core = waited.expect("a thread of this node panicked").0;
        }
    }

    /// Asks the server for the outcome of a record until it knows, or the time is over.
    pub(super) fn outcome(
        &self,
        node: NodeId,
        number: RecordNumber,
        until: Instant,
    ) -> Result<RecordOutcome, NodeGone> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.ask(node, number, left.min(ASK_INTERVAL))? {
                Some(fate) if fate != RecordOutcome::Open => return Ok(fate),
                _ if Instant::now() >= until || self.is_stopping() => return Ok(RecordOutcome::Open),
                _ => std::thread::sleep(UNKNOWN_RETRY_INTERVAL),
            }
        }
    }

    /// Asks once for the outcome of a record. Returns `None` if no answer came in time.
    pub(super) fn ask(
        &self,
        node: NodeId,
        number: RecordNumber,
        patience: Duration,
    ) -> Result<Option<RecordOutcome>, NodeGone> {
        self.with(|core, _| {
            core.alive()?;
            core.outcomes.remove(&(node, number));
            core.machine.ask_outcome(node, number);
            Ok::<(), NodeGone>(())
        })?;
        let answer = self.wait_reply(Instant::now() + patience, |core| {
            match core.outcomes.remove(&(node, number)) {
                Some(fate) => Some(Ok(fate)),
                None => core.alive().err().map(Err),
            }
        });
        answer.transpose()
    }

    pub(super) fn set_waker(&self, bell: Option<Arc<ThreadWaker>>) {
        *self.waker.lock().expect("nothing panics under this lock") = bell;
    }

    fn wake_link(&self) {
        if let Some(bell) = &*self.waker.lock().expect("nothing panics under this lock") {
            bell.wake();
        }
    }

    /// Tells the node's threads to end soon.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        if let Some(peers) = self.peers.get() {
            peers.wake();
        }
        self.wake_link();
        self.applier.wake();
        // A thread that checked before the flag was set is waiting by now.
        drop(self.core.lock());
        self.reply_arrived.notify_all();
    }

    /// Whether the link is not needed any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire) || self.is_stopping()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }
}
