//! The order in which found lenders are used: a function of values, without clock or sockets.
//!
//! A lender comes before another if, in this order,
//!
//! 1. it can hold the journal now: it answers, stays, and has room;
//! 2. it can count: it is on another power supply than the client, or that is not asked for;
//! 3. fewer lenders of its power domain were chosen before it, so that the first members share none;
//! 4. DNS gives it a lower priority;
//! 5. it is nearer, by a factor of two;
//! 6. it has more free memory, by a factor of two;
//! 7. it was named earlier, by a file, or by DNS and its weights.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Round trips up to this one count as equally near: measuring is not more exact on a busy machine.
const NEAR: Duration = Duration::from_micros(128);

/// A lender as the choice sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LenderCandidate {
    /// Whether it can hold the journal now: it has answered, stays, and has room.
    pub usable: bool,
    /// The label of its power supply; empty if unknown.
    pub domain: String,
    /// DNS's priority; zero for others.
    pub priority: u16,
    /// Its distance; `None` if it has not answered.
    pub round_trip: Option<Duration>,
    /// Bytes of memory that nobody uses.
    pub free_bytes: u64,
}

/// The client's side of the choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceRules {
    /// The label of the client's power supply.
    pub domain: String,
    /// Whether lenders on the client's power supply count like others.
    pub one_domain: bool,
}

/// Returns the candidates' indices, the best first.
pub fn choose(candidates: &[LenderCandidate], rules: &ChoiceRules) -> Vec<usize> {
    let mut left: Vec<usize> = (0..candidates.len()).collect();
    let mut chosen = Vec::with_capacity(left.len());
    let mut of_domain: BTreeMap<&str, usize> = BTreeMap::new();
    while !left.is_empty() {
        let key = |index: &usize| {
            let one = &candidates[*index];
            let shares = !rules.one_domain && one.domain == rules.domain;
            let before = of_domain.get(one.domain.as_str()).copied().unwrap_or(0);
            (
                !one.usable,
                shares,
                before,
                one.priority,
                one.round_trip.map_or(u32::MAX, nearness),
                Reverse(one.free_bytes.checked_ilog2()),
                *index,
            )
        };
        let at = (0..left.len()).min_by_key(|at| key(&left[*at]));
        let index = left.remove(at.expect("one is left"));
        *of_domain.entry(&candidates[index].domain).or_default() += 1;
        chosen.push(index);
    }
    chosen
}

/// The class of a distance: each is twice as far as the one before.
fn nearness(round_trip: Duration) -> u32 {
    let times = round_trip.as_nanos() / NEAR.as_nanos();
    times.checked_ilog2().map_or(0, |class| class + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn lender(domain: &str, ms: u64) -> LenderCandidate {
        LenderCandidate {
            usable: true,
            domain: domain.to_owned(),
            priority: 0,
            round_trip: Some(Duration::from_millis(ms)),
            free_bytes: GIB,
        }
    }

    fn order(candidates: &[LenderCandidate]) -> Vec<usize> {
        let rules = ChoiceRules {
            domain: "home".to_owned(),
            one_domain: false,
        };
        choose(candidates, &rules)
    }

    #[test]
    fn the_nearest_of_each_domain_come_first() {
        let all = [
            lender("a", 1),
            lender("a", 2),
            lender("b", 40),
            lender("c", 10),
            lender("b", 20),
        ];
        assert_eq!(order(&all), [0, 3, 4, 1, 2]);
    }

    #[test]
    fn a_lender_on_the_clients_power_supply_comes_after_all_others() {
        let all = [lender("home", 1), lender("a", 50), lender("a", 90)];
        assert_eq!(order(&all), [1, 2, 0]);
        let rules = ChoiceRules {
            domain: "home".to_owned(),
            one_domain: true,
        };
        assert_eq!(choose(&all, &rules), [0, 1, 2]);
    }

    #[test]
    fn a_lender_that_cannot_hold_the_journal_comes_last() {
        let gone = LenderCandidate {
            usable: false,
            round_trip: None,
            ..lender("a", 0)
        };
        assert_eq!(order(&[gone, lender("home", 9), lender("b", 9)]), [2, 1, 0]);
    }

    #[test]
    fn priority_beats_nearness_which_beats_free_memory_which_beats_the_list() {
        let far = LenderCandidate {
            priority: 1,
            ..lender("a", 1)
        };
        let [one, two, three] = ["a", "b", "c"].map(|domain| lender(domain, 8));
        assert_eq!(order(&[far, two.clone()]), [1, 0]);
        let empty = LenderCandidate {
            free_bytes: 8 * GIB,
            ..three
        };
        assert_eq!(order(&[one.clone(), two.clone(), empty.clone()]), [2, 0, 1]);
        let nearer = lender("d", 3);
        assert_eq!(order(&[one, two, empty, nearer]), [3, 2, 0, 1]);
    }

    #[test]
    fn differences_that_measuring_cannot_tell_do_not_count() {
        let mut all = [lender("a", 0), lender("b", 0)];
        all[0].round_trip = Some(Duration::from_micros(100));
        all[1].round_trip = Some(Duration::from_micros(20));
        assert_eq!(order(&all), [0, 1]);
        assert_eq!(nearness(Duration::from_micros(127)), 0);
        assert_eq!(nearness(Duration::from_micros(128)), 1);
        assert_eq!(nearness(Duration::from_micros(255)), 1);
        assert_eq!(nearness(Duration::from_millis(1)), 3);
    }

    proptest! {
        #[test]
        fn nobody_is_lost_or_doubled(seeds in proptest::collection::vec((0_u8..5, 0_u64..100, any::<bool>()), 0..20)) {
            let all: Vec<LenderCandidate> = seeds.iter().map(|(domain, ms, usable)| LenderCandidate {
                usable: *usable,
                ..lender(&domain.to_string(), *ms)
            }).collect();
            let mut chosen = order(&all);
            chosen.sort_unstable();
            prop_assert_eq!(chosen, (0..all.len()).collect::<Vec<_>>());
        }
    }
}
