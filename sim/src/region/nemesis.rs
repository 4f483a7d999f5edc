//! Fault injection into a region: now and then one of the faults of its profile.

use netram_proto::time::Nanos;
use netram_shared_machine::NodeId;

use super::intruder::intrude;
use super::kernel::Event;
use super::life::{kill_process, pause_node};
use super::link_events::silence_link;
use super::node_events::settle;
use super::profile::RegionFault;
use super::program::commit_open;
use super::server_events::kill_server;
use super::world::World;

pub(super) fn plan_nemesis(world: &mut World) {
    if world.kernel.profile.faults.is_empty() {
        return;
    }
    let interval = world.kernel.profile.fault_interval;
    let us = world.kernel.rng.below(2 * interval.0 / 1000);
    world.kernel.at(Nanos::from_us(us), Event::Nemesis);
}

pub(super) fn on_nemesis(world: &mut World) {
    if world.kernel.is_calm() {
        return;
    }
    let at = world.kernel.rng.index(world.kernel.profile.faults.len());
    let action = world.kernel.profile.faults[at];
    world.kernel.mark(22, action as u64);
    inject_fault(world, action);
    plan_nemesis(world);
}

fn inject_fault(world: &mut World, action: RegionFault) {
    let slot = world.kernel.rng.index(world.slots.len());
    let lender = world.kernel.rng.index(world.lenders.len());
    let ms = world.kernel.rng.pick(&[5, 40, 150, 500]);
    let until = world.kernel.now() + Nanos::from_ms(ms);
    match action {
        RegionFault::BreakLink => {
            let sessions = world.node_links.sessions();
            if !sessions.is_empty() {
                let session = sessions[world.kernel.rng.index(sessions.len())];
                world.node_links.break_link(&mut world.kernel, session);
                world.kernel.hit("region: links broken");
            }
        }
        RegionFault::SilenceLink => silence_link(world),
        RegionFault::BreakConn => {
            let conns = world.network.open_conns();
            if !conns.is_empty() {
                let conn = conns[world.kernel.rng.index(conns.len())];
                world.network.break_conn(&mut world.kernel, conn);
            }
        }
        RegionFault::Partition => {
            let host = world.kernel.rng.index(world.slots.len() + 1);
            world.network.block(host, lender, until);
            world.kernel.hit("region: partitions from lenders");
        }
        RegionFault::PartitionServer => {
            world.slots[slot].cut_off_until = until;
            world.kernel.hit("region: nodes cut off from the server");
        }
        RegionFault::PauseNode => pause_node(world, slot, Nanos::from_ms(ms)),
        RegionFault::PauseServer => {
            world.server.paused_until = until;
            world.kernel.hit("region: servers that stood still");
        }
        RegionFault::KillNode => kill_process(world, slot, false),
        RegionFault::CutNode => {
            kill_process(world, slot, true);
            world.kernel.hit("region: nodes whose machine lost power");
        }
        RegionFault::KillServer => kill_server(world),
        RegionFault::KillLender => kill_lender(world, lender, false),
        RegionFault::LoseLender => {
            if world.kernel.profile.beyond_budget || world.can_spare(lender) {
                kill_lender(world, lender, true);
            }
        }
        RegionFault::PauseLender => world.lenders[lender].paused_until = until,
        RegionFault::SlowDisk => world.server.slow_until = until,
        RegionFault::Intrude => intrude(world),
    }
}

/// Lets a node commit an open transaction while the server, which holds it to be dead, reads its journal:
/// between its members' answers, or between their fences.
pub(super) fn provoke_late_commit(world: &mut World, node: NodeId) {
    let permille = world.kernel.profile.late_commits_permille;
    if world.kernel.is_calm() || !world.kernel.rng.chance(permille) {
        return;
    }
    let Some((slot, process)) = world.slots.process_of(node) else {
        return;
    };
    let life = process.life;
    for _ in 0..2 {
        let us = world.kernel.rng.below(6 * world.kernel.profile.latency_us.1);
        world
            .kernel
            .at(Nanos::from_us(us), Event::LateCommit { slot, life });
    }
}

pub(super) fn on_late_commit(world: &mut World, slot: usize, life: u64) {
    if world.kernel.is_calm() || world.slots[slot].alive(life).is_none() {
        return;
    }
    let paused_until = &mut world.slots[slot].paused_until;
    *paused_until = (*paused_until).min(world.kernel.now());
    if commit_open(world, slot) {
        world
            .kernel
            .hit("region: commits while the node's journal was read");
    }
    settle(world, slot);
}

/// Kills a lender's process; with `memory`, its machine.
pub(super) fn kill_lender(world: &mut World, lender: usize, memory: bool) {
    if !world.lenders[lender].up {
        return;
    }
    world.lenders.kill(lender, memory);
    world.kernel.hit(match memory {
        true => "region: lenders whose memory was lost",
        false => "region: lenders whose process died",
    });
    world
        .kernel
        .tell(|| format!("lender {lender} dies, its memory too: {memory}"));
    world.network.break_conns_to(&mut world.kernel, lender);
    let ms = world.kernel.rng.pick(&[5, 30, 300]);
    world.kernel.after_ms(ms, Event::LenderUp { lender });
}
