//! Giving up lenders: those that are silent, and those that answer and make no progress.
//!
//! Both leave the view. Otherwise a commit of `Durability::Both` would wait for ever, and every other commit
//! for the disk. Time in which this process itself did not run is not counted: the answers of that time are
//! still in its sockets.

use crate::planted::PlantedFault;
use crate::time::{Nanos, Time};

use super::JournalWriter;
use super::lender::{LenderRole, WriterLender};

/// Multiple of `detect` for which a lender may hold less than it was sent without progress. A machine that
/// swaps, or a network that drops most packets, is slow for longer than a dead one is silent.
const STALL_DETECTS: u64 = 4;
/// Multiple of `retry` for which a lender that made no progress is not asked to join again.
const STALL_RETRIES: u64 = 4;
/// Fraction of `detect` (one over this) above which a pause between two ticks counts as a pause of this
/// process.
const PAUSE_PART: u64 = 4;
/// Lower bound for such a pause, longer than every driver's tick. However short `detect` is, ordinary ticks
/// must not count as pauses, or no lender would ever be given up.
const PAUSE_MIN: Nanos = Nanos::from_ms(50);

impl JournalWriter {
    /// Handles the passing of time. The driver calls this every few milliseconds or more often.
    pub fn on_tick(&mut self, now: Time) {
        self.discount_pause(now);
        self.expire_replica_ack(now);
        self.update_idle(now);
        for index in 0..self.lenders.len() {
            self.give_up_silent(index, now);
            self.give_up_stalled(index, now);
        }
        self.settle(now);
        self.note_ack_times(now);
    }

    /// Extends the lenders' time limits by a pause in which this process was not running.
    fn discount_pause(&mut self, now: Time) {
        let stood = self.last_tick.map_or(Nanos(0), |ticked| now.since(ticked));
        self.last_tick = Some(now);
        let usual = stood <= PAUSE_MIN.max(Nanos(self.config.timing.detect.0 / PAUSE_PART));
        if usual || self.planted.is(PlantedFault::PauseHeldAgainst) {
            return;
        }
        for lender in &mut self.lenders {
            let times = [&mut lender.owing_since, &mut lender.lost_at]
                .into_iter()
                .flatten();
            for at in times.chain([&mut lender.progress_at]) {
                *at = now.min(*at + stood);
            }
        }
    }

    fn give_up_silent(&mut self, index: usize, now: Time) {
        let detect = self.config.timing.detect;
        let lender = &self.lenders[index];
        if lender.owing_since.is_some_and(|since| now.since(since) > detect) {
            if lender.role == LenderRole::Member {
                self.departing = self.departing.with(index);
            }
            self.drop_link(index, now);
        } else if lender.role == LenderRole::Member && lender.lost_at.is_some_and(|at| now.since(at) > detect)
        {
            self.departing = self.departing.with(index);
        }
    }

    fn give_up_stalled(&mut self, index: usize, now: Time) {
        let patience = Nanos(self.config.timing.detect.0 * STALL_DETECTS);
        let ban = Nanos(self.config.timing.retry.0 * STALL_RETRIES);
        let lender = &mut self.lenders[index];
        if lender.has_moved(now)
            || now.since(lender.progress_at) <= patience
            || self.planted.is(PlantedFault::StallAllowed)
        {
            return;
        }
        lender.stalled_until = Some(now + ban);
        if lender.role == LenderRole::Member {
            self.departing = self.departing.with(index);
        }
        self.drop_link(index, now);
    }
}

impl WriterLender {
    /// Whether it has more than at the last check, or lacks nothing that it was sent.
    fn has_moved(&mut self, now: Time) -> bool {
        let has = (self.received, self.held);
        let moved = has != self.progress_seen || !self.takes_appends() || self.held >= self.sent;
        if moved {
            self.progress_seen = has;
            self.progress_at = now;
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Bench;
    use super::*;
    use crate::id::Lsn;
    use crate::journal::CommitRule;
    use crate::wire::FrameKind;

    /// The member stayed in the view for ever: commits that need both members and disk never ended.
    #[test]
    fn a_member_that_answers_and_makes_no_progress_leaves_the_view() {
        let mut bench = Bench::with_members(2, 1, CommitRule::All);
        bench.append(100);
        bench.ack(0, 40, 40);
        for _ in 0..200 {
            bench.wait(Nanos::from_ms(10));
            bench.answer_pings();
        }
        assert!(
            bench.writer.take_disconnects().is_empty(),
            "a stalled member gets some time"
        );
        bench.wait(Nanos::from_ms(20));
        assert!(bench.writer.take_disconnects().has(0));
        assert_eq!(bench.next(1).map(|frame| frame.kind), Some(FrameKind::Join));
    }

    #[test]
    fn a_slow_member_that_makes_progress_stays() {
        let mut bench = Bench::with_members(1, 1, CommitRule::All);
        bench.append(100_000);
        for held in 0..40 {
            bench.ack(0, 8 * held, 8 * held + 8);
            bench.wait(Nanos::from_ms(100));
            bench.drain(0);
        }
        assert!(bench.writer.take_disconnects().is_empty());
    }

    /// The answers were in the socket, but the tick came first, and every member was given up.
    #[test]
    fn a_writer_gives_no_lender_up_for_its_own_pause() {
        let mut bench = Bench::with_members(2, 2, CommitRule::All);
        bench.wait(Nanos::from_ms(10));
        bench.append(100);
        bench.now = bench.now + Nanos::from_ms(3000);
        bench.writer.on_tick(bench.now);
        assert!(bench.writer.take_disconnects().is_empty());
        (0..2).for_each(|index| bench.ack(index, 100, 100));
        bench.wait(Nanos::from_ms(2000));
        assert_eq!(bench.writer.acked(), Lsn(100));
        assert_eq!(bench.writer.view().len(), 2);
    }

    #[test]
    fn a_silent_member_is_given_up_once_the_writer_runs_again() {
        let mut bench = Bench::with_members(1, 1, CommitRule::All);
        bench.wait(Nanos::from_ms(10));
        bench.append(100);
        bench.now = bench.now + Nanos::from_ms(3000);
        bench.writer.on_tick(bench.now);
        bench.wait(Nanos::from_ms(501));
        assert!(bench.writer.take_disconnects().has(0));
    }
}
