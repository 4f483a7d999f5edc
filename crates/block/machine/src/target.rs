//! The data lender's side of one volume: which frames are taken, and what they make of the replica.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::limit::{REPLICA_RECORD_BYTES_MAX, RESYNC_FRAMES_MAX};
use netram_proto::id::{Epoch, Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::planted::{Fault, Planted};
use netram_proto::wire::{Cursor, Flag, Frame, FrameKind, Header, Link, Refusal, Seed, Step, step};

use super::message::{self, Digest, Follow, Message};
use super::standing::{Condition, Standing};

/// What the driver is to do for a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed<'a> {
    /// Nothing, or nothing yet.
    Nothing,
    /// Send this.
    Answer(Message),
    /// Send this, and end the session.
    Refuse(Message),
    /// Make the standing durable; then [`Replica::on_stored`].
    Store(Standing),
    /// Write whole records into the log. [`Replica::unflushed`] says what to sync, when nothing more is waiting to be received.
    Write {
        /// Where.
        at: Lsn,
        /// What.
        bytes: Vec<u8>,
    },
    /// Make the volume `bytes` long if it is shorter, the standing durable if there is one, then `view`; then
    /// [`Replica::on_view_kept`]. In this order: a view without members, and nothing that says that none are needed, would prove nothing.
    KeepView {
        /// The view.
        view: View,
        /// The volume's size.
        bytes: u64,
        /// What the replica's file is to say.
        standing: Option<Standing>,
    },
    /// Make the standing durable; bring everything in the log into the image; begin the log anew at `start`; then
    /// [`Replica::on_restarted`]. Nothing of the new log goes into the image before all blocks have come: see
    /// [`Replica::unsettled`].
    Restart {
        /// Where the log begins.
        start: Link,
        /// What the replica's file is to say.
        standing: Standing,
    },
    /// Compare digests with the blocks from `first` on; answer with [`Replica::differ`].
    Compare {
        /// The frame's header.
        asked: Header,
        /// The first block's number.
        first: u64,
        /// The client's digests.
        digests: Vec<Digest>,
    },
    /// Put blocks into the image, in the order of the records before and after; answer with [`Replica::stored`]. They need not be
    /// durable before [`Replica::unsettled`] asks for it.
    Put {
        /// The frame's header.
        asked: Header,
        /// To be read with [`message::blocks`].
        blocks: &'a [u8],
    },
    /// Make holes; answer with [`Replica::stored`].
    PutHoles {
        /// The frame's header.
        asked: Header,
        /// The blocks' numbers.
        numbers: Vec<u64>,
    },
    /// Read bytes of the log, at most so many and none beyond what is durable; answer with `Data`.
    ReadLog {
        /// The answer's header.
        answer: Header,
        /// Where from.
        from: Lsn,
        /// How many at most.
        bytes: usize,
    },
    /// Make the log durable, if anything in it is not, and describe the replica: [`Message::replica`]. A restore begins where this says
    /// that the log ends; what a session before had sent must not end further when it is synced later.
    Describe,
}

/// Records that were written and not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unflushed {
    /// Where they end.
    pub end: Link,
}

/// Whose frames are taken in this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reign {
    epoch: Epoch,
    writer: WriterId,
}

/// One replica at its data lender, as a value. [`Replica::handle`] takes a frame and says what is to be done;
/// `on_*` tell it what was done; [`Replica::news`] says what the client is to be told.
#[derive(Clone, Debug)]
pub struct Replica {
    standing: Standing,
    view: View,
    seed: Seed,
    capacity: u64,
    head: Lsn,
    /// The end of the whole records that were handed to the log.
    held: Link,
    flushed: Link,
    /// What the image has.
    applied: Lsn,
    /// A record of which a part has come.
    partial: Vec<u8>,
    reign: Option<Reign>,
    /// This session's view is durable here.
    viewed: bool,
    /// A view on its way to the disk.
    keeping: Option<(View, Option<Standing>)>,
    restarting: Option<(Link, Standing)>,
    /// All blocks have come; the replica is whole once its log has reached this.
    until: Option<Lsn>,
    fetches: VecDeque<Header>,
    told: Option<(Lsn, Lsn, Lsn)>,
    planted: Planted,
}

impl Replica {
    /// A replica as its files say: its standing and view, and a log of `capacity` bytes whose valid records stand from
    /// `head` to `end`, all durable.
    pub fn new(standing: Standing, view: View, capacity: u64, head: Lsn, end: Link) -> Replica {
        assert!(head <= end.lsn);
        Replica {
            seed: standing.identity.journal.into(),
            standing,
            view,
            capacity,
            head,
            held: end,
            flushed: end,
            applied: head,
            partial: Vec::new(),
            reign: None,
            viewed: false,
            keeping: None,
            restarting: None,
            until: None,
            fetches: VecDeque::new(),
            told: None,
            planted: Planted::NONE,
        }
    }

    /// Plants a fault (tests of the simulator only).
    pub fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// What the replica's file says.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// The view that is durable here.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// A client speaks for the replica, whose view is kept here: what it is told now it knows what to do with.
    pub fn is_heard(&self) -> bool {
        self.reign.is_some() && self.viewed
    }

    /// Where the durable log ends.
    pub fn flushed(&self) -> Link {
        self.flushed
    }

    /// A resync is under way, and all its blocks have come: the log is still short of this.
    pub fn until(&self) -> Option<Lsn> {
        self.until
    }

    /// Takes the first frame of a session. What an earlier session said is over, whoever's it was.
    pub fn follow(&mut self, frame: &Frame<'_>) -> Deed<'static> {
        let (epoch, writer) = (frame.header.epoch, WriterId(frame.header.who));
        let Ok(follow) = Follow::decode(frame.body) else {
            return self.refuse(Refusal::Malformed, Lsn(0));
        };
        if follow.identity != self.standing.identity || follow.capacity != self.capacity {
            return self.refuse(Refusal::NoReplica, Lsn(0));
        }
        let older = epoch < self.view.epoch;
        let twin = epoch == self.view.epoch && writer != self.view.writer && self.view.writer != WriterId(0);
        let over = self.standing.condition == Condition::TakenOver;
        if older || twin || over || epoch == Epoch(0) {
            return self.refuse(Refusal::Fenced, Lsn(0));
        }
        self.on_session_ended();
        self.reign = Some(Reign { epoch, writer });
        if self.standing.closed.is_some() && frame.header.flags & Flag::CLOSED == 0 {
            // Whatever the client does from here on, it is open again.
            return Deed::Store(Standing {
                closed: None,
                ..self.standing
            });
        }
        Deed::Answer(self.following())
    }

    /// The session is over: what was received in part is forgotten.
    pub fn on_session_ended(&mut self) {
        self.partial = Vec::new();
        self.reign = None;
        self.viewed = false;
        self.keeping = None;
        self.restarting = None;
        self.until = None;
        self.fetches.clear();
        self.told = None;
    }

    /// Takes any other frame of the session.
    pub fn handle<'a>(&mut self, frame: &Frame<'a>) -> Deed<'a> {
        let header = &frame.header;
        if header.kind == FrameKind::Inquire {
            return Deed::Describe;
        }
        let Some(reign) = self.reign else {
            return self.refuse(Refusal::NotJoined, Lsn(0));
        };
        match header.kind {
            FrameKind::Ping => Deed::Answer(self.pong(header)),
            FrameKind::Fetch => self.on_fetch(frame),
            FrameKind::Read => self.on_read(frame),
            _ if (header.epoch, header.who) != (reign.epoch, reign.writer.0) => {
                self.refuse(Refusal::Fenced, Lsn(0))
            }
            FrameKind::KeepView => self.on_keep_view(frame),
            // Over another history no view may come first: a session that broke off there would leave a replica that passes for
            // one of the view's reign.
            FrameKind::Resync if header.flags & Flag::WHOLE != 0 => self.on_resync(header),
            _ if !self.viewed => self.refuse(Refusal::NotSealed, Lsn(0)),
            FrameKind::Records => self.on_records(frame),
            FrameKind::Resync => self.on_resync(header),
            FrameKind::Resynced => {
                self.until = Some(header.lsn);
                Deed::Nothing
            }
            FrameKind::Digests | FrameKind::Blocks
                if !matches!(self.standing.condition, Condition::Inconsistent { .. }) =>
            {
                self.refuse(Refusal::Malformed, Lsn(0))
            }
            FrameKind::Digests => self.on_digests(frame),
            FrameKind::Blocks => self.on_blocks(frame),
            _ => self.refuse(Refusal::Malformed, Lsn(0)),
        }
    }

    fn on_keep_view(&mut self, frame: &Frame<'_>) -> Deed<'static> {
        let view = match View::decode(frame.body) {
            Ok(view) if view.journal == self.standing.identity.journal => view,
            _ => return self.refuse(Refusal::Malformed, Lsn(0)),
        };
        let header = &frame.header;
        let named = (view.epoch, view.writer.0, Lsn(view.version)) == (header.epoch, header.who, header.lsn);
        let newer = (view.epoch, view.version) >= (self.view.epoch, self.view.version);
        if !named || !newer {
            return self.refuse(Refusal::Malformed, Lsn(0));
        }
        let closed = (header.flags & Flag::CLOSED != 0).then_some(view.base);
        if closed.is_some_and(|end| self.flushed.lsn < end) {
            // It says that we have all of it, and we have not.
            return self.refuse(Refusal::Malformed, self.flushed.lsn);
        }
        let standing = (closed != self.standing.closed).then_some(Standing {
            closed,
            ..self.standing
        });
        self.keeping = Some((view.clone(), standing));
        Deed::KeepView {
            view,
            bytes: header.stable.0,
            standing,
        }
    }

    /// The view that `KeepView` had stored is durable, and the standing with it. The answer.
    pub fn on_view_kept(&mut self) -> Option<Message> {
        let (view, standing) = self.keeping.take()?;
        self.standing = standing.unwrap_or(self.standing);
        self.view = view;
        self.viewed = true;
        Some(Message::bare(Header {
            lsn: Lsn(self.view.version),
            epoch: self.view.epoch,
            ..Header::new(FrameKind::Kept)
        }))
    }

    /// The standing of [`Deed::Store`] or of [`Replica::unsettled`] is durable. The answer.
    pub fn on_stored(&mut self, standing: Standing) -> Message {
        self.standing = standing;
        if standing.condition == Condition::Following {
            self.until = None;
        }
        self.following()
    }

    fn on_records(&mut self, frame: &Frame<'_>) -> Deed<'static> {
        let received = self.held.lsn.plus(self.partial.len() as u64);
        let from = frame.header.lsn;
        if from > received || matches!(self.standing.condition, Condition::New) {
            return self.refuse(Refusal::OutOfWindow, received);
        }
        let known = usize::try_from(received.since(from)).unwrap_or(usize::MAX);
        let Some(fresh) = frame.body.get(known..) else {
            return Deed::Nothing;
        };
        let end = received.plus(fresh.len() as u64);
        if end > self.room() {
            return self.refuse(Refusal::Overrun, self.room());
        }
        self.partial.extend_from_slice(fresh);
        let (mut link, mut whole) = (self.held, 0);
        loop {
            match step(&self.partial[whole..], link, self.seed, self.planted) {
                Step::Record(header) => {
                    whole += header.length;
                    link = header.link();
                }
                Step::Incomplete(length) if length <= REPLICA_RECORD_BYTES_MAX => break,
                Step::Incomplete(_) => return self.refuse(Refusal::BadRecord, link.lsn),
                Step::Bad(_) => return self.refuse(Refusal::Diverged, link.lsn),
            }
        }
        if whole == 0 {
            return Deed::Nothing;
        }
        let rest = self.partial.split_off(whole);
        let bytes = core::mem::replace(&mut self.partial, rest);
        let at = core::mem::replace(&mut self.held, link).lsn;
        Deed::Write { at, bytes }
    }

    /// What is to be synced, if anything is.
    pub fn unflushed(&self) -> Option<Unflushed> {
        (self.flushed != self.held).then_some(Unflushed { end: self.held })
    }

    /// The log is durable up to `end`, as [`Replica::unflushed`] had it.
    pub fn on_flushed(&mut self, end: Link) {
        assert!(self.flushed.lsn <= end.lsn && end.lsn <= self.held.lsn);
        self.flushed = end;
    }

    /// The log now begins at `head`, and the image has everything below `applied`.
    pub fn on_applied(&mut self, head: Lsn, applied: Lsn) {
        assert!(self.head <= head && head <= self.flushed.lsn);
        self.head = head;
        self.applied = applied;
    }

    fn on_resync(&mut self, header: &Header) -> Deed<'static> {
        let since = match self.standing.condition {
            _ if header.flags & Flag::WHOLE != 0 => None,
            Condition::Following => Some(self.flushed.lsn),
            Condition::Inconsistent { since } => since,
            Condition::New | Condition::TakenOver => None,
        };
        let start = Link {
            lsn: header.lsn,
            chain: header.mark,
        };
        if !start.lsn.0.is_multiple_of(8) || start.lsn.0 >= 1 << 62 {
            return self.refuse(Refusal::Malformed, start.lsn);
        }
        // The image is taken back: records from there on come again, and until all of them have, what they change is right
        // only as of where they begin.
        let since = since.map(|since| since.min(start.lsn));
        let standing = Standing {
            condition: Condition::Inconsistent { since },
            ..self.standing
        };
        self.until = None;
        self.restarting = Some((start, standing));
        Deed::Restart { start, standing }
    }

    /// What [`Deed::Restart`] said is done, and durable. The answer.
    pub fn on_restarted(&mut self) -> Option<Message> {
        let (start, standing) = self.restarting.take()?;
        self.standing = standing;
        self.partial = Vec::new();
        self.held = start;
        self.flushed = start;
        self.head = start.lsn;
        self.applied = start.lsn;
        Some(self.following())
    }

    fn on_digests(&mut self, frame: &Frame<'_>) -> Deed<'static> {
        let Some(digests) = message::digests(frame.body) else {
            return self.refuse(Refusal::Malformed, Lsn(0));
        };
        Deed::Compare {
            asked: frame.header,
            first: frame.header.lsn.0,
            digests: digests.collect(),
        }
    }

    /// Answers [`Deed::Compare`]: for each digest, whether the block here is another one.
    pub fn differ(asked: &Header, different: impl Iterator<Item = bool>) -> Message {
        let mut body = Vec::new();
        for (index, different) in different.enumerate() {
            if index % 8 == 0 {
                body.push(0);
            }
            if let Some(last) = body.last_mut() {
                *last |= u8::from(different) << (index % 8);
            }
        }
        let header = Header {
            lsn: asked.lsn,
            mark: asked.mark,
            ..Header::new(FrameKind::Differ)
        };
        Message { header, body }
    }

    fn on_blocks<'a>(&mut self, frame: &Frame<'a>) -> Deed<'a> {
        let asked = frame.header;
        if asked.flags & Flag::HOLES != 0 {
            return match message::numbers(frame.body) {
                Some(numbers) => Deed::PutHoles {
                    asked,
                    numbers: numbers.collect(),
                },
                None => self.refuse(Refusal::Malformed, Lsn(0)),
            };
        }
        match message::blocks(frame.body) {
            Some(_) => Deed::Put {
                asked,
                blocks: frame.body,
            },
            None => self.refuse(Refusal::Malformed, Lsn(0)),
        }
    }

    /// Answers [`Deed::Put`] and [`Deed::PutHoles`].
    pub fn stored(asked: &Header) -> Message {
        Message::bare(Header {
            mark: asked.mark,
            ..Header::new(FrameKind::Stored)
        })
    }

    /// The replica is whole again: make its image durable, then this standing; then [`Replica::on_stored`]. To be asked
    /// after every frame and every sync.
    pub fn unsettled(&self) -> Option<Standing> {
        let until = self.until?;
        let resyncing = matches!(self.standing.condition, Condition::Inconsistent { .. });
        let there = self.flushed.lsn >= until || self.planted.is(Fault::SettledTooEarly);
        (resyncing && there).then_some(Standing {
            condition: Condition::Following,
            ..self.standing
        })
    }

    fn on_fetch(&mut self, frame: &Frame<'_>) -> Deed<'static> {
        let count = Cursor::new(frame.body).u32().unwrap_or(0) as usize;
        if !(1..=message::fetch_max(&frame.header)).contains(&count) {
            return self.refuse(Refusal::Malformed, Lsn(0));
        }
        let right = match self.standing.condition {
            Condition::Following => true,
            // The client knows which blocks have changed since, and does not ask for these.
            Condition::Inconsistent { since } => since.is_some(),
            Condition::New | Condition::TakenOver => false,
        };
        if !right {
            return Deed::Answer(Message::fetch_later(&frame.header));
        }
        // The count travels in a field that the answer does not use.
        self.fetches.push_back(Header {
            who: count as u64,
            ..frame.header
        });
        if self.fetches.len() <= RESYNC_FRAMES_MAX {
            return Deed::Nothing;
        }
        // A log that is behind lets questions pile up. Whoever asked the oldest has waited longest, and may have given up.
        match self.fetches.pop_front() {
            Some(oldest) => Deed::Answer(Message::fetch_later(&oldest)),
            None => Deed::Nothing,
        }
    }

    /// Blocks to read and to answer with [`Message::fetched`], or with [`Message::fetched_map`] where the header has the flag `HOLES`, as the volume is here now, stages and image: the header that asked, the
    /// first number and the count. [`Message::fetch_later`] if its stages cannot show that much yet. To be asked after every frame and every sync.
    pub fn next_fetch(&mut self) -> Option<(Header, u64, usize)> {
        let ready = |asked: &Header| asked.stable <= self.flushed.lsn;
        let index = self.fetches.iter().position(ready)?;
        let asked = self.fetches.remove(index)?;
        Some((asked, asked.lsn.0, asked.who as usize))
    }

    fn on_read(&mut self, frame: &Frame<'_>) -> Deed<'static> {
        let asked = Cursor::new(frame.body).u32().unwrap_or(0) as usize;
        let from = frame.header.lsn;
        if from < self.head || from > self.flushed.lsn || asked == 0 {
            return self.refuse(Refusal::OutOfWindow, self.head);
        }
        let there = usize::try_from(self.flushed.lsn.since(from)).unwrap_or(usize::MAX);
        let answer = Header {
            lsn: from,
            stable: self.flushed.lsn,
            ..Header::new(FrameKind::Data)
        };
        Deed::ReadLog {
            answer,
            from,
            bytes: there.min(asked).min(FRAME_BODY_BYTES_MAX),
        }
    }

    /// How far the log is, if the client does not know it yet.
    pub fn news(&mut self) -> Option<Message> {
        self.reign?;
        let end = if self.planted.is(Fault::FlushedBeforeSync) {
            self.held.lsn
        } else {
            self.flushed.lsn
        };
        let news = (end, self.room(), self.applied);
        if !self.viewed || self.told == Some(news) {
            return None;
        }
        self.told = Some(news);
        let header = Header {
            lsn: news.0,
            stable: news.1,
            ..Header::new(FrameKind::Flushed)
        };
        Some(Message {
            header,
            body: news.2.0.to_le_bytes().to_vec(),
        })
    }

    fn room(&self) -> Lsn {
        self.head.plus(self.capacity)
    }

    fn following(&self) -> Message {
        let (condition, since) = self.standing.condition.encode();
        let header = Header {
            flags: condition,
            lsn: self.flushed.lsn,
            epoch: self.view.epoch,
            who: self.view.writer.0,
            mark: self.flushed.chain,
            stable: self.room(),
            ..Header::new(FrameKind::Following)
        };
        Message {
            header,
            body: since.to_le_bytes().to_vec(),
        }
    }

    fn pong(&self, asked: &Header) -> Message {
        Message {
            header: Header {
                lsn: self.flushed.lsn,
                epoch: self.view.epoch,
                ..Header::new(FrameKind::Pong)
            },
            body: asked.lsn.0.to_le_bytes().to_vec(),
        }
    }

    fn refuse(&self, refusal: Refusal, at: Lsn) -> Deed<'static> {
        Deed::Refuse(Message::bare(Header {
            flags: refusal as u8,
            lsn: at,
            epoch: self.view.epoch,
            ..Header::new(FrameKind::Refuse)
        }))
    }
}
