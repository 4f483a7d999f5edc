//! Random schedules of larger worlds.
//!
//! `NETRAM_FROM=4000 NETRAM_SEEDS=100000 cargo test -p netram-shared-machine --test all lock::random` tries
//! other seeds.

use crate::lock::script::{Script, ScriptAction, ScriptStep};
use crate::lock::world::LockWorld;
use netram_shared_machine::LockMode;

/// Number of steps after which a world counts as endless.
const STEPS_MAX: usize = 100_000;
/// Number of worlds in an ordinary run.
const SEEDS: u64 = 4000;

/// Weyl sequence with a mixer: small, and the same on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((word ^ (word >> 31)) % bound as u64) as usize
    }

    fn hold(&mut self) -> LockMode {
        match self.below(2) {
            0 => LockMode::Shared,
            _ => LockMode::Exclusive,
        }
    }

    fn lock(&mut self, locks: u32) -> (u32, LockMode) {
        (self.below(locks as usize) as u32, self.hold())
    }

    fn txn(&mut self, locks: u32, ordered: bool) -> Vec<ScriptStep> {
        if ordered || self.below(4) == 0 {
            let all = (0..1 + self.below(4)).map(|_| self.lock(locks)).collect();
            return vec![ScriptStep::All(all)];
        }
        let step = |dice: &mut Dice| {
            let (lock, hold) = dice.lock(locks);
            ScriptStep::Lock(lock, hold)
        };
        (0..1 + self.below(4)).map(|_| step(self)).collect()
    }

    fn script(&mut self) -> Script {
        let locks = 1 + self.below(4) as u32;
        let no_restore = self.below(4) == 0;
        let nodes = (0..2 + self.below(4))
            .map(|_| {
                (0..1 + self.below(5))
                    .map(|_| self.txn(locks, no_restore))
                    .collect()
            })
            .collect();
        let quiet = self.below(3) == 0;
        let mut often = |most: usize| if quiet { 0 } else { self.below(most + 1) as u32 };
        Script {
            locks,
            nodes,
            crashes: often(2),
            restarts: often(3),
            cuts: often(4),
            cancels: often(3),
            lapses: often(4),
            no_restore,
        }
    }
}

/// Runs one world. Returns how many transactions did not get their locks, and how many there were.
fn walk(seed: u64) -> (usize, usize) {
    let mut dice = Dice(seed);
    let script = dice.script();
    let ordered = script.no_restore && script.crashes + script.cancels == 0;
    let txns = script.nodes.iter().map(Vec::len).sum();
    // Faults and timeouts are rare, so that they hit transactions in progress.
    let seldom = 1 + dice.below(60);
    let mut world = LockWorld::new(script);
    for _ in 0..STEPS_MAX {
        let actions = world.actions();
        let (mut bound, free): (Vec<ScriptAction>, Vec<ScriptAction>) =
            actions.into_iter().partition(|action| action.is_progress());
        if bound.is_empty() {
            if let Err(what) = world.check_at_rest() {
                panic!("seed {seed}: {what}");
            }
            let failed = world.failed();
            assert!(
                !ordered || failed == 0,
                "seed {seed}: one in order did not get its locks"
            );
            return (failed, txns);
        }
        if !free.is_empty() && dice.below(seldom) == 0 {
            bound = free;
        }
        let action = bound[dice.below(bound.len())];
        if let Err(what) = world.act(action) {
            panic!("seed {seed}: {what}, at {action:?}");
        }
    }
    panic!("seed {seed}: no end");
}

#[test]
fn random_schedules_of_larger_worlds_break_no_rule() {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|number| number.parse::<u64>().ok())
    };
    let (from, seeds) = (number("NETRAM_FROM"), number("NETRAM_SEEDS"));
    let (mut failed, mut txns) = (0, 0);
    let from = from.unwrap_or(0);
    for seed in from..from + seeds.unwrap_or(SEEDS) {
        let (some, all) = walk(seed);
        failed += some;
        txns += all;
    }
    // Otherwise the worlds would have hardly any conflicts, or nothing but failures.
    assert!(
        failed * 50 > txns && failed * 2 < txns,
        "{failed} of {txns} did not get their locks"
    );
}
