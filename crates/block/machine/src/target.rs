//! The data lender's side of one volume: which frames it accepts, and how they change the replica.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::limit::{REPLICA_RECORD_BYTES_MAX, RESYNC_FRAMES_MAX};
use netram_proto::id::{Epoch, Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::wire::{
    ByteReader, ChainPoint, CrcSeed, Flag, Frame, FrameHeader, FrameKind, RefusalReason, ScanStep, scan_step,
};

use crate::header::{ReplicaCondition, ReplicaHeader};
use crate::message::{self, FollowRequest, ReplicaMessage};
use crate::replica_action::{ReplicaAction, UnflushedRecords};

/// The writer whose frames this session accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SessionWriter {
    epoch: Epoch,
    writer: WriterId,
}

/// One replica at its data lender, as a value. [`Replica::handle`] takes a frame and returns the driver's
/// work, `on_*` take its results, and [`Replica::progress_report`] returns progress to send to the client.
#[derive(Clone, Debug)]
pub struct Replica {
    replica_header: ReplicaHeader,
    view: View,
    seed: CrcSeed,
    capacity: u64,
    head: Lsn,
    /// End of the whole records that were handed to the log.
    received: ChainPoint,
    flushed: ChainPoint,
    /// LSN below which the image has everything.
    applied: Lsn,
    /// A record of which only a part has arrived.
    partial: Vec<u8>,
    session_writer: Option<SessionWriter>,
    /// Whether this session's view is durable here.
    viewed: bool,
    /// A view that is being made durable.
    keeping: Option<(View, Option<ReplicaHeader>)>,
    restarting: Option<(ChainPoint, ReplicaHeader)>,
    /// All blocks have arrived; the replica is whole once its log has reached this LSN.
    until: Option<Lsn>,
    fetches: VecDeque<FrameHeader>,
    reported: Option<(Lsn, Lsn, Lsn)>,
    planted: FaultSwitch,
}

impl Replica {
    /// Creates a replica from its files: its header and view, and a log of `capacity` bytes with valid,
    /// durable records from `head` to `end`.
    pub fn new(standing: ReplicaHeader, view: View, capacity: u64, head: Lsn, end: ChainPoint) -> Replica {
        assert!(head <= end.lsn);
        Replica {
            seed: standing.identity.journal.into(),
            replica_header: standing,
            view,
            capacity,
            head,
            received: end,
            flushed: end,
            applied: head,
            partial: Vec::new(),
            session_writer: None,
            viewed: false,
            keeping: None,
            restarting: None,
            until: None,
            fetches: VecDeque::new(),
            reported: None,
            planted: FaultSwitch::NONE,
        }
    }

    /// Plants a fault; for tests of the simulator only.
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// The replica's header.
    pub fn replica_header(&self) -> &ReplicaHeader {
        &self.replica_header
    }

    /// The view that is durable here.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Whether a client follows the replica and its view is stored here. Only such a client can use reports
    /// such as `BadBlocks`.
    pub fn has_client(&self) -> bool {
        self.session_writer.is_some() && self.viewed
    }

    /// End of the durable log.
    pub fn flushed(&self) -> ChainPoint {
        self.flushed
    }

    /// LSN that the log must still reach before the replica is whole. `None` unless all blocks of a resync
    /// have arrived.
    pub fn until(&self) -> Option<Lsn> {
        self.until
    }

    /// Handles the first frame of a session. It ends any earlier session, whichever client had it.
    pub fn follow(&mut self, frame: &Frame<'_>) -> ReplicaAction<'static> {
        let (epoch, writer) = (frame.header.epoch, WriterId(frame.header.sender));
        let Ok(follow) = FollowRequest::decode(frame) else {
            return self.refuse(RefusalReason::Malformed, Lsn(0));
        };
        if follow.identity != self.replica_header.identity || follow.capacity != self.capacity {
            return self.refuse(RefusalReason::NoReplica, Lsn(0));
        }
        let older = epoch < self.view.epoch;
        let twin = epoch == self.view.epoch && writer != self.view.writer && self.view.writer != WriterId(0);
        let over = self.replica_header.condition == ReplicaCondition::TakenOver;
        if older || twin || over || epoch == Epoch(0) {
            return self.refuse(RefusalReason::Fenced, Lsn(0));
        }
        self.on_session_ended();
        self.session_writer = Some(SessionWriter { epoch, writer });
        if self.replica_header.closed.is_some() && frame.header.flags & Flag::CLOSED == 0 {
            // The client counts the volume as open from here on, whatever it does next.
            return ReplicaAction::Store(ReplicaHeader {
                closed: None,
                ..self.replica_header
            });
        }
        ReplicaAction::Answer(self.following())
    }

    /// The session has ended: records received in part are forgotten.
    pub fn on_session_ended(&mut self) {
        self.partial = Vec::new();
        self.session_writer = None;
        self.viewed = false;
        self.keeping = None;
        self.restarting = None;
        self.until = None;
        self.fetches.clear();
        self.reported = None;
    }

    /// Handles any later frame of the session.
    pub fn handle<'a>(&mut self, frame: &Frame<'a>) -> ReplicaAction<'a> {
        let header = &frame.header;
        if header.kind == FrameKind::Inquire {
            return ReplicaAction::Describe;
        }
        let Some(reign) = self.session_writer else {
            return self.refuse(RefusalReason::NotJoined, Lsn(0));
        };
        match header.kind {
            FrameKind::Ping => ReplicaAction::Answer(self.pong(header)),
            FrameKind::Fetch => self.on_fetch(frame),
            FrameKind::Read => self.on_read(frame),
            _ if (header.epoch, header.sender) != (reign.epoch, reign.writer.0) => {
                self.refuse(RefusalReason::Fenced, Lsn(0))
            }
            FrameKind::StoreView => self.on_keep_view(frame),
            // With another history, no view may be stored before the resync: if the session broke off, the
            // replica would pass for one of the view's epoch.
            FrameKind::Resync if header.flags & Flag::FULL != 0 => self.on_resync(header),
            _ if !self.viewed => self.refuse(RefusalReason::NotFenced, Lsn(0)),
            FrameKind::Records => self.on_records(frame),
            FrameKind::Resync => self.on_resync(header),
            FrameKind::ResyncEnd => {
                self.until = Some(header.lsn);
                ReplicaAction::Nothing
            }
            FrameKind::Digests | FrameKind::Blocks
                if !matches!(
                    self.replica_header.condition,
                    ReplicaCondition::Inconsistent { .. }
                ) =>
            {
                self.refuse(RefusalReason::Malformed, Lsn(0))
            }
            FrameKind::Digests => self.on_digests(frame),
            FrameKind::Blocks => self.on_blocks(frame),
            _ => self.refuse(RefusalReason::Malformed, Lsn(0)),
        }
    }

    fn on_keep_view(&mut self, frame: &Frame<'_>) -> ReplicaAction<'static> {
        let view = match View::decode(frame.body) {
            Ok(view) if view.journal == self.replica_header.identity.journal => view,
            _ => return self.refuse(RefusalReason::Malformed, Lsn(0)),
        };
        let header = &frame.header;
        let named =
            (view.epoch, view.writer.0, Lsn(view.version)) == (header.epoch, header.sender, header.lsn);
        let newer = (view.epoch, view.version) >= (self.view.epoch, self.view.version);
        if !named || !newer {
            return self.refuse(RefusalReason::Malformed, Lsn(0));
        }
        let closed = (header.flags & Flag::CLOSED != 0).then_some(view.base);
        if closed.is_some_and(|end| self.flushed.lsn < end) {
            // The client claims that the replica has all of the volume, but it does not.
            return self.refuse(RefusalReason::Malformed, self.flushed.lsn);
        }
        let standing = (closed != self.replica_header.closed).then_some(ReplicaHeader {
            closed,
            ..self.replica_header
        });
        self.keeping = Some((view.clone(), standing));
        ReplicaAction::KeepView {
            view,
            bytes: header.stable.0,
            standing,
        }
    }

    /// The view of `KeepView`, and its header, are durable. Returns the answer.
    pub fn on_view_stored(&mut self) -> Option<ReplicaMessage> {
        let (view, standing) = self.keeping.take()?;
        self.replica_header = standing.unwrap_or(self.replica_header);
        self.view = view;
        self.viewed = true;
        Some(ReplicaMessage::bare(FrameHeader {
            lsn: Lsn(self.view.version),
            epoch: self.view.epoch,
            ..FrameHeader::new(FrameKind::ViewStored)
        }))
    }

    /// The header of [`ReplicaAction::Store`] or [`Replica::pending_header`] is durable. Returns the answer.
    pub fn on_stored(&mut self, standing: ReplicaHeader) -> ReplicaMessage {
        self.replica_header = standing;
        if standing.condition == ReplicaCondition::Following {
            self.until = None;
        }
        self.following()
    }

    fn on_records(&mut self, frame: &Frame<'_>) -> ReplicaAction<'static> {
        let received = self.received.lsn.plus(self.partial.len() as u64);
        let from = frame.header.lsn;
        if from > received || matches!(self.replica_header.condition, ReplicaCondition::New) {
            return self.refuse(RefusalReason::OutOfWindow, received);
        }
        let known = usize::try_from(received.since(from)).unwrap_or(usize::MAX);
        let Some(fresh) = frame.body.get(known..) else {
            return ReplicaAction::Nothing;
        };
        let end = received.plus(fresh.len() as u64);
        if end > self.room() {
            return self.refuse(RefusalReason::Overrun, self.room());
        }
        self.partial.extend_from_slice(fresh);
        let (mut link, mut whole) = (self.received, 0);
        loop {
            match scan_step(&self.partial[whole..], link, self.seed, self.planted) {
                ScanStep::Record(header) => {
                    whole += header.length;
                    link = header.next_point();
                }
                ScanStep::Incomplete(length) if length <= REPLICA_RECORD_BYTES_MAX => break,
                ScanStep::Incomplete(_) => return self.refuse(RefusalReason::BadRecord, link.lsn),
                ScanStep::Bad(_) => return self.refuse(RefusalReason::Diverged, link.lsn),
            }
        }
        if whole == 0 {
            return ReplicaAction::Nothing;
        }
        let rest = self.partial.split_off(whole);
        let bytes = core::mem::replace(&mut self.partial, rest);
        let at = core::mem::replace(&mut self.received, link).lsn;
        ReplicaAction::Write { at, bytes }
    }

    /// Records to sync, if there are any.
    pub fn unflushed(&self) -> Option<UnflushedRecords> {
        (self.flushed != self.received).then_some(UnflushedRecords { end: self.received })
    }

    /// The log is durable up to `end`, a value that [`Replica::unflushed`] returned.
    pub fn on_flushed(&mut self, end: ChainPoint) {
        assert!(self.flushed.lsn <= end.lsn && end.lsn <= self.received.lsn);
        self.flushed = end;
    }

    /// The log now begins at `head`, and the image has everything below `applied`.
    pub fn on_applied(&mut self, head: Lsn, applied: Lsn) {
        assert!(self.head <= head && head <= self.flushed.lsn);
        self.head = head;
        self.applied = applied;
    }

    fn on_resync(&mut self, header: &FrameHeader) -> ReplicaAction<'static> {
        let since = match self.replica_header.condition {
            _ if header.flags & Flag::FULL != 0 => None,
            ReplicaCondition::Following => Some(self.flushed.lsn),
            ReplicaCondition::Inconsistent { since } => since,
            ReplicaCondition::New | ReplicaCondition::TakenOver => None,
        };
        let start = ChainPoint {
            lsn: header.lsn,
            chain: header.mark,
        };
        if !start.lsn.0.is_multiple_of(8) || start.lsn.0 >= 1 << 62 {
            return self.refuse(RefusalReason::Malformed, start.lsn);
        }
        // The image is taken back to `start`: records from there on are applied again. Until all of them have
        // been, the blocks that they change are correct only as of `start`.
        let since = since.map(|since| since.min(start.lsn));
        let standing = ReplicaHeader {
            condition: ReplicaCondition::Inconsistent { since },
            ..self.replica_header
        };
        self.until = None;
        self.restarting = Some((start, standing));
        ReplicaAction::Restart { start, standing }
    }

    /// [`ReplicaAction::Restart`] is done and durable. Returns the answer.
    pub fn on_restarted(&mut self) -> Option<ReplicaMessage> {
        let (start, standing) = self.restarting.take()?;
        self.replica_header = standing;
        self.partial = Vec::new();
        self.received = start;
        self.flushed = start;
        self.head = start.lsn;
        self.applied = start.lsn;
        Some(self.following())
    }

    fn on_digests(&mut self, frame: &Frame<'_>) -> ReplicaAction<'static> {
        let Some(digests) = message::digests(frame.body) else {
            return self.refuse(RefusalReason::Malformed, Lsn(0));
        };
        ReplicaAction::Compare {
            asked: frame.header,
            first: frame.header.lsn.0,
            digests: digests.collect(),
        }
    }

    /// Answers [`ReplicaAction::Compare`]; `different` tells for each digest whether the block here differs.
    pub fn differ(asked: &FrameHeader, different: impl Iterator<Item = bool>) -> ReplicaMessage {
        let mut body = Vec::new();
        for (index, different) in different.enumerate() {
            if index % 8 == 0 {
                body.push(0);
            }
            if let Some(last) = body.last_mut() {
                *last |= u8::from(different) << (index % 8);
            }
        }
        let header = FrameHeader {
            lsn: asked.lsn,
            mark: asked.mark,
            ..FrameHeader::new(FrameKind::DigestReply)
        };
        ReplicaMessage { header, body }
    }

    fn on_blocks<'a>(&mut self, frame: &Frame<'a>) -> ReplicaAction<'a> {
        let asked = frame.header;
        if asked.flags & Flag::HOLES != 0 {
            return match message::numbers(frame.body) {
                Some(numbers) => ReplicaAction::PutHoles {
                    asked,
                    numbers: numbers.collect(),
                },
                None => self.refuse(RefusalReason::Malformed, Lsn(0)),
            };
        }
        match message::blocks(frame.body) {
            Some(_) => ReplicaAction::Put {
                asked,
                blocks: frame.body,
            },
            None => self.refuse(RefusalReason::Malformed, Lsn(0)),
        }
    }

    /// Answers [`ReplicaAction::Put`] and [`ReplicaAction::PutHoles`].
    pub fn stored(asked: &FrameHeader) -> ReplicaMessage {
        ReplicaMessage::bare(FrameHeader {
            mark: asked.mark,
            ..FrameHeader::new(FrameKind::Stored)
        })
    }

    /// New header once the replica is whole again: make its image durable, then this header; then call
    /// [`Replica::on_stored`]. To be called after every frame and every sync.
    pub fn pending_header(&self) -> Option<ReplicaHeader> {
        let until = self.until?;
        let resyncing = matches!(
            self.replica_header.condition,
            ReplicaCondition::Inconsistent { .. }
        );
        let there = self.flushed.lsn >= until || self.planted.is(PlantedFault::ReplicaWholeTooEarly);
        (resyncing && there).then_some(ReplicaHeader {
            condition: ReplicaCondition::Following,
            ..self.replica_header
        })
    }

    fn on_fetch(&mut self, frame: &Frame<'_>) -> ReplicaAction<'static> {
        let count = ByteReader::new(frame.body).u32().unwrap_or(0) as usize;
        if !(1..=message::fetch_max(&frame.header)).contains(&count) {
            return self.refuse(RefusalReason::Malformed, Lsn(0));
        }
        let right = match self.replica_header.condition {
            ReplicaCondition::Following => true,
            // The client knows which blocks have changed since, and does not ask for them.
            ReplicaCondition::Inconsistent { since } => since.is_some(),
            ReplicaCondition::New | ReplicaCondition::TakenOver => false,
        };
        if !right {
            return ReplicaAction::Answer(ReplicaMessage::fetch_later(&frame.header));
        }
        // The count travels in a header field that the answer does not use.
        self.fetches.push_back(FrameHeader {
            sender: count as u64,
            ..frame.header
        });
        if self.fetches.len() <= RESYNC_FRAMES_MAX {
            return ReplicaAction::Nothing;
        }
        // Requests pile up while the log lags. The client of the oldest one has waited longest and may have
        // given up.
        match self.fetches.pop_front() {
            Some(oldest) => ReplicaAction::Answer(ReplicaMessage::fetch_later(&oldest)),
            None => ReplicaAction::Nothing,
        }
    }

    /// Next blocks to read, as the volume has them now in stages and image: the request's header, the first
    /// number and the count. Answer with [`ReplicaMessage::fetched`], or [`ReplicaMessage::fetched_map`] if
    /// the header has flag `HOLES`. If the stages cannot show that much yet, answer
    /// [`ReplicaMessage::fetch_later`]. To be called after every frame and every sync.
    pub fn next_fetch(&mut self) -> Option<(FrameHeader, u64, usize)> {
        let ready = |asked: &FrameHeader| asked.stable <= self.flushed.lsn;
        let index = self.fetches.iter().position(ready)?;
        let asked = self.fetches.remove(index)?;
        Some((asked, asked.lsn.0, asked.sender as usize))
    }

    fn on_read(&mut self, frame: &Frame<'_>) -> ReplicaAction<'static> {
        let asked = ByteReader::new(frame.body).u32().unwrap_or(0) as usize;
        let from = frame.header.lsn;
        if from < self.head || from > self.flushed.lsn || asked == 0 {
            return self.refuse(RefusalReason::OutOfWindow, self.head);
        }
        let there = usize::try_from(self.flushed.lsn.since(from)).unwrap_or(usize::MAX);
        let answer = FrameHeader {
            lsn: from,
            stable: self.flushed.lsn,
            ..FrameHeader::new(FrameKind::Data)
        };
        ReplicaAction::ReadLog {
            answer,
            from,
            bytes: there.min(asked).min(FRAME_BODY_BYTES_MAX),
        }
    }

    /// Progress of the log, if the client has not been told yet.
    pub fn progress_report(&mut self) -> Option<ReplicaMessage> {
        self.session_writer?;
        let end = if self.planted.is(PlantedFault::FlushedBeforeSync) {
            self.received.lsn
        } else {
            self.flushed.lsn
        };
        let news = (end, self.room(), self.applied);
        if !self.viewed || self.reported == Some(news) {
            return None;
        }
        self.reported = Some(news);
        let header = FrameHeader {
            lsn: news.0,
            stable: news.1,
            ..FrameHeader::new(FrameKind::Flushed)
        };
        Some(ReplicaMessage {
            header,
            body: news.2.0.to_le_bytes().to_vec(),
        })
    }

    fn room(&self) -> Lsn {
        self.head.plus(self.capacity)
    }

    fn following(&self) -> ReplicaMessage {
        let (condition, since) = self.replica_header.condition.encode();
        let header = FrameHeader {
            flags: condition,
            lsn: self.flushed.lsn,
            epoch: self.view.epoch,
            sender: self.view.writer.0,
            mark: self.flushed.chain,
            stable: self.room(),
            ..FrameHeader::new(FrameKind::Following)
        };
        ReplicaMessage {
            header,
            body: since.to_le_bytes().to_vec(),
        }
    }

    fn pong(&self, asked: &FrameHeader) -> ReplicaMessage {
        ReplicaMessage {
            header: FrameHeader {
                lsn: self.flushed.lsn,
                epoch: self.view.epoch,
                ..FrameHeader::new(FrameKind::Pong)
            },
            body: asked.lsn.0.to_le_bytes().to_vec(),
        }
    }

    fn refuse(&self, refusal: RefusalReason, at: Lsn) -> ReplicaAction<'static> {
        ReplicaAction::Refuse(ReplicaMessage::bare(FrameHeader {
            flags: refusal as u8,
            lsn: at,
            epoch: self.view.epoch,
            ..FrameHeader::new(FrameKind::Refuse)
        }))
    }
}
