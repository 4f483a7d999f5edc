//! How much of a lender's thread the sessions of one journal may take beside its appends.
//!
//! Appends are what the thread is for. Side work is everything else: pings, reads, joins, refused appends. A
//! client can cause it without end, and each turn of its session delays the commits of others. So a journal
//! that has used up an allowance rests after each further turn, in proportion to what the turn took, while
//! appends of other journals arrive. Nothing is read from its sessions meanwhile: TCP stops the client.
//!
//! An honest client never notices. It pings a few times a second, and the allowance is as long as the
//! recovery of its whole window takes. All journals that rest share one part of the thread, so a client gains
//! nothing from many sessions or many journals.

use crate::time::{Nanos, Time};

/// One part in this many of a thread's time is for the side work of the journals that are over their
/// allowance, while appends of others arrive.
pub const SIDE_WORK_PART: u64 = 16;
/// The allowance of a journal without a window: some fifty turns.
pub const SIDE_WORK_FREE: Nanos = Nanos::from_us(500);
/// Allowance for each MiB of a window: several times what reading it takes.
pub const SIDE_WORK_FREE_PER_MIB: Nanos = Nanos::from_ms(2);
/// An allowance fills up again in this many times the time that it grants. A thousand journals that do
/// nothing but use theirs take a quarter of a thread.
pub const SIDE_WORK_REFILL: u64 = 4096;
/// The longest rest. A fifth of the time after which a client gives up a silent lender.
pub const SIDE_WORK_REST_MAX: Nanos = Nanos::from_ms(100);

/// The side work of one journal at one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideWork {
    /// The used part of the allowance.
    used: Nanos,
    /// When `used` was right.
    at: Time,
}

impl SideWork {
    /// The allowance of a journal with a window of this many bytes.
    pub const fn allowance(window_bytes: u64) -> Nanos {
        let of_window = (SIDE_WORK_FREE_PER_MIB.0 * (window_bytes >> 10)) >> 10;
        Nanos(SIDE_WORK_FREE.0 + of_window)
    }

    /// Notes that a turn which ends at `now` took `took` for side work. Returns how long the journal's
    /// sessions rest.
    ///
    /// `contended`: whether appends of other journals arrive at the thread. `resting`: number of other
    /// journals that rest. What exceeds the allowance is paid by the rest, or else forgiven: a journal alone
    /// on its thread owes nothing afterwards.
    pub fn note(
        &mut self,
        took: Nanos,
        now: Time,
        allowance: Nanos,
        contended: bool,
        resting: usize,
    ) -> Nanos {
        let refilled = now.since(self.at).0 / SIDE_WORK_REFILL;
        let used = self.used.0.saturating_sub(refilled) + took.0;
        self.at = now;
        self.used = Nanos(used.min(allowance.0));
        if !contended {
            return Nanos(0);
        }
        let share = SIDE_WORK_PART * (resting as u64 + 1);
        let rest = used.saturating_sub(allowance.0).saturating_mul(share);
        Nanos(rest.min(SIDE_WORK_REST_MAX.0))
    }

    /// Whether most of the allowance is used. Then the whole of a turn counts, with the time in which the
    /// socket is read.
    pub const fn is_watched(&self, allowance: Nanos) -> bool {
        self.used.0 > allowance.0 / 2
    }
}

/// When appends last came to a thread, so that each journal can be told about those of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastAppends<J> {
    newest: Option<(J, Time)>,
    /// The newest of any journal but that one.
    other: Option<Time>,
}

impl<J: Copy + PartialEq> LastAppends<J> {
    /// None has come.
    pub const NONE: LastAppends<J> = LastAppends {
        newest: None,
        other: None,
    };

    /// Notes appends of a journal.
    pub fn note(&mut self, journal: J, now: Time) {
        if let Some((newest, at)) = self.newest
            && newest != journal
        {
            self.other = Some(at);
        }
        self.newest = Some((journal, now));
    }

    /// When appends of another journal than this one last came.
    pub fn beside(&self, journal: J) -> Option<Time> {
        match self.newest {
            Some((newest, at)) if newest != journal => Some(at),
            _ => self.other,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    const MS: u64 = 1_000_000;
    const WINDOW: u64 = 8 << 20;
    /// Time of a turn of a session that asks without end.
    const TURN: Nanos = Nanos::from_us(20);

    /// One thread, an honest client that commits one record after the other, and `noisy` journals whose
    /// clients ask without end.
    struct Model {
        now: u64,
        noisy: Vec<(SideWork, u64)>,
        next_append: u64,
        commits: u64,
    }

    impl Model {
        fn new(noisy: usize) -> Model {
            Model {
                now: 0,
                noisy: vec![(SideWork::default(), 0); noisy],
                next_append: 0,
                commits: 0,
            }
        }

        /// Serves until `end`, as a shard does: each session in its turn.
        fn run(&mut self, end: u64) -> u64 {
            let before = self.commits;
            while self.now < end {
                let began = self.now;
                if self.next_append <= self.now {
                    self.now += 3_000;
                    self.next_append = self.now + 9_000;
                    self.commits += 1;
                }
                for index in 0..self.noisy.len() {
                    if self.noisy[index].1 > self.now {
                        continue;
                    }
                    self.now += TURN.0;
                    let now = self.now;
                    let resting = self.noisy.iter().filter(|(_, until)| *until > now).count();
                    let (work, until) = &mut self.noisy[index];
                    let rest = work.note(TURN, Time(now), SideWork::allowance(0), true, resting);
                    *until = now + rest.0;
                }
                if self.now == began {
                    self.now += 500;
                }
            }
            self.commits - before
        }
    }

    #[test]
    fn an_honest_client_keeps_its_commits_beside_any_number_of_noisy_journals() {
        let alone = Model::new(0).run(2_000 * MS);
        for noisy in [1, 2, 8, 64] {
            let beside = Model::new(noisy).run(2_000 * MS);
            assert!(beside * 100 > alone * 85, "{beside} of {alone} beside {noisy}");
        }
    }

    #[test]
    fn a_journal_rests_only_behind_its_allowance_and_only_while_others_commit() {
        let allowance = SideWork::allowance(WINDOW);
        let mut work = SideWork::default();
        let turns = allowance.0 / TURN.0;
        for turn in 1..=turns {
            assert_eq!(
                work.note(TURN, Time(turn * TURN.0), allowance, true, 0),
                Nanos(0),
                "turn {turn}"
            );
        }
        let now = Time(turns * TURN.0);
        assert_eq!(work.note(TURN, now, allowance, false, 0), Nanos(0), "it is alone");
        let rest = work.note(TURN, now, allowance, true, 0).0;
        let expected = TURN.0 * SIDE_WORK_PART;
        assert!(
            (expected * 9 / 10..=expected).contains(&rest),
            "what it did alone is forgiven: {rest}"
        );
        assert!(work.note(TURN, now, allowance, true, 3).0 > rest * 3);
        assert_eq!(
            work.note(Nanos(u64::MAX / 2), now, allowance, true, 9),
            SIDE_WORK_REST_MAX
        );
    }

    /// The allowance of a journal that has recovered once is there again for its next recovery.
    #[test]
    fn an_allowance_fills_up_again() {
        let allowance = SideWork::allowance(WINDOW);
        let mut work = SideWork::default();
        assert_eq!(work.note(allowance, Time(0), allowance, true, 0), Nanos(0));
        assert!(work.is_watched(allowance));
        let later = Time(allowance.0 * SIDE_WORK_REFILL);
        assert_eq!(work.note(allowance, later, allowance, true, 0), Nanos(0));
    }

    #[test]
    fn a_largest_window_has_an_allowance() {
        assert_eq!(SideWork::allowance(1 << 30), Nanos(SIDE_WORK_FREE.0 + 2_048 * MS));
        assert_eq!(SideWork::allowance(16 << 10).0, SIDE_WORK_FREE.0 + 31_250);
    }

    #[test]
    fn appends_of_others_are_told_from_a_journals_own() {
        let mut last = LastAppends::NONE;
        assert_eq!(last.beside(1), None);
        last.note(1, Time(5));
        last.note(1, Time(6));
        assert_eq!((last.beside(1), last.beside(2)), (None, Some(Time(6))));
        last.note(2, Time(7));
        assert_eq!((last.beside(1), last.beside(2)), (Some(Time(7)), Some(Time(6))));
        last.note(3, Time(8));
        assert_eq!((last.beside(3), last.beside(2)), (Some(Time(7)), Some(Time(8))));
    }
}
