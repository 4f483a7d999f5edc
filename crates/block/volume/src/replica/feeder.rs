//! The client's thread that feeds a data lender's copy: `netram-replica`.
//!
//! [`ReplicaSource`] decides what the thread does. It delays no write: it reads the log from behind the disk,
//! and writers do not depend on it.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_block::{Disk, VolumeId};
use netram_block_machine::message::FollowRequest;
use netram_block_machine::{
    ReplicaMessage, ReplicaSource, ReplicaTrouble, SourceAction, SourceConfig, SourceStatus, SourceTiming,
};
use netram_journal::Journal;
use netram_journal::owner::JournalOwner;
use netram_proto::id::Lsn;
use netram_proto::journal::{ReplicaAck, View};
use netram_proto::port::RecordLog;
use netram_proto::time::Time;
use netram_proto::wire::{FrameHeader, FrameKind};
use netram_transport::{NetAddress, Security, Waker, connect};

use super::blocks::BlockChooser;
use super::fetch::{CopySource, EarlyCopy};
use super::link::{ReplicaLink, ReplicaLinkError};
use super::restore::DataLenderEndpoint;
use super::restore_check::describe_claim;
use super::status::{DataLenderStatus, ResyncStatus, has_what_was_sent, is_whole};
use crate::file::VolumeFile;
use crate::paths::VolumePaths;

/// Interval at which the thread looks for work without being woken.
const TICK: Duration = Duration::from_millis(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which the acknowledgement is repeated to the journal's writer; much shorter than the time
/// after which it counts as silence.
const ACK_INTERVAL: Duration = Duration::from_millis(100);
/// Number of frames sent before answers are read.
const FRAMES_A_TURN: usize = 32;
/// How long closing waits for the copy to have everything; restarted by progress.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) type VolumeDisk = Disk<Journal, VolumeFile, CopySource>;

/// Handle of the feeder thread.
pub(crate) struct ReplicaFeeder {
    shared: Arc<FeederInner>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for ReplicaFeeder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ReplicaFeeder")
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// Parts from which a feeder is made.
pub(crate) struct FeederParts {
    pub(crate) address: NetAddress,
    pub(crate) security: Security,
    pub(crate) follow: FollowRequest,
    pub(crate) owner: JournalOwner,
    pub(crate) window_bytes: u64,
    pub(crate) timing: SourceTiming,
    pub(crate) copy: CopySource,
    /// The volume, whose wrapped key may change.
    pub(crate) place: Option<VolumePaths>,
}

impl FeederParts {
    /// Parts for the volume that `follow` describes, in the epoch of `view`.
    pub(crate) fn new(
        address: NetAddress,
        security: Security,
        (follow, owner): (FollowRequest, JournalOwner),
        window_bytes: u64,
        view: &View,
    ) -> FeederParts {
        let copy = CopySource::early(EarlyCopy {
            address: address.clone(),
            security: security.clone(),
            follow: follow.clone(),
            owner: owner.clone(),
            view: view.clone(),
        });
        FeederParts {
            address,
            security,
            follow,
            owner,
            window_bytes,
            timing: SourceTiming::default(),
            copy,
            place: None,
        }
    }
}

struct FeederInner {
    state: Mutex<State>,
    changed: Condvar,
    waker: Arc<Waker>,
}

#[derive(Default)]
struct State {
    status: Option<DataLenderStatus>,
    /// A requested resync; `true`: of all blocks, whatever the copy has.
    order: Option<bool>,
    /// The volume has another recovery key, which the data lender learns in a new session.
    rekeyed: bool,
    closing: Option<View>,
    closed: bool,
    stop: bool,
}

impl ReplicaFeeder {
    /// Starts feeding the copy of an open volume.
    pub(crate) fn start(disk: &Arc<VolumeDisk>, parts: FeederParts) -> std::io::Result<ReplicaFeeder> {
        let waker = Arc::new(Waker::new()?);
        disk.log().watch(Arc::clone(&waker));
        parts.copy.feed(Arc::clone(&waker));
        let shared = Arc::new(FeederInner {
            state: Mutex::default(),
            changed: Condvar::new(),
            waker,
        });
        let (disk, theirs) = (Arc::clone(disk), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("netram-replica".to_owned())
            .spawn(move || FeederThread::new(&disk, &theirs, parts).run())?;
        Ok(ReplicaFeeder {
            shared,
            thread: Some(thread),
        })
    }

    /// Status of the data lender.
    pub(crate) fn status(&self) -> Option<DataLenderStatus> {
        self.shared.state().status.clone()
    }

    /// Starts a resync of the copy; with `whole` even of one that has more than this volume, or another
    /// history.
    pub(crate) fn resync(&self, whole: bool) {
        self.shared.state().order = Some(whole);
        self.shared.wake();
    }

    /// The volume has another recovery key: begins a new session, in which the data lender gets the wrapped
    /// key.
    pub(crate) fn rekeyed(&self) {
        self.shared.state().rekeyed = true;
        self.shared.wake();
    }

    /// The volume is closed with `view`: waits a while for the copy to have everything, then ends the thread.
    pub(crate) fn close(mut self, view: View) {
        self.shared.state().closing = Some(view);
        self.shared.wake();
        let mut state = self.shared.state();
        let (mut deadline, mut lag) = (Instant::now() + CLOSE_TIMEOUT, u64::MAX);
        let resync_deadline = deadline;
        while !state.closed && Instant::now() < deadline {
            let status = state.status.as_ref();
            // A data lender that is away or a long resync is not waited for, because both may take any time.
            // A first connection attempt is.
            let away = |status: &DataLenderStatus| !status.connected && status.trouble.is_some();
            let long =
                |status: &DataLenderStatus| status.resync.is_some() && Instant::now() > resync_deadline;
            if status.is_some_and(|status| away(status) || long(status)) {
                break;
            }
            let now = status.map_or(u64::MAX, |status| status.lag_bytes);
            if now < lag {
                (deadline, lag) = (Instant::now() + CLOSE_TIMEOUT, now);
            }
            let waited = self.shared.changed.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if !state.closed {
            tracing::warn!(
                "the data lender does not have the whole volume yet; it will be sent the rest when the volume is opened again"
            );
        }
        drop(state);
        self.end();
    }

    fn end(&mut self) {
        self.shared.state().stop = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            // The panic message was printed by the thread; the copy will lag.
            let _ = thread.join();
        }
    }
}

impl Drop for ReplicaFeeder {
    fn drop(&mut self) {
        self.end();
    }
}

impl FeederInner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::debug!(%error, "cannot wake the feeder thread; it will look by itself");
        }
    }
}

/// State owned by the feeder thread.
struct FeederThread<'a> {
    disk: &'a VolumeDisk,
    shared: &'a FeederInner,
    parts: FeederParts,
    source: ReplicaSource,
    origin: Instant,
    wire: Option<ReplicaLink>,
    chooser: BlockChooser,
    /// Last acknowledgement passed to the journal's writer, and its time.
    last_ack: (Option<ReplicaAck>, Instant),
    /// Last logged reason why the data lender could not be reached.
    last_error: String,
    closing: bool,
    resyncs: u64,
    resync_since: Option<Instant>,
    fence_reported: bool,
}

impl<'a> FeederThread<'a> {
    fn new(disk: &'a VolumeDisk, shared: &'a FeederInner, parts: FeederParts) -> FeederThread<'a> {
        let state = disk.log().state();
        let config = SourceConfig {
            identity: parts.follow.identity,
            key: parts.follow.key.clone(),
            wrapped_key: parts.follow.wrapped_key.clone(),
            capacity: parts.follow.capacity,
            window_bytes: parts.window_bytes,
            timing: parts.timing,
        };
        let (view, bytes) = (disk.log().newest_view(), disk.geometry().bytes);
        FeederThread {
            source: ReplicaSource::new(config, view, bytes, state.head, state.stable),
            disk,
            shared,
            parts,
            origin: Instant::now(),
            wire: None,
            chooser: BlockChooser::default(),
            last_ack: (None, Instant::now()),
            last_error: String::new(),
            closing: false,
            resyncs: 0,
            resync_since: None,
            fence_reported: false,
        }
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn run(mut self) {
        loop {
            if self.poll_local() {
                self.disk.log().set_replica_ack(None);
                self.parts.copy.end();
                return;
            }
            self.connect();
            let turned = match &mut self.wire {
                Some(_) => self.exchange(),
                None => Ok(()),
            };
            if let Err(error) = turned {
                self.log_once(&error.to_string());
                self.disconnect();
            }
            self.publish_status();
            self.wait();
        }
    }

    /// Passes local events to the machine. `true`: stop.
    fn poll_local(&mut self) -> bool {
        let log = self.disk.log();
        // Drained before the state is read: a later change wakes the thread again.
        if let Err(error) = self.shared.waker.drain() {
            tracing::debug!(%error, "cannot drain the feeder's waker");
        }
        let state = log.state();
        self.source.on_stable(state.stable);
        self.source.on_head(state.head);
        self.source.on_grown(self.disk.geometry().bytes);
        let mut orders = self.shared.state();
        let (order, closing, stop) = (orders.order.take(), orders.closing.take(), orders.stop);
        let rekeyed = std::mem::take(&mut orders.rekeyed);
        drop(orders);
        if rekeyed {
            self.take_wrapped_key();
            self.disconnect();
        }
        if let Some(view) = closing {
            self.closing = true;
            self.source.on_close(view);
        } else if !self.closing {
            self.source.on_view(log.newest_view());
        }
        if let Some(whole) = order {
            self.source.resync(whole);
        }
        stop
    }

    /// Reads the volume's wrapped key anew.
    fn take_wrapped_key(&mut self) {
        let wrapped = self.parts.place.as_ref().map(VolumePaths::wrapped_key);
        match wrapped {
            Some(Ok(Some(wrapped))) => {
                self.parts.follow.wrapped_key.clone_from(&wrapped);
                self.source.on_wrapped_key(wrapped);
            }
            Some(Err(error)) => tracing::error!(%error, "cannot read the volume's wrapped key"),
            Some(Ok(None)) | None => (),
        }
    }

    fn connect(&mut self) {
        if self.wire.is_some() || !self.source.wants_connection(self.now()) {
            return;
        }
        // No writer waits during the attempt, because the data lender is not in service.
        let connected = connect(&self.parts.address, &self.parts.security, CONNECT_TIMEOUT);
        let wire = connected.map_err(|error| error.to_string()).and_then(|link| {
            let wire = ReplicaLink::of_owner(link, &self.parts.owner).map_err(|error| error.to_string())?;
            wire.wake_on(&self.shared.waker)
                .map_err(|error| error.to_string())?;
            Ok(wire)
        });
        let now = self.now();
        match wire {
            Ok(wire) => {
                tracing::info!(lender = %self.parts.address, "connected to the data lender");
                self.last_error.clear();
                self.wire = Some(wire);
                self.source.on_connected(now);
            }
            Err(error) => {
                self.log_once(&error);
                self.source.on_lost(now);
            }
        }
    }

    /// Logs a failure once, not at every attempt.
    fn log_once(&mut self, complaint: &str) {
        if self.last_error != complaint {
            complaint.clone_into(&mut self.last_error);
            tracing::warn!(lender = %self.parts.address, error = complaint, "data lender unavailable; retrying");
        }
    }

    fn disconnect(&mut self) {
        self.wire = None;
        self.parts.copy.set_reachable(false);
        self.source.on_lost(self.now());
    }

    /// Receives answers, and sends what is due.
    fn exchange(&mut self) -> Result<(), ReplicaLinkError> {
        self.receive()?;
        // Only after receiving: if this process was stopped, the overdue answer may have waited in the
        // socket.
        self.source.on_tick(self.now());
        if self.source.take_disconnect() {
            let trouble = self.source.status().trouble;
            self.log_once(&trouble.map_or_else(String::new, |trouble| trouble.to_string()));
            self.wire = None;
            self.parts.copy.set_reachable(false);
            return Ok(());
        }
        for _ in 0..FRAMES_A_TURN {
            let Some(wire) = &mut self.wire else { break };
            wire.flush()?;
            // Sends no more than the socket accepts: a thread blocked here could not receive answers.
            if wire.is_full() || !self.step()? {
                break;
            }
        }
        match &mut self.wire {
            Some(wire) => wire.flush(),
            None => Ok(()),
        }
    }

    /// Handles what one read of the socket brings: a data lender that sends without end must not keep this
    /// thread from its clock and from sending.
    fn receive(&mut self) -> Result<(), ReplicaLinkError> {
        let now = self.now();
        let Some(wire) = &mut self.wire else { return Ok(()) };
        while let Some(message) = wire.next()? {
            let frame = message.frame();
            match frame.header.kind {
                FrameKind::Fetched => self.parts.copy.on_fetched(&frame),
                _ => self.source.on_frame(&frame, now),
            }
            if !wire.has_buffered() {
                break;
            }
        }
        Ok(())
    }

    /// Does the next step. `false`: there is none.
    fn step(&mut self) -> Result<bool, ReplicaLinkError> {
        if let Some(ask) = self.parts.copy.next_request() {
            self.send(&ask)?;
            return Ok(true);
        }
        let now = self.now();
        let Some(todo) = self.source.next_action(now) else {
            return Ok(false);
        };
        match todo {
            SourceAction::Send(message) => self.send(&message)?,
            SourceAction::Ship { header, from, bytes } => self.ship(header, from, bytes)?,
            other => self.resync(other, now)?,
        }
        Ok(true)
    }

    fn send(&mut self, message: &ReplicaMessage) -> Result<(), ReplicaLinkError> {
        match &mut self.wire {
            Some(wire) => wire.queue(message),
            None => Ok(()),
        }
    }

    fn ship(&mut self, header: FrameHeader, from: Lsn, bytes: usize) -> Result<(), ReplicaLinkError> {
        let log = self.disk.log();
        let mut body = vec![0; bytes];
        match log.read_raw(from, &mut body) {
            Ok(read) if read == bytes => self.send(&ReplicaMessage { header, body }),
            // The records were trimmed: blocks replace them.
            _ if log.state().head > from => {
                self.source.on_trimmed(from, log.state().head);
                Ok(())
            }
            failed => {
                // The journal's disk cannot be read. The volume's own reads report it too.
                tracing::error!(?failed, at = %from, "the log cannot be read for the data lender");
                Err(ReplicaLinkError::Stuck)
            }
        }
    }

    /// Does a step of a resync.
    fn resync(&mut self, todo: SourceAction, now: Time) -> Result<(), ReplicaLinkError> {
        let done = self.chooser.act(self.disk, &mut self.source, todo, now);
        match done {
            Ok(messages) => messages.iter().try_for_each(|message| self.send(message)),
            Err(error) => {
                self.log_once(&error);
                // Starts over, a little later.
                Err(ReplicaLinkError::Stuck)
            }
        }
    }

    /// Publishes the data lender's status to the journal and the volume.
    fn publish_status(&mut self) {
        let now = self.now();
        let kept = self.source.ack(now);
        if kept != self.last_ack.0 || kept.is_some() && self.last_ack.1.elapsed() >= ACK_INTERVAL {
            if kept.is_some() != self.last_ack.0.is_some() {
                let in_service = kept.is_some();
                tracing::info!(lender = %self.parts.address, in_service, "data lender changed its service state");
            }
            self.last_ack = (kept, Instant::now());
            self.disk.log().set_replica_ack(kept);
        }
        if let Some(epoch) = self.source.fenced() {
            self.disk.log().on_replica_fenced(epoch);
            self.report_fence();
        }
        let status = self.source.status();
        if is_whole(&status) {
            let dirty = self.disk.replica_flushed(status.flushed);
            self.source.on_dirty(dirty, now);
        }
        let asked = status.connected && has_what_was_sent(&status);
        self.parts.copy.set_reachable(asked && self.wire.is_some());
        self.note_resync(&status);
        let status = self.describe(&status);
        let mut state = self.shared.state();
        state.status = Some(status);
        state.closed = self.source.is_closed();
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Logs once who has claimed the copy.
    fn report_fence(&mut self) {
        if std::mem::replace(&mut self.fence_reported, true) {
            return;
        }
        let lender = DataLenderEndpoint {
            address: self.parts.address.clone(),
            security: self.parts.security.clone(),
        };
        let id = VolumeId(self.parts.follow.identity.volume);
        let ours = self.disk.log().newest_view();
        let claim = describe_claim(&lender, id, &self.parts.owner, &ours);
        tracing::error!(
            lender = %self.parts.address, claim,
            "the data lender refuses this volume because its copy was claimed; see docs/guide/operations/recovery.md, Fenced"
        );
    }

    fn note_resync(&mut self, status: &SourceStatus) {
        match (status.resync, self.resync_since) {
            (Some(_), None) => self.resync_since = Some(Instant::now()),
            (None, Some(since)) => {
                self.resync_since = None;
                if is_whole(status) {
                    self.resyncs += 1;
                    let (blocks, took) = (self.chooser.sent_blocks(), since.elapsed());
                    tracing::info!(lender = %self.parts.address, blocks, ?took, "resync complete");
                }
            }
            _ => (),
        }
    }

    fn describe(&self, status: &SourceStatus) -> DataLenderStatus {
        let seconds = self
            .resync_since
            .map_or(0.0, |since| since.elapsed().as_secs_f64());
        DataLenderStatus {
            address: self.parts.address.to_string(),
            connected: status.connected,
            in_service: status.in_service,
            condition: status.condition.map(|condition| condition.to_string()),
            flushed: status.flushed.0,
            applied: status.applied.0,
            lag_bytes: status.lag,
            dirty_blocks: self
                .disk
                .status()
                .replica
                .map_or(0, |replica| replica.dirty_blocks),
            resync: status.resync.map(|progress| ResyncStatus {
                done_blocks: progress.done,
                total_blocks: progress.total,
                seconds: seconds as u64,
                blocks_a_second: (progress.done as f64 / seconds.max(0.001)) as u64,
            }),
            resyncs: self.resyncs,
            resync_sent_blocks: self.chooser.sent_blocks(),
            trouble: status.trouble.map(|trouble| trouble.to_string()),
            no_recovery_key: self.parts.follow.wrapped_key.is_empty(),
            undecided: matches!(
                status.trouble,
                Some(ReplicaTrouble::Ahead { .. } | ReplicaTrouble::Diverged(_))
            ),
        }
    }

    /// Waits for work.
    fn wait(&mut self) {
        let waited = match &mut self.wire {
            Some(wire) => wire.sleep(TICK),
            None => {
                std::thread::sleep(TICK);
                Ok(())
            }
        };
        if let Err(error) = waited {
            self.log_once(&error.to_string());
            self.disconnect();
        }
    }
}
