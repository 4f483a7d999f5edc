//! Scenarios of a region's world. Each makes one thing happen again and again, beside the world's faults.

use netram_proto::time::Nanos;
use netram_shared_machine::LockId;

use super::kernel::Event;
use super::life::{kill_process, pause_node};
use super::nemesis::kill_lender;
use super::node_events::settle;
use super::profile::{LEASE, RegionFault, RegionProfile};
use super::program::begin_to_write;
use super::server_events::kill_server;
use super::world::World;
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

pub(super) fn plan_scenario(world: &mut World) {
    let every = world.kernel.profile.scenario.every();
    let ms = world.kernel.rng.between(every / 2, every);
    world.kernel.after_ms(ms, Event::Scenario);
}

pub(super) fn on_scenario(world: &mut World) {
    if world.kernel.is_calm() {
        return;
    }
    let slot = world.kernel.rng.index(world.slots.len());
    match world.kernel.profile.scenario {
        RegionScenario::Any | RegionScenario::Trimming => (),
        RegionScenario::Logs => everything_dies(world),
        RegionScenario::Joining => {
            let now = world.local(slot);
            if let Some(process) = &mut world.slots[slot].process
                && process.is_whole()
            {
                process.node.leave();
                process.node.on_tick(now);
                settle(world, slot);
            }
        }
        RegionScenario::TokenHolder => holder_dies(world),
        RegionScenario::Server => kill_server(world),
        RegionScenario::Member => member_dies(world),
        RegionScenario::Sleeper => pause_token_holder(world),
    }
    plan_scenario(world);
}

fn everything_dies(world: &mut World) {
    world.kernel.hit("region: deaths of everything but the lenders");
    kill_server(world);
    for slot in 0..world.slots.len() {
        let power_cut = world.kernel.rng.chance(500);
        kill_process(world, slot, power_cut);
    }
}

/// Kills a node that has a token while another node wants it.
fn holder_dies(world: &mut World) {
    let holders: Vec<(usize, LockId)> = (0..world.slots.len())
        .filter_map(|slot| Some((slot, exclusive_lock(world, slot)?)))
        .collect();
    if holders.is_empty() {
        return;
    }
    let (slot, lock) = holders[world.kernel.rng.index(holders.len())];
    let other = (slot + 1) % world.slots.len();
    let whole = world.slots[other].process.as_ref();
    if !whole.is_some_and(|process| process.is_whole()) {
        return;
    }
    world.kernel.hit("region: nodes that died with a token");
    let power_cut = world.kernel.rng.chance(300);
    kill_process(world, slot, power_cut);
    begin_to_write(world, other, lock, FAILOVER_MAX);
    settle(world, other);
}

fn member_dies(world: &mut World) {
    let lender = world.kernel.rng.index(world.lenders.len());
    let memory = world.kernel.rng.chance(700);
    if !memory || world.can_spare(lender) {
        kill_lender(world, lender, memory);
    }
}

fn pause_token_holder(world: &mut World) {
    let open = |slot: &usize| exclusive_lock(world, *slot).is_some();
    let sleepers: Vec<usize> = (0..world.slots.len()).filter(open).collect();
    if !sleepers.is_empty() {
        let slot = sleepers[world.kernel.rng.index(sleepers.len())];
        let extra = Nanos::from_ms(world.kernel.rng.pick(&[10, 100, 300, 1500]));
        pause_node(world, slot, Nanos(LEASE.0 + extra.0));
        world.kernel.hit("region: nodes that slept with a token");
        // Its lenders notice. When it wakes up it reconnects to them before it hears of its server, perhaps
        // to some that have forgotten it.
        if world.kernel.rng.chance(500) {
            world.slots[slot].cut_off_until = world.kernel.now() + Nanos(LEASE.0 + extra.0) + AWAKE_ALONE;
            let conns: Vec<usize> = (0..world.kernel.profile.lenders)
                .filter_map(|index| world.slots[slot].conn(index))
                .collect();
            for conn in conns {
                world.network.break_conn(&mut world.kernel, conn);
            }
        }
    }
}

/// A lock that a slot's transaction holds exclusively.
fn exclusive_lock(world: &World, slot: usize) -> Option<LockId> {
    world.slots[slot].process.as_ref()?.exclusive_lock()
}
