//! What is sent once for all, by multicast: who listens, how far it has got, and what a member still needs over its own
//! link.
//!
//! A *listener* is a member (or a lender that is being filled) that has the channel's key. It *rides* while what it is to
//! be sent next is what is multicast next. Whoever is behind (new, returned, or overwhelmed) is sent the rest over its own
//! link up to where the multicast is, and rides on from there; nobody waits for it. What a rider misses it says, and is
//! sent that alone over its own link, or by multicast if another misses it too; where it cannot know (the last datagram
//! was lost), a timer does.
//!
//! Nothing here acknowledges: that is `on_ack`'s, and the same for every way in which bytes travel.

use crate::cast::Hole;
use crate::id::Lsn;
use crate::limit::{CAST_FLIGHT_BYTES_MAX, CAST_LAG_BYTES_MAX, CAST_MEMBERS_MIN, FRAME_BODY_BYTES_MAX};
use crate::time::{Span, Time};
use crate::wire::{FrameKind, Header};

use super::super::{Body, Outgoing};
use super::Writer;
use super::frames::BULK_BYTES;
use super::lender::{Control, Lender, Role};

/// How appends are multicast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CastConfig {
    /// A listener that has not received what it was sent for this long is sent it again over its own link; twice as long
    /// each time, up to `REPEATS_MAX` times.
    pub resend: Span,
}

impl Default for CastConfig {
    fn default() -> CastConfig {
        CastConfig {
            resend: Span::from_ms(2),
        }
    }
}

/// Doublings of the time to the next repetition. Beyond it (128 times) the link's own detection is near.
const REPEATS_MAX: u32 = 7;

/// Times in a row that the timer, and nothing else, brought a listener its bytes: then multicast does not get through to it
/// (a switch that forwards no groups, a firewall), and each commit would wait for the timer.
const DEAF_AFTER: u32 = 8;
/// How long such a lender is left to its own link.
const DEAF_SPAN: Span = Span::from_ms(10_000);

/// How far the multicast has got.
#[derive(Clone, Debug)]
pub(super) struct Cast {
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
}

impl Cast {
    pub(super) fn new(base: Lsn) -> Cast {
        Cast {
            channel: 1,
            on: false,
            sent: base,
            sent_max: base,
            flight: [base; 2],
        }
    }
}

impl Lender {
    /// The connection is gone, and with it what it listened to.
    pub(super) fn deafen(&mut self) {
        self.channel = 0;
        self.asked = 0;
        self.lagging = false;
        self.holes.clear();
    }

    /// It has received more. Once it has everything, and nothing had to be sent again, multicast gets through to it.
    pub(super) fn note_progress(&mut self) {
        if self.received >= self.sent {
            if !self.helped {
                self.unheard = 0;
            }
            self.helped = false;
        }
    }
}

impl Writer {
    /// The next frame to be multicast, if there is one: an append, to be cut into datagrams. The driver calls this before
    /// [`Writer::next_frame`], after every event, until it returns `None`. What cannot be sent at once counts as lost.
    pub fn next_cast(&mut self, now: Time) -> Option<Outgoing> {
        self.retune();
        if !self.cast.on || self.fenced.is_some() {
            return None;
        }
        if let Some(hole) = self.common_hole() {
            return Some(self.outgoing(hole.from, hole.to.since(hole.from) as usize));
        }
        let best = self.riders().map(|lender| lender.received).max()?;
        let from = self.cast.sent;
        let pending = self.tail.since(from);
        let crowded = self.cast.flight[0] > best && pending < BULK_BYTES;
        if pending == 0 || crowded || from.since(best) > CAST_FLIGHT_BYTES_MAX {
            return None;
        }
        let bytes = pending.min(FRAME_BODY_BYTES_MAX as u64) as usize;
        let end = from.plus(bytes as u64);
        let (channel, stable) = (self.cast.channel, self.droppable(end));
        for lender in &mut self.lenders {
            if lender.listens(channel) && !lender.lagging && lender.sent >= from {
                lender.sent = lender.sent.max(end);
                lender.flight = [lender.flight[1], lender.sent];
                lender.told = lender.told.max(stable);
                if lender.owing.is_none() {
                    lender.owing = Some(now);
                    lender.progress = now;
                }
            }
        }
        self.cast.sent = end;
        self.cast.sent_max = self.cast.sent_max.max(end);
        self.cast.flight = [self.cast.flight[1], end];
        Some(self.outgoing(from, bytes))
    }

    /// The driver has used the channel up: its key has sealed as many datagrams as it may.
    pub fn on_channel_worn(&mut self, now: Time) {
        self.renew_channel();
        self.settle(now);
    }

    /// The number of the channel that lenders are asked to listen to.
    pub fn channel(&self) -> u32 {
        self.cast.channel
    }

    /// How many lenders listen to it.
    pub fn listeners(&self) -> usize {
        let channel = self.cast.channel;
        self.lenders
            .iter()
            .filter(|lender| lender.listens(channel))
            .count()
    }

    /// Whether a listener has not received all that it was sent: if nothing more is heard, a timer of milliseconds must find it.
    pub fn awaits_listeners(&self) -> bool {
        let channel = self.cast.channel;
        self.lenders
            .iter()
            .any(|lender| lender.listens(channel) && lender.received < lender.sent)
    }

    /// Another channel, with another key, from here on: whoever has left knows the old one. Until the members listen to it
    /// each goes on over its own link.
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
                lender.asked = 0;
            }
            if lender.takes_appends() && lender.deaf_until.is_none() && lender.asked != channel {
                lender.control.get_or_insert(Control::Tune);
            }
        }
    }

    pub(super) fn on_tuned(&mut self, index: usize, header: &Header, now: Time) {
        let lender = &mut self.lenders[index];
        if header.lsn == Lsn(u64::from(lender.asked)) {
            lender.channel = lender.asked;
            lender.lagging = false;
            lender.holes.clear();
        }
        self.settle(now);
    }

    /// A listener missed something. What it says is believed as far as it costs nothing: it is sent some bytes again.
    pub(super) fn on_missing(&mut self, index: usize, header: &Header, now: Time) {
        let sent_max = self.sent_max(index);
        let (epoch, channel) = (self.epoch, self.cast.channel);
        let lender = &mut self.lenders[index];
        let ours =
            header.epoch == epoch && header.who == lender.incarnation.0 && header.mark == lender.generation;
        let hole = Hole {
            from: header.lsn.max(lender.received),
            to: header.stable.min(sent_max),
        };
        if !ours || hole.from >= hole.to || !lender.takes_appends() {
            return;
        }
        if !lender.listens(channel) {
            // It has not heard yet that it is left to its own link, over which this is a gap like any other.
            if hole.to <= lender.sent {
                lender.resume(lender.received, now);
            }
        } else if !lender.lagging {
            lender.holes.push(hole);
            // It heard what lies beyond.
            lender.unheard = 0;
        }
    }

    /// What lender `index` missed, over its own link.
    pub(super) fn repair_frame(&mut self, index: usize, now: Time) -> Option<Outgoing> {
        let CastConfig { resend } = self.config.cast?;
        let (tail, stable, window_bytes) = (self.tail, self.stable.lsn, self.config.window_bytes);
        let lender = &mut self.lenders[index];
        if !lender.takes_appends() {
            return None;
        }
        if lender.channel == 0 {
            // One that once listened may say `Missing` for a gap on its own link, and that may have been lost with the
            // connection that brought it.
            let wait = Span(resend.0 << REPEATS_MAX);
            if lender.heard && lender.received < lender.sent && now.since(lender.progress) >= wait {
                lender.resume(lender.received, now);
            }
            return None;
        }
        let wait = Span(resend.0 << lender.repeats.min(REPEATS_MAX));
        if lender.received < lender.sent && now.since(lender.progress) >= wait {
            let some = lender.received.plus(FRAME_BODY_BYTES_MAX as u64);
            lender.holes.clear();
            lender.holes.push(Hole {
                from: lender.received,
                to: lender.sent.min(some),
            });
            lender.repeats += 1;
            lender.helped = true;
            lender.unheard += 1;
            lender.progress = now;
            if lender.unheard >= DEAF_AFTER {
                lender.unheard = 0;
                lender.deafen();
                lender.deaf_until = Some(now + DEAF_SPAN);
                lender.resume(lender.received, now);
                return None;
            }
        }
        while let Some(hole) = lender.holes.pop() {
            let from = hole.from.max(lender.received);
            if from >= hole.to {
                continue;
            }
            if from < stable && tail.since(from) > window_bytes {
                // What it lacks may have been overwritten, and is needed no more: it is sent on from the stable end.
                lender.resume(lender.received, now);
                return None;
            }
            let bytes = hole.to.since(from).min(FRAME_BODY_BYTES_MAX as u64) as usize;
            let rest = from.plus(bytes as u64);
            if rest < hole.to {
                lender.holes.push(Hole {
                    from: rest,
                    to: hole.to,
                });
            }
            lender.helped = true;
            return Some(self.outgoing(from, bytes));
        }
        None
    }

    /// How far lender `index` is to be brought over its own link: a listener only to where the multicast is.
    pub(super) fn goal(&self, index: usize) -> Lsn {
        let listens = self.lenders[index].listens(self.cast.channel);
        if self.cast.on && listens {
            self.cast.sent
        } else {
            self.tail
        }
    }

    /// The highest byte that lender `index` may hold: what was sent over its link, and whatever was multicast since it was
    /// first given a key. A connection that we hold to be dead may have listened on.
    pub(super) fn sent_max(&self, index: usize) -> Lsn {
        let lender = &self.lenders[index];
        if lender.heard {
            lender.sent_max.max(self.cast.sent_max)
        } else {
            lender.sent_max
        }
    }

    /// Settles who rides: before every frame, because what was heard in between may have changed it.
    pub(super) fn retune(&mut self) {
        if self.config.cast.is_none() {
            return;
        }
        let channel = self.cast.channel;
        let on = self.listeners() >= CAST_MEMBERS_MIN;
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
                lender.lagging = behind > CAST_FLIGHT_BYTES_MAX;
            } else if self.cast.on && lender.sent >= self.cast.sent && behind > CAST_LAG_BYTES_MAX {
                lender.lagging = true;
                let (received, progress) = (lender.received, lender.progress);
                lender.resume(received, progress);
            }
        }
        if !self.cast.on || self.riders().next().is_none() {
            let listeners = self.lenders.iter().filter(|lender| lender.listens(channel));
            let sent = listeners.map(|lender| lender.sent).max().unwrap_or(self.tail);
            self.cast.sent = sent;
            self.cast.flight = [sent; 2];
            self.cast.on = true;
        }
        if self.cast.sent < self.stable.lsn && self.tail.since(self.cast.sent) > self.config.window_bytes {
            // The ring may have been reused. Riders that lack what is skipped are behind, and told so over their links.
            self.cast.sent = self.stable.lsn;
            self.cast.flight = [self.cast.sent; 2];
        }
    }

    fn riders(&self) -> impl Iterator<Item = &Lender> {
        let (channel, sent) = (self.cast.channel, self.cast.sent);
        self.lenders
            .iter()
            .filter(move |lender| lender.listens(channel) && !lender.lagging && lender.sent >= sent)
    }

    /// A hole that at least two members have told of and that is still in the ring, taken from each of them.
    fn common_hole(&mut self) -> Option<Hole> {
        for index in 0..self.lenders.len() {
            let holes = self.lenders[index].holes;
            for hole in holes.iter() {
                let shared = |other: &Lender| {
                    let mut theirs = other.holes;
                    theirs.take_overlapping(hole)
                };
                let Some(theirs) = self.lenders[index + 1..].iter().find_map(shared) else {
                    continue;
                };
                let all = Hole {
                    from: hole.from.min(theirs.from),
                    to: hole.to.max(theirs.to),
                };
                let gone = all.from < self.stable.lsn && self.tail.since(all.from) > self.config.window_bytes;
                if gone || all.to.since(all.from) > FRAME_BODY_BYTES_MAX as u64 {
                    continue;
                }
                for lender in &mut self.lenders {
                    // One that reaches beyond what is multicast is left to the timer for the rest of it.
                    while lender.holes.take_overlapping(all).is_some() {
                        lender.helped = true;
                    }
                }
                return Some(all);
            }
        }
        None
    }

    fn outgoing(&self, from: Lsn, bytes: usize) -> Outgoing {
        let header = Header {
            lsn: from,
            epoch: self.epoch,
            stable: self.droppable(from.plus(bytes as u64)),
            who: self.writer.0,
            ..Header::new(FrameKind::Append)
        };
        Outgoing {
            header,
            body: Body::Log { from, bytes },
        }
    }
}

impl Lender {
    /// Whether it takes appends from the channel of this number.
    fn listens(&self, channel: u32) -> bool {
        self.channel == channel && self.is_ready() && matches!(self.role, Role::Catching(_) | Role::Member)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;
    use crate::journal::CommitRule;

    /// A writer of one member that was asked to listen once and is left to its own link; it was sent 100 bytes, and has
    /// received 40.
    fn bench() -> Bench {
        let mut bench = Bench::with_members(1, 1, CommitRule::All);
        bench.writer.config.cast = Some(CastConfig::default());
        let now = bench.now;
        let lender = &mut bench.writer.lenders[0];
        lender.heard = true;
        lender.deaf_until = Some(now + DEAF_SPAN);
        bench.append(100);
        bench.ack(0, 40, 40);
        bench
    }

    /// Its gap was dropped, because a hole is filled only for those who listen: it waited until it was given up.
    #[test]
    fn what_a_deaf_member_misses_on_its_link_is_sent_again() {
        let mut bench = bench();
        assert_eq!(bench.next(0), None);
        let missing = Header {
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
        let wait = Span(CastConfig::default().resend.0 << REPEATS_MAX);
        assert!(wait < bench.writer.config.timing.detect);
        bench.wait(Span(wait.0 - 1));
        assert_eq!(bench.next(0).map(|frame| frame.kind), None);
        bench.wait(Span(1));
        assert_eq!(bench.next(0).map(|frame| frame.lsn), Some(Lsn(40)));
    }
}
