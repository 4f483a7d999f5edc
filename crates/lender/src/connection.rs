//! A bound session: it reads frames, answers them, and sends once a turn.
//!
//! A turn reads packets that have arrived, passes them to the member, saves the member's state and sends all
//! answers at once. Acknowledgements are cumulative, so only the last of several in a row is sent.
//!
//! Whatever a client sends, its turn is short: it ends with what one read of the socket has brought, after a
//! bounded number of frames, or when other frames than appends have taken their time. What it did beside
//! appends is timed; a journal that has too much of that rests (`shard/resting.rs`). A question for the
//! status pauses the session until a report is there.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_clients::ClientAccount;
use netram_proto::id::{Incarnation, Lsn};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::member::{MemberReply, Window};
use netram_proto::multicast::{ChannelInvite, Reassembly};
use netram_proto::owner::{FenceSignature, FenceStatement, VerifyFence, allows_fence};
use netram_proto::session::{LenderSession, SessionAction};
use netram_proto::wire::{ClientResource, Flag, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{Link, OwnerId};

use crate::accept::{ClientVisit, Greeting};
use crate::drain::WithdrawNotice;
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

/// Outcome of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TurnOutcome {
    /// Whether there were frames.
    pub(crate) received: bool,
    /// Whether there were appends.
    pub(crate) appended: bool,
    /// The time that it took beside accepted appends, if any.
    pub(crate) side_work: Option<Duration>,
}

/// A session that is bound to a journal.
pub(crate) struct Connection {
    pub(crate) outbox: Outbox,
    session: LenderSession,
    /// The owner that the client has proven to be.
    owner: Option<OwnerId>,
    visit: ClientVisit,
    pub(crate) index: JournalIndex,
    /// The incarnation that the client was told. When the journal's member goes on under another, it must
    /// bind anew.
    incarnation: Incarnation,
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
    /// Whether it waits for its journal, which rests.
    pub(crate) is_resting: bool,
    /// The notice that the client has been given.
    pub(crate) told: Option<WithdrawNotice>,
    /// One bit for each kind of refusal that has been logged.
    logged: u32,
    _permit: ConnectionPermit,
}

impl Connection {
    pub(crate) fn new(
        link: Link,
        greeting: Greeting,
        visit: ClientVisit,
        (place, incarnation): (JournalIndex, Incarnation),
        permit: ConnectionPermit,
        now: Instant,
    ) -> Connection {
        Connection {
            outbox: Outbox::new(link, now),
            session: greeting.session,
            owner: greeting.owner,
            visit,
            index: place,
            incarnation,
            ack: None,
            reassembly: None,
            channel_request: None,
            question: None,
            is_due: false,
            is_resting: false,
            told: None,
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

    /// Whether it waits for a report.
    pub(crate) fn has_asked(&self) -> bool {
        self.question.is_some()
    }

    /// Whether nothing is read from the session for now.
    pub(crate) fn is_paused(&self) -> bool {
        self.has_asked() || self.is_resting
    }

    /// Whether there are frames for another turn, which the kernel does not report again.
    pub(crate) fn has_more(&self) -> bool {
        !self.is_paused() && !self.outbox.is_blocked() && self.outbox.link.has_buffered()
    }

    /// Reads and answers some frames that have arrived. Costs about 250 ns an append beside its CRC, its copy
    /// and the two system calls. Does not allocate.
    pub(crate) fn turn(
        &mut self,
        journal: &mut MemberJournal,
        turn: &TurnContext<'_>,
    ) -> Result<TurnOutcome, SessionEnd> {
        if !self.outbox.ready(turn.now)? || !self.answer_question(turn)? {
            return Ok(TurnOutcome::default());
        }
        let mut tally = TurnTally::new(journal.is_watched());
        let ended = self.take(journal, turn, &mut tally);
        tally.count(turn.counters);
        let appended = tally.appends > 0;
        if appended {
            journal.appended(turn.shared.started, turn.now);
        }
        journal.settle();
        if tally.frames > 0 || ended.is_err() {
            self.outbox.note_contact(turn.now);
            // Acknowledgements from before the session failed are still valid and are sent.
            let sent = self.queue_ack().and_then(|()| Ok(self.outbox.flush(turn.now)?));
            ended.and(sent)?;
        }
        Ok(TurnOutcome {
            received: tally.frames > 0,
            appended,
            side_work: tally.side_work(),
        })
    }

    fn take(
        &mut self,
        journal: &mut MemberJournal,
        turn: &TurnContext<'_>,
        tally: &mut TurnTally,
    ) -> Result<(), SessionEnd> {
        while self.outbox.has_room() && tally.frames < FRAMES_PER_TURN as u64 {
            let packet = match self.outbox.link.receive() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(error) => return Err(SessionEnd::Link(error)),
            };
            tally.frames += 1;
            let (mut last, mut is_append) = (false, false);
            let reply = match judge(&mut self.session, packet) {
                Ok(PacketRequest::Status) => match self.ask_for_status(turn) {
                    Some(refusal) => MemberReply::bare(refusal),
                    None => break,
                },
                Ok(PacketRequest::Member(_)) if self.incarnation != journal.incarnation() => {
                    return Err(SessionEnd::Outlived);
                }
                Ok(PacketRequest::ChannelInvite(number, tune)) => {
                    self.channel_request = Some((number, tune));
                    break;
                }
                Ok(PacketRequest::Member(frame)) => {
                    is_append = frame.header.kind == FrameKind::Append;
                    if is_append {
                        tally.appends += 1;
                        tally.bytes += frame.body.len() as u64;
                    } else {
                        last = tally.on_side_work();
                    }
                    if let Some(reassembly) = &mut self.reassembly {
                        match frame.header.kind {
                            FrameKind::Append => {
                                let outcome = journal.reassemble(reassembly, &frame, AppendPath::Link);
                                self.on_reassembled(outcome, journal, turn)?;
                                if !self.outbox.link.has_buffered() {
                                    break;
                                }
                                continue;
                            }
                            FrameKind::Join | FrameKind::Fence | FrameKind::Leave => reassembly.clear(),
                            _ => (),
                        }
                    }
                    reply_to(&frame, self.owner, &self.visit.account, journal, turn)
                }
                Err(ProtocolBreach) => MemberReply::bare(turn.shared.refusal(RefusalReason::Malformed)),
            };
            if is_append && reply.header().kind == FrameKind::Refuse {
                last = tally.on_side_work();
            }
            if self.incarnation != journal.incarnation() && reply.header().kind != FrameKind::LeaveAck {
                return Err(SessionEnd::Outlived);
            }
            self.answer(reply, journal, turn)?;
            if last || !self.outbox.link.has_buffered() {
                break;
            }
        }
        Ok(())
    }

    /// Notes the peer's question for the status, or refuses it.
    fn ask_for_status(&mut self, turn: &TurnContext<'_>) -> Option<FrameHeader> {
        if turn.shared.stopping() {
            // No more reports are built.
            return Some(turn.shared.refusal(RefusalReason::Stopping));
        }
        match self.visit.account.check(ClientResource::Status) {
            Ok(()) => {
                self.question = Some(turn.shared.desk.ask(turn.shard));
                None
            }
            Err(over) => Some(turn.shared.over_limit(&over)),
        }
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
        let bit = 1 << (header.flags & 31);
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
        self.queue(&header, &report.for_clients)?;
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

/// The member's reply to a frame of this owner's session, or the lender's refusal of it. Whoever joins a
/// window pays for the journal from then on.
fn reply_to(
    frame: &Frame<'_>,
    owner: Option<OwnerId>,
    client: &Arc<ClientAccount>,
    journal: &mut MemberJournal,
    turn: &TurnContext<'_>,
) -> MemberReply {
    let refused = match frame.header.kind {
        FrameKind::Fence if !may_fence(owner, journal, frame) => RefusalReason::NotOwner,
        FrameKind::Join if turn.shared.gives_no_more() => RefusalReason::Stopping,
        FrameKind::Join => match journal.pay_by(client) {
            Ok(()) => return journal.handle(frame),
            Err(over) => {
                tracing::warn!(journal = %journal.id, "refused: {over}");
                return MemberReply::bare(turn.shared.over_limit(&over));
            }
        },
        _ => return journal.handle(frame),
    };
    MemberReply::bare(turn.shared.refusal(refused))
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

/// Frames that a turn has read, and the time that it takes beside accepted appends.
#[derive(Default)]
struct TurnTally {
    frames: u64,
    appends: u64,
    /// Bytes of the appends.
    bytes: u64,
    /// When the turn began, if all of it counts as side work once any of it does.
    watched_since: Option<Instant>,
    /// When side work began.
    side_since: Option<Instant>,
}

impl TurnTally {
    fn new(is_watched: bool) -> TurnTally {
        TurnTally {
            watched_since: is_watched.then(Instant::now),
            ..TurnTally::default()
        }
    }

    /// Notes a frame that is no accepted append. Returns whether such frames have taken their time.
    fn on_side_work(&mut self) -> bool {
        let now = Instant::now();
        now.duration_since(*self.side_since.get_or_insert(now)) >= TURN_TIME
    }

    /// The time that side work has taken until now, if there was any.
    fn side_work(&self) -> Option<Duration> {
        let began = self.side_since?;
        Some(self.watched_since.unwrap_or(began).elapsed())
    }

    fn count(&self, counters: &ShardCounters) {
        counters.frames.add(self.frames);
        if self.appends > 0 {
            counters.appends.add(self.appends);
            counters.bytes.add(self.bytes);
        }
    }
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
            | SessionAction::Drain(_)
            | SessionAction::Offer(_)
            | SessionAction::Prove(_),
        )
        | Err(_) => Err(ProtocolBreach),
    }
}
