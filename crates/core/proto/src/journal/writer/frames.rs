//! What to send to a lender, and what its answers mean.

use alloc::string::String;

use crate::id::{Epoch, Incarnation, Lsn};
use crate::limit::{DOMAIN_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use crate::planted::Fault;
use crate::time::{Span, Time};
use crate::wire::{Cursor, Flag, Frame, FrameKind, Header, Refusal};

use super::super::peer::bind_body;
use super::super::{Body, Outgoing};
use super::lender::{Control, LinkPhase, Role};
use super::status::Refused;
use super::{Set, Writer};

/// From this many unsent bytes on, frames are sent without waiting for earlier ones to be received: a bulk transfer
/// gains nothing from grouping.
pub(super) const BULK_BYTES: u64 = 16 * 1024;

/// The pause before the second attempt to connect; each further one is twice as long, up to `Timing::retry`.
const RETRY_FIRST: Span = Span::from_ms(20);
const RETRY_DOUBLINGS_MAX: u32 = 16;

impl Writer {
    /// Whether the driver should connect to lender `index` now. Saying yes counts as having begun.
    pub fn wants_connection(&mut self, index: usize, now: Time) -> bool {
        let lender = &mut self.lenders[index];
        let due = matches!(lender.link, LinkPhase::Down(at) if at <= now) && self.fenced.is_none();
        if due {
            lender.link = LinkPhase::Connecting;
        }
        due
    }

    /// The lender at `index`: its address.
    pub fn address(&self, index: usize) -> &str {
        &self.lenders[index].address
    }

    /// How many lenders are configured.
    pub fn lender_count(&self) -> usize {
        self.lenders.len()
    }

    /// Whether it will be known in a moment if lender `index` can be spoken to. Whoever closes waits for that: the lender may have a
    /// window of an earlier reign, and nobody tells it later that the journal is closed.
    pub fn is_meeting(&self, index: usize, now: Time) -> bool {
        match self.lenders[index].link {
            LinkPhase::Down(due) => due <= now && self.fenced.is_none(),
            LinkPhase::Connecting | LinkPhase::Binding | LinkPhase::Sealing => true,
            LinkPhase::Ready => false,
        }
    }

    /// A connection to lender `index` stands.
    pub fn on_connected(&mut self, index: usize, now: Time) {
        let lender = &mut self.lenders[index];
        lender.link = LinkPhase::Binding;
        lender.control = Some(Control::Bind);
        lender.owing = Some(now);
        lender.ping_owed = false;
        lender.withdrawn = false;
        lender.deafen();
    }

    /// Lender `index` could not be reached, or its connection broke.
    pub fn on_lost(&mut self, index: usize, now: Time) {
        let retry = self.config.timing.retry;
        let lender = &mut self.lenders[index];
        // At first often, because a lender that was only restarted has kept its memory and can resume; then rarely.
        let doubled = RETRY_FIRST.0 << lender.failures.min(RETRY_DOUBLINGS_MAX);
        let at = if lender.is_ready() {
            now
        } else {
            now + Span(doubled.min(retry.0))
        };
        lender.failures += 1;
        lender.link = LinkPhase::Down(at);
        lender.control = None;
        lender.owing = None;
        lender.deafen();
        lender.lost_at.get_or_insert(now);
        if matches!(lender.role, Role::Joining | Role::Catching(_)) {
            lender.dismiss();
        }
        self.settle(now);
    }

    /// Connections to be closed: their lenders have been silent too long or have misbehaved.
    pub fn take_disconnects(&mut self) -> Set {
        core::mem::take(&mut self.disconnects)
    }

    /// The next frame for lender `index`, if there is one. The driver calls this when the link has room for a frame,
    /// after every event, until it returns `None`.
    pub fn next_frame(&mut self, index: usize, now: Time) -> Option<Outgoing> {
        if self.fenced.is_some() && !self.planted.is(Fault::FenceIgnored) {
            return None;
        }
        self.retune();
        let outgoing = match self.lenders[index].control {
            Some(control) => self.control_frame(index, control, now),
            None if self.lenders[index].is_ready() => self
                .repair_frame(index, now)
                .or_else(|| self.append_frame(index, now))
                .or_else(|| self.ping_frame(index, now))?,
            None => return None,
        };
        self.lenders[index].owing.get_or_insert(now);
        Some(outgoing)
    }

    fn control_frame(&mut self, index: usize, control: Control, now: Time) -> Outgoing {
        let floor = self.floor();
        let channel = self.cast.channel;
        let lender = &mut self.lenders[index];
        lender.control = None;
        let (kind, body) = match control {
            Control::Bind => (FrameKind::Bind, bind_body(self.journal)),
            Control::Seal => (FrameKind::Seal, Body::NONE),
            Control::Join => (FrameKind::Join, Body::u64(self.config.window_bytes)),
            Control::Leave | Control::LeaveWhole => (FrameKind::Leave, Body::NONE),
            Control::Tune => (FrameKind::Tune, Body::Channel(channel)),
        };
        let mut header = Header {
            epoch: self.epoch,
            who: self.writer.0,
            ..Header::new(kind)
        };
        match control {
            Control::Join => {
                header.lsn = floor.lsn;
                header.mark = floor.chain;
                header.stable = Lsn(u64::from(lender.generation));
                lender.sent_max = floor.lsn;
                lender.began = floor.lsn;
                lender.held = Lsn(0);
            }
            Control::Leave | Control::LeaveWhole => {
                if control == Control::LeaveWhole {
                    header.flags = Flag::LEFT_WHOLE;
                }
                header.lsn = Lsn(u64::from(lender.window_epoch.0));
                header.mark = lender.generation;
            }
            Control::Tune => {
                header.lsn = Lsn(u64::from(channel));
                lender.asked = channel;
                lender.tuned = now;
                lender.heard = true;
            }
            Control::Bind | Control::Seal => (),
        }
        Outgoing { header, body }
    }

    fn append_frame(&mut self, index: usize, now: Time) -> Option<Outgoing> {
        let (tail, floor) = (self.tail, self.floor());
        let resend = self.config.timing.resend;
        let goal = self.goal(index);
        let listens = self.listens(index);
        let lender = &mut self.lenders[index];
        if !lender.takes_appends() {
            return None;
        }
        if resend.is_some_and(|span| lender.received < lender.sent && now.since(lender.progress) >= span) {
            lender.resume(lender.received.max(lender.held), now);
        }
        // A member that the disk has overtaken by a whole ring is sent on from the floor: what it lacks may have
        // been overwritten, and is needed no more. Short of that it is sent everything, for `Durability::Both`.
        let overtaken = lender.sent < floor.lsn && tail.since(lender.sent) > self.config.window_bytes;
        if overtaken {
            lender.sent = floor.lsn;
            lender.linked = floor.lsn;
            lender.began = floor.lsn;
        }
        let fresh = lender.sent == floor.lsn;
        let (flags, mark) = if fresh { (Flag::FRESH, floor.chain) } else { (0, 0) };
        let pending = goal.since(lender.sent);
        let crowded = lender.flight[0] > lender.received;
        // One that was overtaken is told so at once, even where there is nothing to send: until it begins anew it owes us
        // what it has not received.
        if !overtaken && (pending == 0 || crowded && pending < BULK_BYTES) {
            return None;
        }
        let bytes = pending.min(FRAME_BODY_BYTES_MAX as u64) as usize;
        let from = lender.sent;
        let told = if self.planted.is(Fault::TrimAboveStable) {
            self.acked
        } else if overtaken {
            floor.lsn
        } else {
            self.droppable(from.plus(bytes as u64))
        };
        let lender = &mut self.lenders[index];
        lender.sent = from.plus(bytes as u64);
        lender.sent_max = lender.sent_max.max(lender.sent);
        lender.flight = [lender.flight[1], lender.sent];
        lender.told = lender.told.max(told);
        lender.link_given(from, lender.sent);
        if lender.received >= from {
            lender.progress = now;
        }
        if listens {
            self.cast.stats.linked_bytes += bytes as u64;
        }
        let header = Header {
            flags,
            lsn: from,
            epoch: self.epoch,
            mark,
            stable: told,
            who: self.writer.0,
            ..Header::new(FrameKind::Append)
        };
        Some(Outgoing {
            header,
            body: Body::Log { from, bytes },
        })
    }

    fn ping_frame(&mut self, index: usize, now: Time) -> Option<Outgoing> {
        let timing = self.config.timing;
        let stable = self.droppable(self.lenders[index].sent);
        let lender = &mut self.lenders[index];
        // A spare is asked too: it must be known to be there when it is needed.
        let news = lender.takes_appends() && lender.told < stable;
        let every = match timing.resend {
            // On a link that loses frames, one lost ping must not pass for a dead lender.
            Some(again) if lender.ping_owed => again,
            _ if news => timing.ping,
            _ => timing.detect,
        };
        if (lender.ping_owed && timing.resend.is_none()) || now.since(lender.ping_sent) < every {
            return None;
        }
        lender.ping_owed = true;
        lender.ping_sent = now;
        lender.told = lender.told.max(stable);
        let header = Header {
            lsn: Lsn(now.0),
            epoch: self.epoch,
            stable,
            who: self.writer.0,
            ..Header::new(FrameKind::Ping)
        };
        Some(Outgoing {
            header,
            body: Body::NONE,
        })
    }

    /// Lender `index` sent a frame.
    ///
    /// About 20 ns for an acknowledgement; nothing is allocated.
    pub fn on_frame(&mut self, index: usize, frame: &Frame<'_>, now: Time) {
        if self.closed {
            let answers = matches!(frame.header.kind, FrameKind::Left | FrameKind::Refuse);
            self.lenders[index].leaving &= !answers;
            return;
        }
        match frame.header.kind {
            FrameKind::Ack => self.on_ack(index, &frame.header, now),
            FrameKind::Pong => {
                self.lenders[index].ping_owed = false;
                self.repeat_join(index, &frame.header);
                self.on_ack(index, &frame.header, now);
            }
            FrameKind::Bound => self.on_bound(index, frame, now),
            FrameKind::Sealed => self.on_sealed(index, frame, now),
            FrameKind::Refuse => self.on_refused(index, &frame.header, now),
            FrameKind::Withdraw => {
                self.lenders[index].withdrawn = true;
                self.settle(now);
            }
            FrameKind::Tuned => self.on_tuned(index, &frame.header, now),
            FrameKind::Missing => self.on_missing(index, &frame.header, now),
            // It is free to join again.
            FrameKind::Left => self.settle(now),
            _ => (),
        }
        let lender = &mut self.lenders[index];
        let owes = lender.control.is_some()
            || lender.ping_owed
            || !lender.is_ready()
            || lender.role == Role::Joining
            || lender.takes_appends() && lender.received < lender.sent;
        lender.owing = owes.then_some(now);
    }

    /// On a link that loses frames: a lender that answers and has not joined has not heard that it should.
    fn repeat_join(&mut self, index: usize, header: &Header) {
        let lossy = self.config.timing.resend.is_some();
        let lender = &mut self.lenders[index];
        if lossy && lender.role == Role::Joining && header.mark != lender.generation {
            lender.control.get_or_insert(Control::Join);
        }
    }

    fn on_ack(&mut self, index: usize, header: &Header, now: Time) {
        let joining = self.lenders[index].role == Role::Joining;
        let ours = header.epoch == self.epoch
            && header.who == self.lenders[index].incarnation.0
            && header.mark == self.lenders[index].generation;
        if !ours && !self.planted.is(Fault::StaleAckCounts) {
            return;
        }
        if joining {
            self.on_joined(index, header, now);
            return;
        }
        let sent_max = self.sent_max(index);
        let lender = &mut self.lenders[index];
        if !lender.takes_appends() {
            return;
        }
        if (header.lsn > sent_max || header.stable > sent_max) && !self.planted.is(Fault::StaleAckCounts) {
            // It claims to hold what was never sent. Nothing it says can be believed.
            self.misbehaved(index, now);
            return;
        }
        let advanced = header.stable > lender.received;
        if advanced {
            lender.received = header.stable;
            lender.progress = now;
        }
        self.on_answer(index, header, advanced, now);
        let lender = &mut self.lenders[index];
        if header.flags & Flag::GAP != 0 && header.stable < lender.sent {
            lender.resume(header.stable, now);
        }
        lender.held = lender.held.max(header.lsn.min(self.tail));
        if self.view.has(index) && self.proposal.is_none() {
            self.advance();
        } else {
            self.settle(now);
        }
    }

    fn on_joined(&mut self, index: usize, header: &Header, now: Time) {
        let tail = self.tail;
        let sent_max = self.sent_max(index);
        let lender = &mut self.lenders[index];
        if header.lsn > sent_max && !self.planted.is(Fault::StaleAckCounts) {
            // A window that has just been opened cannot hold more than was sent to it.
            self.misbehaved(index, now);
            return;
        }
        lender.role = Role::Catching(tail);
        lender.held = header.lsn;
        lender.sent_max = lender.sent_max.max(header.lsn);
        lender.resume(header.lsn, now);
        lender.refused = None;
        self.settle(now);
    }

    fn on_bound(&mut self, index: usize, frame: &Frame<'_>, now: Time) {
        if self.lenders[index].link != LinkPhase::Binding {
            return;
        }
        if frame.body.len() > DOMAIN_BYTES_MAX {
            // It would not fit the view.
            self.misbehaved(index, now);
            return;
        }
        let lender = &mut self.lenders[index];
        let domain = core::str::from_utf8(frame.body).unwrap_or_default();
        if lender.domain_behind_link != domain {
            lender.domain_behind_link = String::from(domain);
        }
        if lender.role != Role::Member && lender.domain != domain {
            lender.domain = String::from(domain);
        }
        lender.bound = Incarnation(frame.header.who);
        lender.link = LinkPhase::Sealing;
        lender.control = Some(Control::Seal);
    }

    fn on_sealed(&mut self, index: usize, frame: &Frame<'_>, now: Time) {
        let sent_max = self.sent_max(index);
        let used = self.user_of(Incarnation(frame.header.who), index).is_some();
        let used = used && !self.planted.is(Fault::AliasJoins);
        let lender = &mut self.lenders[index];
        if lender.link != LinkPhase::Sealing || frame.header.epoch != self.epoch {
            return;
        }
        // A late word of a life before this one. Taken for this one's, it would have us wait for acknowledgements of the dead.
        if Incarnation(frame.header.who) != lender.bound {
            return;
        }
        lender.link = LinkPhase::Ready;
        lender.lost_at = None;
        lender.failures = 0;
        lender.ping_sent = now;
        let incarnation = Incarnation(frame.header.who);
        lender.behind_link = incarnation;
        let window_epoch = Cursor::new(frame.body).u32().map(Epoch);
        if lender.role == Role::Member {
            let same_window = incarnation == lender.incarnation
                && frame.header.flags & Flag::KNOWN != 0
                && frame.header.mark == lender.generation
                && window_epoch == Ok(self.epoch)
                && (lender.held..=sent_max).contains(&frame.header.lsn);
            if same_window || self.planted.is(Fault::AmnesiacCounts) {
                lender.resume(frame.header.lsn, now);
                lender.generation = frame.header.mark;
                lender.incarnation = incarnation;
            } else {
                // Its memory was lost. It leaves the view first and may then join anew.
                self.gone = self.gone.with(index);
            }
        } else {
            lender.incarnation = incarnation;
            if frame.header.flags & Flag::KNOWN != 0 && !used {
                // A window of an earlier reign, or of a membership that ended while the lender was away. The durable
                // view does not name it, so nobody will ever ask for it: its memory is given back. Not if another address leads
                // to the same memory: then the window is that one's.
                lender.generation = frame.header.mark;
                lender.window_epoch = window_epoch.unwrap_or_default();
                lender.control = Some(Control::Leave);
            }
        }
        self.settle(now);
    }

    fn on_refused(&mut self, index: usize, header: &Header, now: Time) {
        let retry = self.config.timing.retry;
        let Some(refusal) = Refusal::from_byte(header.flags) else {
            return;
        };
        match refusal {
            Refusal::Fenced => {
                self.fenced = Some(header.epoch);
            }
            Refusal::NoRoom
            | Refusal::OverQuota
            | Refusal::TooManyJournals
            | Refusal::DataOnly
            | Refusal::RegionOnly => {
                let lender = &mut self.lenders[index];
                let refused = Refused {
                    why: refusal,
                    asked: header.lsn.0,
                    limit: header.stable.0,
                };
                lender.refused = Some((refused, now + Span(retry.0 * 4)));
                if lender.role == Role::Joining {
                    lender.dismiss();
                }
                self.settle(now);
            }
            Refusal::Stopping => {
                self.lenders[index].withdrawn = true;
                self.settle(now);
            }
            // It goes on over its own link; whether the group is served may be another matter after its next start.
            Refusal::NoGroup => (),
            // A data session's, or a deposit's.
            Refusal::NoReplica
            | Refusal::Diverged
            | Refusal::DiskFailed
            | Refusal::DataElsewhere
            | Refusal::NoDeposit => (),
            // A node's of a shared region; of whoever says that a journal is over.
            Refusal::NoRegion | Refusal::InUse => (),
            Refusal::NotJoined | Refusal::NotSealed => {
                let lender = &mut self.lenders[index];
                match lender.role {
                    Role::Member => self.gone = self.gone.with(index),
                    Role::Catching(_) | Role::Joining => lender.dismiss(),
                    Role::Spare => (),
                }
                self.settle(now);
            }
            Refusal::BadRecord | Refusal::Overrun | Refusal::OutOfWindow | Refusal::Malformed => {
                self.misbehaved(index, now);
            }
        }
    }

    /// The lender and we disagree about what was sent. The link is closed; a member leaves the view.
    fn misbehaved(&mut self, index: usize, now: Time) {
        self.disconnects = self.disconnects.with(index);
        if self.lenders[index].role == Role::Member {
            self.gone = self.gone.with(index);
        }
        self.lost_by_us(index, now);
    }

    /// We give the connection up, and do not come back at once.
    pub(super) fn lost_by_us(&mut self, index: usize, now: Time) {
        self.disconnects = self.disconnects.with(index);
        self.on_lost(index, now);
        self.lenders[index].link = LinkPhase::Down(now + self.config.timing.retry);
    }
}
