//! A duel of two insertion policies: first in, first out, or keeping some pages and letting most of the rest
//! pass.
//!
//! A program that repeatedly scans more memory than is local finds none of it under FIFO or LRU: the page it
//! needs next was evicted last. If a part is retained and the rest passes through, the scan finds that part
//! every time. Any other program needs its most recent pages. Which kind it is changes, and faults alone do
//! not show it. Both policies are therefore tried on a few pages each, and all other pages follow the one
//! that needed fewer fetches lately.
//!
//! After Qureshi, Jaleel, Patt, Steely and Emer, *Adaptive Insertion Policies for High Performance Caching*
//! (ISCA 2007): set dueling and bimodal insertion. A memory has no sets; pages are dealt to *teams* by their
//! number, and each team has a share of the frames.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::{Page, split_mix};

/// Number of adjacent pages in one team, so that they can move together.
const BLOCK: u32 = 4;
/// Number of blocks in a deal: each of the two duelling teams gets one, the third the rest.
const DEAL: u32 = 32;
/// Under `Bimodal`, one arriving page in this many is retained.
const RETAINED_SHARE: u64 = 32;
/// Divisor of the resident pages: the part that passes through under `Bimodal`.
const PASSING_SHARE: usize = 8;
/// Minimum number of passing pages: twice the prefetch of a small cap, so that prefetched pages are not
/// evicted unused.
const PASSING_MIN: usize = 192;
/// Lead in fetches at which the third team changes to the other policy.
const LEAD: i32 = 48;
const LEAD_MAX: i32 = 2 * LEAD;

/// Position of an arriving page in a team's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InsertionPolicy {
    /// The page is evicted last.
    Fifo,
    /// The page is evicted first, except for one in [`RETAINED_SHARE`].
    Bimodal,
}

/// The resident pages of one team, oldest first.
#[derive(Clone, Debug, Default)]
struct Team {
    retained: VecDeque<(Page, u64)>,
    passing: VecDeque<(Page, u64)>,
}

impl Team {
    fn length(&self) -> usize {
        self.retained.len() + self.passing.len()
    }

    /// Takes a passing page if more than `passing` pass, otherwise a retained one. Under
    /// [`InsertionPolicy::Fifo`] the oldest of both.
    fn take(&mut self, way: InsertionPolicy, passing: usize) -> Option<Page> {
        let from_passing = match (way, self.passing.front(), self.retained.front()) {
            (_, None, _) => false,
            (_, _, None) => true,
            (InsertionPolicy::Fifo, Some((_, one)), Some((_, other))) => one < other,
            // Half of the number is slack: batches make it fluctuate.
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
    /// The `Fifo` team, the `Bimodal` team, and all other pages.
    teams: [Team; 3],
    /// Recent fetches of the first team minus those of the second.
    score: i32,
    /// Policy of the third team.
    follower_policy: InsertionPolicy,
    /// Number of resident pages at the last eviction. 0: there was none, and all pages are retained.
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

    /// Counts a page that must be fetched again.
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

    /// Adds an arriving page. `again`: it was referenced before its eviction was complete.
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

    /// Takes the next page to evict, from the team that exceeds its share most.
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

    /// Keeps only these pages; the most recent ones are examined first.
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

/// Team of a page. Teams are spread so that strides of one or more deals do not miss the duelling teams.
fn team(page: Page) -> usize {
    let block = page.0 / BLOCK;
    let turn = (block + block / DEAL + block / (DEAL * DEAL) + block / (DEAL * DEAL * DEAL)) % DEAL;
    match turn {
        0 => 0,
        turn if turn == DEAL / 2 => 1,
        _ => 2,
    }
}

/// Number of blocks of a deal that a team gets.
fn deals(team: usize) -> u32 {
    match team {
        0 | 1 => 1,
        _ => DEAL - 2,
    }
}

/// Share of the frames that a team has.
fn share(team: usize, room: usize) -> usize {
    room * deals(team) as usize / DEAL as usize
}

/// Number of a team's pages that pass through under `Bimodal`.
fn passing(room: usize, of: usize) -> usize {
    let all = (room / PASSING_SHARE).max(PASSING_MIN).min(room / 2);
    { all * of }.checked_div(room).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stride_gives_teams_their_share() {
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

    /// Scans pages `rounds` times with room for `room`. Returns the misses of the last round.
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
            assert!(duel.take().is_some(), "page {page} can be evicted");
        }
        missed
    }

    #[test]
    fn part_of_a_scan_that_does_not_fit_is_retained() {
        // FIFO would miss every page; only those without room must be missed.
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
    fn retained_pages_are_evicted_when_the_working_set_changes() {
        let mut duel = Duel::new(1);
        misses(&mut duel, 0..2000, 8, 1000);
        assert_eq!(duel.follower_policy, InsertionPolicy::Bimodal);
        // The new working set fits, and is soon completely resident.
        assert_eq!(misses(&mut duel, 10_000..10_900, 40, 1000), 0);
    }
}
