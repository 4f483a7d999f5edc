//! A lender's machine: its memory, the process that serves it, and the deaths and restarts of both.

use std::collections::BTreeMap;

use netram_proto::id::{Incarnation, JournalId, Lsn};
use netram_proto::member::{Member, MemberReply, MemberState, Window};
use netram_proto::multicast::{Reassembly, ReassemblyVerdict};
use netram_proto::owner::allows_fence;
use netram_proto::planted::FaultSwitch;
use netram_proto::session::{LenderSession, SessionAction};
use netram_proto::time::Time;
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};

use crate::check::rule02::MemberObserver;
use crate::intruder;
use crate::lender_spill::SpillDisk;
use crate::named_clients::{self, NamedClients};
use crate::reclaiming::MachineMemory;
use crate::signatures::is_signed;
use crate::silent_window::SilentFile;
use crate::window_ring::WindowRing;

/// Result of handling a packet.
#[derive(Debug)]
pub enum PacketOutcome {
    /// An answer.
    Reply(Vec<u8>),
    /// No answer is due: the frame was known, or waits for others.
    Nothing,
    /// The session has ended.
    Ended,
    /// The process died while it handled the frame: bytes may have reached the window, but the member's state
    /// did not change.
    Died,
}

impl PacketOutcome {
    /// Puts into an answer whether datagrams have arrived.
    fn sign(&mut self, gather: &mut Reassembly) {
        let answers = |packet: &[u8]| matches!(packet.first(), Some(&ACK) | Some(&PONG));
        if let PacketOutcome::Reply(packet) = self
            && answers(packet)
            && gather.take_heard()
        {
            packet[1] |= Flag::HEARD;
        }
    }
}

const ACK: u8 = FrameKind::Ack as u8;
const PONG: u8 = FrameKind::Pong as u8;

/// One lender.
#[derive(Debug)]
pub struct SimLender {
    /// Power domain of the machine.
    pub domain: String,
    /// Incarnation under which the journal's member answers: its memory's, or that of a spilled window in it.
    pub incarnation: Incarnation,
    /// Incarnation of its memory.
    pub(crate) store: Incarnation,
    /// Whether there is a store in memory.
    pub(crate) has_memory: bool,
    /// Whether its memory is being written to its disk.
    pub(crate) is_spilling: bool,
    /// Whether the store is closed, since a spill of it may exist.
    pub(crate) closed: bool,
    /// The incarnation whose spill the memory began with.
    pub(crate) took_up: Option<Incarnation>,
    /// Files of spills on the machine's disk.
    pub(crate) spill: SpillDisk,
    /// The file of the window, if its client was silent.
    pub(crate) silent: SilentFile,
    /// Memory of its window.
    pub window: WindowRing,
    /// State that its process saves in shared memory. It outlives the process but not the machine.
    pub(crate) saved: Option<MemberState>,
    pub(crate) member: Option<Member>,
    sessions: BTreeMap<usize, LenderSession>,
    /// Connections that listen to a multicast channel: the channel's number in their client's epoch, and
    /// their reassembly.
    listeners: BTreeMap<usize, (u64, Reassembly)>,
    /// Number of its current process; a connection belongs to one.
    pub boot: u32,
    /// Whether the process runs.
    pub up: bool,
    /// Whether the process dies while it handles the next append.
    pub crashes_in_append: bool,
    /// Whether an operator has withdrawn the lender: it takes no new windows, and may be about to stop.
    pub withdrawn: bool,
    /// Whether it answers but accepts no appends.
    pub stalled: bool,
    /// The process stands still until this time.
    pub paused_until: Time,
    /// Incarnations and states of lost memories: an acknowledgement may outlive its lender.
    pub lost_memories: Vec<(Incarnation, MemberState)>,
    /// Whether it has room to remember journals that are over.
    pub remembers: bool,
    /// Whether it has forgotten this journal, which was over.
    pub has_forgotten: bool,
    /// What it makes of its machine's memory.
    pub(crate) memory: MachineMemory,
    /// Its clients, if they have names.
    pub(crate) clients: Option<NamedClients>,
    /// State of the oracles for this member.
    pub observer: MemberObserver,
}

/// Bytes that a lender can lend to one journal.
pub const LENDER_BYTES: u64 = 1 << 20;

impl SimLender {
    /// A lender that has just started, with empty memory.
    pub fn new(domain: String, incarnation: Incarnation) -> SimLender {
        SimLender {
            domain,
            incarnation,
            store: incarnation,
            has_memory: true,
            is_spilling: false,
            closed: false,
            took_up: None,
            spill: SpillDisk::default(),
            silent: SilentFile::default(),
            window: WindowRing::new(LENDER_BYTES),
            saved: None,
            member: None,
            sessions: BTreeMap::new(),
            listeners: BTreeMap::new(),
            boot: 0,
            up: true,
            crashes_in_append: false,
            withdrawn: false,
            stalled: false,
            paused_until: Time(0),
            lost_memories: Vec::new(),
            remembers: false,
            has_forgotten: false,
            memory: MachineMemory::default(),
            clients: None,
            observer: MemberObserver::default(),
        }
    }

    /// The member's state, whether or not a process runs.
    pub fn state(&self) -> MemberState {
        self.member
            .as_ref()
            .map(|member| *member.state())
            .or(self.saved)
            .unwrap_or_default()
    }

    /// Copies `length` bytes of the window from `at`, if the window has them.
    pub fn window_bytes(&self, at: Lsn, length: usize) -> Option<Vec<u8>> {
        self.file_window().unwrap_or(&self.window).copy(at, length)
    }

    /// Kills the process; the memory stays.
    pub fn kill(&mut self) {
        self.up = false;
        self.crashes_in_append = false;
        self.withdrawn = false;
        self.member = None;
        self.memory.restart();
        self.end_sessions();
        named_clients::stopped(self);
        self.boot += 1;
    }

    /// Ends all sessions; the memory stays.
    pub(crate) fn end_sessions(&mut self) {
        self.sessions.clear();
        self.listeners.clear();
        named_clients::dismissed(self);
    }

    /// Kills the machine with its memory, whose successor has incarnation `next`.
    pub fn lose(&mut self, next: Incarnation) {
        self.lost_memories.push((self.incarnation, self.state()));
        self.kill();
        self.saved = None;
        self.window.release();
        self.incarnation = next;
        self.store = next;
        (self.has_memory, self.closed, self.took_up) = (false, false, None);
        self.has_forgotten = false;
        named_clients::lost(self);
        self.observer = MemberObserver::default();
    }

    /// Drops the journal with its window, which a lender must not.
    pub(crate) fn drop_journal(&mut self) {
        (self.member, self.saved) = (None, None);
        self.window.release();
    }

    /// Handles a frame that came over connection `conn`.
    pub fn on_packet(
        &mut self,
        conn: usize,
        packet: &[u8],
        journal: JournalId,
        planted: FaultSwitch,
    ) -> PacketOutcome {
        let Ok(frame) = Frame::parse(packet) else {
            return PacketOutcome::Ended;
        };
        if named_clients::turns_away(self, conn, &frame, planted) {
            return PacketOutcome::Ended;
        }
        let session = self.sessions.entry(conn).or_insert_with(|| {
            let mut session = LenderSession::default();
            session.plant(planted);
            // Every other client has the journal's key, and proves it at once.
            if conn != intruder::CONN {
                session.prove(journal.0);
            }
            session
        });
        match session.handle(&frame) {
            Ok(SessionAction::Bind(bound, _)) if bound == journal => {
                if !self.serves_window() {
                    self.sessions.remove(&conn);
                    return PacketOutcome::Ended;
                }
                let header = FrameHeader {
                    sender: self.incarnation.0,
                    ..FrameHeader::new(FrameKind::Bound)
                };
                PacketOutcome::Reply(packet_of(&header, self.domain.as_bytes()))
            }
            Ok(SessionAction::Status) => {
                PacketOutcome::Reply(packet_of(&FrameHeader::new(FrameKind::Report), b"{}"))
            }
            Ok(SessionAction::Invite(_)) => {
                self.listeners
                    .insert(conn, (frame.header.lsn.0, Reassembly::default()));
                let header = FrameHeader {
                    sender: self.incarnation.0,
                    lsn: frame.header.lsn,
                    ..FrameHeader::new(FrameKind::Listening)
                };
                PacketOutcome::Reply(packet_of(&header, &[]))
            }
            Ok(SessionAction::Member(_)) => match self.listeners.remove(&conn) {
                Some((channel, mut gather)) => {
                    let mut outcome = self.on_listener_frame(&mut gather, &frame, true, journal, planted);
                    outcome.sign(&mut gather);
                    if self.up {
                        self.listeners.insert(conn, (channel, gather));
                    }
                    outcome
                }
                None => self.on_member_frame(&frame, journal, planted),
            },
            Ok(
                SessionAction::Bind(..)
                | SessionAction::Data
                | SessionAction::Share
                | SessionAction::Deposit
                | SessionAction::Drain(_)
                | SessionAction::Offer(_)
                | SessionAction::Prove(_),
            )
            | Err(_) => PacketOutcome::Ended,
        }
    }

    /// Whether no client has bound the journal.
    pub(crate) fn has_no_session(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The connections that listen to a channel.
    pub fn listeners(&self) -> impl Iterator<Item = usize> {
        self.listeners.keys().copied()
    }

    /// Handles an append that was multicast and reached connection `conn`.
    pub fn on_datagram(
        &mut self,
        conn: usize,
        channel: u64,
        packet: &[u8],
        journal: JournalId,
        planted: FaultSwitch,
    ) -> PacketOutcome {
        let Some((tuned, mut gather)) = self.listeners.remove(&conn) else {
            return PacketOutcome::Nothing;
        };
        let mut outcome = match Frame::parse(packet) {
            Ok(frame) if tuned == channel && frame.header.flags & Flag::FRESH == 0 => {
                let outcome = self.on_listener_frame(&mut gather, &frame, false, journal, planted);
                gather.on_datagram();
                outcome
            }
            // The datagram is sealed under a channel key that this connection does not have, or no longer
            // has.
            _ => PacketOutcome::Nothing,
        };
        outcome.sign(&mut gather);
        if self.up {
            self.listeners.insert(conn, (tuned, gather));
        }
        outcome
    }

    /// Handles an append as the shipped lender does: however it came, it goes through the reassembly.
    fn on_listener_frame(
        &mut self,
        gather: &mut Reassembly,
        frame: &Frame<'_>,
        by_link: bool,
        journal: JournalId,
        planted: FaultSwitch,
    ) -> PacketOutcome {
        if frame.header.kind != FrameKind::Append {
            if matches!(
                frame.header.kind,
                FrameKind::Join | FrameKind::Fence | FrameKind::Leave
            ) {
                gather.clear();
            }
            return self.on_member_frame(frame, journal, planted);
        }
        let takes = self.member.as_ref().is_some_and(|member| member.accepts(frame));
        match takes {
            false if by_link => return self.on_member_frame(frame, journal, planted),
            false => return PacketOutcome::Nothing,
            true => gather.begin_window(self.state().window_epoch, self.state().generation),
        }
        match gather.handle(frame, self.state().received) {
            ReassemblyVerdict::Deliver => {
                let mut outcome = self.on_member_frame(frame, journal, planted);
                while let PacketOutcome::Reply(reply) = &outcome
                    && reply.first() == Some(&(FrameKind::Ack as u8))
                    && let Some(piece) = gather.next(self.state().received)
                {
                    outcome = self.on_member_frame(&piece.frame(), journal, planted);
                }
                outcome
            }
            ReassemblyVerdict::Buffered(Some(hole)) => match &self.member {
                Some(member) => PacketOutcome::Reply(packet_of(&member.missing(hole), &[])),
                None => PacketOutcome::Nothing,
            },
            ReassemblyVerdict::Duplicate if by_link => match self.member.as_ref().map(Member::acknowledge) {
                Some(MemberReply::Frame(header, body, length)) => {
                    PacketOutcome::Reply(packet_of(&header, &body[..length]))
                }
                Some(MemberReply::Data(..)) | None => PacketOutcome::Nothing,
            },
            ReassemblyVerdict::Buffered(None) | ReassemblyVerdict::Duplicate | ReassemblyVerdict::Full => {
                PacketOutcome::Nothing
            }
        }
    }

    fn on_member_frame(
        &mut self,
        frame: &Frame<'_>,
        journal: JournalId,
        planted: FaultSwitch,
    ) -> PacketOutcome {
        if let Some(member) = &self.member
            && self.stalled
            && frame.header.kind == FrameKind::Append
            && member.accepts(frame)
            && let MemberReply::Frame(header, body, length) = member.acknowledge()
        {
            return PacketOutcome::Reply(packet_of(&header, &body[..length]));
        }
        let before = self.state();
        let last = (before.epoch, before.writer);
        if frame.header.kind == FrameKind::Fence && !allows_fence(journal, frame, last, Some(&is_signed)) {
            let header = FrameHeader {
                flags: RefusalReason::NotOwner as u8,
                ..FrameHeader::new(FrameKind::Refuse)
            };
            return PacketOutcome::Reply(packet_of(&header, &[]));
        }
        if frame.header.kind == FrameKind::Join && self.withdrawn {
            let header = FrameHeader {
                flags: RefusalReason::Stopping as u8,
                ..FrameHeader::new(FrameKind::Refuse)
            };
            return PacketOutcome::Reply(packet_of(&header, &[]));
        }
        let incarnation = self.incarnation;
        self.has_memory = true;
        let member = self.member.get_or_insert_with(|| {
            let mut member = Member::new(journal, incarnation);
            member.plant(planted);
            member
        });
        if frame.header.kind == FrameKind::Append {
            self.saved = trim_before_overwrite(member, frame, &mut self.window, self.saved);
        }
        let reply = member.handle(frame, &mut self.window);
        let after = *member.state();
        if self.crashes_in_append && frame.header.kind == FrameKind::Append {
            self.kill();
            self.observer.on_declared(frame);
            return PacketOutcome::Died;
        }
        self.saved = Some(after);
        let mut witness = core::mem::take(&mut self.observer);
        witness.after_frame(
            &self.window,
            (&before, &self.state()),
            frame,
            &reply,
            journal.into(),
        );
        self.observer = witness;
        self.follow_release(&before);
        if self.follow_incarnation(before) && reply.header().kind != FrameKind::LeaveAck {
            return PacketOutcome::Ended;
        }
        PacketOutcome::Reply(match reply {
            MemberReply::Frame(header, body, length) => packet_of(&header, &body[..length]),
            MemberReply::Data(header, bytes) => {
                let body = self.window_bytes(header.lsn, bytes).unwrap_or_default();
                packet_of(&header, &body)
            }
        })
    }

    /// Handles the end of a connection.
    pub fn forget(&mut self, conn: usize) {
        self.listeners.remove(&conn);
        named_clients::ended(self, conn);
        if self.sessions.remove(&conn).is_some() {
            self.forget_ended_journals();
        }
    }

    /// Forgets a journal that may be forgotten and has no sessions. Its slot is reused at once, as on a
    /// lender with all slots in use.
    pub(crate) fn forget_ended_journals(&mut self) {
        let may = self.member.as_ref().is_some_and(Member::may_be_forgotten);
        if may && !self.remembers && self.sessions.is_empty() {
            self.has_forgotten |= self.state().was_joined();
            self.member = None;
            self.saved = None;
            self.answer_as_memory();
        }
        if self.member.is_none() && self.sessions.is_empty() {
            self.window.payment = None;
        }
    }
}

/// Saves a moved trim point before an append overwrites bytes that the saved state counts as held, as the
/// shipped lender does. A process that dies in between would otherwise find a window that does not match.
/// Returns the saved state.
fn trim_before_overwrite(
    member: &mut Member,
    frame: &Frame<'_>,
    window: &mut WindowRing,
    saved: Option<MemberState>,
) -> Option<MemberState> {
    let end = frame.header.lsn.0.saturating_add(frame.body.len() as u64);
    let overwrites = saved.is_some_and(|saved| saved.joined && end > saved.trim.0 + window.capacity());
    if !overwrites {
        return saved;
    }
    let header = FrameHeader {
        kind: FrameKind::Ping,
        ..frame.header
    };
    member.handle(&Frame { header, body: &[] }, window);
    Some(*member.state())
}

/// A frame as it travels.
pub fn packet_of(header: &FrameHeader, body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(40 + body.len());
    packet.extend_from_slice(&header.encode(body.len()));
    packet.extend_from_slice(body);
    packet
}
