//! A lender's machine: the memory it lends, the process that speaks for it, and how both come and go.

use std::collections::BTreeMap;

use netram_proto::cast::{Gather, Taken};
use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn};
use netram_proto::member::{Member, MemberState, NoWindow, Reply, Window, copy_out};
use netram_proto::planted::Planted;
use netram_proto::session::{Admit, Session};
use netram_proto::time::Time;
use netram_proto::wire::{Flag, Frame, FrameKind, Header, Refusal};

use crate::check::Witness;

/// A window in a vector.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    bytes: Vec<u8>,
    /// Bytes that may be lent.
    pub limit: u64,
}

impl Window for Ring {
    fn reserve(&mut self, bytes: u64) -> Result<(), NoWindow> {
        self.bytes = Vec::new();
        if bytes > self.limit {
            return Err(NoWindow {
                refusal: Refusal::NoRoom,
                asked: bytes,
                limit: self.limit,
            });
        }
        self.bytes = vec![0; bytes as usize];
        Ok(())
    }

    fn release(&mut self) {
        self.bytes = Vec::new();
    }

    fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn write(&mut self, at: Lsn, bytes: &[u8]) {
        let capacity = self.bytes.len();
        assert!(bytes.len() <= capacity, "a member writes within its window");
        let start = (at.0 % capacity as u64) as usize;
        let first = bytes.len().min(capacity - start);
        self.bytes[start..start + first].copy_from_slice(&bytes[..first]);
        self.bytes[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }

    fn piece(&self, at: Lsn, max: usize) -> &[u8] {
        let start = (at.0 % self.bytes.len() as u64) as usize;
        &self.bytes[start..self.bytes.len().min(start + max)]
    }
}

/// What came of a packet.
#[derive(Debug)]
pub enum Outcome {
    /// An answer.
    Reply(Vec<u8>),
    /// No answer: the frame was known, or waits for others.
    Nothing,
    /// The session has ended.
    Ended,
    /// The process died while it handled the frame: bytes may have reached the window, the word for them did not.
    Died,
}

impl Outcome {
    /// An answer says whether datagrams have come.
    fn sign(&mut self, gather: &mut Gather) {
        let answers = |packet: &[u8]| matches!(packet.first(), Some(&ACK) | Some(&PONG));
        if let Outcome::Reply(packet) = self
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
pub struct Lender {
    /// What feeds it.
    pub domain: String,
    /// The life of its memory.
    pub incarnation: Incarnation,
    /// Its memory.
    pub window: Ring,
    /// What its process remembers in shared memory; it outlives the process and not the machine.
    saved: Option<MemberState>,
    member: Option<Member>,
    sessions: BTreeMap<usize, Session>,
    /// Connections that listen to a channel: its number in their client's reign, and order in what comes over it.
    ears: BTreeMap<usize, (u64, Gather)>,
    /// Counts processes; a connection belongs to one.
    pub boot: u32,
    /// Whether the process runs.
    pub up: bool,
    /// It dies while it handles the next append.
    pub dies_in_append: bool,
    /// An operator has withdrawn it: it is about to stop.
    pub withdrawn: bool,
    /// It answers, and takes no appends in.
    pub stalls: bool,
    /// It stands still until then.
    pub paused_until: Time,
    /// Memories that were lost, and what they had held: an acknowledgement may outlive its lender.
    pub lives: Vec<(Incarnation, MemberState)>,
    /// It has room to remember journals that are over.
    pub remembers: bool,
    /// It has forgotten this one, which was over.
    pub has_forgotten: bool,
    /// What the oracles know of it.
    pub witness: Witness,
}

/// Bytes that a lender has to lend to one journal.
pub const LENT_BYTES: u64 = 1 << 20;

impl Lender {
    /// A lender that has just started, with empty memory.
    pub fn new(domain: String, incarnation: Incarnation) -> Lender {
        Lender {
            domain,
            incarnation,
            window: Ring {
                bytes: Vec::new(),
                limit: LENT_BYTES,
            },
            saved: None,
            member: None,
            sessions: BTreeMap::new(),
            ears: BTreeMap::new(),
            boot: 0,
            up: true,
            dies_in_append: false,
            withdrawn: false,
            stalls: false,
            paused_until: Time(0),
            lives: Vec::new(),
            remembers: false,
            has_forgotten: false,
            witness: Witness::default(),
        }
    }

    /// What the memory says, whether or not a process runs.
    pub fn state(&self) -> MemberState {
        self.member
            .as_ref()
            .map(|member| *member.state())
            .or(self.saved)
            .unwrap_or_default()
    }

    /// Copies `length` bytes of the window from `at`, if it has so many.
    pub fn window_bytes(&self, at: Lsn, length: usize) -> Option<Vec<u8>> {
        if length as u64 > self.window.capacity() {
            return None;
        }
        let mut bytes = vec![0; length];
        if length > 0 {
            copy_out(&self.window, at, &mut bytes);
        }
        Some(bytes)
    }

    /// The process dies; the memory stays.
    pub fn kill(&mut self) {
        self.up = false;
        self.dies_in_append = false;
        self.withdrawn = false;
        self.member = None;
        self.sessions.clear();
        self.ears.clear();
        self.boot += 1;
    }

    /// The machine dies, and the memory with it.
    pub fn lose(&mut self, next: Incarnation) {
        self.lives.push((self.incarnation, self.state()));
        self.kill();
        self.saved = None;
        self.window.release();
        self.incarnation = next;
        self.has_forgotten = false;
        self.witness = Witness::default();
    }

    /// A process starts. `false`: the memory did not bear out what was remembered, and begins anew as `next`.
    pub fn start(&mut self, journal: JournalId, next: Incarnation, planted: Planted) -> bool {
        self.up = true;
        let Some(state) = self.saved else { return true };
        match Member::restore(journal, self.incarnation, state, &self.window) {
            Some(mut member) => {
                member.plant(planted);
                self.saved = Some(*member.state());
                self.member = Some(member);
                self.forget_what_is_over();
                true
            }
            None => {
                self.lose(next);
                self.up = true;
                false
            }
        }
    }

    /// Handles a frame that came over connection `conn`.
    pub fn on_packet(&mut self, conn: usize, packet: &[u8], journal: JournalId, planted: Planted) -> Outcome {
        let Ok(frame) = Frame::parse(packet) else {
            return Outcome::Ended;
        };
        match self.sessions.entry(conn).or_default().handle(&frame) {
            Ok(Admit::Bind(bound, _)) if bound == journal => {
                let header = Header {
                    who: self.incarnation.0,
                    ..Header::new(FrameKind::Bound)
                };
                Outcome::Reply(packet_of(&header, self.domain.as_bytes()))
            }
            Ok(Admit::Status) => Outcome::Reply(packet_of(&Header::new(FrameKind::Report), b"{}")),
            Ok(Admit::Tune(_)) => {
                self.ears.insert(conn, (frame.header.lsn.0, Gather::default()));
                let header = Header {
                    who: self.incarnation.0,
                    lsn: frame.header.lsn,
                    ..Header::new(FrameKind::Tuned)
                };
                Outcome::Reply(packet_of(&header, &[]))
            }
            Ok(Admit::Member(_)) => match self.ears.remove(&conn) {
                Some((channel, mut gather)) => {
                    let mut outcome = self.on_listener_frame(&mut gather, &frame, true, journal, planted);
                    outcome.sign(&mut gather);
                    if self.up {
                        self.ears.insert(conn, (channel, gather));
                    }
                    outcome
                }
                None => self.on_member_frame(&frame, journal, planted),
            },
            Ok(Admit::Bind(..) | Admit::Data | Admit::Share | Admit::Deposit) | Err(_) => Outcome::Ended,
        }
    }

    /// The connections that listen to a channel.
    pub fn listeners(&self) -> impl Iterator<Item = usize> {
        self.ears.keys().copied()
    }

    /// Handles an append that was multicast and reached connection `conn`.
    pub fn on_datagram(
        &mut self,
        conn: usize,
        channel: u64,
        packet: &[u8],
        journal: JournalId,
        planted: Planted,
    ) -> Outcome {
        let Some((tuned, mut gather)) = self.ears.remove(&conn) else {
            return Outcome::Nothing;
        };
        let mut outcome = match Frame::parse(packet) {
            Ok(frame) if tuned == channel && frame.header.flags & Flag::FRESH == 0 => {
                let outcome = self.on_listener_frame(&mut gather, &frame, false, journal, planted);
                gather.note_heard();
                outcome
            }
            // Sealed under a key that this connection was not given, or not any more.
            _ => Outcome::Nothing,
        };
        outcome.sign(&mut gather);
        if self.up {
            self.ears.insert(conn, (tuned, gather));
        }
        outcome
    }

    /// As the shipped lender does it: whatever way an append came, it goes through the machine that brings order.
    fn on_listener_frame(
        &mut self,
        gather: &mut Gather,
        frame: &Frame<'_>,
        by_link: bool,
        journal: JournalId,
        planted: Planted,
    ) -> Outcome {
        if frame.header.kind != FrameKind::Append {
            if matches!(
                frame.header.kind,
                FrameKind::Join | FrameKind::Seal | FrameKind::Leave
            ) {
                gather.clear();
            }
            return self.on_member_frame(frame, journal, planted);
        }
        let takes = self.member.as_ref().is_some_and(|member| member.takes(frame));
        match takes {
            false if by_link => return self.on_member_frame(frame, journal, planted),
            false => return Outcome::Nothing,
            true => gather.serve(self.state().window_epoch, self.state().generation),
        }
        match gather.handle(frame, self.state().received) {
            Taken::Now => {
                let mut outcome = self.on_member_frame(frame, journal, planted);
                while let Outcome::Reply(reply) = &outcome
                    && reply.first() == Some(&(FrameKind::Ack as u8))
                    && let Some(piece) = gather.next(self.state().received)
                {
                    outcome = self.on_member_frame(&piece.frame(), journal, planted);
                }
                outcome
            }
            Taken::Kept(Some(hole)) => match &self.member {
                Some(member) => Outcome::Reply(packet_of(&member.missing(hole), &[])),
                None => Outcome::Nothing,
            },
            Taken::Known if by_link => match self.member.as_ref().map(Member::acknowledge) {
                Some(Reply::Frame(header, body, length)) => {
                    Outcome::Reply(packet_of(&header, &body[..length]))
                }
                Some(Reply::Data(..)) | None => Outcome::Nothing,
            },
            Taken::Kept(None) | Taken::Known | Taken::Full => Outcome::Nothing,
        }
    }

    fn on_member_frame(&mut self, frame: &Frame<'_>, journal: JournalId, planted: Planted) -> Outcome {
        if let Some(member) = &self.member
            && self.stalls
            && frame.header.kind == FrameKind::Append
            && member.takes(frame)
            && let Reply::Frame(header, body, length) = member.acknowledge()
        {
            return Outcome::Reply(packet_of(&header, &body[..length]));
        }
        let before = self.state();
        let incarnation = self.incarnation;
        let member = self.member.get_or_insert_with(|| {
            let mut member = Member::new(journal, incarnation);
            member.plant(planted);
            member
        });
        if frame.header.kind == FrameKind::Append {
            self.saved = trimmed_first(member, frame, &mut self.window, self.saved);
        }
        let reply = member.handle(frame, &mut self.window);
        let after = *member.state();
        if self.dies_in_append && frame.header.kind == FrameKind::Append {
            self.kill();
            self.witness.heard(frame);
            return Outcome::Died;
        }
        self.saved = Some(after);
        let mut witness = core::mem::take(&mut self.witness);
        witness.after_frame(self, &before, frame, &reply, journal.into());
        self.witness = witness;
        Outcome::Reply(match reply {
            Reply::Frame(header, body, length) => packet_of(&header, &body[..length]),
            Reply::Data(header, bytes) => {
                let body = self.window_bytes(header.lsn, bytes).unwrap_or_default();
                packet_of(&header, &body)
            }
        })
    }

    /// A connection is gone.
    pub fn forget(&mut self, conn: usize) {
        self.ears.remove(&conn);
        if self.sessions.remove(&conn).is_some() {
            self.forget_what_is_over();
        }
    }

    /// Nobody speaks for the journal any more: if it may be forgotten, its slot is another's at once, as where all slots are used.
    fn forget_what_is_over(&mut self) {
        let may = self.member.as_ref().is_some_and(Member::may_be_forgotten);
        if may && !self.remembers && self.sessions.is_empty() {
            self.has_forgotten |= self.state().epoch != Epoch(0);
            self.member = None;
            self.saved = None;
        }
    }
}

/// As the shipped lender does it: an append that will overwrite bytes which the saved state counts as held moves the saved
/// trim point first, for a process that dies in between would find its window not borne out. Returns what is saved.
fn trimmed_first(
    member: &mut Member,
    frame: &Frame<'_>,
    window: &mut Ring,
    saved: Option<MemberState>,
) -> Option<MemberState> {
    let end = frame.header.lsn.0.saturating_add(frame.body.len() as u64);
    let overwrites = saved.is_some_and(|saved| saved.joined && end > saved.trim.0 + window.capacity());
    if !overwrites {
        return saved;
    }
    let header = Header {
        kind: FrameKind::Ping,
        ..frame.header
    };
    member.handle(&Frame { header, body: &[] }, window);
    Some(*member.state())
}

/// A frame as it travels.
pub fn packet_of(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(40 + body.len());
    packet.extend_from_slice(&header.encode(body.len()));
    packet.extend_from_slice(body);
    packet
}
