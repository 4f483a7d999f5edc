//! The client's side of one volume and its data lender: what to send next, and whether the data lender is in
//! service.
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | session, log, view, service |
//! | `action.rs` | configuration, and the steps of the driver |
//! | `resync.rs` | sending blocks where the log no longer has the records |
//! | `status.rs` | status for the operator |

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::limit::{REPLICA_ENDS_MAX, REPLICA_FLIGHT_BYTES_MAX};
use netram_proto::id::{Epoch, Lsn, WriterId};
use netram_proto::journal::{ReplicaAck, View};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ByteReader, ClientLimitRefusal, Frame, FrameHeader, FrameKind, RefusalReason};

use super::header::ReplicaCondition;
use super::message::{FollowRequest, ReplicaMessage};

mod action;
mod resync;
mod status;

pub use action::{SourceAction, SourceConfig, SourceTiming};
pub use resync::ResyncScope;
use resync::{ResyncStage, ResyncState};
pub use status::{ReplicaTrouble, ResyncProgress, SourceStatus};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not connected; the time of the next attempt.
    Down(Time),
    Connecting,
    /// `FollowRequest` is still to be sent.
    Greeting,
    /// `FollowRequest` was sent.
    Requested,
    Up,
}

/// The client's side, as a value. `on_*` take events, [`ReplicaSource::next_action`] returns the driver's
/// next step, and [`ReplicaSource::ack`] the acknowledgement for the journal's writer.
#[derive(Clone, Debug)]
pub struct ReplicaSource {
    config: SourceConfig,
    epoch: Epoch,
    writer: WriterId,
    /// Size of the volume in bytes.
    bytes: u64,
    head: Lsn,
    stable: Lsn,
    /// Ends of synced batches above `flushed`. Each is the end of a record.
    ends: VecDeque<Lsn>,
    /// Highest batch end that the replica has flushed.
    acked: Lsn,
    view: View,
    closing: bool,
    view_sent: bool,
    /// The replica has stored `view` in its present state, closed or open.
    view_stored: bool,
    /// Newest view version that the replica stored in this session; zero if none.
    version_stored: u64,
    bytes_sent: u64,
    phase: Phase,
    condition: Option<ReplicaCondition>,
    sent: Lsn,
    flushed: Lsn,
    room: Lsn,
    applied: Lsn,
    served: bool,
    shipped: bool,
    resync: Option<ResyncState>,
    /// Number of the last numbered frame of this session.
    mark: u32,
    /// Whether a resync has ended since blocks were last found dirty. If so, they are tried again at
    /// `repair_at`.
    resynced: bool,
    repair_at: Time,
    bad: Vec<u64>,
    wanted: Option<ResyncScope>,
    /// The replica's contents belong, or may belong, to another history and will be overwritten. Until the
    /// replica knows that, it is sent no view: if the session broke off, the view would make its contents
    /// pass for ours.
    foreign: bool,
    owed_since: Option<Time>,
    /// When the replica's log last grew or lacked nothing.
    progress: Time,
    pinged: Time,
    trouble: Option<ReplicaTrouble>,
    disconnect: bool,
}

impl ReplicaSource {
    /// Creates the source of the writer that made `view` durable. The volume has `bytes`; its log extends
    /// from `head` to `stable`.
    pub fn new(config: SourceConfig, view: View, bytes: u64, head: Lsn, stable: Lsn) -> ReplicaSource {
        ReplicaSource {
            config,
            epoch: view.epoch,
            writer: view.writer,
            bytes,
            head,
            stable,
            ends: VecDeque::new(),
            acked: Lsn(0),
            view,
            closing: false,
            view_sent: false,
            view_stored: false,
            version_stored: 0,
            bytes_sent: 0,
            phase: Phase::Down(Time(0)),
            condition: None,
            sent: Lsn(0),
            flushed: Lsn(0),
            room: Lsn(0),
            applied: Lsn(0),
            served: false,
            shipped: false,
            resync: None,
            mark: 0,
            resynced: false,
            repair_at: Time(0),
            bad: Vec::new(),
            wanted: None,
            foreign: false,
            owed_since: None,
            progress: Time(0),
            pinged: Time(0),
            trouble: None,
            disconnect: false,
        }
    }

    /// Whether the driver should connect now. Returning `true` counts as a started attempt.
    pub fn wants_connection(&mut self, now: Time) -> bool {
        let due = matches!(self.phase, Phase::Down(at) if at <= now) && !self.is_fenced();
        if due {
            self.phase = Phase::Connecting;
        }
        due
    }

    /// Whether the connection must be closed, because the data lender was silent too long or sent an invalid
    /// frame. Resets the flag.
    pub fn take_disconnect(&mut self) -> bool {
        core::mem::take(&mut self.disconnect)
    }

    /// The connection is established.
    pub fn on_connected(&mut self, now: Time) {
        self.phase = Phase::Greeting;
        self.view_sent = false;
        self.view_stored = false;
        self.version_stored = 0;
        self.bytes_sent = 0;
        self.mark = 0;
        self.resync = None;
        self.served = false;
        self.owed_since = Some(now);
        self.pinged = now;
    }

    /// The data lender could not be reached, or the connection broke.
    pub fn on_lost(&mut self, now: Time) {
        if self.take_disconnect() {
            // The source gave up already and has set the time of the next attempt. A pending disconnect must
            // not close the next connection.
            return;
        }
        self.phase = Phase::Down(now + self.config.timing.retry);
        self.resync = None;
        self.served = false;
        self.view_stored = false;
        self.owed_since = None;
        self.trouble.get_or_insert(ReplicaTrouble::Unreachable);
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Time) {
        let silent = |since: Time| now.since(since) > self.config.timing.give_up;
        if self.owed_since.is_some_and(silent) {
            self.give_up(now, ReplicaTrouble::Unreachable);
        }
    }

    /// The local log is stable up to `end`, the end of a record.
    pub fn on_stable(&mut self, end: Lsn) {
        if end <= self.stable {
            return;
        }
        self.stable = end;
        if self.ends.len() == REPLICA_ENDS_MAX {
            self.ends.pop_back();
        }
        self.ends.push_back(end);
    }

    /// The local log now begins at `head`.
    pub fn on_head(&mut self, head: Lsn) {
        self.head = self.head.max(head);
        self.find_gap();
    }

    /// The bytes from `from` of a [`SourceAction::Ship`] were not sent, because the local log now begins at
    /// `head`, above `from`.
    pub fn on_trimmed(&mut self, from: Lsn, head: Lsn) {
        assert!(from < head);
        self.sent = self.sent.min(from);
        self.on_head(head);
    }

    /// Checks whether the log still has the records that the replica needs next. If not, blocks replace them.
    fn find_gap(&mut self) {
        if self.phase != Phase::Up || self.sent >= self.head {
            return;
        }
        match &mut self.resync {
            None => self.begin(self.suitable()),
            Some(resync) => resync.find_gap(),
        }
    }

    /// The volume has grown.
    pub fn on_grown(&mut self, bytes: u64) {
        self.bytes = self.bytes.max(bytes);
        self.view_sent &= self.bytes_sent == self.bytes;
    }

    /// A view is about to be made durable here, or has been. From now on only a data lender that has stored
    /// it can come into service.
    pub fn on_view(&mut self, view: View) {
        assert!(view.epoch == self.epoch && view.version >= self.view.version);
        if view.version > self.view.version {
            self.view = view;
            self.view_sent = false;
            self.view_stored = false;
        }
    }

    /// The volume is closed: `view` has no members, and the log ends at its base. The replica is told so once
    /// it has all of the log; see [`ReplicaSource::is_closed`].
    pub fn on_close(&mut self, view: View) {
        self.on_view(view);
        self.closing = true;
        self.view_sent = false;
        self.view_stored = false;
    }

    /// Whether the replica has the whole volume and knows that it is closed.
    pub fn is_closed(&self) -> bool {
        self.closing && self.view_stored
    }

    /// Acknowledgement for the writer ([`netram_proto::journal::JournalWriter::on_replica_ack`]). `None`
    /// while the data lender is out of service.
    pub fn ack(&mut self, now: Time) -> Option<ReplicaAck> {
        let prompt = self
            .owed_since
            .is_none_or(|since| now.since(since) <= self.config.timing.detect);
        let whole = self.condition == Some(ReplicaCondition::Following) && self.resync.is_none();
        let lag = self.stable.since(self.flushed);
        if lag == 0 {
            self.progress = now;
        }
        let moves = now.since(self.progress) <= self.config.timing.detect;
        let near = match self.served {
            true => lag <= self.config.window_bytes / 2,
            // The data lender returns to service only with the newest view, and with a smaller lag than the
            // one that ended its service.
            false => lag <= self.config.window_bytes / 4 && self.version_stored == self.view.version,
        };
        self.served = self.phase == Phase::Up && prompt && moves && whole && near;
        self.served.then_some(ReplicaAck {
            lsn: self.acked,
            version: self.version_stored,
        })
    }

    /// LSN below which the volume may trim its log, since the whole replica has flushed it. `None` if the
    /// replica is not whole: then it protects nothing.
    pub fn trimmable(&self) -> Option<Lsn> {
        let whole = self.condition == Some(ReplicaCondition::Following) && self.resync.is_none();
        (whole && self.phase == Phase::Up).then_some(self.flushed)
    }

    /// Handles a frame from the data lender. `Fetched` frames are for the driver only.
    pub fn on_frame(&mut self, frame: &Frame<'_>, now: Time) {
        let header = &frame.header;
        match header.kind {
            FrameKind::Following => self.on_following(frame, now),
            FrameKind::Flushed => self.on_flushed(frame, now),
            FrameKind::ViewStored => self.on_view_stored(header.lsn.0),
            FrameKind::DigestReply => self.on_differ(frame, now),
            FrameKind::Stored => self.on_answered(header.mark),
            FrameKind::BadBlocks => self.on_bad(frame),
            FrameKind::Refuse => self.on_refused(header, now),
            _ => (),
        }
        let resyncing = self.resync.as_ref().is_some_and(|resync| {
            resync.in_flight > 0
                || matches!(resync.stage, ResyncStage::Announced(_))
                || self.flushed < resync.tail
        });
        let owes = self.phase != Phase::Up
            || self.view_sent && !self.view_stored
            || self.flushed < self.sent
            || resyncing;
        self.owed_since = owes.then_some(now);
    }

    fn on_view_stored(&mut self, version: u64) {
        self.version_stored = self.version_stored.max(version.min(self.view.version));
        self.view_stored |= self.view_sent && version == self.view.version;
    }

    fn on_following(&mut self, frame: &Frame<'_>, now: Time) {
        let header = &frame.header;
        let since = ByteReader::new(frame.body).u64().unwrap_or(u64::MAX);
        let Some(condition) = ReplicaCondition::decode(header.flags, since) else {
            self.give_up(now, ReplicaTrouble::Refused(RefusalReason::Malformed));
            return;
        };
        self.condition = Some(condition);
        self.room = header.stable;
        match (self.phase, self.resync.as_ref().map(|resync| resync.stage)) {
            (Phase::Requested, _) => {
                self.phase = Phase::Up;
                self.trouble = None;
                self.has_flushed(header.lsn);
                self.sent = header.lsn;
                let fork = self.fork(header.epoch, WriterId(header.sender));
                self.on_greeted(condition, fork, now);
            }
            // Any other answer belongs to an earlier request and is ignored.
            (Phase::Up, Some(ResyncStage::Announced(start)))
                if header.lsn == start && matches!(condition, ReplicaCondition::Inconsistent { .. }) =>
            {
                self.flushed = header.lsn;
                self.sent = header.lsn;
                self.foreign = false;
                self.set_stage(ResyncStage::Copying);
                self.find_gap();
            }
            (Phase::Up, Some(ResyncStage::Ended)) if condition == ReplicaCondition::Following => {
                self.set_stage(ResyncStage::Clear);
            }
            _ => (),
        }
    }

    /// The driver's next step. The driver calls this after every event, while the link has room for a frame,
    /// until it returns `None`.
    pub fn next_action(&mut self, now: Time) -> Option<SourceAction> {
        let todo = match self.phase {
            Phase::Down(_) | Phase::Connecting | Phase::Requested => None,
            Phase::Greeting => Some(SourceAction::Send(self.greet())),
            Phase::Up if !self.view_sent && !self.foreign && self.may_send_view() => {
                Some(SourceAction::Send(self.send_view()))
            }
            Phase::Up => {
                // Log and blocks take turns, so that neither waits until the other is complete.
                self.shipped = !self.shipped;
                match self.shipped {
                    true => self.ship().or_else(|| self.copy()),
                    false => self.copy().or_else(|| self.ship()),
                }
                .or_else(|| self.ping(now))
            }
        }?;
        if matches!(todo, SourceAction::Send(_) | SourceAction::Ship { .. }) {
            self.owed_since.get_or_insert(now);
        }
        Some(todo)
    }

    /// The volume has another recovery key: the data lender gets this wrapped key in the next session.
    pub fn on_wrapped_key(&mut self, wrapped_key: Vec<u8>) {
        self.config.wrapped_key = wrapped_key;
    }

    fn greet(&mut self) -> ReplicaMessage {
        self.phase = Phase::Requested;
        let follow = FollowRequest {
            identity: self.config.identity,
            bytes: self.bytes,
            capacity: self.config.capacity,
            key: self.config.key.clone(),
            wrapped_key: self.config.wrapped_key.clone(),
        };
        follow.message(self.epoch, self.writer)
    }

    fn may_send_view(&self) -> bool {
        // Only a whole replica may learn that the volume is closed. Before that it still gets the view,
        // because it accepts nothing else without one.
        let whole = self.condition == Some(ReplicaCondition::Following) && self.flushed >= self.view.base;
        !self.closing || whole || self.bytes_sent == 0
    }

    fn send_view(&mut self) -> ReplicaMessage {
        let whole = self.condition == Some(ReplicaCondition::Following) && self.flushed >= self.view.base;
        let closed = self.closing && whole;
        self.view_sent = closed == self.closing;
        self.bytes_sent = self.bytes;
        ReplicaMessage::keep_view(&self.view, self.bytes, closed)
    }

    fn ship(&mut self) -> Option<SourceAction> {
        let ready = match &self.resync {
            None => true,
            Some(resync) => !matches!(
                resync.stage,
                ResyncStage::Begin | ResyncStage::Move | ResyncStage::Announce(_) | ResyncStage::Announced(_)
            ),
        };
        let end = self.stable.min(self.room);
        let full = self.sent.since(self.flushed) >= REPLICA_FLIGHT_BYTES_MAX;
        if !ready || full || self.sent >= end || self.sent < self.head {
            return None;
        }
        let from = self.sent;
        let bytes = end.since(from).min(FRAME_BODY_BYTES_MAX as u64) as usize;
        self.sent = from.plus(bytes as u64);
        let header = FrameHeader {
            lsn: from,
            ..self.header(FrameKind::Records)
        };
        Some(SourceAction::Ship { header, from, bytes })
    }

    fn ping(&mut self, now: Time) -> Option<SourceAction> {
        let due = now.since(self.pinged).0 >= self.config.timing.detect.0 / 2;
        if self.owed_since.is_some() || !due {
            return None;
        }
        self.pinged = now;
        Some(SourceAction::Send(ReplicaMessage::bare(FrameHeader {
            lsn: Lsn(now.0),
            ..self.header(FrameKind::Ping)
        })))
    }

    fn on_flushed(&mut self, frame: &Frame<'_>, now: Time) {
        let header = &frame.header;
        if header.lsn > self.sent {
            // The data lender claims bytes that were never sent, so none of its frames can be trusted.
            self.give_up(now, ReplicaTrouble::Refused(RefusalReason::Malformed));
            return;
        }
        if header.lsn > self.flushed {
            self.progress = now;
        }
        self.has_flushed(header.lsn);
        self.room = self.room.max(header.stable);
        self.applied = Lsn(ByteReader::new(frame.body).u64().unwrap_or(0));
    }

    fn has_flushed(&mut self, flushed: Lsn) {
        self.flushed = flushed;
        if flushed < self.acked {
            // The data lender's disk has lost flushed bytes.
            self.acked = Lsn(0);
        }
        while self.ends.front().is_some_and(|end| *end <= flushed) {
            self.acked = self.acked.max(self.ends.pop_front().unwrap_or_default());
        }
        if flushed == self.stable {
            self.acked = self.stable;
        }
    }

    fn on_refused(&mut self, header: &FrameHeader, now: Time) {
        let trouble = match RefusalReason::from_byte(header.flags) {
            Some(RefusalReason::Fenced) => ReplicaTrouble::Fenced(header.epoch),
            Some(RefusalReason::Diverged) => ReplicaTrouble::Diverged(header.lsn),
            Some(RefusalReason::DiskFailed) => ReplicaTrouble::DiskFailed(header.lsn.0),
            Some(RefusalReason::OverQuota) => ReplicaTrouble::OverQuota {
                asked: header.lsn.0,
                quota: header.stable.0,
            },
            Some(RefusalReason::OverClientLimit) => {
                let refusal = ClientLimitRefusal::from_numbers(header.lsn.0, header.stable.0);
                ReplicaTrouble::OverClientLimit(refusal)
            }
            Some(refusal) => ReplicaTrouble::Refused(refusal),
            None => ReplicaTrouble::Refused(RefusalReason::Malformed),
        };
        self.give_up(now, trouble);
    }

    /// Closes the connection. Retries come rarely after a condition that only the operator can resolve.
    fn give_up(&mut self, now: Time, trouble: ReplicaTrouble) {
        self.on_lost(now);
        self.trouble = Some(trouble);
        self.disconnect = true;
        let wait = match trouble {
            ReplicaTrouble::Ahead { .. } | ReplicaTrouble::Diverged(_) => Nanos::from_ms(60_000),
            _ => Nanos(self.config.timing.retry.0 * 2),
        };
        self.phase = Phase::Down(now + wait);
    }

    fn is_fenced(&self) -> bool {
        matches!(self.trouble, Some(ReplicaTrouble::Fenced(_)))
    }

    /// Epoch of the writer that claimed the replica from this one. The driver passes it to
    /// [`netram_proto::journal::JournalWriter::on_replica_fenced`].
    pub fn fenced(&self) -> Option<Epoch> {
        match self.trouble {
            Some(ReplicaTrouble::Fenced(epoch)) => Some(epoch),
            _ => None,
        }
    }

    fn header(&self, kind: FrameKind) -> FrameHeader {
        FrameHeader {
            epoch: self.epoch,
            sender: self.writer.0,
            ..FrameHeader::new(kind)
        }
    }
}
