//! The data lender's side of one volume: which frames are taken, and what they make of the replica.

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

use super::header::{ReplicaCondition, ReplicaHeader};
use super::message::{self, BlockDigest, FollowRequest, ReplicaMessage};

/// What the driver is to do for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaAction<'a> {
    /// Nothing, or nothing yet.
    Nothing,
    /// Send this.
    Answer(ReplicaMessage),
    /// Send this, and end the session.
    Refuse(ReplicaMessage),
    /// Make the standing durable; then [`Replica::on_stored`].
    Store(ReplicaHeader),
    /// Write whole records into the log. [`Replica::unflushed`] says what to sync, when nothing more is
    /// waiting to be received.
    Write {
        /// Where.
        at: Lsn,
        /// What.
        bytes: Vec<u8>,
    },
    /// Make the volume `bytes` long if it is shorter, the standing durable if there is one, then `view`; then
    /// [`Replica::on_view_stored`]. In this order: a view without members, and nothing that says that none
    /// are needed, would prove nothing.
    KeepView {
        /// The view.
        view: View,
        /// The volume's size.
        bytes: u64,
        /// What the replica's file is to say.
        standing: Option<ReplicaHeader>,
    },
    /// Make the standing durable; bring everything in the log into the image; begin the log anew at `start`;
    /// then [`Replica::on_restarted`]. Nothing of the new log goes into the image before all blocks have
    /// come: see [`Replica::pending_header`].
    Restart {
        /// Where the log begins.
        start: ChainPoint,
        /// What the replica's file is to say.
        standing: ReplicaHeader,
    },
    /// Compare digests with the blocks from `first` on; answer with [`Replica::differ`].
    Compare {
        /// The frame's header.
        asked: FrameHeader,
        /// The first block's number.
        first: u64,
        /// The client's digests.
        digests: Vec<BlockDigest>,
    },
    /// Put blocks into the image, in the order of the records before and after; answer with
    /// [`Replica::stored`]. They need not be durable before [`Replica::pending_header`] asks for it.
    Put {
        /// The frame's header.
        asked: FrameHeader,
        /// To be read with [`message::blocks`].
        blocks: &'a [u8],
    },
    /// Make holes; answer with [`Replica::stored`].
    PutHoles {
        /// The frame's header.
        asked: FrameHeader,
        /// The blocks' numbers.
        numbers: Vec<u64>,
    },
    /// Read bytes of the log, at most so many and none beyond what is durable; answer with `Data`.
    ReadLog {
        /// The answer's header.
        answer: FrameHeader,
        /// Where from.
        from: Lsn,
        /// How many at most.
        bytes: usize,
    },
    /// Make the log durable, if anything in it is not, and describe the replica: [`ReplicaMessage::replica`].
    /// A restore begins where this says that the log ends; what a session before had sent must not end
    /// further when it is synced later.
    Describe,
}

/// Records that were written and not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnflushedRecords {
    /// Where they end.
    pub end: ChainPoint,
}

/// Whose frames are taken in this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SessionWriter {
    epoch: Epoch,
    writer: WriterId,
}

/// One replica at its data lender, as a value. [`Replica::handle`] takes a frame and says what is to be done;
/// `on_*` tell it what was done; [`Replica::progress_report`] says what the client is to be told.
#[derive(Clone, Debug)]
pub struct Replica {
    replica_header: ReplicaHeader,
    view: View,
    seed: CrcSeed,
    capacity: u64,
    head: Lsn,
    /// The end of the whole records that were handed to the log.
    received: ChainPoint,
    flushed: ChainPoint,
    /// What the image has.
    applied: Lsn,
    /// A record of which a part has come.
    partial: Vec<u8>,
    session_writer: Option<SessionWriter>,
    /// This session's view is durable here.
    viewed: bool,
    /// A view on its way to the disk.
    keeping: Option<(View, Option<ReplicaHeader>)>,
    restarting: Option<(ChainPoint, ReplicaHeader)>,
    /// All blocks have come; the replica is whole once its log has reached this.
    until: Option<Lsn>,
    fetches: VecDeque<FrameHeader>,
    reported: Option<(Lsn, Lsn, Lsn)>,
    planted: FaultSwitch,
}

impl Replica {
    /// A replica as its files say: its standing and view, and a log of `capacity` bytes whose valid records
    /// stand from `head` to `end`, all durable.
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

    /// Plants a fault (tests of the simulator only).
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// What the replica's file says.
    pub fn replica_header(&self) -> &ReplicaHeader {
        &self.replica_header
    }

    /// The view that is durable here.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// A client speaks for the replica, whose view is kept here: what it is told now it knows what to do
    /// with.
    pub fn has_client(&self) -> bool {
        self.session_writer.is_some() && self.viewed
    }

    /// Where the durable log ends.
    pub fn flushed(&self) -> ChainPoint {
        self.flushed
    }

    /// A resync is under way, and all its blocks have come: the log is still short of this.
    pub fn until(&self) -> Option<Lsn> {
        self.until
    }

    /// Takes the first frame of a session. What an earlier session said is over, whoever's it was.
    pub fn follow(&mut self, frame: &Frame<'_>) -> ReplicaAction<'static> {
        let (epoch, writer) = (frame.header.epoch, WriterId(frame.header.sender));
        let Ok(follow) = FollowRequest::decode(frame.body) else {
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
            // Whatever the client does from here on, it is open again.
            return ReplicaAction::Store(ReplicaHeader {
                closed: None,
                ..self.replica_header
            });
        }
        ReplicaAction::Answer(self.following())
    }

    /// The session is over: what was received in part is forgotten.
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

    /// Takes any other frame of the session.
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
            // Over another history no view may come first: a session that broke off there would leave a
            // replica that passes for one of the view's reign.
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
            // It says that we have all of it, and we have not.
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

    /// The view that `KeepView` had stored is durable, and the standing with it. The answer.
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

    /// The standing of [`ReplicaAction::Store`] or of [`Replica::pending_header`] is durable. The answer.
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

    /// What is to be synced, if anything is.
    pub fn unflushed(&self) -> Option<UnflushedRecords> {
        (self.flushed != self.received).then_some(UnflushedRecords { end: self.received })
    }

    /// The log is durable up to `end`, as [`Replica::unflushed`] had it.
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
        // The image is taken back: records from there on come again, and until all of them have, what they
        // change is right only as of where they begin.
        let since = since.map(|since| since.min(start.lsn));
        let standing = ReplicaHeader {
            condition: ReplicaCondition::Inconsistent { since },
            ..self.replica_header
        };
        self.until = None;
        self.restarting = Some((start, standing));
        ReplicaAction::Restart { start, standing }
    }

    /// What [`ReplicaAction::Restart`] said is done, and durable. The answer.
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

    /// Answers [`ReplicaAction::Compare`]: for each digest, whether the block here is another one.
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

    /// The replica is whole again: make its image durable, then this standing; then [`Replica::on_stored`].
    /// To be asked after every frame and every sync.
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
            // The client knows which blocks have changed since, and does not ask for these.
            ReplicaCondition::Inconsistent { since } => since.is_some(),
            ReplicaCondition::New | ReplicaCondition::TakenOver => false,
        };
        if !right {
            return ReplicaAction::Answer(ReplicaMessage::fetch_later(&frame.header));
        }
        // The count travels in a field that the answer does not use.
        self.fetches.push_back(FrameHeader {
            sender: count as u64,
            ..frame.header
        });
        if self.fetches.len() <= RESYNC_FRAMES_MAX {
            return ReplicaAction::Nothing;
        }
        // A log that is behind lets questions pile up. Whoever asked the oldest has waited longest, and may
        // have given up.
        match self.fetches.pop_front() {
            Some(oldest) => ReplicaAction::Answer(ReplicaMessage::fetch_later(&oldest)),
            None => ReplicaAction::Nothing,
        }
    }

    /// Blocks to read and to answer with [`ReplicaMessage::fetched`], or with [`ReplicaMessage::fetched_map`]
    /// where the header has the flag `HOLES`, as the volume is here now, stages and image: the header that
    /// asked, the first number and the count. [`ReplicaMessage::fetch_later`] if its stages cannot show that
    /// much yet. To be asked after every frame and every sync.
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

    /// How far the log is, if the client does not know it yet.
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
