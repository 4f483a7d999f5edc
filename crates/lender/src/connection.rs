//! A bound session: it reads frames, answers them, and sends once a turn.
//!
//! A turn reads packets that have arrived, passes them to the member, saves the member's state and sends all
//! answers at once. Acknowledgements are cumulative, so only the last of several in a row is sent.
//!
//! Whatever a client sends, its turn is short: it ends with what one read of the socket has brought, after a
//! bounded number of frames, or when other frames than appends have taken their time. A question for the
//! status pauses the session until a report is there.

use std::time::Instant;

use netram_proto::id::Lsn;
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::member::{MemberReply, Window};
use netram_proto::multicast::{ChannelInvite, Reassembly};
use netram_proto::owner::{FenceSignature, FenceStatement, VerifyFence, allows_fence};
use netram_proto::session::{LenderSession, SessionAction};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{Link, OwnerId};

use crate::accept::Greeting;
use crate::journal::{AppendPath, JournalIndex, MemberJournal, ReassemblyOutcome};
use crate::limit::{FRAMES_PER_TURN, PARTS_MAX, TURN_TIME};
use crate::outbox::{Outbox, SessionEnd};
use crate::report_desk::ReportTicket;
use crate::state::{ConnectionPermit, DaemonState};
use crate::stats::ShardCounters;

/// The environment of a turn.
pub(crate) struct TurnContext<'a> {
    pub(crate) now: Instant,
    /// Index of the shard.
    pub(crate) shard: usize,
    pub(crate) shared: &'a DaemonState,
    pub(crate) counters: &'a ShardCounters,
}

/// A session that is bound to a journal.
pub(crate) struct Connection {
    pub(crate) outbox: Outbox,
    session: LenderSession,
    /// The owner that the client has proven to be.
    owner: Option<OwnerId>,
    pub(crate) index: JournalIndex,
    /// An acknowledgement that is held back, since the next one may include it.
    ack: Option<FrameHeader>,
    /// Reassembly of multicast appends; `None` if this session listens to no channel.
    reassembly: Option<Box<Reassembly>>,
    /// The peer's request to listen to a channel: its number and the channel. The shard answers it.
    pub(crate) channel_request: Option<(Lsn, ChannelInvite)>,
    /// The peer's question for the status. Nothing is read until it is answered.
    question: Option<ReportTicket>,
    /// Whether the shard has it on its list of sessions with frames that the kernel does not report again.
    pub(crate) is_due: bool,
    /// One bit for each kind of refusal that has been logged.
    logged: u16,
    _permit: ConnectionPermit,
}

impl Connection {
    pub(crate) fn new(
        link: Link,
        greeting: Greeting,
        place: JournalIndex,
        permit: ConnectionPermit,
        now: Instant,
    ) -> Connection {
        Connection {
            outbox: Outbox::new(link, now),
            session: greeting.session,
            owner: greeting.owner,
            index: place,
            ack: None,
            reassembly: None,
            channel_request: None,
            question: None,
            is_due: false,
            logged: 0,
            _permit: permit,
        }
    }

    /// Sends a frame that is not an answer, together with everything queued.
    pub(crate) fn say(&mut self, header: FrameHeader, body: &[u8], now: Instant) -> Result<(), SessionEnd> {
        self.queue_ack()?;
        self.queue(&header, body)?;
        Ok(self.outbox.flush(now)?)
    }

    /// Whether nothing is read from the session, since it waits for a report.
    pub(crate) fn is_paused(&self) -> bool {
        self.question.is_some()
    }

    /// Whether there are frames for another turn, which the kernel does not report again.
    pub(crate) fn has_more(&self) -> bool {
        !self.is_paused() && !self.outbox.is_blocked() && self.outbox.link.has_buffered()
    }

    /// Reads and answers some frames that have arrived. Returns whether there were any. Costs about 250 ns an
    /// append beside its CRC, its copy and the two system calls. Does not allocate.
    pub(crate) fn turn(
        &mut self,
        journal: &mut MemberJournal,
        turn: &TurnContext<'_>,
    ) -> Result<bool, SessionEnd> {
        if !self.outbox.ready(turn.now)? || !self.answer_question(turn)? {
            return Ok(false);
        }
        let taken = self.take(journal, turn);
        journal.settle();
        let (frames, ended) = match taken {
            Ok(frames) => (frames, Ok(())),
            Err(ending) => (1, Err(ending)),
        };
        if frames > 0 {
            self.outbox.note_contact(turn.now);
            // Acknowledgements from before the session failed are still valid and are sent.
            let sent = self.queue_ack().and_then(|()| Ok(self.outbox.flush(turn.now)?));
            ended.and(sent)?;
        } else {
            ended?;
        }
        Ok(frames > 0)
    }

    fn take(&mut self, journal: &mut MemberJournal, turn: &TurnContext<'_>) -> Result<usize, SessionEnd> {
        let (mut frames, mut appends, mut bytes, mut last) = (0, 0, 0, false);
        let (mut ended, mut began) = (Ok(()), None);
        while self.outbox.has_room() && frames < FRAMES_PER_TURN as u64 {
            let packet = match self.outbox.link.receive() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(error) => {
                    ended = Err(SessionEnd::Link(error));
                    break;
                }
            };
            frames += 1;
            let reply = match judge(&mut self.session, packet) {
                // No more reports are built.
                Ok(PacketRequest::Status) if turn.shared.stopping() => {
                    MemberReply::bare(turn.shared.refusal(RefusalReason::Stopping))
                }
                Ok(PacketRequest::Status) => {
                    self.question = Some(turn.shared.desk.ask(turn.shard));
                    break;
                }
                Ok(PacketRequest::ChannelInvite(number, tune)) => {
                    self.channel_request = Some((number, tune));
                    break;
                }
                Ok(PacketRequest::Member(frame)) => {
                    if frame.header.kind == FrameKind::Append {
                        appends += 1;
                        bytes += frame.body.len() as u64;
                    } else if is_time_up(&mut began) {
                        last = true;
                    }
                    if let Some(reassembly) = &mut self.reassembly {
                        match frame.header.kind {
                            FrameKind::Append => {
                                let outcome = journal.reassemble(reassembly, &frame, AppendPath::Link);
                                ended = self.on_reassembled(outcome, journal, turn);
                                if ended.is_err() || !self.outbox.link.has_buffered() {
                                    break;
                                }
                                continue;
                            }
                            FrameKind::Join | FrameKind::Fence | FrameKind::Leave => reassembly.clear(),
                            _ => (),
                        }
                    }
                    if frame.header.kind == FrameKind::Fence && !may_fence(self.owner, journal, &frame) {
                        MemberReply::bare(turn.shared.refusal(RefusalReason::NotOwner))
                    } else if frame.header.kind == FrameKind::Join && turn.shared.stopping() {
                        MemberReply::bare(turn.shared.refusal(RefusalReason::Stopping))
                    } else {
                        journal.handle(&frame)
                    }
                }
                Err(ProtocolBreach) => MemberReply::bare(turn.shared.refusal(RefusalReason::Malformed)),
            };
            ended = self.answer(reply, journal, turn);
            if ended.is_err() || last || !self.outbox.link.has_buffered() {
                break;
            }
        }
        turn.counters.frames.add(frames);
        if appends > 0 {
            turn.counters.appends.add(appends);
            turn.counters.bytes.add(bytes);
            journal.appended(turn.shared.started, turn.now);
        }
        ended.map(|()| frames as usize)
    }

    /// Makes the session listen to a channel from now on.
    pub(crate) fn listen(&mut self) {
        self.reassembly = Some(Box::default());
    }

    /// Handles a multicast packet. A packet that could not be answered counts as lost, and so does anything
    /// but an append: a holder of the channel's key may send nothing else this way.
    /// [`answer_multicast`](Self::answer_multicast) answers the appends.
    pub(crate) fn receive_multicast(
        &mut self,
        packet: &[u8],
        journal: &mut MemberJournal,
        turn: &TurnContext<'_>,
    ) -> Result<(), SessionEnd> {
        if self.outbox.is_blocked() || !self.outbox.has_room() {
            return Ok(());
        }
        let (Ok(frame), Some(reassembly)) = (Frame::parse(packet), &mut self.reassembly) else {
            return Ok(());
        };
        // A writer starts over only by its link.
        if frame.header.kind != FrameKind::Append || frame.header.flags & Flag::FRESH != 0 {
            return Ok(());
        }
        turn.counters.frames.add(1);
        turn.counters.appends.add(1);
        turn.counters.bytes.add(frame.body.len() as u64);
        turn.counters.datagrams.add(1);
        let outcome = journal.reassemble(reassembly, &frame, AppendPath::Multicast);
        reassembly.on_datagram();
        self.on_reassembled(outcome, journal, turn)
    }

    /// Saves the member's state and answers the appends received by multicast.
    pub(crate) fn answer_multicast(
        &mut self,
        journal: &mut MemberJournal,
        turn: &TurnContext<'_>,
    ) -> Result<(), SessionEnd> {
        journal.settle();
        journal.appended(turn.shared.started, turn.now);
        self.outbox.note_contact(turn.now);
        self.queue_ack()?;
        Ok(self.outbox.flush(turn.now)?)
    }

    fn on_reassembled(
        &mut self,
        outcome: ReassemblyOutcome,
        journal: &MemberJournal,
        turn: &TurnContext<'_>,
    ) -> Result<(), SessionEnd> {
        match outcome {
            ReassemblyOutcome::Reply(reply) => self.answer(reply, journal, turn),
            ReassemblyOutcome::Missing(header) => {
                turn.counters.missing.add(1);
                self.queue(&header, &[])
            }
            ReassemblyOutcome::Nothing => Ok(()),
        }
    }

    fn answer(
        &mut self,
        reply: MemberReply,
        journal: &MemberJournal,
        turn: &TurnContext<'_>,
    ) -> Result<(), SessionEnd> {
        match reply {
            MemberReply::Frame(header, ..) if header.kind == FrameKind::Ack && header.flags == 0 => {
                let replaces = |held: FrameHeader| (held.epoch, held.mark) == (header.epoch, header.mark);
                if !self.ack.is_none_or(replaces) {
                    self.queue_ack()?;
                }
                if self.ack.replace(header).is_none() {
                    turn.counters.acks.add(1);
                }
                Ok(())
            }
            MemberReply::Frame(header, body, length) => {
                self.queue_ack()?;
                self.queue(&header, &body[..length])?;
                if header.kind == FrameKind::Refuse {
                    return self.refused(&header, journal, turn);
                }
                Ok(())
            }
            MemberReply::Data(header, bytes) => {
                self.queue_ack()?;
                self.queue_data(&header, bytes, journal)
            }
        }
    }

    /// Counts a refusal, and logs the first of its kind in this session.
    #[cold]
    fn refused(
        &mut self,
        header: &FrameHeader,
        journal: &MemberJournal,
        turn: &TurnContext<'_>,
    ) -> Result<(), SessionEnd> {
        turn.counters.refused(header.flags);
        let refusal = RefusalReason::from_byte(header.flags);
        let bit = 1 << (header.flags & 15);
        if self.logged & bit == 0 {
            self.logged |= bit;
            let kind = refusal.map_or_else(|| header.flags.to_string(), |refusal| format!("{refusal:?}"));
            tracing::warn!(
                journal = %journal.id, peer = self.outbox.link.peer(), kind, epoch = %header.epoch, lsn = %header.lsn,
                limit = %header.stable, "refused; further refusals of this kind are only counted"
            );
        }
        match refusal {
            Some(RefusalReason::Malformed) => Err(SessionEnd::Refused(RefusalReason::Malformed)),
            _ => Ok(()),
        }
    }

    /// Answers a question for the status, if the report is there. Returns whether frames may be read.
    fn answer_question(&mut self, turn: &TurnContext<'_>) -> Result<bool, SessionEnd> {
        let Some(ticket) = self.question else {
            return Ok(true);
        };
        let Some(report) = turn.shared.desk.take(ticket) else {
            return Ok(false);
        };
        self.question = None;
        let mut header = FrameHeader::new(FrameKind::Report);
        header.sender = turn.shared.incarnation().0;
        self.queue_ack()?;
        self.queue(&header, &report)?;
        self.outbox.flush(turn.now)?;
        Ok(!self.outbox.is_blocked())
    }

    fn queue_ack(&mut self) -> Result<(), SessionEnd> {
        match self.ack.take() {
            Some(header) => self.queue(&header, &[]),
            None => Ok(()),
        }
    }

    fn queue(&mut self, header: &FrameHeader, body: &[u8]) -> Result<(), SessionEnd> {
        let mut header = *header;
        if matches!(header.kind, FrameKind::Ack | FrameKind::Pong)
            && let Some(reassembly) = &mut self.reassembly
            && reassembly.take_heard()
        {
            header.flags |= Flag::HEARD;
        }
        Ok(self.outbox.queue(&[&header.encode(body.len()), body])?)
    }

    /// Queues bytes of the window directly from its chunks.
    fn queue_data(
        &mut self,
        header: &FrameHeader,
        bytes: usize,
        journal: &MemberJournal,
    ) -> Result<(), SessionEnd> {
        assert!(bytes <= FRAME_BODY_BYTES_MAX);
        let head = header.encode(bytes);
        let mut parts: [&[u8]; PARTS_MAX] = [&[]; PARTS_MAX];
        parts[0] = &head;
        let (mut done, mut count) = (0, 1);
        while done < bytes {
            let at = Lsn(header.lsn.0 + done as u64);
            parts[count] = journal.memory.piece(at, bytes - done);
            done += parts[count].len();
            count += 1;
        }
        Ok(self.outbox.queue(&parts[..count])?)
    }
}

/// Whether a session may fence its journal so. An owned journal's fence needs the owner's signature, which
/// later writers are shown.
#[cold]
fn may_fence(owner: Option<OwnerId>, journal: &MemberJournal, frame: &Frame<'_>) -> bool {
    let is_signed = owner.map(|owner| {
        move |fence: &FenceStatement, signature: &FenceSignature| owner.signed(fence, signature)
    });
    let is_signed = is_signed.as_ref().map(|is_signed| is_signed as VerifyFence<'_>);
    allows_fence(journal.id, frame, journal.last_fence(), is_signed)
}

/// Whether the frames of this turn that are no appends have taken their time. It begins with the first call.
fn is_time_up(began: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    now.duration_since(*began.get_or_insert(now)) >= TURN_TIME
}

/// The peer sent a frame that is invalid in this state.
struct ProtocolBreach;

/// The request in a packet.
enum PacketRequest<'a> {
    Status,
    ChannelInvite(Lsn, ChannelInvite),
    Member(Frame<'a>),
}

/// Checks that a packet is valid in this state. The session was bound, once, before it came here.
fn judge<'a>(session: &mut LenderSession, packet: &'a [u8]) -> Result<PacketRequest<'a>, ProtocolBreach> {
    let frame = Frame::parse(packet).map_err(|_| ProtocolBreach)?;
    match session.handle(&frame) {
        Ok(SessionAction::Member(_)) => Ok(PacketRequest::Member(frame)),
        Ok(SessionAction::Status) => Ok(PacketRequest::Status),
        Ok(SessionAction::Invite(_)) => {
            let tune = ChannelInvite::parse(frame.body).ok_or(ProtocolBreach)?;
            Ok(PacketRequest::ChannelInvite(frame.header.lsn, tune))
        }
        Ok(
            SessionAction::Bind(..)
            | SessionAction::Data
            | SessionAction::Share
            | SessionAction::Deposit
            | SessionAction::Prove(_),
        )
        | Err(_) => Err(ProtocolBreach),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use netram_proto::id::JournalId;
    use netram_transport::{HandshakeProgress, Listener, NetAddress, Security, Waker, connect};

    use super::*;
    use crate::config::LenderConfig;
    use crate::journal::ShardJournals;
    use crate::store::WindowStore;

    const ID: JournalId = JournalId(7);

    /// A shard's state, a session that is bound to a journal, and the client's end of its link.
    struct Bench {
        _directory: tempfile::TempDir,
        shared: Arc<DaemonState>,
        journals: ShardJournals,
        connection: Connection,
        client: Link,
    }

    impl Bench {
        fn new() -> Bench {
            let directory = tempfile::Builder::new().tempdir_in("/dev/shm").unwrap();
            let config = LenderConfig {
                memory: 64 * 1024,
                chunk_bytes: 4096,
                journals_max: 1,
                store: Some(directory.path().join("store")),
                ..LenderConfig::default()
            };
            let (store, _) = WindowStore::open(&config.store_config()).unwrap();
            let wakers = (0..3).map(|_| Waker::new().unwrap()).collect();
            let addresses = (Vec::new(), Vec::new());
            let shared = Arc::new(DaemonState::new(config, store, None, addresses, wakers));
            let mut journals = ShardJournals::new(Arc::clone(&shared), Vec::new());
            let address = NetAddress::Unix(directory.path().join("socket"));
            let (client, link) = link_pair(&address);
            let mut session = LenderSession::default();
            let id = ID.0.to_le_bytes();
            let header = FrameHeader::new(FrameKind::Bind);
            session.handle(&Frame { header, body: &id }).unwrap();
            let Ok(index) = journals.bind(ID) else {
                panic!("the store has a slot")
            };
            let permit = shared.permit().unwrap();
            let mut greeting = Greeting::default();
            greeting.session = session;
            let connection = Connection::new(link, greeting, index, permit, Instant::now());
            Bench {
                _directory: directory,
                shared,
                journals,
                connection,
                client,
            }
        }

        fn turn(&mut self) -> bool {
            let turn = TurnContext {
                now: Instant::now(),
                shard: 0,
                shared: &self.shared,
                counters: &self.shared.counters[0],
            };
            let journal = self.journals.at(self.connection.index);
            self.connection.turn(journal, &turn).unwrap()
        }

        /// Sends `count` frames of this kind, as many as fit one read of the socket.
        fn say(&mut self, kind: FrameKind, count: usize) {
            let frame = FrameHeader::new(kind).encode(0);
            (0..count).for_each(|_| self.client.queue(&[&frame]).unwrap());
            assert!(self.client.flush().unwrap(), "the socket takes them all");
        }

        /// Number of frames that the client has got.
        fn answers(&mut self) -> usize {
            let mut answers = 0;
            while self.client.receive().unwrap().is_some() {
                answers += 1;
            }
            answers
        }
    }

    fn link_pair(address: &NetAddress) -> (Link, Link) {
        let listener = Listener::bind(address, Security::Insecure).unwrap();
        let there = address.clone();
        let patience = Duration::from_secs(20);
        let client = std::thread::spawn(move || connect(&there, &Security::Insecure, patience).unwrap());
        let mut pending = loop {
            match listener.accept(Instant::now()).unwrap() {
                Some(pending) => break pending,
                None => std::thread::yield_now(),
            }
        };
        loop {
            match pending.advance(Instant::now()).unwrap() {
                HandshakeProgress::Done(link) => return (client.join().unwrap(), link),
                HandshakeProgress::NeedRead => std::thread::yield_now(),
            }
        }
    }

    /// A turn answered everything that had come, two thousand frames with one read of the socket.
    #[test]
    fn a_turn_ends_after_a_bounded_number_of_frames() {
        const SENT: usize = 2000;
        let mut bench = Bench::new();
        bench.say(FrameKind::Ping, SENT);
        assert!(bench.turn());
        let first = bench.answers();
        assert!(
            (1..=FRAMES_PER_TURN).contains(&first),
            "{first} answers in one turn"
        );
        assert!(bench.connection.has_more(), "the shard is told to come back");
        let mut answered = first;
        while bench.connection.has_more() {
            bench.turn();
            answered += bench.answers();
        }
        assert_eq!(answered, SENT);
    }

    #[test]
    fn a_question_for_the_status_pauses_the_session_until_a_report_is_there() {
        let mut bench = Bench::new();
        bench.say(FrameKind::Status, 3);
        assert!(bench.turn());
        for _ in 0..3 {
            assert!(bench.connection.is_paused() && !bench.connection.has_more());
            assert!(!bench.turn());
            assert_eq!(bench.answers(), 0);
            bench.shared.desk.build(&bench.shared);
            bench.turn();
            assert_eq!(bench.answers(), 1);
        }
        assert!(!bench.connection.is_paused());
    }
}
