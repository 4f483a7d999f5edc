//! Frames to a lender, and the meaning of its answers.

use alloc::string::String;

use crate::id::{Epoch, Incarnation, Lsn};
use crate::limit::{DOMAIN_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use crate::planted::PlantedFault;
use crate::time::{Nanos, Time};
use crate::wire::{ByteReader, Flag, Frame, FrameHeader, FrameKind, RefusalReason};

use super::super::peer::bind_body;
use super::super::{FrameBody, OutgoingFrame};
use super::leaving::LeaveNotice;
use super::lender::{ControlFrame, LenderRole, LinkPhase};
use super::status::LenderRefusal;
use super::{JournalWriter, LenderIndexSet};

/// Number of unsent bytes from which frames are sent without waiting for earlier ones to be received: a bulk
/// transfer gains nothing from grouping.
pub(super) const BULK_BYTES: u64 = 16 * 1024;

/// The pause before the second attempt to connect. Each further pause is twice as long, up to
/// `WriterTimings::retry`.
const RETRY_FIRST: Nanos = Nanos::from_ms(20);
const RETRY_DOUBLINGS_MAX: u32 = 16;

impl JournalWriter {
    /// Whether the driver should connect to lender `index` now. After `true` the machine assumes that it
    /// does.
    pub fn wants_connection(&mut self, index: usize, now: Time) -> bool {
        let banned =
            self.claims.members.has(index) || self.fenced.is_some() || self.lenders[index].is_vacant();
        let lender = &mut self.lenders[index];
        let due = matches!(lender.link, LinkPhase::Down(at) if at <= now) && !banned;
        if due {
            lender.link = LinkPhase::Connecting;
        }
        due
    }

    /// The address of lender `index`; empty if its place is free.
    pub fn address(&self, index: usize) -> &str {
        &self.lenders[index].address
    }

    /// Number of places for lenders. Those of removed lenders may be free.
    pub fn lender_count(&self) -> usize {
        self.lenders.len()
    }

    /// Whether a connection to lender `index` is being set up. A driver that closes the journal waits for it:
    /// the lender may hold a window of an earlier epoch, and would not learn later that the journal is
    /// closed.
    pub fn is_meeting(&self, index: usize, now: Time) -> bool {
        match self.lenders[index].link {
            LinkPhase::Down(_) if self.lenders[index].is_vacant() => false,
            LinkPhase::Down(due) => due <= now && self.fenced.is_none() && !self.claims.members.has(index),
            LinkPhase::Connecting | LinkPhase::Binding | LinkPhase::Fencing => true,
            LinkPhase::Ready => false,
        }
    }

    /// Handles a new connection to lender `index`.
    pub fn on_connected(&mut self, index: usize, now: Time) {
        let lender = &mut self.lenders[index];
        lender.link = LinkPhase::Binding;
        lender.control = Some(ControlFrame::Bind);
        lender.owing_since = Some(now);
        lender.ping_pending = false;
        lender.leave_notice = None;
        lender.leaving = false;
        lender.stop_listening();
    }

    /// Handles a failed attempt to connect to lender `index`, or the loss of its connection.
    pub fn on_lost(&mut self, index: usize, now: Time) {
        let retry = self.config.timing.retry;
        let lender = &mut self.lenders[index];
        // Retries are frequent at first, because a lender that was merely restarted has kept its memory and
        // can resume.
        let doubled = RETRY_FIRST.0 << lender.failures.min(RETRY_DOUBLINGS_MAX);
        let at = if lender.is_ready() {
            now
        } else {
            now + Nanos(doubled.min(retry.0))
        };
        lender.failures += 1;
        lender.link = LinkPhase::Down(at);
        lender.control = None;
        lender.owing_since = None;
        lender.stop_listening();
        lender.lost_at.get_or_insert(now);
        if matches!(lender.role, LenderRole::Joining | LenderRole::CatchingUp(_)) {
            lender.dismiss();
        }
        self.settle(now);
    }

    /// Takes the connections that the driver must close: their lenders were silent for too long or
    /// misbehaved.
    pub fn take_disconnects(&mut self) -> LenderIndexSet {
        core::mem::take(&mut self.disconnects)
    }

    /// The next frame for lender `index`, if there is one. The driver calls this after every event while the
    /// link has room for a frame, until it returns `None`.
    pub fn next_frame(&mut self, index: usize, now: Time) -> Option<OutgoingFrame> {
        if self.fenced.is_some() && !self.planted.is(PlantedFault::WriterFenceIgnored) {
            return None;
        }
        self.update_listeners();
        let outgoing = match self.lenders[index].control {
            Some(control) => self.control_frame(index, control, now),
            None if self.lenders[index].is_ready() => self
                .repair_frame(index, now)
                .or_else(|| self.append_frame(index, now))
                .or_else(|| self.ping_frame(index, now))?,
            None => return None,
        };
        self.lenders[index].owing_since.get_or_insert(now);
        Some(outgoing)
    }

    fn control_frame(&mut self, index: usize, control: ControlFrame, now: Time) -> OutgoingFrame {
        let floor = self.floor();
        let channel = self.cast.channel;
        let lender = &mut self.lenders[index];
        lender.control = None;
        let (kind, body) = match control {
            ControlFrame::Bind => (FrameKind::Bind, bind_body(self.journal)),
            ControlFrame::Fence => (FrameKind::Fence, FrameBody::NONE),
            ControlFrame::Join => (FrameKind::Join, FrameBody::Window(self.config.window_bytes)),
            ControlFrame::Leave | ControlFrame::LeaveClean => (FrameKind::Leave, FrameBody::NONE),
            ControlFrame::Invite => (FrameKind::Invite, FrameBody::Channel(channel)),
        };
        let mut header = FrameHeader {
            epoch: self.epoch,
            sender: self.writer.0,
            ..FrameHeader::new(kind)
        };
        match control {
            ControlFrame::Join => {
                header.lsn = floor.lsn;
                header.mark = floor.chain;
                header.stable = Lsn(u64::from(lender.generation));
                lender.sent_max = floor.lsn;
                lender.window_start = floor.lsn;
                lender.held = Lsn(0);
            }
            ControlFrame::Leave | ControlFrame::LeaveClean => {
                if control == ControlFrame::LeaveClean {
                    header.flags = Flag::CLOSED_CLEAN;
                }
                header.lsn = Lsn(u64::from(lender.window_epoch.0));
                header.mark = lender.generation;
            }
            ControlFrame::Invite => {
                header.lsn = Lsn(u64::from(channel));
                lender.channel_invited = channel;
                lender.invited_at = now;
                lender.ever_listened = true;
            }
            ControlFrame::Bind | ControlFrame::Fence => (),
        }
        OutgoingFrame { header, body }
    }

    fn append_frame(&mut self, index: usize, now: Time) -> Option<OutgoingFrame> {
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
        // If the disk is ahead of a member by more than a ring, the member continues from the floor: the
        // bytes that it lacks may have been overwritten, and are no longer needed. Otherwise it is sent
        // everything, for `Durability::Both`.
        let overtaken = lender.sent < floor.lsn && tail.since(lender.sent) > self.config.window_bytes;
        if overtaken {
            lender.sent = floor.lsn;
            lender.link_end = floor.lsn;
            lender.window_start = floor.lsn;
        }
        let fresh = lender.sent == floor.lsn;
        let (flags, mark) = if fresh { (Flag::FRESH, floor.chain) } else { (0, 0) };
        let pending = goal.since(lender.sent);
        let crowded = lender.flight[0] > lender.received;
        // An overtaken member is told at once, even if there is nothing to send: until it restarts there, it
        // owes acknowledgements for bytes that will not be sent.
        if !overtaken && (pending == 0 || crowded && pending < BULK_BYTES) {
            return None;
        }
        let bytes = pending.min(FRAME_BODY_BYTES_MAX as u64) as usize;
        let from = lender.sent;
        let told = if self.planted.is(PlantedFault::TrimAboveStable) {
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
        lender.stable_told = lender.stable_told.max(told);
        lender.on_link_sent(from, lender.sent);
        if lender.received >= from {
            lender.progress = now;
        }
        if listens {
            self.cast.stats.linked_bytes += bytes as u64;
        }
        let header = FrameHeader {
            flags,
            lsn: from,
            epoch: self.epoch,
            mark,
            stable: told,
            sender: self.writer.0,
            ..FrameHeader::new(FrameKind::Append)
        };
        Some(OutgoingFrame {
            header,
            body: FrameBody::Log { from, bytes },
        })
    }

    fn ping_frame(&mut self, index: usize, now: Time) -> Option<OutgoingFrame> {
        let timing = self.config.timing;
        let stable = self.droppable(self.lenders[index].sent);
        let lender = &mut self.lenders[index];
        // Spares are pinged too: they must be known to be reachable when they are needed.
        let news = lender.takes_appends() && lender.stable_told < stable;
        let every = match timing.resend {
            // On a link that loses frames, one lost ping must not look like a dead lender.
            Some(again) if lender.ping_pending => again,
            _ if news => timing.ping,
            _ => timing.detect,
        };
        if (lender.ping_pending && timing.resend.is_none()) || now.since(lender.ping_sent) < every {
            return None;
        }
        lender.ping_pending = true;
        lender.ping_sent = now;
        lender.stable_told = lender.stable_told.max(stable);
        let header = FrameHeader {
            lsn: Lsn(now.0),
            epoch: self.epoch,
            stable,
            sender: self.writer.0,
            ..FrameHeader::new(FrameKind::Ping)
        };
        Some(OutgoingFrame {
            header,
            body: FrameBody::NONE,
        })
    }

    /// Handles a frame from lender `index`.
    ///
    /// About 20 ns for an acknowledgement; nothing is allocated.
    pub fn on_frame(&mut self, index: usize, frame: &Frame<'_>, now: Time) {
        if self.closed {
            let answers = matches!(frame.header.kind, FrameKind::LeaveAck | FrameKind::Refuse);
            self.lenders[index].leaving &= !answers;
            return;
        }
        if self.lenders[index].is_vacant() {
            return;
        }
        match frame.header.kind {
            FrameKind::Ack => self.on_ack(index, &frame.header, now),
            FrameKind::Pong => {
                self.lenders[index].ping_pending = false;
                self.repeat_join(index, &frame.header);
                self.repeat_leave(index);
                self.on_ack(index, &frame.header, now);
            }
            FrameKind::Bound => self.on_bound(index, frame, now),
            FrameKind::Fenced => self.on_fenced(index, frame, now),
            FrameKind::Refuse => self.on_refused(index, frame, now),
            FrameKind::Withdraw => self.on_leave_notice(index, LeaveNotice::of(&frame.header), now),
            FrameKind::Listening => self.on_listening(index, &frame.header, now),
            FrameKind::Missing => self.on_missing(index, &frame.header, now),
            // The lender is free to join again.
            FrameKind::LeaveAck => {
                self.lenders[index].leaving = false;
                self.settle(now);
            }
            _ => (),
        }
        let lender = &mut self.lenders[index];
        if lender.is_vacant() {
            return;
        }
        let owes = lender.control.is_some()
            || lender.ping_pending
            || !lender.is_ready()
            || lender.role == LenderRole::Joining
            || lender.takes_appends() && lender.received < lender.sent;
        lender.owing_since = owes.then_some(now);
    }

    /// On a link that loses frames: a removed lender that answers and has not left may not have received the
    /// `Leave`.
    fn repeat_leave(&mut self, index: usize) {
        let lossy = self.config.timing.resend.is_some();
        let lender = &mut self.lenders[index];
        if lossy && lender.removed && lender.leaving && lender.role == LenderRole::Spare {
            lender.control.get_or_insert(ControlFrame::Leave);
        }
    }

    /// On a link that loses frames: a lender that answers and has not joined has not received the `Join`.
    fn repeat_join(&mut self, index: usize, header: &FrameHeader) {
        let lossy = self.config.timing.resend.is_some();
        let lender = &mut self.lenders[index];
        if lossy && lender.role == LenderRole::Joining && header.mark != lender.generation {
            lender.control.get_or_insert(ControlFrame::Join);
        }
    }

    fn on_ack(&mut self, index: usize, header: &FrameHeader, now: Time) {
        let joining = self.lenders[index].role == LenderRole::Joining;
        let ours = header.epoch == self.epoch
            && header.sender == self.lenders[index].incarnation.0
            && header.mark == self.lenders[index].generation;
        if !ours && !self.planted.is(PlantedFault::StaleAckCounts) {
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
        if (header.lsn > sent_max || header.stable > sent_max)
            && !self.planted.is(PlantedFault::StaleAckCounts)
        {
            // The lender claims bytes that were never sent, so it cannot be trusted.
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

    fn on_joined(&mut self, index: usize, header: &FrameHeader, now: Time) {
        let tail = self.tail;
        let sent_max = self.sent_max(index);
        let lender = &mut self.lenders[index];
        if header.lsn > sent_max && !self.planted.is(PlantedFault::StaleAckCounts) {
            // A new window cannot hold more than was sent to it.
            self.misbehaved(index, now);
            return;
        }
        lender.role = LenderRole::CatchingUp(tail);
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
            // The domain's label would not fit the view.
            self.misbehaved(index, now);
            return;
        }
        let lender = &mut self.lenders[index];
        let domain = core::str::from_utf8(frame.body).unwrap_or_default();
        if lender.link_domain != domain {
            lender.link_domain = String::from(domain);
        }
        if lender.role != LenderRole::Member && lender.domain != domain {
            lender.domain = String::from(domain);
        }
        lender.bound_incarnation = Incarnation(frame.header.sender);
        lender.link = LinkPhase::Fencing;
        lender.control = Some(ControlFrame::Fence);
    }

    fn on_fenced(&mut self, index: usize, frame: &Frame<'_>, now: Time) {
        let sent_max = self.sent_max(index);
        let used = self.user_of(Incarnation(frame.header.sender), index).is_some();
        let used = used && !self.planted.is(PlantedFault::AliasJoins);
        let lender = &mut self.lenders[index];
        if lender.link != LinkPhase::Fencing || frame.header.epoch != self.epoch {
            return;
        }
        // A late answer from an earlier incarnation. If it counted, this writer would wait for
        // acknowledgements that cannot come.
        if Incarnation(frame.header.sender) != lender.bound_incarnation {
            return;
        }
        lender.link = LinkPhase::Ready;
        lender.lost_at = None;
        lender.failures = 0;
        lender.ping_sent = now;
        let incarnation = Incarnation(frame.header.sender);
        lender.link_incarnation = incarnation;
        self.on_epoch_accepted(index);
        let lender = &mut self.lenders[index];
        let window_epoch = ByteReader::new(frame.body).u32().map(Epoch);
        if lender.role == LenderRole::Member {
            let same_window = incarnation == lender.incarnation
                && frame.header.flags & Flag::KNOWN != 0
                && (frame.header.flags & Flag::READ_ONLY == 0
                    || self.planted.is(PlantedFault::SpilledWindowGrows))
                && frame.header.mark == lender.generation
                && window_epoch == Ok(self.epoch)
                && (lender.held..=sent_max).contains(&frame.header.lsn);
            if same_window || self.planted.is(PlantedFault::AmnesiacCounts) {
                lender.resume(frame.header.lsn, now);
                lender.generation = frame.header.mark;
                lender.incarnation = incarnation;
            } else {
                // The lender lost its memory, or its window grows no more. It leaves the view first and may
                // then join again.
                self.departing = self.departing.with(index);
            }
        } else {
            lender.incarnation = incarnation;
            if frame.header.flags & Flag::KNOWN != 0 && !used {
                // A window of an earlier epoch, or of a membership that ended while the lender was away. The
                // durable view does not name it, so no recovery will ask for it, and it is freed. It stays if
                // another address leads to the same memory: the window is then that address's.
                lender.generation = frame.header.mark;
                lender.window_epoch = window_epoch.unwrap_or_default();
                lender.control = Some(ControlFrame::Leave);
                lender.leaving = lender.removed;
            }
        }
        self.settle(now);
    }

    fn on_refused(&mut self, index: usize, frame: &Frame<'_>, now: Time) {
        let header = &frame.header;
        let retry = self.config.timing.retry;
        let Some(refusal) = RefusalReason::from_byte(header.flags) else {
            return;
        };
        match refusal {
            RefusalReason::Fenced => self.on_fence_claim(index, frame, now),
            RefusalReason::NoRoom
            | RefusalReason::OverQuota
            | RefusalReason::TooManyJournals
            | RefusalReason::DataOnly
            | RefusalReason::RegionOnly
            | RefusalReason::NotOwner
            | RefusalReason::OverClientLimit => {
                let lender = &mut self.lenders[index];
                let refused = LenderRefusal {
                    reason: refusal,
                    asked: header.lsn.0,
                    limit: header.stable.0,
                };
                lender.refused = Some((refused, now + Nanos(retry.0 * 4)));
                if lender.role == LenderRole::Joining {
                    lender.dismiss();
                }
                self.settle(now);
            }
            // It takes no window now, and says itself whether its members must hurry.
            RefusalReason::Stopping => self.on_leave_notice(index, LeaveNotice::Drains, now),
            // The member is served over its own link. The lender may serve the group after its next start.
            RefusalReason::NoGroup => (),
            // Refusals of data sessions and deposits.
            RefusalReason::NoReplica
            | RefusalReason::Diverged
            | RefusalReason::DiskFailed
            | RefusalReason::DataElsewhere
            | RefusalReason::NoDeposit => (),
            // Refusals to a shared region's node, and to the end of a journal.
            RefusalReason::NoRegion | RefusalReason::InUse => (),
            RefusalReason::NotJoined | RefusalReason::NotFenced => {
                let lender = &mut self.lenders[index];
                match lender.role {
                    LenderRole::Member => self.departing = self.departing.with(index),
                    LenderRole::CatchingUp(_) | LenderRole::Joining => lender.dismiss(),
                    LenderRole::Spare => (),
                }
                self.settle(now);
            }
            RefusalReason::BadRecord
            | RefusalReason::Overrun
            | RefusalReason::OutOfWindow
            | RefusalReason::Malformed => {
                self.misbehaved(index, now);
            }
        }
    }

    /// Handles a lender that disagrees about what was sent. The link is closed; a member leaves the view.
    pub(super) fn misbehaved(&mut self, index: usize, now: Time) {
        self.disconnects = self.disconnects.with(index);
        if self.lenders[index].role == LenderRole::Member {
            self.departing = self.departing.with(index);
        }
        self.drop_link(index, now);
    }

    /// Closes the connection, and waits before the next attempt.
    pub(super) fn drop_link(&mut self, index: usize, now: Time) {
        self.disconnects = self.disconnects.with(index);
        self.on_lost(index, now);
        self.lenders[index].link = LinkPhase::Down(now + self.config.timing.retry);
    }
}
