//! What is sent once for all, by multicast: who listens, how far it has got, and what a member still needs
//! over its own link.
//!
//! A *listener* is a member (or a lender that is being filled) that has the channel's key. It *rides* while
//! what it is to be sent next is what is multicast next. Whoever is behind (new, returned, or overwhelmed) is
//! sent the rest over its own link up to where the multicast is, and rides on from there; nobody waits for
//! it. What a rider misses it says, and is sent that alone over its own link, or by multicast if another
//! misses it too; where it cannot know (the last datagram was lost), a timer does, which learns how long each
//! takes. What its link was given is never given again: that link loses nothing while it stands.
//!
//! Nothing here acknowledges: that is `on_ack`'s, and the same for every way in which bytes travel.

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

/// How appends are multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MulticastTiming {
    /// A listener that has not received what it was sent for this much longer than it usually takes is sent
    /// it again over its own link, once: that loses nothing.
    pub resend: Nanos,
}

impl Default for MulticastTiming {
    fn default() -> MulticastTiming {
        MulticastTiming {
            resend: Nanos::from_ms(2),
        }
    }
}

/// A lender that once listened and does not now, and goes on in nothing: how long until it is sent again what
/// it lacks. The link's own detection is near.
const STALL_SPAN: Nanos = Nanos::from_ms(256);

/// Times in a row that a listener had its bytes by the timer and its link, and says that it heard nothing:
/// then multicast does not get through to it (a switch that forwards no groups, a firewall), and each commit
/// would wait for the timer.
const DEAF_AFTER: u32 = 8;
/// How long such a lender is left to its own link.
const DEAF_SPAN: Nanos = Nanos::from_ms(10_000);

/// How far the multicast has got.
#[derive(Clone, Debug)]
pub(super) struct MulticastState {
    /// The number of the channel that lenders are asked to listen to.
    pub(super) channel: u32,
    /// There are enough listeners.
    on: bool,
    /// Where the next frame begins.
    sent: Lsn,
    /// The end of all that was ever multicast in this reign.
    sent_max: Lsn,
    /// Ends of the last two frames, as a lender's `flight`.
    flight: [Lsn; 2],
    pub(super) stats: MulticastStats,
}

/// What multicast has come to in this reign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MulticastStats {
    /// Bytes of the log that were multicast, each time that they were.
    pub bytes: u64,
    /// Bytes of the log that went to listeners over their own links: holes, what the timer took for lost, and
    /// what those needed who had fallen behind or come anew.
    pub linked_bytes: u64,
    /// Times that a listener was left to its own link, because multicast did not get through to it.
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
    /// The connection is gone, and with it what it listened to.
    pub(super) fn stop_listening(&mut self) {
        self.channel = 0;
        self.channel_invited = 0;
        self.lagging = false;
        self.missing.clear();
        self.rtt_sample = None;
        self.resent = false;
        self.resends_unheard = 0;
    }

    /// It has answered. `advanced`: it has received more. Slowness is no deafness: what counts is that it
    /// went on by its link's bytes alone, and says so. `true`: multicast does not get through to it.
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
    /// The next frame to be multicast, if there is one: an append, to be cut into datagrams. The driver calls
    /// this before [`JournalWriter::next_frame`], after every event, until it returns `None`. What cannot be
    /// sent at once counts as lost.
    pub fn next_multicast(&mut self, now: Time) -> Option<OutgoingFrame> {
        self.update_listeners();
        if !self.cast.on || self.fenced.is_some() {
            return None;
        }
        if let Some(hole) = self.common_range() {
            self.cast.stats.bytes += hole.to.since(hole.from);
            return Some(self.outgoing(hole.from, hole.to.since(hole.from) as usize));
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

    /// The driver has used the channel up: its key has sealed as many datagrams as it may.
    pub fn on_channel_exhausted(&mut self, now: Time) {
        self.renew_channel();
        self.settle(now);
    }

    /// The number of the channel that lenders are asked to listen to.
    pub fn channel(&self) -> u32 {
        self.cast.channel
    }

    /// What multicast has come to in this reign.
    pub fn multicast_stats(&self) -> MulticastStats {
        self.cast.stats
    }

    /// How many lenders listen to it.
    pub fn listeners(&self) -> usize {
        let channel = self.cast.channel;
        self.lenders
            .iter()
            .filter(|lender| lender.listens(channel))
            .count()
    }

    /// Whether a listener has not received all that it was sent: if nothing more is heard, a timer of
    /// milliseconds must find it.
    pub fn awaits_listeners(&self) -> bool {
        let channel = self.cast.channel;
        self.lenders
            .iter()
            .any(|lender| lender.listens(channel) && lender.received < lender.sent)
    }

    /// Another channel, with another key, from here on: whoever has left knows the old one. Until the members
    /// listen to it each goes on over its own link.
    pub(super) fn renew_channel(&mut self) {
        self.cast.channel += 1;
    }

    /// Asks whoever takes appends to listen.
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

    /// Lender `index` has answered: `header`, an `Ack` or a `Pong`. `advanced`: it has received more.
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

    /// A frame for lender `index` could not be sent: the disk has overtaken it, and the ring was reused. It
    /// is sent on from the stable end.
    pub fn on_overtaken(&mut self, index: usize, now: Time) {
        let lender = &mut self.lenders[index];
        if lender.takes_appends() {
            lender.resume(lender.received, now);
        }
    }

    /// A listener missed something. What it says is believed as far as it costs nothing: it is sent some
    /// bytes again.
    pub(super) fn on_missing(&mut self, index: usize, header: &FrameHeader, now: Time) {
        let sent_max = self.sent_max(index);
        let (epoch, channel) = (self.epoch, self.cast.channel);
        let lender = &mut self.lenders[index];
        let ours = header.epoch == epoch
            && header.sender == lender.incarnation.0
            && header.mark == lender.generation;
        let listens = lender.listens(channel);
        // What a listener's link was given is on its way.
        let comes = if listens { lender.link_end } else { Lsn(0) };
        let hole = MissingRange {
            from: header.lsn.max(lender.received).max(comes),
            to: header.stable.min(sent_max),
        };
        if !ours || hole.from >= hole.to || !lender.takes_appends() {
            return;
        }
        if !listens {
            // It has not heard yet that it is left to its own link, over which this is a gap like any other.
            if hole.to <= lender.sent {
                lender.resume(lender.received, now);
            }
        } else if !lender.lagging {
            lender.missing.push(hole);
            // What is sent again would be measured from when it was first sent.
            lender.rtt_sample = None;
            // It heard what lies beyond.
            lender.resent = false;
            lender.resends_unheard = 0;
        }
    }

    /// What lender `index` missed, over its own link.
    pub(super) fn repair_frame(&mut self, index: usize, now: Time) -> Option<OutgoingFrame> {
        let MulticastTiming { resend } = self.config.cast?;
        let (tail, floor, window_bytes) = (self.tail, self.floor().lsn, self.config.window_bytes);
        let lender = &mut self.lenders[index];
        if !lender.takes_appends() {
            return None;
        }
        if lender.channel == 0 {
            // One that once listened may say `Missing` for a gap on its own link, and that may have been lost
            // with the connection that brought it.
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
        while let Some(hole) = lender.missing.pop() {
            let from = hole.from.max(lender.received);
            if from >= hole.to {
                continue;
            }
            if from < floor && tail.since(from) > window_bytes {
                // What it lacks may have been overwritten, and is needed no more: it is sent on from the
                // floor.
                lender.resume(lender.received, now);
                return None;
            }
            let bytes = hole.to.since(from).min(FRAME_BODY_BYTES_MAX as u64) as usize;
            let rest = from.plus(bytes as u64);
            if rest < hole.to {
                lender.missing.push(MissingRange {
                    from: rest,
                    to: hole.to,
                });
            }
            lender.on_link_sent(from, rest);
            self.cast.stats.linked_bytes += bytes as u64;
            return Some(self.outgoing(from, bytes));
        }
        None
    }

    /// How far lender `index` is to be brought over its own link: a listener only to where the multicast is.
    pub(super) fn goal(&self, index: usize) -> Lsn {
        if self.cast.on && self.listens(index) {
            self.cast.sent
        } else {
            self.tail
        }
    }

    /// Whether lender `index` takes appends from the present channel.
    pub(super) fn listens(&self, index: usize) -> bool {
        self.lenders[index].listens(self.cast.channel)
    }

    /// The highest byte that lender `index` may hold: what was sent over its link, and whatever was multicast
    /// since it was first given a key. A connection that we hold to be dead may have listened on.
    pub(super) fn sent_max(&self, index: usize) -> Lsn {
        let lender = &self.lenders[index];
        if lender.ever_listened {
            lender.sent_max.max(self.cast.sent_max)
        } else {
            lender.sent_max
        }
    }

    /// Settles who rides: before every frame, because what was heard in between may have changed it.
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
            // The ring may have been reused. Riders that lack what is skipped are behind, and told so over
            // their links.
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

    /// A hole that at least two members have told of and that is still in the ring, taken from each of them.
    fn common_range(&mut self) -> Option<MissingRange> {
        for index in 0..self.lenders.len() {
            let holes = self.lenders[index].missing;
            for hole in holes.iter() {
                let shared = |other: &WriterLender| {
                    let mut theirs = other.missing;
                    theirs.take_overlapping(hole)
                };
                let Some(theirs) = self.lenders[index + 1..].iter().find_map(shared) else {
                    continue;
                };
                let all = MissingRange {
                    from: hole.from.min(theirs.from),
                    to: hole.to.max(theirs.to),
                };
                let gone =
                    all.from < self.floor().lsn && self.tail.since(all.from) > self.config.window_bytes;
                if gone || all.to.since(all.from) > FRAME_BODY_BYTES_MAX as u64 {
                    continue;
                }
                for lender in &mut self.lenders {
                    // One that reaches beyond what is multicast is left to the timer for the rest of it.
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
    /// Whether it takes appends from the channel of this number.
    fn listens(&self, channel: u32) -> bool {
        self.channel == channel
            && self.is_ready()
            && matches!(self.role, LenderRole::CatchingUp(_) | LenderRole::Member)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;
    use crate::journal::CommitRule;

    /// A writer of one member that was asked to listen once and is left to its own link; it was sent 100
    /// bytes, and has received 40.
    fn bench() -> Bench {
        let mut bench = Bench::with_members(1, 1, CommitRule::All);
        bench.writer.config.cast = Some(MulticastTiming::default());
        let now = bench.now;
        let lender = &mut bench.writer.lenders[0];
        lender.ever_listened = true;
        lender.deaf_until = Some(now + DEAF_SPAN);
        bench.append(100);
        bench.ack(0, 40, 40);
        bench
    }

    /// Its gap was dropped, because a hole is filled only for those who listen: it waited until it was given
    /// up.
    #[test]
    fn what_a_deaf_member_misses_on_its_link_is_sent_again() {
        let mut bench = bench();
        assert_eq!(bench.next(0), None);
        let missing = FrameHeader {
            kind: FrameKind::Missing,
            ..bench.ack_header(0, 40, 100)
        };
        bench.say(0, missing, &[]);
        assert_eq!(bench.next(0).map(|frame| frame.lsn), Some(Lsn(40)));
        assert_eq!(bench.next(0), None, "once");
    }

    #[test]
    fn a_deaf_member_that_says_nothing_is_sent_again_what_it_lacks_before_it_is_given_up() {
        let mut bench = bench();
        let wait = STALL_SPAN;
        assert!(wait < bench.writer.config.timing.detect);
        bench.wait(Nanos(wait.0 - 1));
        assert_eq!(bench.next(0).map(|frame| frame.kind), None);
        bench.wait(Nanos(1));
        assert_eq!(bench.next(0).map(|frame| frame.lsn), Some(Lsn(40)));
    }

    /// A writer of two members that listen, and the time that each takes to answer.
    fn listeners() -> Bench {
        let mut bench = Bench::with_members(2, 2, CommitRule::Any);
        bench.writer.config.cast = Some(MulticastTiming::default());
        bench.wait(Nanos(1));
        for index in 0..2 {
            let tune = bench.next(index).expect("an invitation");
            assert_eq!(tune.kind, FrameKind::Invite);
            bench.say(
                index,
                FrameHeader {
                    lsn: tune.lsn,
                    ..FrameHeader::new(FrameKind::Listening)
                },
                &[],
            );
        }
        assert_eq!(bench.writer.listeners(), 2);
        bench
    }

    /// Appends up to `end`, multicast; the first member answers, the second after `span`, with these flags.
    fn commit(bench: &mut Bench, end: u64, span: Nanos, flags: u8) {
        bench.writer.on_append(Lsn(end));
        let cast = bench.writer.next_multicast(bench.now).expect("a frame for all");
        assert_eq!(cast.header.lsn.0 + 100, end, "each is multicast once, by itself");
        let near = FrameHeader {
            flags: Flag::HEARD,
            ..bench.ack_header(0, end, end)
        };
        bench.say(0, near, &[]);
        for _ in 0..16 {
            bench.wait(Nanos(span.0 / 16));
            bench.drain(0);
            bench.drain(1);
        }
        let far = FrameHeader {
            flags,
            ..bench.ack_header(1, end, end)
        };
        bench.say(1, far, &[]);
    }

    /// It was sent everything twice, and after eight times left to its own link although it heard.
    #[test]
    fn a_listener_that_takes_longer_than_the_timer_is_not_taken_for_deaf() {
        let mut bench = listeners();
        for round in 1..=100 {
            // Ten times slower all of a sudden, and later quick again.
            let ms = [3, 30, 5][round / 34];
            commit(&mut bench, 100 * round as u64, Nanos::from_ms(ms), Flag::HEARD);
        }
        assert_eq!(bench.writer.listeners(), 2);
        let stats = bench.writer.multicast_stats();
        assert_eq!((stats.bytes, stats.deaf_listeners), (10_000, 0));
        assert!(stats.linked_bytes <= 600, "{stats:?}");
    }

    #[test]
    fn a_listener_that_goes_on_by_its_link_alone_is_left_to_it() {
        let mut bench = listeners();
        for round in 1..=u64::from(DEAF_AFTER) {
            assert_eq!(bench.writer.listeners(), 2);
            commit(&mut bench, 100 * round, Nanos::from_ms(30), 0);
        }
        assert_eq!(bench.writer.listeners(), 1);
        assert_eq!(bench.writer.multicast_stats().deaf_listeners, 1);
    }

    #[test]
    fn what_its_link_was_given_is_not_given_again_by_the_timer() {
        let mut bench = listeners();
        bench.writer.on_append(Lsn(100));
        bench.writer.next_multicast(bench.now).expect("a frame for all");
        bench.wait(Nanos::from_ms(100));
        assert_eq!(bench.next(1).map(|frame| frame.lsn), Some(Lsn(0)));
        for _ in 0..4 {
            bench.wait(Nanos::from_ms(90));
            assert_eq!(
                bench.next(1).filter(|frame| frame.kind == FrameKind::Append),
                None
            );
        }
    }
}
