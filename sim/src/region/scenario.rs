//! Scenarios of a region's world. Each makes one thing happen again and again, beside the world's faults.

use netram_proto::time::Nanos;
use netram_shared_machine::{LockId, LockMode};

use super::process::TxnPhase;
use super::profile::{LEASE, RegionFault, RegionProfile};
use super::{Event, World};
use crate::rng::Rng;

/// Longest time until another node gets a dead node's lock: the lease, a reading, and queues.
const FAILOVER_MAX: Nanos = Nanos::from_ms(4000);

/// Time in which a node that wakes up has no server, and has a commit of its own to finish.
const AWAKE_ALONE: Nanos = Nanos::from_ms(200);

/// The scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegionScenario {
    /// No particular scenario.
    Any,
    /// Server and nodes die at once while the disk has little, so that several journals are merged anew.
    Logs,
    /// Logs and windows are small and reused many times.
    Trimming,
    /// Nodes leave and join while others write.
    Joining,
    /// Nodes that hold tokens die.
    TokenHolder,
    /// The server dies.
    Server,
    /// Members die with their memory.
    Member,
    /// Nodes sleep longer than their lease with a transaction open, and wake, perhaps while their journal is
    /// read.
    Sleeper,
}

impl RegionScenario {
    pub(super) fn draw(rng: &mut Rng) -> RegionScenario {
        match rng.below(12) {
            0 => RegionScenario::Logs,
            1 => RegionScenario::Trimming,
            2 => RegionScenario::Joining,
            3 => RegionScenario::TokenHolder,
            4 => RegionScenario::Server,
            5 => RegionScenario::Member,
            6 => RegionScenario::Sleeper,
            _ => RegionScenario::Any,
        }
    }

    /// Adapts a world's parameters to this scenario.
    pub(super) fn adapt(self, nature: &mut RegionProfile) {
        match self {
            RegionScenario::Any => return,
            RegionScenario::Trimming => {
                nature.window = 8 * 1024;
                nature.capacity = 16 * 1024;
                nature.latency_us = (20, 60);
                nature.run_time = Nanos::from_ms(2500);
                nature.faults.clear();
            }
            RegionScenario::TokenHolder => nature.faults.clear(),
            RegionScenario::Logs => nature.disk_us = (5000, 20_000),
            RegionScenario::Member => nature.with_spare_member(),
            RegionScenario::Sleeper => {
                nature.leave_open_permille = 980;
                nature.late_commits_permille = 1000;
            }
            RegionScenario::Joining | RegionScenario::Server => (),
        }
        nature.beyond_budget = false;
        let often = |action: &RegionFault| !matches!(action, RegionFault::LoseLender | RegionFault::CutNode);
        nature.faults.retain(often);
        nature.run_time = nature.run_time.max(Nanos::from_ms(800));
    }

    fn every(self) -> u64 {
        match self {
            RegionScenario::Any | RegionScenario::Trimming => 10_000,
            RegionScenario::Logs | RegionScenario::TokenHolder | RegionScenario::Sleeper => 400,
            RegionScenario::Member => 250,
            RegionScenario::Joining | RegionScenario::Server => 120,
        }
    }
}

impl World {
    pub(super) fn plan_scenario(&mut self) {
        let every = self.profile.scenario.every();
        let ms = self.rng.between(every / 2, every);
        self.after_ms(ms, Event::Scenario);
    }

    pub(super) fn on_scenario(&mut self) {
        if self.calm_since.is_some() {
            return;
        }
        let slot = self.rng.index(self.slots.len());
        match self.profile.scenario {
            RegionScenario::Any | RegionScenario::Trimming => (),
            RegionScenario::Logs => self.everything_dies(),
            RegionScenario::Joining => {
                let now = self.local(slot);
                if let Some(process) = &mut self.slots[slot].process
                    && process.is_whole()
                {
                    process.node.leave();
                    process.node.on_tick(now);
                    self.settle(slot);
                }
            }
            RegionScenario::TokenHolder => self.holder_dies(),
            RegionScenario::Server => self.kill_server(),
            RegionScenario::Member => self.member_dies(),
            RegionScenario::Sleeper => self.pause_token_holder(),
        }
        self.plan_scenario();
    }

    fn everything_dies(&mut self) {
        self.coverage.hit("region: deaths of everything but the lenders");
        self.kill_server();
        for slot in 0..self.slots.len() {
            let power_cut = self.rng.chance(500);
            self.kill_process(slot, power_cut);
        }
    }

    /// A lock that a slot's transaction holds exclusively.
    fn exclusive_lock(&self, slot: usize) -> Option<LockId> {
        let process = self.slots[slot].process.as_ref()?;
        let open = |phase| matches!(phase, TxnPhase::Ready | TxnPhase::Committing(_));
        let txns = process.txns.iter().filter(|txn| open(txn.phase));
        let mut held = txns.flat_map(|txn| process.node.tokens().held_locks(txn.id));
        let held = held.find(|held| held.hold == LockMode::Exclusive);
        held.map(|held| held.lock)
    }

    /// Kills a node that has a token while another node wants it.
    fn holder_dies(&mut self) {
        let holders: Vec<(usize, LockId)> = (0..self.slots.len())
            .filter_map(|slot| Some((slot, self.exclusive_lock(slot)?)))
            .collect();
        if holders.is_empty() {
            return;
        }
        let (slot, lock) = holders[self.rng.index(holders.len())];
        let other = (slot + 1) % self.slots.len();
        let whole = self.slots[other].process.as_ref();
        if !whole.is_some_and(|process| process.is_whole()) {
            return;
        }
        self.coverage.hit("region: nodes that died with a token");
        let power_cut = self.rng.chance(300);
        self.kill_process(slot, power_cut);
        self.begin_to_write(other, lock, FAILOVER_MAX);
        self.settle(other);
    }

    fn member_dies(&mut self) {
        let machine = self.rng.index(self.machines.len());
        let memory = self.rng.chance(700);
        if !memory || self.can_spare(machine) {
            self.kill_machine(machine, memory);
        }
    }

    fn pause_token_holder(&mut self) {
        let open = |slot: &usize| self.exclusive_lock(*slot).is_some();
        let sleepers: Vec<usize> = (0..self.slots.len()).filter(open).collect();
        if !sleepers.is_empty() {
            let slot = sleepers[self.rng.index(sleepers.len())];
            let extra = Nanos::from_ms(self.rng.pick(&[10, 100, 300, 1500]));
            self.pause_node(slot, Nanos(LEASE.0 + extra.0));
            self.coverage.hit("region: nodes that slept with a token");
            // Its lenders notice. When it wakes up it reconnects to them before it hears of its server,
            // perhaps to some that have forgotten it.
            if self.rng.chance(500) {
                self.slots[slot].cut_off_until = self.now + Nanos(LEASE.0 + extra.0) + AWAKE_ALONE;
                let conns: Vec<usize> = (0..self.profile.lenders)
                    .filter_map(|index| self.slots[slot].conn(index))
                    .collect();
                conns.into_iter().for_each(|conn| self.break_conn(conn));
            }
        }
    }
}
