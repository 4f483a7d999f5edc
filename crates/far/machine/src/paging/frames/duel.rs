//! First in, first out, or most of what comes leaves first: whichever brings less pages, found out by a duel.
//!
//! A program that goes over more memory than is local, again and again, finds nothing of it under first in,
//! first out, nor under LRU: what it comes to next left last. A memory that keeps a part of it, and lets the
//! rest pass through, finds that part every time. Any other program wants what it referenced last. Which one
//! this is changes, and cannot be seen from its faults by themselves; so both ways are tried, on a few pages
//! each, and the rest follows the one that has brought less of late.
//!
//! After Qureshi, Jaleel, Patt, Steely and Emer, *Adaptive Insertion Policies for High Performance Caching*
//! (ISCA 2007): set dueling, and bimodal insertion. A memory has no sets; pages are dealt to *teams* by their
//! number, and a team's frames are its share of all.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Page, split_mix};

/// Pages that stand together are of one team, so that they can move together.
const BLOCK: u32 = 4;
/// So many blocks are dealt out in turn: to each of the two teams that duel one, to the third the rest.
const DEAL: u32 = 32;
/// One page in so many that come is kept where most pass through.
const RETAINED_SHARE: u64 = 32;
/// One page in so many of those in sight passes through, where most do.
const PASSING_SHARE: usize = 8;
/// At least so many, twice what comes ahead of a small cap: that is not to leave before it is referenced.
const PASSING_MIN: usize = 192;
/// Pages that one team has to bring more than the other before the third follows the other.
const LEAD: i32 = 48;
const LEAD_MAX: i32 = 2 * LEAD;

/// What a team does with a page that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InsertionPolicy {
    /// It is the last to leave.
    Fifo,
    /// It is the first, but for a few.
    Bimodal,
}

/// Pages of which some are in sight. Those that came first stand in front.
#[derive(Clone, Debug, Default)]
struct Team {
    retained: VecDeque<(Page, u64)>,
    passing: VecDeque<(Page, u64)>,
}

impl Team {
    fn length(&self) -> usize {
        self.retained.len() + self.passing.len()
    }

    /// Of those that pass more than `passing` may; else of the kept. Under [`InsertionPolicy::Fifo`] who came
    /// first, wherever.
    fn take(&mut self, way: InsertionPolicy, passing: usize) -> Option<Page> {
        let from_passing = match (way, self.passing.front(), self.retained.front()) {
            (_, None, _) => false,
            (_, _, None) => true,
            (InsertionPolicy::Fifo, Some((_, one)), Some((_, other))) => one < other,
            // Half of it is slack: how many are in sight goes up and down by batches.
            (InsertionPolicy::Bimodal, ..) => self.passing.len() > passing / 2,
        };
        let queue = if from_passing {
            &mut self.passing
        } else {
            &mut self.retained
        };
        queue.pop_front().map(|(page, _)| page)
    }
}

/// The pages in local memory, by team.
#[derive(Clone, Debug)]
pub(crate) struct Duel {
    /// One that takes turns, one that keeps, and all others.
    teams: [Team; 3],
    /// How many more pages the first brought than the second, of late.
    score: i32,
    /// What the others do.
    follower_policy: InsertionPolicy,
    /// How many were in sight when one was to leave last. 0: none ever was, and all are kept.
    room: usize,
    count: u64,
    random: u64,
}

impl Duel {
    pub(super) fn new(seed: u64) -> Duel {
        Duel {
            teams: Default::default(),
            score: 0,
            follower_policy: InsertionPolicy::Fifo,
            room: 0,
            count: 0,
            random: seed,
        }
    }

    fn insertion_policy(&self, team: usize) -> InsertionPolicy {
        match team {
            0 => InsertionPolicy::Fifo,
            1 => InsertionPolicy::Bimodal,
            _ => self.follower_policy,
        }
    }

    /// A page that is not here is brought, which was here once.
    pub(super) fn missed(&mut self, page: Page) {
        self.score = match team(page) {
            0 => (self.score + 1).min(LEAD_MAX),
            1 => (self.score - 1).max(-LEAD_MAX),
            _ => return,
        };
        if self.score >= LEAD {
            self.follower_policy = InsertionPolicy::Bimodal;
        } else if self.score <= -LEAD {
            self.follower_policy = InsertionPolicy::Fifo;
        }
    }

    /// A page comes. `again`: it had not left, and was referenced.
    pub(super) fn add(&mut self, page: Page, again: bool) {
        self.count += 1;
        let number = team(page);
        let room = share(number, self.room);
        let spare = self.teams[number].retained.len() + passing(self.room, room) < room;
        let keeps = again
            || self.insertion_policy(number) == InsertionPolicy::Fifo
            || self.room == 0
            || spare
            || split_mix(&mut self.random).is_multiple_of(RETAINED_SHARE);
        let team = &mut self.teams[number];
        let queue = if keeps {
            &mut team.retained
        } else {
            &mut team.passing
        };
        queue.push_back((page, self.count));
    }

    /// The next page to leave, of the team that has most beside its share.
    pub(super) fn take(&mut self) -> Option<Page> {
        self.room = self.length();
        let most = (0..self.teams.len())
            .max_by_key(|team| self.teams[*team].length() * (DEAL * (DEAL - 2) / deals(*team)) as usize);
        let number = most?;
        let passing = passing(self.room, share(number, self.room));
        let way = self.insertion_policy(number);
        self.teams[number].take(way, passing)
    }

    pub(super) fn length(&self) -> usize {
        self.teams.iter().map(Team::length).sum()
    }

    /// Only these stay; the last that came are asked for first.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&Page) -> bool) {
        for team in &mut self.teams {
            for queue in [&mut team.retained, &mut team.passing] {
                let kept: Vec<_> = queue
                    .iter()
                    .rev()
                    .copied()
                    .filter(|(page, _)| stays(page))
                    .collect();
                *queue = kept.into_iter().rev().collect();
            }
        }
    }
}

/// Which team a page is of. Each deal of blocks has the same number for each team, and so have blocks that
/// stand a deal, or a deal of deals, apart: a program's strides do not miss those that duel.
fn team(page: Page) -> usize {
    let block = page.0 / BLOCK;
    let turn = (block + block / DEAL + block / (DEAL * DEAL) + block / (DEAL * DEAL * DEAL)) % DEAL;
    match turn {
        0 => 0,
        turn if turn == DEAL / 2 => 1,
        _ => 2,
    }
}

/// Blocks of a deal that a team gets.
fn deals(team: usize) -> u32 {
    match team {
        0 | 1 => 1,
        _ => DEAL - 2,
    }
}

/// A team's share of all frames.
fn share(team: usize, room: usize) -> usize {
    room * deals(team) as usize / DEAL as usize
}

/// How many of a team pass through, where most do: its share of those of all.
fn passing(room: usize, of: usize) -> usize {
    let all = (room / PASSING_SHARE).max(PASSING_MIN).min(room / 2);
    { all * of }.checked_div(room).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teams_have_their_share_of_any_stride() {
        for stride in [1, 2, 3, 4, 32, 128, 129, 1024, 4096, 1500 * 3] {
            let mut counts = [0_u32; 3];
            let pages = 1 << 15;
            for index in 0..pages {
                counts[team(Page((index * stride) % (1 << 27)))] += 1;
            }
            for number in [0, 1] {
                let count = counts[number];
                let expected = pages / DEAL;
                assert!(count.abs_diff(expected) * 4 <= expected, "{stride}: {counts:?}");
            }
        }
    }

    /// Goes over pages `rounds` times with room for some. How many were missed in the last round.
    fn misses(duel: &mut Duel, pages: core::ops::Range<u32>, rounds: u32, room: usize) -> u32 {
        let mut here = alloc::collections::BTreeSet::new();
        let mut missed = 0;
        for round in 0..rounds {
            missed = 0;
            for page in pages.clone() {
                if here.contains(&page) {
                    continue;
                }
                missed += 1;
                if round > 0 {
                    duel.missed(Page(page));
                }
                while here.len() >= room {
                    let gone = duel.take().unwrap();
                    here.remove(&gone.0);
                }
                duel.add(Page(page), false);
                here.insert(page);
            }
        }
        for page in here {
            assert!(duel.take().is_some(), "{page} is in it");
        }
        missed
    }

    #[test]
    fn of_a_round_that_does_not_fit_a_part_stays() {
        // All of it would be missed in turns; all that has no room has to be.
        for (room, pages) in [(1000, 2000), (500, 2000), (720, 1085)] {
            let mut duel = Duel::new(1);
            let missed = misses(&mut duel, 0..pages, 12, room);
            let least = pages - room as u32;
            assert!(
                missed >= least && missed < least + room as u32 / 3,
                "{room} of {pages}: {missed}"
            );
            assert_eq!(duel.length(), 0);
        }
    }

    #[test]
    fn what_is_gone_over_once_is_let_go_when_others_are_wanted() {
        let mut duel = Duel::new(1);
        misses(&mut duel, 0..2000, 8, 1000);
        assert_eq!(duel.follower_policy, InsertionPolicy::Bimodal);
        // A part that fits is wanted now, and soon is all there.
        assert_eq!(misses(&mut duel, 10_000..10_900, 40, 1000), 0);
    }
}
