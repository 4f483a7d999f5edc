//! Whether the threads that serve go round their loops: each answers questions in its housekeeping.
//!
//! An answer costs a load and a store a round of housekeeping, and nothing on the way of an append. Threads
//! that may wait for a disk are not asked: those that write windows of silent clients, build reports, or keep
//! copies of volumes.

use std::sync::atomic::{AtomicU64, Ordering};

/// A question to all threads, and the last one that each has answered.
pub(crate) struct ThreadPulses {
    asked: AtomicU64,
    answered: Vec<AtomicU64>,
}

impl ThreadPulses {
    /// These threads have not been asked yet.
    pub(crate) fn new(threads: usize) -> ThreadPulses {
        ThreadPulses {
            asked: AtomicU64::new(0),
            answered: (0..threads).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The thread with this index has gone round its loop.
    pub(crate) fn answer(&self, thread: usize) {
        self.answered[thread].store(self.asked.load(Ordering::Acquire), Ordering::Release);
    }

    /// Whether every thread has gone round its loop since this returned `true` last. Then asks them anew.
    pub(crate) fn all_answered(&self) -> bool {
        let asked = self.asked.load(Ordering::Acquire);
        let has_answered = |thread: &AtomicU64| thread.load(Ordering::Acquire) >= asked;
        let all = self.answered.iter().all(has_answered);
        if all {
            self.asked.store(asked + 1, Ordering::Release);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_that_stands_still_is_enough() {
        let pulses = ThreadPulses::new(3);
        assert!(pulses.all_answered(), "nothing was asked before");
        assert!(!pulses.all_answered());
        pulses.answer(0);
        pulses.answer(1);
        pulses.answer(1);
        assert!(!pulses.all_answered(), "the last thread stands still");
        pulses.answer(2);
        assert!(pulses.all_answered());
        assert!(!pulses.all_answered(), "they are asked again");
    }
}
