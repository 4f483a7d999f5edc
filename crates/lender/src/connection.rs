//! A bound session: it reads frames, answers them, and sends once a turn.
//!
//! A turn reads every packet that has arrived, passes it to the member, saves the member's state and sends
//! all answers at once. Acknowledgements are cumulative, so only the last of several in a row is sent.

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
use crate::limit::PARTS_MAX;
use crate::outbox::{Outbox, SessionEnd};
use crate::state::{ConnectionPermit, DaemonState};
use crate::stats::ShardCounters;

/// The environment of a turn.
pub(crate) struct TurnContext<'a> {
    pub(crate) now: Instant,
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

    /// Reads and answers the frames that have arrived. Returns whether there were any. Costs about 250 ns an
    /// append beside its CRC, its copy and the two system calls. Does not allocate.
    pub(crate) fn turn(
        &mut self,
        journal: &mut MemberJournal,
        turn: &TurnContext<'_>,
    ) -> Result<bool, SessionEnd> {
        if !self.outbox.ready(turn.now)? {
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
        let (mut frames, mut appends, mut bytes) = (0, 0, 0);
        let mut ended = Ok(());
        while self.outbox.has_room() {
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
                Ok(PacketRequest::Status) => {
                    self.report(turn)?;
                    continue;
                }
                Ok(PacketRequest::ChannelInvite(number, tune)) => {
                    self.channel_request = Some((number, tune));
                    break;
                }
                Ok(PacketRequest::Member(frame)) => {
                    if frame.header.kind == FrameKind::Append {
                        appends += 1;
                        bytes += frame.body.len() as u64;
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
            if ended.is_err() || !self.outbox.link.has_buffered() {
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

    fn report(&mut self, turn: &TurnContext<'_>) -> Result<(), SessionEnd> {
        let mut header = FrameHeader::new(FrameKind::Report);
        header.sender = turn.shared.incarnation().0;
        self.queue_ack()?;
        self.queue(&header, &turn.shared.report().to_frame_body())
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
