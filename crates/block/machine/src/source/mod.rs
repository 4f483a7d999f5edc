//! The client's side of one volume and its data lender: what to send next, and whether it is in service.
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | the session, the log, the view, the service |
//! | `resync.rs` | blocks in the log's place |
//! | `status.rs` | what an operator is told |

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::limit::{REPLICA_ENDS_MAX, REPLICA_FLIGHT_BYTES_MAX};
use netram_proto::id::{Epoch, Lsn, WriterId};
use netram_proto::journal::{ReplicaAck, View};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ByteReader, Frame, FrameHeader, FrameKind, RefusalReason};

use super::header::ReplicaCondition;
use super::message::{FollowRequest, ReplicaIdentity, ReplicaMessage};

mod resync;
mod status;

pub use resync::ResyncScope;
use resync::{ResyncStage, ResyncState};
pub use status::{ReplicaTrouble, ResyncProgress, SourceStatus};

/// How long things may take. Safety does not depend on any of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceTiming {
    /// A data lender that owes an answer for this long is out of service until it answers.
    pub detect: Nanos,
    /// The connection is given up when an answer is owed for this long: its disk may be slow, so this is
    /// longer.
    pub give_up: Nanos,
    /// A data lender that cannot be reached is tried again after this.
    pub retry: Nanos,
    /// Blocks that stay dirty after a resync, as those that are damaged on both sides, are tried again after
    /// this.
    pub repair: Nanos,
}

impl Default for SourceTiming {
    fn default() -> SourceTiming {
        SourceTiming {
            detect: Nanos::from_ms(500),
            give_up: Nanos::from_ms(20_000),
            retry: Nanos::from_ms(1000),
            repair: Nanos::from_ms(600_000),
        }
    }
}

/// What a source is configured with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceConfig {
    /// Which volume.
    pub identity: ReplicaIdentity,
    /// The key of its journal's records; empty: they are not sealed.
    pub key: Vec<u8>,
    /// Bytes that the log can hold.
    pub capacity: u64,
    /// Bytes of a member's window.
    pub window_bytes: u64,
    /// Timeouts.
    pub timing: SourceTiming,
}

/// What the driver is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceAction {
    /// Send this.
    Send(ReplicaMessage),
    /// Send this header and `bytes` of the local log from `from` as its body. They are stable. When some have
    /// been trimmed away, send nothing and say so with [`ReplicaSource::on_trimmed`].
    Ship {
        /// The header.
        header: FrameHeader,
        /// The first byte.
        from: Lsn,
        /// How many.
        bytes: usize,
    },
    /// Take the log's head, then fix the set of blocks that [`SourceAction::Choose`] will be about; then
    /// [`ReplicaSource::on_begun`]. Whatever becomes dirty from here on belongs to the next set.
    Begin {
        /// Which blocks.
        scope: ResyncScope,
        /// The replica was whole when its log ended here: with `ResyncScope::Dirty` the dirty map must have
        /// every change since.
        since: Option<Lsn>,
    },
    /// The log lost records that the replica lacks while blocks were sent: take its head now; then
    /// [`ReplicaSource::on_moved`]. Their blocks are in the dirty map, if that has every change since.
    Move {
        /// The replica has everything below this.
        since: Lsn,
    },
    /// Choose the next blocks, at most so many, and take the log's head after that; then
    /// [`ReplicaSource::on_chosen`].
    Choose {
        /// At most so many.
        max: usize,
        /// Zero: of the set. With every higher number begin anew, with the blocks that became dirty since
        /// they were last chosen.
        pass: u32,
    },
    /// Digest blocks as the volume has them now; then [`ReplicaSource::on_digested`].
    Digest {
        /// The first block's number.
        first: u64,
        /// How many; fewer where the volume ends.
        count: usize,
    },
    /// Read these blocks as the volume has them now, stages and image; then [`ReplicaSource::on_read`].
    Read(Vec<u64>),
    /// The replica is whole: forget the set that [`SourceAction::Begin`] fixed, durably; then
    /// [`ReplicaSource::on_cleared`].
    Clear,
    /// The replica's blocks of these numbers do not check: make them dirty, durably; then
    /// [`ReplicaSource::on_marked`].
    Mark(Vec<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No connection. Try at this time.
    Down(Time),
    Connecting,
    /// `FollowRequest` is to be sent.
    Greeting,
    /// `FollowRequest` was sent.
    Requested,
    Up,
}

/// The client's side. `on_*` tell it what happened; [`ReplicaSource::next_action`] says what to do;
/// [`ReplicaSource::ack`] what the writer is to be told.
#[derive(Clone, Debug)]
pub struct ReplicaSource {
    config: SourceConfig,
    epoch: Epoch,
    writer: WriterId,
    /// Bytes of the volume.
    bytes: u64,
    head: Lsn,
    stable: Lsn,
    /// Ends of synced batches above `flushed`, where records end.
    ends: VecDeque<Lsn>,
    /// The highest of them that the replica has flushed.
    acked: Lsn,
    view: View,
    closing: bool,
    view_sent: bool,
    /// It was kept, as it stands: closed or not.
    view_stored: bool,
    /// The newest view that was kept in this session; zero: none.
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
    /// The last number given to a frame of this session.
    mark: u32,
    /// A resync ended since blocks were last found dirty; then, when they are tried again.
    resynced: bool,
    repair_at: Time,
    bad: Vec<u64>,
    wanted: Option<ResyncScope>,
    /// What the replica has is of another history, or may be, and will be overwritten: until it knows, it is
    /// told no view, or one that broke off there would pass for ours.
    foreign: bool,
    owed_since: Option<Time>,
    /// When the replica's log last grew, or lacked nothing.
    progress: Time,
    pinged: Time,
    trouble: Option<ReplicaTrouble>,
    disconnect: bool,
}

impl ReplicaSource {
    /// The source of the reign that made `view` durable. The volume has `bytes`; its log stands from `head`
    /// to `stable`.
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

    /// Whether the driver should connect now. Saying yes counts as having begun.
    pub fn wants_connection(&mut self, now: Time) -> bool {
        let due = matches!(self.phase, Phase::Down(at) if at <= now) && !self.is_fenced();
        if due {
            self.phase = Phase::Connecting;
        }
        due
    }

    /// The connection is to be closed: the data lender has been silent too long, or makes no sense.
    pub fn take_disconnect(&mut self) -> bool {
        core::mem::take(&mut self.disconnect)
    }

    /// A connection stands.
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

    /// It could not be reached, or the connection broke.
    pub fn on_lost(&mut self, now: Time) {
        if self.take_disconnect() {
            // Given up already, with when to try again. Nothing is left to be closed: least of all the next
            // connection, which the driver would close without a word.
            return;
        }
        self.phase = Phase::Down(now + self.config.timing.retry);
        self.resync = None;
        self.served = false;
        self.view_stored = false;
        self.owed_since = None;
        self.trouble.get_or_insert(ReplicaTrouble::Unreachable);
    }

    /// Time passes.
    pub fn on_tick(&mut self, now: Time) {
        let silent = |since: Time| now.since(since) > self.config.timing.give_up;
        if self.owed_since.is_some_and(silent) {
            self.give_up(now, ReplicaTrouble::Unreachable);
        }
    }

    /// The local log is stable up to here, where a record ends.
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

    /// The local log now begins here.
    pub fn on_head(&mut self, head: Lsn) {
        self.head = self.head.max(head);
        self.find_gap();
    }

    /// Bytes from `from` on, of [`SourceAction::Ship`], were not sent: the local log now begins at `head`,
    /// above.
    pub fn on_trimmed(&mut self, from: Lsn, head: Lsn) {
        assert!(from < head);
        self.sent = self.sent.min(from);
        self.on_head(head);
    }

    /// What the replica was to be sent next may be gone from the log: blocks take its place.
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

    /// A view is about to be made durable here, or has been. From now on only a data lender that has it is in
    /// service.
    pub fn on_view(&mut self, view: View) {
        assert!(view.epoch == self.epoch && view.version >= self.view.version);
        if view.version > self.view.version {
            self.view = view;
            self.view_sent = false;
            self.view_stored = false;
        }
    }

    /// The volume is closed: `view` has no members, and the log ends at its base. Once the replica has all of
    /// it, it is told so; see [`ReplicaSource::is_closed`].
    pub fn on_close(&mut self, view: View) {
        self.on_view(view);
        self.closing = true;
        self.view_sent = false;
        self.view_stored = false;
    }

    /// The replica knows that the volume was closed, and has all of it.
    pub fn is_closed(&self) -> bool {
        self.closing && self.view_stored
    }

    /// What the writer is to be told ([`netram_proto::journal::JournalWriter::on_replica_ack`]); `None`: not
    /// in service.
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
            // It comes back only with the newest view, and when it has caught up further than it had to.
            false => lag <= self.config.window_bytes / 4 && self.version_stored == self.view.version,
        };
        self.served = self.phase == Phase::Up && prompt && moves && whole && near;
        self.served.then_some(ReplicaAck {
            lsn: self.acked,
            version: self.version_stored,
        })
    }

    /// The volume may give up what is below this in its log: the replica is whole and has it, flushed.
    /// `None`: it is not whole, and keeps nothing safe.
    pub fn trimmable(&self) -> Option<Lsn> {
        let whole = self.condition == Some(ReplicaCondition::Following) && self.resync.is_none();
        (whole && self.phase == Phase::Up).then_some(self.flushed)
    }

    /// The data lender sent a frame. `Fetched` is the driver's own affair.
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
            // Another answer is to what was sent before, and is behind the times.
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

    /// What to do next. The driver calls this while the link has room for a frame, after every event, until
    /// it returns `None`.
    pub fn next_action(&mut self, now: Time) -> Option<SourceAction> {
        let todo = match self.phase {
            Phase::Down(_) | Phase::Connecting | Phase::Requested => None,
            Phase::Greeting => Some(SourceAction::Send(self.greet())),
            Phase::Up if !self.view_sent && !self.foreign && self.may_send_view() => {
                Some(SourceAction::Send(self.send_view()))
            }
            Phase::Up => {
                // In turns, so that neither the log nor the blocks wait for the other's end.
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

    fn greet(&mut self) -> ReplicaMessage {
        self.phase = Phase::Requested;
        let follow = FollowRequest {
            identity: self.config.identity,
            bytes: self.bytes,
            capacity: self.config.capacity,
            key: self.config.key.clone(),
        };
        follow.message(self.epoch, self.writer)
    }

    fn may_send_view(&self) -> bool {
        // Only a replica that is whole may believe that it has all of a closed volume. Before that it is told
        // the view all the same: nothing else is taken without.
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
            // It claims to have what was never sent. Nothing it says can be believed.
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
            // Its disk has lost what it had.
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
            Some(refusal) => ReplicaTrouble::Refused(refusal),
            None => ReplicaTrouble::Refused(RefusalReason::Malformed),
        };
        self.give_up(now, trouble);
    }

    /// The connection is closed. What only the operator can settle is not tried again without him.
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

    /// The reign that claimed the replica from this one: to be told to
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
