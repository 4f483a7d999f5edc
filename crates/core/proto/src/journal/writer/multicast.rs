//! Appends sent once for all members, by multicast: which lenders listen, how far the multicast has got, and
//! what a member still needs over its own link.
//!
//! A *listener* is a member (or a lender that is being filled) that has the channel's key. It is *current*
//! while the next bytes it needs are the next to be multicast. A listener that is behind (new, returned, or
//! overwhelmed) receives the rest over its own link up to where the multicast is, and is current from there
//! on; no other waits for it.
//!
//! A listener reports what it misses. It is sent only that, over its own link, or by multicast if another
//! listener misses it too. Where a listener cannot know (the last datagram was lost), a timer notices, which
//! adapts to each listener's round-trip time. Bytes handed to a link are never sent again: a link loses
//! nothing while it stands.
//!
//! Nothing here acknowledges: `on_ack` does, in the same way however bytes travel.

use crate::id::Lsn;
use crate::limit::{
    FRAME_BODY_BYTES_MAX, MULTICAST_FLIGHT_BYTES_MAX, MULTICAST_LAG_BYTES_MAX, MULTICAST_MEMBERS_MIN,
};
use crate::multicast::MissingRange;
use crate::planted::PlantedFault;
use crate::time::{Nanos, Time};
use crate::wire::{Flag, FrameHeader, FrameKind};

use super::super::{FrameBody, OutgoingFrame};
use super::JournalWriter;
use super::frames::BULK_BYTES;
use super::lender::{ControlFrame, LenderRole, WriterLender};

/// Timing of multicast appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastTiming {
    /// Time beyond a listener's usual round trip after which unacknowledged bytes are sent to it again over
    /// its own link, once.
    pub resend: Nanos,
}

impl Default for MulticastTiming {
    fn default() -> MulticastTiming {
        MulticastTiming {
            resend: Nanos::from_ms(2),
        }
    }
}

/// Time without progress after which a lender that once listened, and no longer does, is sent again what it
/// lacks. Its link's own time limit is not much longer.
const STALL_SPAN: Nanos = Nanos::from_ms(256);

/// Number of consecutive times that a listener got its bytes only from the timer and its link, and reported
/// no datagram. Multicast then does not reach it (a switch that forwards no groups, a firewall), and each
/// commit would wait for the timer.
const DEAF_AFTER: u32 = 8;
/// Time for which such a lender is served over its own link only.
const DEAF_SPAN: Nanos = Nanos::from_ms(10_000);

/// The state of the multicast.
#[derive(Clone, Debug)]
pub(super) struct MulticastState {
    /// The number of the channel that lenders are asked to listen to.
    pub(super) channel: u32,
    /// Whether there are enough listeners.
    on: bool,
    /// Start of the next frame.
    sent: Lsn,
    /// End of everything ever multicast in this epoch.
    sent_max: Lsn,
    /// Ends of the last two frames, like a lender's `flight`.
    flight: [Lsn; 2],
    pub(super) stats: MulticastStats,
}

/// Counters of multicast in this epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MulticastStats {
    /// Bytes of the log that were multicast, counted each time.
    pub bytes: u64,
    /// Bytes of the log sent to listeners over their own links: missing ranges, resends by the timer, and
    /// what new or lagging listeners needed.
    pub linked_bytes: u64,
    /// Number of times that multicast did not reach a listener, which was then served over its own link.
    pub deaf_listeners: u64,
}

impl MulticastState {
    pub(super) fn new(base: Lsn) -> MulticastState {
        MulticastState {
            channel: 1,
            on: false,
            sent: base,
            sent_max: base,
            flight: [base; 2],
            stats: MulticastStats::default(),
        }
    }
}

impl WriterLender {
    /// Resets the state of a listener after its connection is lost.
    pub(super) fn stop_listening(&mut self) {
        self.channel = 0;
        self.channel_invited = 0;
        self.lagging = false;
        self.missing.clear();
        self.rtt_sample = None;
        self.resent = false;
        self.resends_unheard = 0;
    }

    /// Notes an answer; `advanced` says that it has received more. Returns `true` if multicast does not reach
    /// the listener: it advanced only by its link's bytes, several times, and reports no datagrams. Slow
    /// answers alone do not count.
    fn note_answer(&mut self, heard: bool, advanced: bool, now: Time) -> bool {
        if let Some((end, at)) = self.rtt_sample
            && self.received >= end
        {
            self.rtt_sample = None;
            if heard {
                self.rtt.measure(now.since(at));
            }
        }
        if heard {
            self.resent = false;
            self.resends_unheard = 0;
        } else if self.resent && advanced {
            self.resent = false;
            self.resends_unheard += 1;
        }
        self.resends_unheard >= DEAF_AFTER
    }
}

impl JournalWriter {
    /// The next frame to multicast, if there is one: an append, to be cut into datagrams. The driver calls
    /// this before [`JournalWriter::next_frame`], after every event, until it returns `None`. Bytes that
    /// cannot be sent at once count as lost.
    pub fn next_multicast(&mut self, now: Time) -> Option<OutgoingFrame> {
        self.update_listeners();
        if !self.cast.on || self.fenced.is_some() {
            return None;
        }
        if let Some(range) = self.common_range() {
            self.cast.stats.bytes += range.to.since(range.from);
            return Some(self.outgoing(range.from, range.to.since(range.from) as usize));
        }
        let best = self.current_listeners().map(|lender| lender.received).max()?;
        let from = self.cast.sent;
        let pending = self.tail.since(from);
        let crowded = self.cast.flight[0] > best && pending < BULK_BYTES;
        if pending == 0 || crowded || from.since(best) > MULTICAST_FLIGHT_BYTES_MAX {
            return None;
        }
        let bytes = pending.min(FRAME_BODY_BYTES_MAX as u64) as usize;
        let end = from.plus(bytes as u64);
        let (channel, stable) = (self.cast.channel, self.droppable(end));
        let planted = self.planted.is(PlantedFault::MulticastCountsAsHeld);
        for lender in &mut self.lenders {
            if lender.listens(channel) && !lender.lagging && lender.sent >= from {
                if lender.received >= lender.sent {
                    lender.progress = now;
                }
                lender.rtt_sample.get_or_insert((end, now));
                if planted {
                    lender.held = lender.held.max(end);
                }
                lender.sent = lender.sent.max(end);
                lender.flight = [lender.flight[1], lender.sent];
                lender.stable_told = lender.stable_told.max(stable);
                lender.owing_since.get_or_insert(now);
            }
        }
        self.cast.stats.bytes += bytes as u64;
        self.cast.sent = end;
        self.cast.sent_max = self.cast.sent_max.max(end);
        self.cast.flight = [self.cast.flight[1], end];
        Some(self.outgoing(from, bytes))
    }

    /// Handles an exhausted channel: its key has encrypted as many datagrams as it may.
    pub fn on_channel_exhausted(&mut self, now: Time) {
        self.renew_channel();
        self.settle(now);
    }

    /// The number of the channel that lenders are asked to listen to.
    pub fn channel(&self) -> u32 {
        self.cast.channel
    }

    /// Counters of multicast in this epoch.
    pub fn multicast_stats(&self) -> MulticastStats {
        self.cast.stats
    }

    /// Number of lenders that listen to the channel.
    pub fn listeners(&self) -> usize {
        let channel = self.cast.channel;
        self.lenders
            .iter()
            .filter(|lender| lender.listens(channel))
            .count()
    }

    /// Whether a listener has not received everything that it was sent. If no more frames arrive, a timer of
    /// milliseconds must notice.
    pub fn awaits_listeners(&self) -> bool {
        let channel = self.cast.channel;
        self.lenders
            .iter()
            .any(|lender| lender.listens(channel) && lender.received < lender.sent)
    }

    /// Switches to a new channel with a new key, because a lender that has left knows the old one. Until a
    /// member listens to it, it is served over its own link.
    pub(super) fn renew_channel(&mut self) {
        self.cast.channel += 1;
    }

    /// Invites all lenders that take appends to the channel.
    pub(super) fn invite(&mut self, now: Time) {
        if self.config.cast.is_none() {
            return;
        }
        let channel = self.cast.channel;
        for lender in &mut self.lenders {
            if lender.deaf_until.is_some_and(|until| until <= now) {
                lender.deaf_until = None;
                lender.channel_invited = 0;
            }
            if lender.takes_appends() && lender.deaf_until.is_none() && lender.channel_invited != channel {
                lender.control.get_or_insert(ControlFrame::Invite);
            }
        }
    }

    pub(super) fn on_listening(&mut self, index: usize, header: &FrameHeader, now: Time) {
        let learns = !self.planted.is(PlantedFault::SlowIsDeaf);
        let lender = &mut self.lenders[index];
        if header.lsn == Lsn(u64::from(lender.channel_invited)) {
            lender.channel = lender.channel_invited;
            if learns {
                lender.rtt.guess(now.since(lender.invited_at));
            }
            lender.lagging = false;
            lender.missing.clear();
        }
        self.settle(now);
    }

    /// Handles the `Ack` or `Pong` `header` of lender `index`. `advanced` says that it has received more.
    pub(super) fn on_answer(&mut self, index: usize, header: &FrameHeader, advanced: bool, now: Time) {
        let heard = header.flags & Flag::HEARD != 0 && !self.planted.is(PlantedFault::SlowIsDeaf);
        let lender = &mut self.lenders[index];
        if lender.note_answer(heard, advanced, now) {
            lender.stop_listening();
            lender.deaf_until = Some(now + DEAF_SPAN);
            lender.resume_on_link();
            self.cast.stats.deaf_listeners += 1;
        }
    }

    /// Handles a frame for lender `index` that could not be sent, because the disk has overtaken it and the
    /// ring was reused. The lender continues from the stable end.
    pub fn on_overtaken(&mut self, index: usize, now: Time) {
        let lender = &mut self.lenders[index];
        if lender.takes_appends() {
            lender.resume(lender.received, now);
        }
    }

    /// Handles a listener's report of a missing range. The report is trusted, since it costs only some bytes
    /// sent again.
    pub(super) fn on_missing(&mut self, index: usize, header: &FrameHeader, now: Time) {
        let sent_max = self.sent_max(index);
        let (epoch, channel) = (self.epoch, self.cast.channel);
        let lender = &mut self.lenders[index];
        let ours = header.epoch == epoch
            && header.sender == lender.incarnation.0
            && header.mark == lender.generation;
        let listens = lender.listens(channel);
        // Bytes handed to a listener's link will arrive.
        let comes = if listens { lender.link_end } else { Lsn(0) };
        let range = MissingRange {
            from: header.lsn.max(lender.received).max(comes),
            to: header.stable.min(sent_max),
        };
        if !ours || range.from >= range.to || !lender.takes_appends() {
            return;
        }
        if !listens {
            // The lender does not know yet that it is served over its own link, where this is a gap like any
            // other.
            if range.to <= lender.sent {
                lender.resume(lender.received, now);
            }
        } else if !lender.lagging {
            lender.missing.push(range);
            // A resent frame would be measured from its first sending.
            lender.rtt_sample = None;
            // The listener received later datagrams.
            lender.resent = false;
            lender.resends_unheard = 0;
        }
    }

    /// The next frame that sends lender `index` bytes it missed, over its own link.
    pub(super) fn repair_frame(&mut self, index: usize, now: Time) -> Option<OutgoingFrame> {
        let MulticastTiming { resend } = self.config.cast?;
        let (tail, floor, window_bytes) = (self.tail, self.floor().lsn, self.config.window_bytes);
        let lender = &mut self.lenders[index];
        if !lender.takes_appends() {
            return None;
        }
        if lender.channel == 0 {
            // A lender that once listened may report a gap on its own link as `Missing`, and that report may
            // have been lost with its connection.
            if lender.ever_listened
                && lender.received < lender.sent
                && now.since(lender.progress) >= STALL_SPAN
            {
                lender.resume(lender.received, now);
            }
            return None;
        }
        let late = now.since(lender.progress) >= lender.rtt.timeout(resend);
        let comes = lender.received < lender.link_end;
        if lender.received < lender.sent && !comes && late {
            let some = lender.received.plus(FRAME_BODY_BYTES_MAX as u64);
            lender.missing.clear();
            lender.missing.push(MissingRange {
                from: lender.received,
                to: lender.sent.min(some),
            });
            lender.resent = true;
            lender.progress = now;
        }
        while let Some(range) = lender.missing.pop() {
            let from = range.from.max(lender.received);
            if from >= range.to {
                continue;
            }
            if from < floor && tail.since(from) > window_bytes {
                // The bytes it lacks may have been overwritten and are no longer needed: it continues from
                // the floor.
                lender.resume(lender.received, now);
                return None;
            }
            let bytes = range.to.since(from).min(FRAME_BODY_BYTES_MAX as u64) as usize;
            let rest = from.plus(bytes as u64);
            if rest < range.to {
                lender.missing.push(MissingRange {
                    from: rest,
                    to: range.to,
                });
            }
            lender.on_link_sent(from, rest);
            self.cast.stats.linked_bytes += bytes as u64;
            return Some(self.outgoing(from, bytes));
        }
        None
    }

    /// The LSN up to which lender `index` is served over its own link: for a listener, only to where the
    /// multicast is.
    pub(super) fn goal(&self, index: usize) -> Lsn {
        if self.cast.on && self.listens(index) {
            self.cast.sent
        } else {
            self.tail
        }
    }

    /// Whether lender `index` listens to the present channel.
    pub(super) fn listens(&self, index: usize) -> bool {
        self.lenders[index].listens(self.cast.channel)
    }

    /// The highest byte that lender `index` may hold: what was sent over its link, or multicast since it was
    /// first given a key. A connection that we believe dead may have kept listening.
    pub(super) fn sent_max(&self, index: usize) -> Lsn {
        let lender = &self.lenders[index];
        if lender.ever_listened {
            lender.sent_max.max(self.cast.sent_max)
        } else {
            lender.sent_max
        }
    }

    /// Updates which listeners are current, before every frame: events in between may have changed it.
    pub(super) fn update_listeners(&mut self) {
        if self.config.cast.is_none() {
            return;
        }
        let channel = self.cast.channel;
        let on = self.listeners() >= MULTICAST_MEMBERS_MIN;
        if !on {
            self.cast.on = false;
            return;
        }
        for lender in &mut self.lenders {
            let behind = self.cast.sent.since(lender.received);
            if !lender.listens(channel) {
                continue;
            }
            if lender.lagging {
                lender.lagging = behind > MULTICAST_FLIGHT_BYTES_MAX;
            } else if self.cast.on && lender.sent >= self.cast.sent && behind > MULTICAST_LAG_BYTES_MAX {
                lender.lagging = true;
                lender.resume_on_link();
            }
        }
        if !self.cast.on || self.current_listeners().next().is_none() {
            let listeners = self.lenders.iter().filter(|lender| lender.listens(channel));
            let sent = listeners.map(|lender| lender.sent).max().unwrap_or(self.tail);
            self.cast.sent = sent;
            self.cast.flight = [sent; 2];
            self.cast.on = true;
        }
        if self.cast.sent < self.floor().lsn && self.tail.since(self.cast.sent) > self.config.window_bytes {
            // The ring may have been reused. Current listeners that lack the skipped bytes are behind, and
            // learn so over their links.
            self.cast.sent = self.floor().lsn;
            self.cast.flight = [self.cast.sent; 2];
        }
    }

    fn current_listeners(&self) -> impl Iterator<Item = &WriterLender> {
        let (channel, sent) = (self.cast.channel, self.cast.sent);
        self.lenders
            .iter()
            .filter(move |lender| lender.listens(channel) && !lender.lagging && lender.sent >= sent)
    }

    /// Removes from all members and returns a range that at least two of them miss and that is still in the
    /// ring.
    fn common_range(&mut self) -> Option<MissingRange> {
        for index in 0..self.lenders.len() {
            let ranges = self.lenders[index].missing;
            for range in ranges.iter() {
                let shared = |other: &WriterLender| {
                    let mut theirs = other.missing;
                    theirs.take_overlapping(range)
                };
                let Some(theirs) = self.lenders[index + 1..].iter().find_map(shared) else {
                    continue;
                };
                let all = MissingRange {
                    from: range.from.min(theirs.from),
                    to: range.to.max(theirs.to),
                };
                let gone =
                    all.from < self.floor().lsn && self.tail.since(all.from) > self.config.window_bytes;
                if gone || all.to.since(all.from) > FRAME_BODY_BYTES_MAX as u64 {
                    continue;
                }
                for lender in &mut self.lenders {
                    // The timer covers any part of a range beyond what is multicast.
                    while lender.missing.take_overlapping(all).is_some() {}
                }
                return Some(all);
            }
        }
        None
    }

    fn outgoing(&self, from: Lsn, bytes: usize) -> OutgoingFrame {
        let header = FrameHeader {
            lsn: from,
            epoch: self.epoch,
            stable: self.droppable(from.plus(bytes as u64)),
            sender: self.writer.0,
            ..FrameHeader::new(FrameKind::Append)
        };
        OutgoingFrame {
            header,
            body: FrameBody::Log { from, bytes },
        }
    }
}

impl WriterLender {
    /// Whether it listens to the channel of this number.
    fn listens(&self, channel: u32) -> bool {
        self.channel == channel
            && self.is_ready()
            && matches!(self.role, LenderRole::CatchingUp(_) | LenderRole::Member)
    }
}

#[cfg(test)]
mod tests;
