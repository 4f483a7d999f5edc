//! The state under the journal's one lock, and what the journal's threads share beside it.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

use netram_proto::failure::{CallError, RetryPolicy, RetryVerdict, SystemCall};
use netram_proto::id::Lsn;
use netram_proto::journal::{JournalWriter, LogFile, LogSuperblock, SlotPair, View, WriterStatus};
use netram_proto::port::IoError;
use netram_proto::time::Time;
use netram_proto::wire::{ChainPoint as Chain, CrcSeed, record_bytes};
use netram_transport::{Link, MulticastSender, Security};

use crate::commit_waiters::CommitWaiters;
use crate::config::JournalConfig;
use crate::copy::CopyState;
use crate::disk_writer::{DiskWriter, SharedDiskWriter};
use crate::events::JournalEvents;
use crate::file::DiskFile;
use crate::links::{LenderLinkError, LenderLinks};
use crate::metrics::JournalCounters;
use crate::name::journal_name;
use crate::owner::JournalOwner;
use crate::paths::{JournalLock, JournalPaths};
use crate::reason::UncountedReason;
use crate::seal::RecordSealer;
use crate::sys::{RingAppender, RingDrain};

/// The state that the lock protects.
pub(crate) struct Core {
    pub(crate) writer: JournalWriter,
    pub(crate) ring: RingAppender,
    pub(crate) links: LenderLinks,
    /// Where the next record goes, and its chain value.
    pub(crate) end: Chain,
    pub(crate) disk_error: Option<IoError>,
    pub(crate) closed: bool,
    pub(crate) seed: CrcSeed,
    /// The protection of links to lenders.
    pub(crate) security: Security,
}

/// The log file's superblock, and whether a sync of the file ever failed. All syncs of the file take this
/// lock, since the kernel reports a failed write only once, to the first sync after it.
pub(crate) struct LogSync {
    slots: SlotPair,
    superblock: LogSuperblock,
    failed: Option<CallError>,
}

/// Signals to the disk thread.
#[derive(Debug, Default)]
pub(crate) struct DiskSignal {
    pub(crate) state: Mutex<DiskState>,
    pub(crate) wake: Condvar,
    /// The disk thread sleeps without a deadline, so an append must wake it.
    pub(crate) parked: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct DiskState {
    /// A thread waits for the disk: sync now.
    pub(crate) sync_requested: bool,
    pub(crate) stop: bool,
    /// The journal is being closed: refused writes are no longer retried for long.
    pub(crate) closing: bool,
}

/// Error numbers that currently prevent files of the journal from being written; zero: none.
#[derive(Debug, Default)]
pub(crate) struct WriteRefusals {
    pub(crate) log: AtomicI32,
    pub(crate) view: AtomicI32,
}

impl WriteRefusals {
    /// The current refusal; that of the log first, since it affects commits first.
    pub(crate) fn any(&self) -> Option<IoError> {
        [&self.log, &self.view]
            .map(|refusal| refusal.load(Ordering::Relaxed))
            .into_iter()
            .find(|errno| *errno != 0)
            .map(|errno| IoError { errno })
    }
}

/// State shared by the journal's threads.
pub(crate) struct JournalState {
    core: Mutex<Core>,
    /// Used with `core`: the drain released ring space, or never will again.
    pub(crate) room: Condvar,
    /// Copies of the writer's positions, so that waiting needs no lock. In a shared journal `stable` is also
    /// acknowledged.
    pub(crate) acked: AtomicU64,
    pub(crate) stable: AtomicU64,
    pub(crate) ruled: AtomicU64,
    pub(crate) tail: AtomicU64,
    pub(crate) head: AtomicU64,
    /// The journal was fenced or closed, or its disk failed. Details are under the lock.
    pub(crate) halted: AtomicBool,
    /// Whether the members' acknowledgements count at the moment.
    pub(crate) counting: AtomicBool,
    /// Whether commits wait for the disk even if members would do. Written by `DiskDemand`.
    pub(crate) disk_required: AtomicBool,
    /// Whether the journal has no lender: only the disk can complete a commit.
    pub(crate) lenderless: AtomicBool,
    pub(crate) waiting: CommitWaiters,
    pub(crate) disk: DiskSignal,
    /// The disk writer; a thread holds its lock while it writes.
    pub(crate) drain: SharedDiskWriter,
    /// A copy of the drain's position.
    pub(crate) drained: AtomicU64,
    /// Notifications for the thread that feeds a replica, and its acknowledgements.
    pub(crate) copy: CopyState,
    pub(crate) maintenance: Mutex<bool>,
    pub(crate) maintenance_wake: Condvar,
    pub(crate) log: LogFile<DiskFile>,
    pub(crate) log_sync: Mutex<LogSync>,
    pub(crate) config: JournalConfig,
    /// Opens every sealed record, and seals new ones if the configuration says so.
    pub(crate) sealer: RecordSealer,
    pub(crate) owner: JournalOwner,
    pub(crate) counters: JournalCounters,
    pub(crate) events: JournalEvents,
    pub(crate) refusals: WriteRefusals,
    pub(crate) paths: JournalPaths,
    pub(crate) payload_max: usize,
    origin: Instant,
    /// The right to write, held until the journal is closed.
    lock: Mutex<Option<JournalLock>>,
}

/// Parts of a new [`JournalState`].
pub(crate) struct JournalStateParts {
    pub(crate) writer: JournalWriter,
    pub(crate) ring: RingAppender,
    pub(crate) drain: RingDrain,
    pub(crate) end: Chain,
    pub(crate) log: LogFile<DiskFile>,
    pub(crate) slots: SlotPair,
    pub(crate) superblock: LogSuperblock,
    pub(crate) config: JournalConfig,
    pub(crate) sealer: RecordSealer,
    pub(crate) owner: JournalOwner,
    pub(crate) paths: JournalPaths,
    pub(crate) lock: JournalLock,
    pub(crate) waiting: CommitWaiters,
    pub(crate) multicast_sender: Option<MulticastSender>,
    pub(crate) view: View,
}

impl JournalState {
    pub(crate) fn new(parts: JournalStateParts) -> JournalState {
        let end = parts.end;
        let links = LenderLinks::new(
            parts.writer.lender_count(),
            (parts.owner.clone(), journal_name(parts.paths.root())),
            parts.multicast_sender,
        );
        let seed = parts.log.seed();
        // A record may take half of the ring and of the log, since the other half is being written at the
        // same time.
        let largest = (parts.ring.capacity().min(parts.log.capacity()) / 2)
            .min(netram_proto::limit::RECORD_BYTES_MAX as u64) as usize;
        let payload_max = largest - record_bytes(0, true);
        JournalState {
            core: Mutex::new(Core {
                writer: parts.writer,
                ring: parts.ring,
                links,
                end,
                disk_error: None,
                closed: false,
                seed,
                security: parts.config.security.clone(),
            }),
            room: Condvar::new(),
            acked: AtomicU64::new(end.lsn.0),
            stable: AtomicU64::new(end.lsn.0),
            ruled: AtomicU64::new(0),
            tail: AtomicU64::new(end.lsn.0),
            head: AtomicU64::new(parts.superblock.head.lsn.0),
            halted: AtomicBool::new(false),
            counting: AtomicBool::new(false),
            disk_required: AtomicBool::new(false),
            lenderless: AtomicBool::new(parts.config.lenders.is_empty()),
            waiting: parts.waiting,
            disk: DiskSignal::default(),
            drain: Mutex::new(DiskWriter::new(parts.drain)),
            drained: AtomicU64::new(end.lsn.0),
            copy: CopyState::new(parts.view),
            maintenance: Mutex::new(false),
            maintenance_wake: Condvar::new(),
            log: parts.log,
            log_sync: Mutex::new(LogSync {
                slots: parts.slots,
                superblock: parts.superblock,
                failed: None,
            }),
            config: parts.config,
            sealer: parts.sealer,
            owner: parts.owner,
            counters: JournalCounters::default(),
            events: JournalEvents::default(),
            refusals: WriteRefusals::default(),
            paths: parts.paths,
            payload_max,
            origin: Instant::now(),
            lock: Mutex::new(Some(parts.lock)),
        }
    }

    /// Gives up the right to write, once no thread of the journal writes any more. A thread that is still
    /// connecting may live for seconds, and the journal's next opening need not wait for it.
    pub(crate) fn unlock(&self) {
        self.lock.lock().expect("nothing panics under this lock").take();
    }

    /// Takes the journal's lock. Panics if a thread panicked under it, since an invariant is broken then.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("a thread of this journal panicked")
    }

    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// For each lender the reason why it does not count, from its link and the writer's status. Allocates.
    pub(crate) fn reasons(core: &Core, status: &WriterStatus) -> Vec<Option<UncountedReason>> {
        let lenders = status.lenders.iter();
        lenders
            .map(|lender| UncountedReason::of(lender, core.links.failure(lender.index)))
            .collect()
    }

    /// Moves frames in both directions on every link and publishes the result. This is the hot path: a call
    /// that finds nothing costs a clock reading and one system call a link. Returns the time that it read.
    pub(crate) fn pump(&self, core: &mut Core) -> Time {
        let now = self.now();
        let mut news = false;
        for index in 0..core.links.count() {
            match core.links.receive(index, &mut core.writer, now) {
                Ok(heard) => news |= heard,
                Err(broken) => self.lose(core, index, &broken),
            }
        }
        self.transmit(core, now);
        if news {
            self.publish(core);
        }
        now
    }

    /// Sends pending frames on every link and publishes the writer's positions.
    pub(crate) fn send(&self, core: &mut Core) {
        self.transmit(core, self.now());
        self.publish(core);
    }

    fn transmit(&self, core: &mut Core, now: Time) {
        core.links.multicast(&mut core.writer, &core.ring, now);
        for index in 0..core.links.count() {
            if let Err(broken) = core.links.send(index, &mut core.writer, &core.ring, now) {
                self.lose(core, index, &broken);
            }
        }
        for index in core.writer.take_disconnects().iter() {
            if core.links.remove(index).is_some() && !core.writer.address(index).is_empty() {
                tracing::warn!(
                    lender = core.writer.address(index),
                    "dropped the lender: it was silent for too long or broke the protocol"
                );
            }
        }
    }

    fn lose(&self, core: &mut Core, index: usize, broken: &LenderLinkError) {
        tracing::warn!(lender = core.writer.address(index), %broken, "lost the lender");
        let address = core.writer.address(index);
        self.events
            .note(format!("the lender {address} was lost: {broken}"));
        core.links.remove(index);
        core.writer.on_lost(index, self.now());
        self.counters.links_lost.add(1);
        self.wake_maintenance();
        self.publish(core);
    }

    pub(crate) fn install(&self, core: &mut Core, index: usize, link: Link) {
        core.links.install(index, link);
        core.writer.on_connected(index, self.now());
        self.send(core);
    }

    /// Copies the writer's positions to where waiting threads read them, and wakes the sleeping ones.
    pub(crate) fn publish(&self, core: &mut Core) {
        let writer = &core.writer;
        let mut news = changed(&self.acked, writer.acked().0);
        if changed(&self.stable, writer.stable_for_good().0) {
            // This runs once a sync; the lock and the wake-up are negligible beside it.
            self.copy.stable();
            news = true;
        }
        news |= changed(&self.ruled, writer.rule_acked().0);
        let counting = writer.counting();
        if self.counting.load(Ordering::Relaxed) != counting {
            self.counting.store(counting, Ordering::SeqCst);
            let said = match counting {
                true => "members acknowledge commits",
                false => "commits wait for the disk: too few members count",
            };
            self.events.note(said.to_owned());
            if !counting {
                // Threads that wait for members now wait for the disk.
                self.request_sync();
            }
            news = true;
        }
        let troubled = core.closed || core.disk_error.is_some() || core.writer.fenced().is_some();
        if troubled && !self.halted.swap(true, Ordering::SeqCst) {
            if let Some(seen) = core.writer.fenced() {
                tracing::error!(
                    held = core.writer.epoch().0,
                    seen = seen.0,
                    "fenced: a newer writer owns the journal"
                );
                self.events
                    .note(format!("a newer writer, of epoch {seen}, fenced this one"));
            }
            self.room.notify_all();
            news = true;
        }
        if core.writer.view_pending() {
            self.wake_maintenance();
        }
        if news {
            self.waiting.wake();
        }
    }

    pub(crate) fn wake_maintenance(&self) {
        let mut woken = self.maintenance.lock().expect("nothing panics under this lock");
        if !*woken {
            *woken = true;
            self.maintenance_wake.notify_one();
        }
    }

    /// Asks the disk thread to sync now.
    pub(crate) fn request_sync(&self) {
        let mut state = self.disk.state.lock().expect("nothing panics under this lock");
        if !state.sync_requested {
            state.sync_requested = true;
            self.disk.wake.notify_one();
        }
    }

    /// Handles a failed write of `what` (the log or the view file): returns when to retry, or gives the file
    /// up. Logs changes only.
    pub(crate) fn judge(
        &self,
        policy: &mut RetryPolicy,
        failure: CallError,
        hurried: bool,
        what: &str,
    ) -> RetryVerdict {
        let verdict = policy.failed(failure, self.now(), hurried);
        if let RetryVerdict::Again(pause) = verdict
            && pause.should_log
        {
            let journal = self.paths.root().display();
            tracing::warn!(%failure, what, %journal, "the local disk refused a write; retrying");
            self.events
                .note(format!("the local disk refused to write the {what}: {failure}"));
        }
        verdict
    }

    /// Gives up the local disk: a sync failed (rule 9), or writes failed for too long.
    pub(crate) fn poison(&self, error: IoError, what: &str) {
        let mut core = self.core();
        if core.disk_error.is_none() {
            tracing::error!(%error, what, journal = %self.paths.root().display(), "the local disk failed; the journal is read-only");
            self.events
                .note(format!("the local disk failed to write the {what}: {error}"));
            core.disk_error = Some(error);
            core.writer.on_disk_failed();
        }
        self.room.notify_all();
        self.publish(&mut core);
    }

    /// Syncs the log file, unless a sync of it ever failed.
    pub(crate) fn sync_log(&self) -> Result<(), CallError> {
        let mut sync = self.log_sync.lock().expect("nothing panics under this lock");
        if let Some(failure) = sync.failed {
            return Err(failure);
        }
        let began = Instant::now();
        let synced = self.log.sync().map_err(|error| error.of(SystemCall::Sync));
        self.counters.sync.record(began.elapsed());
        sync.failed = synced.err().filter(|failure| failure.is_final());
        self.counters.syncs.add(1);
        synced
    }

    /// Durably stores a superblock that states that everything below `stable` is on the disk. If `head` is
    /// given, it also states that the log begins there.
    pub(crate) fn store_superblock(&self, head: Option<Chain>, stable: Lsn) -> Result<(), CallError> {
        let mut sync = self.log_sync.lock().expect("nothing panics under this lock");
        if let Some(failure) = sync.failed {
            return Err(failure);
        }
        // Threads that trim concurrently arrive in any order. The head never moves back, since bytes below it
        // may have been overwritten.
        let newest = sync.superblock;
        let head = head
            .filter(|head| head.lsn > newest.head.lsn)
            .unwrap_or(newest.head);
        let superblock = LogSuperblock {
            head,
            stable: stable.max(newest.stable),
            ..newest
        };
        let LogSync { slots, failed, .. } = &mut *sync;
        let stored = self.log.store(slots, &superblock);
        *failed = stored.err().filter(|failure| failure.is_final());
        stored?;
        sync.superblock = superblock;
        Ok(())
    }

    /// The log's head and its chain value.
    pub(crate) fn head_link(&self) -> Chain {
        self.log_sync
            .lock()
            .expect("nothing panics under this lock")
            .superblock
            .head
    }
}

/// Stores `value` where waiting threads read it. Returns whether it is new. Comparing first keeps the cache
/// line shared in the usual case of no change.
fn changed(seen: &AtomicU64, value: u64) -> bool {
    let news = seen.load(Ordering::Relaxed) != value;
    if news {
        seen.store(value, Ordering::SeqCst);
    }
    news
}
