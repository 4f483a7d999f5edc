//! Windows that a lender asks back because its machine lacks memory.
//!
//! Free memory and pages of far memory have gone first. For what is still lacking, a [`WindowReclaim`] picks
//! windows, and their sessions are told to leave as in a drain: *make before break*, and only if another
//! lender takes their place. The chunks that they leave are the machine's until it has memory again.
//!
//! | rule | reason |
//! |---|---|
//! | the smallest window that suffices alone, else the largest | few clients move, and little more than needed |
//! | a window that stays is waited for until [`RECLAIM_PATIENCE`] has passed; then others are asked, too | its client may have no other lender, which only the client knows |
//! | a window without a session is not asked | nobody would hear |
//! | a journal that was asked stays so until memory has sufficed for a while | or it would return at once |

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::id::JournalId;
use crate::limit::RECLAIM_PATIENCE;
use crate::planted::{FaultSwitch, PlantedFault};
use crate::time::Time;

/// A window whose client is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentWindow {
    /// Its journal.
    pub journal: JournalId,
    /// Bytes that it takes from the machine.
    pub bytes: u64,
}

/// The journals that are asked to take their windows elsewhere.
#[derive(Clone, Debug, Default)]
pub struct WindowReclaim {
    /// When each was asked.
    asked: BTreeMap<JournalId, Time>,
    planted: FaultSwitch,
}

impl WindowReclaim {
    /// Plants a fault.
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Adjusts who is asked. `excess`: bytes by which all windows together exceed what is offered. `short`:
    /// the machine lacks memory, or has not had enough for long enough since. Returns whether anything has
    /// changed, so that sessions must be told.
    pub fn settle(&mut self, now: Time, windows: &[LentWindow], excess: u64, short: bool) -> bool {
        if excess == 0 {
            let over = !short && !self.planted.is(PlantedFault::ReclaimNeverEnds);
            let ends = over && !self.asked.is_empty();
            if ends {
                self.asked.clear();
            }
            return ends;
        }
        let awaited = |window: &&LentWindow| {
            let asked = self.asked.get(&window.journal);
            asked.is_some_and(|at| now.since(*at) < RECLAIM_PATIENCE)
        };
        let leaving: u64 = windows.iter().filter(awaited).map(|window| window.bytes).sum();
        let mut lacking = excess.saturating_sub(leaving);
        let unasked = |window: &&LentWindow| !self.asked.contains_key(&window.journal);
        let mut others: Vec<LentWindow> = windows.iter().filter(unasked).copied().collect();
        others.sort_unstable_by_key(|window| (window.bytes, window.journal));
        let mut changed = false;
        while lacking > 0 && !others.is_empty() {
            let enough = others.partition_point(|window| window.bytes < lacking);
            let window = others.remove(enough.min(others.len() - 1));
            self.asked.insert(window.journal, now);
            lacking = lacking.saturating_sub(window.bytes);
            changed = true;
        }
        changed
    }

    /// Whether a journal is asked to take its window elsewhere.
    pub fn asks(&self, journal: JournalId) -> bool {
        self.asked.contains_key(&journal)
    }

    /// Whether no journal is asked.
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time(1);

    fn windows(sizes: &[u64]) -> Vec<LentWindow> {
        let numbered = (0..).zip(sizes);
        let window = |(id, bytes): (u128, &u64)| LentWindow {
            journal: JournalId(id),
            bytes: *bytes,
        };
        numbered.map(window).collect()
    }

    /// The windows that are asked for an excess.
    fn asked(sizes: &[u64], excess: u64) -> Vec<u64> {
        let (mut reclaim, windows) = (WindowReclaim::default(), windows(sizes));
        reclaim.settle(START, &windows, excess, true);
        let asked = windows.iter().filter(|window| reclaim.asks(window.journal));
        asked.map(|window| window.bytes).collect()
    }

    #[test]
    fn few_windows_are_asked_and_little_more_than_is_lacking() {
        assert_eq!(asked(&[8, 64, 16], 0), []);
        assert_eq!(asked(&[8, 64, 16], 5), [8]);
        assert_eq!(asked(&[8, 64, 16], 9), [16]);
        assert_eq!(asked(&[8, 64, 16], 17), [64]);
        assert_eq!(asked(&[8, 64, 16], 65), [8, 64]);
        assert_eq!(asked(&[8, 64, 16], 99), [8, 64, 16]);
        assert_eq!(asked(&[], 99), []);
    }

    #[test]
    fn a_window_that_stays_is_made_up_for_by_others() {
        let (mut reclaim, windows) = (WindowReclaim::default(), windows(&[8, 64, 16]));
        assert!(reclaim.settle(START, &windows, 20, true));
        assert!(!reclaim.settle(START, &windows, 20, true), "it is on its way");
        let later = START + RECLAIM_PATIENCE;
        assert!(reclaim.settle(later, &windows, 20, true));
        assert!([0, 1, 2].iter().all(|id| reclaim.asks(JournalId(*id))));
        assert!(
            !reclaim.settle(later, &windows, 20, true),
            "nothing is left to ask"
        );
    }

    #[test]
    fn a_journal_that_has_left_may_return_once_memory_has_sufficed() {
        let (mut reclaim, windows) = (WindowReclaim::default(), windows(&[8, 64]));
        reclaim.settle(START, &windows, 8, true);
        assert!(!reclaim.settle(START, &windows[1..], 0, true));
        assert!(reclaim.asks(JournalId(0)), "the machine is still short");
        assert!(reclaim.settle(START, &windows[1..], 0, false));
        assert!(reclaim.is_empty());
        assert!(!reclaim.settle(START, &windows[1..], 0, false));
    }
}
