//! A lender's side of one journal.
//!
//! A [`Member`] is a value: [`Member::handle`] takes a frame and returns the answer. It holds the newest
//! bytes of the journal, `trim..held`, as whole checked records in a [`Window`]. It obeys only the writer of
//! the highest epoch that has fenced it, and acknowledges only what it holds (rules 2 and 4).
//!
//! A member that has had a window never forgets a fence while the journal may go on. It never acknowledges
//! across a gap, never drops bytes that its writer has not declared stable, and never answers for memory of
//! an earlier incarnation.
//!
//! A *spilled* window was written to a disk, of which copies may exist: it is read-only, so no copy is ever
//! older than what the window's incarnation acknowledged. Once a writer releases or replaces it, the member
//! goes on under the incarnation of the memory that it is in now ([`Member::restore_spilled`]). That may be
//! the same one, for the window of a client that was silent ([`Member::freeze`]): no two joins are numbered
//! alike.

mod append;
mod window;

#[cfg(test)]
mod tests;

pub use window::{ReserveError, Window, copy_out};

use crate::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use crate::limit::{FRAME_BODY_BYTES_MAX, LSN_LAST, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN};
use crate::multicast::MissingRange;
use crate::owner::FenceSignature;
use crate::planted::{FaultSwitch, PlantedFault};
use crate::wire::{ByteReader, ChainPoint, CrcSeed, Flag, Frame, FrameHeader, FrameKind, RefusalReason};

/// A member's state beside its bytes. The lender keeps a copy in shared memory, so that a new process can
/// take over after a kill: see [`Member::restore`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberState {
    /// The highest epoch that fenced this member; zero: none has.
    pub epoch: Epoch,
    /// The writer that fenced it.
    pub writer: WriterId,
    /// The owner's signature of that fence.
    pub signature: FenceSignature,
    /// Whether the member has a window.
    pub joined: bool,
    /// The epoch that joined the window.
    pub window_epoch: Epoch,
    /// The number of that join within its epoch; acknowledgements carry it.
    pub generation: u32,
    /// The window's first byte.
    pub trim: Lsn,
    /// Everything from `trim` to here is held, in whole records whose CRCs and chain are correct.
    pub held: Lsn,
    /// End of the bytes received. Those from `held` on are the beginning of a record.
    pub received: Lsn,
    /// The CRC of the record that ends at `held`.
    pub chain: u32,
    /// Whether the writer that fenced it has declared the journal ended.
    pub ended: bool,
    /// Whether the writer that fenced it has closed the journal cleanly, so that no recovery will ask this
    /// member.
    pub closed: bool,
    /// Whether the window was written to a disk. It can be read and released; it never grows again.
    pub spilled: bool,
}

impl MemberState {
    /// Whether the lender may drop this state: there is no window, and no fence that must hold.
    ///
    /// The fence of an ended journal only refuses windows to the journal's old writer. That saves memory;
    /// nothing is lost without it. A writer counts only views that its region's server has, and the server
    /// accepts none from a node that is gone. A member of an older view answers that it has no window
    /// ([`Flag::KNOWN`] is missing), and the writer stops counting it.
    ///
    /// For journals that were closed cleanly or deleted, see docs/design/protocol.md, "Journals that are
    /// over".
    ///
    /// A fence under which no writer has ever had a window here ([`MemberState::was_joined`]) protects no
    /// record. A takeover is proven by the members of a durable view, which answer for the very memory that
    /// the view names, and a member joined before a view could name it. So no takeover counts this memory,
    /// and no acknowledged record depends on its fence. An old writer that comes back may join here anew, as
    /// at a lender that it had never asked; the members of its own view still refuse it. It goes on only if
    /// it reaches none of them, and then its own disk acknowledges too, with or without this lender.
    pub fn may_be_forgotten(&self) -> bool {
        let needs_no_fence = self.epoch == Epoch(0) || self.ended || self.closed;
        !self.joined && (needs_no_fence || !self.was_joined())
    }

    /// Whether a writer has ever had a window of the journal in this memory, as far as is remembered.
    pub fn was_joined(&self) -> bool {
        self.window_epoch > Epoch(0)
    }
}

/// One journal's member at one lender.
#[derive(Clone, Debug)]
pub struct Member {
    seed: CrcSeed,
    incarnation: Incarnation,
    /// The incarnation under which the member goes on without a spilled window.
    next: Incarnation,
    state: MemberState,
    planted: FaultSwitch,
}

/// Bytes of the longest body of a [`MemberReply::Frame`].
pub const REPLY_BODY_BYTES: usize = 80;

/// An answer to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberReply {
    /// A frame with a short body.
    Frame(FrameHeader, [u8; REPLY_BODY_BYTES], usize),
    /// A `Data` frame whose body is `bytes` of the window from the header's LSN.
    Data(FrameHeader, usize),
}

impl MemberReply {
    /// A frame without a body.
    pub const fn bare(header: FrameHeader) -> MemberReply {
        MemberReply::Frame(header, [0; REPLY_BODY_BYTES], 0)
    }

    /// The answer's header.
    pub fn header(&self) -> &FrameHeader {
        match self {
            MemberReply::Frame(header, ..) | MemberReply::Data(header, _) => header,
        }
    }
}

impl Member {
    /// A member that holds nothing and has not been fenced.
    pub fn new(journal: JournalId, incarnation: Incarnation) -> Member {
        Member {
            seed: journal.into(),
            incarnation,
            next: incarnation,
            state: MemberState::default(),
            planted: FaultSwitch::NONE,
        }
    }

    /// Restores a member that an earlier process of the same incarnation left. `None` if the bytes in
    /// `window` do not match `state`; the lender must then discard the window.
    pub fn restore<W: Window>(
        journal: JournalId,
        incarnation: Incarnation,
        state: MemberState,
        window: &W,
    ) -> Option<Member> {
        let mut member = Member {
            state,
            ..Member::new(journal, incarnation)
        };
        let ordered = state.trim <= state.held && state.held <= state.received;
        if state.joined && !(ordered && state.received.since(state.trim) <= window.capacity()) {
            return None;
        }
        // The chain value before `trim` is not stored, so the first record's own is trusted; all others must
        // follow it.
        member.state.received = state.held;
        (!state.joined || member.window_checks(window)).then_some(member)
    }

    /// Restores a member whose window was written to a disk, in memory of incarnation `next`. It answers as
    /// the incarnation that joined the window until the window is released or replaced. `None` as for
    /// [`Member::restore`].
    pub fn restore_spilled<W: Window>(
        journal: JournalId,
        (incarnation, next): (Incarnation, Incarnation),
        state: MemberState,
        window: &W,
    ) -> Option<Member> {
        let spilled = MemberState {
            spilled: true,
            ..state
        };
        let member = Member::restore(journal, incarnation, spilled, window)?;
        Some(Member { next, ..member })
    }

    /// A member whose window is in a file only, in memory of incarnation `next`. It answers nobody until the
    /// window is in memory again and [`Member::has_window_in`] says so.
    pub fn of_file(
        journal: JournalId,
        (incarnation, next): (Incarnation, Incarnation),
        state: MemberState,
    ) -> Member {
        Member {
            state,
            next,
            ..Member::new(journal, incarnation)
        }
    }

    /// Whether the bytes in `window` match the member's state, as [`Member::restore`] demands.
    pub fn has_window_in<W: Window>(&self, window: &W) -> bool {
        let MemberState { trim, held, .. } = self.state;
        trim <= held && held.since(trim) <= window.capacity() && self.window_checks(window)
    }

    /// Makes the window read-only, since it is about to be written to a disk. A client that comes back reads
    /// it, or joins anew.
    pub fn freeze(&mut self) {
        if !self.planted.is(PlantedFault::SilentNotFrozen) {
            self.state.spilled = true;
            self.state.received = self.state.held;
        }
    }

    /// The incarnation under which the member answers. A session that was told another one ends.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Lets go of a spilled window: the member is in this memory's own incarnation from now on.
    fn begin_anew<W: Window>(&mut self, window: &mut W) {
        window.release();
        self.state.joined = false;
        self.state.spilled = false;
        if self.incarnation != self.next {
            // Joins of the next incarnation are numbered without regard to this one's.
            self.state.generation = 0;
            self.incarnation = self.next;
        }
    }

    /// Plants a fault (simulator tests only).
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Whether the lender may give its slot to another journal: see [`MemberState::may_be_forgotten`].
    pub fn may_be_forgotten(&self) -> bool {
        self.state.may_be_forgotten() || (self.planted.is(PlantedFault::FenceForgotten) && !self.state.joined)
    }

    /// The member's state.
    pub fn state(&self) -> &MemberState {
        &self.state
    }

    /// Handles one frame and returns the answer. `window` is this journal's memory.
    ///
    /// About 25 ns plus one CRC and one copy of the body for an append; nothing is allocated.
    pub fn handle<W: Window>(&mut self, frame: &Frame<'_>, window: &mut W) -> MemberReply {
        match frame.header.kind {
            FrameKind::Append => self.on_append(frame, window),
            FrameKind::Ping => self.on_ping(frame),
            FrameKind::Fence => self.on_fence(frame),
            FrameKind::Join => self.on_join(frame, window),
            FrameKind::Read => self.on_read(frame),
            FrameKind::Leave => self.on_leave(frame, window),
            _ => self.refuse(RefusalReason::Malformed, Lsn(0), Lsn(0)),
        }
    }

    fn on_fence(&mut self, frame: &Frame<'_>) -> MemberReply {
        let (epoch, writer) = (frame.header.epoch, WriterId(frame.header.sender));
        let higher = epoch > self.state.epoch;
        let again = epoch == self.state.epoch && writer == self.state.writer;
        let Some(signature) = FenceSignature::parse(frame.body).filter(|_| epoch > Epoch(0)) else {
            return self.refuse(RefusalReason::Malformed, Lsn(0), Lsn(0));
        };
        if !higher && !again {
            return self.refuse(RefusalReason::Fenced, Lsn(0), Lsn(0));
        }
        self.state.epoch = epoch;
        self.state.writer = writer;
        if higher || signature.is_some() {
            self.state.signature = signature;
        }
        self.state.ended &= !higher;
        self.state.closed &= !higher;
        let mut header = self.header(FrameKind::Fenced);
        header.flags = self.window_flags();
        header.lsn = self.state.held;
        header.stable = self.state.trim;
        let mut body = [0; REPLY_BODY_BYTES];
        body[..4].copy_from_slice(&self.state.window_epoch.0.to_le_bytes());
        MemberReply::Frame(header, body, 4)
    }

    /// Answers a probe from any client that knows the journal's id. Changes nothing (rule 18): a writer
    /// probes before it fences.
    fn probe_reply(&self) -> MemberReply {
        let mut header = self.header(FrameKind::ProbeReply);
        header.flags = self.window_flags();
        header.lsn = self.state.held;
        header.stable = self.state.trim;
        let mut body = [0; REPLY_BODY_BYTES];
        body[..8].copy_from_slice(&self.state.writer.0.to_le_bytes());
        body[8..12].copy_from_slice(&self.state.window_epoch.0.to_le_bytes());
        let length = self.with_signature(&mut body, 12);
        MemberReply::Frame(header, body, length)
    }

    fn window_flags(&self) -> u8 {
        match (self.state.joined, self.state.spilled) {
            (true, true) => Flag::KNOWN | Flag::READ_ONLY,
            (true, false) => Flag::KNOWN,
            (false, _) => 0,
        }
    }

    fn on_join<W: Window>(&mut self, frame: &Frame<'_>, window: &mut W) -> MemberReply {
        if let Some(refusal) = self.check_writer(frame) {
            return refusal;
        }
        let mut body = ByteReader::new(frame.body);
        let (Ok(bytes), Ok(generation)) = (body.u64(), u32::try_from(frame.header.stable.0)) else {
            return self.refuse(RefusalReason::Malformed, Lsn(0), Lsn(0));
        };
        if frame.header.lsn > LSN_LAST {
            return self.refuse(RefusalReason::Malformed, frame.header.lsn, LSN_LAST);
        }
        if !(WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&bytes) || generation == 0 {
            return self.refuse(RefusalReason::OverQuota, Lsn(bytes), Lsn(WINDOW_BYTES_MAX));
        }
        // A delayed or duplicated join must not empty a window that has been filled since.
        let stale = self.state.window_epoch == frame.header.epoch && generation <= self.state.generation;
        let outlives = self.incarnation != self.next;
        if self.state.spilled && !self.planted.is(PlantedFault::SpilledWindowGrows) && (outlives || !stale) {
            self.begin_anew(window);
            if outlives {
                // The session was bound to the earlier incarnation. It ends, and its client joins anew.
                return self.refuse(RefusalReason::NotJoined, Lsn(0), Lsn(0));
            }
        }
        if stale {
            return self.ack(0);
        }
        if window.capacity() != bytes
            && let Err(no) = window.reserve(bytes)
        {
            self.state.joined = false;
            return self.refuse(no.refusal, Lsn(no.asked), Lsn(no.limit));
        }
        self.state = MemberState {
            epoch: self.state.epoch,
            writer: self.state.writer,
            signature: self.state.signature,
            joined: true,
            window_epoch: frame.header.epoch,
            generation,
            trim: frame.header.lsn,
            held: frame.header.lsn,
            received: frame.header.lsn,
            chain: frame.header.mark,
            ended: false,
            closed: false,
            spilled: self.state.spilled,
        };
        self.ack(0)
    }

    fn on_ping(&mut self, frame: &Frame<'_>) -> MemberReply {
        if frame.header.epoch == Epoch(0) && frame.header.flags & Flag::PROBE != 0 {
            return self.probe_reply();
        }
        if let Some(refusal) = self.check_writer(frame) {
            return refusal;
        }
        if self.is_window_of(frame) {
            self.trim_below(frame.header.stable);
        }
        let MemberReply::Frame(mut header, ..) = self.ack(0) else {
            unreachable!("an acknowledgement is a frame")
        };
        header.kind = FrameKind::Pong;
        let mut body = [0; REPLY_BODY_BYTES];
        body[..8].copy_from_slice(&frame.header.lsn.0.to_le_bytes());
        MemberReply::Frame(header, body, 8)
    }

    fn on_read(&mut self, frame: &Frame<'_>) -> MemberReply {
        if !self.planted.is(PlantedFault::ReadBeforeFence)
            && let Some(refusal) = self.check_writer(frame)
        {
            return refusal;
        }
        let Ok(asked) = ByteReader::new(frame.body).u32() else {
            return self.refuse(RefusalReason::Malformed, Lsn(0), Lsn(0));
        };
        let from = frame.header.lsn;
        if !self.state.joined || from < self.state.trim || from > self.state.held {
            return self.refuse(RefusalReason::OutOfWindow, self.state.trim, self.state.held);
        }
        let mut bytes = (asked as usize).min(FRAME_BODY_BYTES_MAX);
        if !self.planted.is(PlantedFault::LengthBelieved) {
            bytes = bytes.min(usize::try_from(self.state.held.since(from)).unwrap_or(usize::MAX));
        }
        let mut header = self.header(FrameKind::Data);
        header.lsn = from;
        header.stable = self.state.held;
        MemberReply::Data(header, bytes)
    }

    fn on_leave<W: Window>(&mut self, frame: &Frame<'_>, window: &mut W) -> MemberReply {
        if let Some(refusal) = self.check_writer(frame) {
            return refusal;
        }
        // A `Leave` delayed past the next join must not empty the new window, so it names the epoch and
        // generation of its window.
        let meant = (frame.header.lsn.0, frame.header.mark);
        // The session was bound to this incarnation, whatever becomes of the window.
        let answer = self.header(FrameKind::LeaveAck);
        if meant == (u64::from(self.state.window_epoch.0), self.state.generation) {
            match self.state.spilled {
                true => self.begin_anew(window),
                false => {
                    window.release();
                    self.state.joined = false;
                }
            }
        }
        let over = frame.header.flags & Flag::ENDED != 0;
        let whole = frame.header.flags & Flag::CLOSED_CLEAN != 0;
        self.state.ended |= over && !self.state.joined;
        self.state.closed |= whole && !self.state.joined;
        MemberReply::bare(answer)
    }

    /// A refusal if the frame is not from the writer that fenced this member.
    fn check_writer(&self, frame: &Frame<'_>) -> Option<MemberReply> {
        let (epoch, writer) = (frame.header.epoch, WriterId(frame.header.sender));
        if epoch == self.state.epoch && writer == self.state.writer && epoch != Epoch(0) {
            return None;
        }
        if epoch < self.state.epoch && self.planted.is(PlantedFault::MemberFenceIgnored) {
            return None;
        }
        let refusal = if epoch > self.state.epoch {
            RefusalReason::NotFenced
        } else {
            RefusalReason::Fenced
        };
        Some(self.refuse(refusal, Lsn(0), Lsn(0)))
    }

    /// Whether the window was joined in the frame's own epoch. A later epoch may only read an earlier one's
    /// window: if a loss was accepted between them, the same LSN is not the same record.
    /// A spilled window is no writer's.
    fn is_window_of(&self, frame: &Frame<'_>) -> bool {
        let grows = !self.state.spilled || self.planted.is(PlantedFault::SpilledWindowGrows);
        self.state.joined && grows && self.state.window_epoch == frame.header.epoch
    }

    fn trim_below(&mut self, stable: Lsn) {
        self.state.trim = self.state.trim.max(stable.min(self.state.held));
    }

    fn header(&self, kind: FrameKind) -> FrameHeader {
        FrameHeader {
            epoch: self.state.epoch,
            mark: self.state.generation,
            sender: self.incarnation.0,
            ..FrameHeader::new(kind)
        }
    }

    /// Whether an append comes from the current writer and is for the window that its epoch joined.
    /// [`Member::handle`] refuses any other.
    pub fn accepts(&self, frame: &Frame<'_>) -> bool {
        self.check_writer(frame).is_none() && self.is_window_of(frame)
    }

    /// The refusal to end the journal while another session serves it. Changes nothing.
    pub fn in_use(&self) -> MemberReply {
        self.refuse(RefusalReason::InUse, Lsn(0), Lsn(0))
    }

    /// Repeats the acknowledgement of everything held.
    pub fn acknowledge(&self) -> MemberReply {
        self.ack(0)
    }

    /// A frame that reports missing bytes of the channel to the writer.
    pub fn missing(&self, range: MissingRange) -> FrameHeader {
        let mut header = self.window_header(FrameKind::Missing);
        header.lsn = range.from;
        header.stable = range.to;
        header
    }

    /// A header that names the window which the current epoch joined, if there is one.
    fn window_header(&self, kind: FrameKind) -> FrameHeader {
        let mut header = self.header(kind);
        // Each epoch numbers its joins from 1. The number of an earlier epoch's join, or of a window that has
        // left, would be taken for the acknowledgement of a join still in flight.
        if !(self.state.joined && self.state.window_epoch == self.state.epoch) {
            header.mark = 0;
        }
        header
    }

    fn ack(&self, flags: u8) -> MemberReply {
        let mut header = self.window_header(FrameKind::Ack);
        header.flags = flags;
        header.lsn = if self.planted.is(PlantedFault::AckUnverified) {
            self.state.received
        } else {
            self.state.held
        };
        header.stable = self.state.received;
        MemberReply::bare(header)
    }

    fn refuse(&self, refusal: RefusalReason, first: Lsn, second: Lsn) -> MemberReply {
        let mut header = self.header(FrameKind::Refuse);
        header.flags = refusal as u8;
        header.lsn = first;
        header.stable = second;
        let mut body = [0; REPLY_BODY_BYTES];
        let claims_fence = matches!(refusal, RefusalReason::Fenced | RefusalReason::NotFenced);
        if !(claims_fence && self.state.signature.is_some()) {
            return MemberReply::Frame(header, body, 0);
        }
        body[..8].copy_from_slice(&self.state.writer.0.to_le_bytes());
        let length = self.with_signature(&mut body, 8);
        MemberReply::Frame(header, body, length)
    }

    /// Adds the fence's signature, if it has one, to a body of `length` bytes. Returns the new length.
    fn with_signature(&self, body: &mut [u8; REPLY_BODY_BYTES], length: usize) -> usize {
        if !self.state.signature.is_some() {
            return length;
        }
        let signed = length + self.state.signature.0.len();
        body[length..signed].copy_from_slice(&self.state.signature.0);
        signed
    }

    fn chain_point(&self) -> ChainPoint {
        ChainPoint {
            lsn: self.state.held,
            chain: self.state.chain,
        }
    }
}
