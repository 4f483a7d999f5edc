//! Waiting for commits.
//!
//! One waiting thread is the *leader* and polls the links for all. The others are *followers* and watch the
//! acknowledged LSN. When the leader's own commit is done, the next follower that looks becomes leader.
//! Acknowledgements are thus read by a thread that needs them, without a context switch, and commits of many
//! threads share frames and system calls.
//!
//! The journal's `WaitPolicy` sets how long threads poll before they sleep.

use std::sync::atomic::Ordering;
use std::time::Duration;

use netram_proto::id::Lsn;
use netram_proto::journal::Voter;
use netram_proto::port::{CommitTicket, CommitVotes, Durability, WaitError};
use netram_proto::time::Time;
use netram_transport::{WaitPolicy, WaitStep, may_yield, yield_core};

use crate::commit_waiters::{LeaderGuard, SLEEP_MAX};
use crate::core::JournalState;

/// Maximum sleep of the leader while a socket is full, to flush it, and while a member may have missed a
/// datagram, to send it again.
const SLEEP_IMPATIENT: Duration = Duration::from_millis(1);

/// The outcome of a wait, and a time just before it was known.
type WaitEnd = (Result<CommitVotes, WaitError>, Time);

impl JournalState {
    /// Waits until everything below the ticket's end has the given durability. Does not allocate.
    pub(crate) fn wait(
        &self,
        ticket: CommitTicket,
        durability: Durability,
    ) -> Result<CommitVotes, WaitError> {
        if durability == Durability::Lazy {
            return Ok(CommitVotes::default());
        }
        let durability = self.demanded(durability);
        let since = self.now();
        let (outcome, until) = match self.outcome(ticket.end, durability) {
            Some(outcome) => (outcome, since),
            None => self.wait_since(since, ticket.end, durability),
        };
        if let Ok(votes) = &outcome {
            self.counters.committed(votes, until.since(since));
        }
        outcome
    }

    /// Waits, and returns the outcome with a time at which it was about to be known: reading the clock once
    /// more would cost a commit a quarter of a percent.
    fn wait_since(&self, since: Time, end: Lsn, durability: Durability) -> WaitEnd {
        let disk_votes = self.config.voter == Voter::Disk;
        if durability != Durability::Remote || disk_votes && !self.counting.load(Ordering::Relaxed) {
            crate::disk::write_or_request(self, durability);
        }
        self.waiting.waiters.fetch_add(1, Ordering::Relaxed);
        let outcome = self.wait_for_turn(since, end, durability);
        self.waiting.waiters.fetch_sub(1, Ordering::Relaxed);
        outcome
    }

    /// Leads or follows until the wait is over.
    fn wait_for_turn(&self, since: Time, end: Lsn, durability: Durability) -> WaitEnd {
        loop {
            // A follower whose leader has just left is usually done and need not poll.
            if let Some(outcome) = self.outcome(end, durability) {
                return (outcome, self.now());
            }
            let outcome = match self.waiting.lead() {
                Some(lead) => Some(self.wait_leading(&lead, end, durability, since)),
                None => self.wait_following(end, durability, since),
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
    }

    fn wait_leading(&self, lead: &LeaderGuard<'_>, end: Lsn, durability: Durability, since: Time) -> WaitEnd {
        let others_wait = self.waiting.waiters.load(Ordering::Relaxed) > 1;
        if others_wait && self.config.wait != WaitPolicy::Spin && may_yield() {
            // Other threads are about to commit: one pass of the scheduler lets them append first, so that
            // all records go in one frame. It costs nothing when they run on other cores, and half a
            // microsecond otherwise.
            yield_core();
        }
        loop {
            let (now, impatient) = {
                let mut core = self.core();
                let now = self.pump(&mut core);
                (now, core.links.any_unflushed() || core.writer.awaits_listeners())
            };
            if let Some(outcome) = self.outcome(end, durability) {
                return (outcome, now);
            }
            match self.next_step(since, || now) {
                WaitStep::Poll => std::hint::spin_loop(),
                WaitStep::Yield => yield_core(),
                WaitStep::Block => {
                    let longest = if impatient { SLEEP_IMPATIENT } else { SLEEP_MAX };
                    lead.sleep(longest, || self.may_be_done(end, durability));
                }
            }
        }
    }

    /// The next action after a poll that found nothing. Spinning needs no clock.
    fn next_step(&self, since: Time, now: impl FnOnce() -> Time) -> WaitStep {
        match self.config.wait {
            WaitPolicy::Spin => WaitStep::Poll,
            other => other.step(Duration::from_nanos(now().since(since).0)),
        }
    }

    /// Watches while another thread leads; `None` once there is no leader.
    fn wait_following(&self, end: Lsn, durability: Durability, since: Time) -> Option<WaitEnd> {
        if self.waiting.asleep.load(Ordering::Relaxed) {
            // Otherwise the leader would have to be woken only to send this record.
            self.send(&mut self.core());
        }
        while self.waiting.leading.load(Ordering::Relaxed) {
            if self.may_be_done(end, durability)
                && let Some(outcome) = self.outcome(end, durability)
            {
                return Some((outcome, self.now()));
            }
            match self.next_step(since, || self.now()) {
                WaitStep::Poll => std::hint::spin_loop(),
                WaitStep::Yield => yield_core(),
                WaitStep::Block => self.waiting.follow(|| self.may_be_done(end, durability)),
            }
        }
        None
    }

    /// Whether the wait may be over, so that a check under the lock is worthwhile.
    fn may_be_done(&self, end: Lsn, durability: Durability) -> bool {
        let reached = |watched: &std::sync::atomic::AtomicU64| watched.load(Ordering::SeqCst) >= end.0;
        let done = match durability {
            Durability::Remote | Durability::Lazy => reached(&self.acked),
            Durability::Disk => reached(&self.stable) && reached(&self.acked),
            Durability::Both => reached(&self.stable) && reached(&self.ruled),
        };
        done || self.halted.load(Ordering::SeqCst)
    }

    /// The result of the wait, if it is over.
    fn outcome(&self, end: Lsn, durability: Durability) -> Option<Result<CommitVotes, WaitError>> {
        if !self.may_be_done(end, durability) {
            return None;
        }
        let core = self.core();
        let writer = &core.writer;
        let votes = writer.votes(end);
        let done = match durability {
            Durability::Remote | Durability::Lazy => true,
            Durability::Disk => votes.disk,
            Durability::Both => votes.disk && votes.rule,
        };
        // A fenced writer's disk still syncs, but no record beyond what was acknowledged before counts any
        // more (rule 4). The disk of a shared region's node never counts alone.
        if done && writer.acked() >= end {
            return Some(Ok(votes));
        }
        if let Some(seen) = writer.fenced() {
            return Some(Err(WaitError::Fenced {
                held: writer.epoch(),
                seen,
            }));
        }
        if core.closed {
            return Some(Err(WaitError::Closed));
        }
        let needs_disk = durability != Durability::Remote && !votes.disk;
        match core.disk_error {
            Some(error) if needs_disk || !writer.may_still_be_acked(end) => {
                Some(Err(WaitError::DiskFailed(error)))
            }
            _ => None,
        }
    }
}
