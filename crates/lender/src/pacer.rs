//! The pace of a thread that serves sessions: whether it asks each of them, polls, or blocks.

use std::time::Instant;

use netram_transport::{WaitPolicy, WaitStep, yield_core};

use crate::limit::{DIRECT_CONNECTIONS_MAX, DIRECT_ROUNDS};

/// Step of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundStep {
    /// Ask every session directly: they are few.
    AskEach,
    /// Take what is ready, without waiting.
    Poll,
    /// Wait until a session is ready.
    Block,
}

/// Decides each round's step, told after each whether a frame arrived.
pub(crate) struct LoopPacer {
    policy: WaitPolicy,
    /// The last round in which a frame arrived.
    idle_since: Instant,
    rounds: u32,
    step: WaitStep,
}

impl LoopPacer {
    pub(crate) fn new(policy: WaitPolicy, now: Instant) -> LoopPacer {
        LoopPacer {
            policy,
            idle_since: now,
            rounds: 0,
            step: WaitStep::Block,
        }
    }

    /// The step of the round that begins, with this many sessions.
    pub(crate) fn next(&mut self, now: Instant, sessions: usize) -> RoundStep {
        self.rounds = self.rounds.wrapping_add(1);
        self.step = self.policy.step(now.duration_since(self.idle_since));
        let few = (1..=DIRECT_CONNECTIONS_MAX).contains(&sessions);
        match self.step {
            WaitStep::Block => RoundStep::Block,
            _ if few && !self.rounds.is_multiple_of(DIRECT_ROUNDS) => RoundStep::AskEach,
            WaitStep::Poll | WaitStep::Yield => RoundStep::Poll,
        }
    }

    /// The step of a round without sessions, for a thread that then has nothing to poll.
    pub(crate) fn block(&mut self) -> RoundStep {
        self.step = WaitStep::Block;
        RoundStep::Block
    }

    /// Ends a round, and lets other threads run if no frame arrived.
    pub(crate) fn end_round(&mut self, now: Instant, received: bool) {
        if received {
            self.idle_since = now;
        } else if self.step == WaitStep::Yield {
            yield_core();
        } else if self.policy == WaitPolicy::Spin {
            std::hint::spin_loop();
        }
    }
}
