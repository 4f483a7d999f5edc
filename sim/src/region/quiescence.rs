//! Quiescence: no more faults happen, all work ends, and then all copies must be equal.

use std::collections::BTreeMap;

use netram_proto::id::JournalId;
use netram_proto::time::Nanos;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::server::NodeState;
use netram_shared_machine::{MergeQueue, NodeId, QueuedRecord, RecordNumber};

use super::bytes::{self, PayloadBytes, WORDS};
use super::check::{RegionRule, fail};
use super::event_loop::run_for;
use super::kernel::Event;
use super::node_events::settle;
use super::world::World;

/// Longest time until everything has ended.
const QUIESCE_MAX: Nanos = Nanos::from_ms(12_000);
const POLL_INTERVAL: Nanos = Nanos::from_ms(40);

pub(super) fn quiesce(world: &mut World) {
    stop_faults(world);
    let until = world.kernel.now() + QUIESCE_MAX;
    while world.kernel.now() < until {
        run_for(world, POLL_INTERVAL);
        if is_quiescent(world) {
            return check_quiescent(world);
        }
    }
    if let Some(wasted) = wasted_window(world).filter(|_| busy_reason(world).is_empty()) {
        fail(RegionRule::Forgotten, &wasted);
    }
    let why = busy_reason(world);
    fail(RegionRule::Ends, &format!("no rest: {why}"));
}

fn stop_faults(world: &mut World) {
    world.kernel.tell(|| String::from("everything is healed"));
    world.kernel.calm_down();
    world.network.heal();
    world.lenders.heal();
    world.slots.heal();
    world.server.heal();
    for lender in 0..world.lenders.len() {
        world.kernel.at(Nanos(1), Event::LenderUp { lender });
    }
    world.kernel.at(Nanos(1), Event::ServerUp);
}

/// Reason why the region is not at rest; empty if it is.
fn busy_reason(world: &World) -> String {
    let Some(server) = world.server.process() else {
        return "no server".into();
    };
    for (node, standing) in server.node_states() {
        if !matches!(standing, NodeState::Live | NodeState::Gone) {
            return format!("node {node} is {standing:?}, missing {:?}", server.missing());
        }
    }
    for (index, slot) in world.slots.iter().enumerate() {
        let Some(process) = &slot.process else {
            return format!("slot {index} has no process");
        };
        if !process.is_whole() || !process.txns.is_empty() || process.pinned.is_some() {
            let (state, txns) = (process.node.state(), &process.txns);
            return format!("slot {index} is {state:?}, with {txns:?}");
        }
        if !slot.unknown_outcomes.is_empty() || !slot.orphans.is_empty() {
            let left: Vec<NodeId> = slot.orphans.iter().map(|left| left.node).collect();
            return format!(
                "slot {index} does not know of {:?}, left are {left:?}",
                slot.unknown_outcomes
            );
        }
    }
    let standings = server.node_states();
    let live = standings.filter(|(_, standing)| *standing == NodeState::Live);
    if live.count() != world.slots.len() {
        return "nodes that have no process".into();
    }
    match world.server.pending_writes() {
        0 => String::new(),
        _ => "the server's disk".into(),
    }
}

/// A window that no process needs: the server has all of its node's journal, for good.
fn wasted_window(world: &World) -> Option<String> {
    let rows = world.server.disk.table.nodes.iter();
    let gone = rows.filter(|(_, row)| row.state == NodeState::Gone);
    let gone: BTreeMap<JournalId, NodeId> = gone.map(|(node, row)| (row.id, *node)).collect();
    let lenders = world.lenders.iter().enumerate();
    let mut windows = lenders.flat_map(|(at, lender)| lender.windows().map(move |id| (at, id)));
    windows.find_map(|(at, id)| {
        let node = gone.get(&id).filter(|_| !world.history.may_keep_windows(id))?;
        Some(format!("lender {at} has a window of node {node}, which is gone"))
    })
}

fn is_quiescent(world: &mut World) -> bool {
    if !busy_reason(world).is_empty() || wasted_window(world).is_some() {
        return false;
    }
    // Lazy nodes may rest with less.
    for slot in 0..world.slots.len() {
        if let Some(process) = &mut world.slots[slot].process {
            process.node.pull();
        }
        settle(world, slot);
    }
    let memory = world.server.memory();
    let mut processes = world.slots.iter().filter_map(|slot| slot.process.as_ref());
    processes.all(|process| process.region == memory)
}

fn check_quiescent(world: &mut World) {
    let disk = &world.server.disk;
    if disk.region != world.server.memory() {
        fail(RegionRule::Equal, "the disk's region is not the server's");
    }
    for truth in world.history.journals.values() {
        let its = |node: &NodeId| truth.node == Some(*node);
        let logged: Vec<&PayloadBytes> = disk
            .log
            .iter()
            .filter(|merged| its(&merged.node))
            .map(|merged| &merged.payload)
            .collect();
        let same = logged
            .iter()
            .zip(&truth.records)
            .all(|(one, other)| *one == other);
        let excused = truth
            .node
            .is_some_and(|node| world.history.excused.contains(&node));
        if !same || (!excused && (logged.len() as u64) < truth.acked.0) {
            let what = format!("{} acknowledged, {} in the order", truth.acked, logged.len());
            fail(RegionRule::Survives, &what);
        }
    }
    for ((node, number), fate) in &world.history.outcomes {
        let mut log = disk.log.iter();
        let there = log.any(|merged| (merged.node, merged.number) == (*node, *number));
        if there != (*fate == RecordOutcome::Committed) {
            let what = format!("record {number} of node {node} was {fate:?}: {there}");
            fail(RegionRule::Outcome, &what);
        }
    }
    check_any_order(world);
    for lender in world.lenders.iter() {
        let (forgotten, haunted) = lender.forgotten();
        let kernel = &mut world.kernel;
        kernel.add(
            "region: journals that were over, and forgotten by a lender",
            forgotten as u64,
        );
        kernel.add(
            "region: old writers that came to lenders which had forgotten them",
            haunted as u64,
        );
    }
    world.kernel.hit("region: worlds at rest");
}

/// Merges all journals in a random order that the stamps allow, and compares.
fn check_any_order(world: &mut World) {
    let mut lanes: BTreeMap<NodeId, Vec<(RecordNumber, PayloadBytes)>> = BTreeMap::new();
    for merged in &world.server.disk.log {
        let lane = lanes.entry(merged.node).or_default();
        lane.push((merged.number, merged.payload.clone()));
    }
    let mut merge = MergeQueue::new([], lanes.keys().map(|node| (*node, RecordNumber(0))));
    let (mut region, mut done) = (vec![0; WORDS], 0);
    let mut left: Vec<_> = lanes
        .into_iter()
        .map(|(node, lane)| (node, lane.into_iter()))
        .collect();
    while !left.is_empty() {
        let at = world.kernel.rng.index(left.len());
        let (node, lane) = &mut left[at];
        match lane.next() {
            None => drop(left.swap_remove(at)),
            Some((number, payload)) => {
                let queued = QueuedRecord {
                    number,
                    stamp: bytes::stamp(&payload),
                    ticket: payload,
                };
                merge.push(*node, queued).expect("what was merged once");
            }
        }
        while let Some(entry) = merge.pop().expect("what was merged once") {
            bytes::apply(&entry.record.ticket, &mut region);
            done += 1;
        }
    }
    if region != world.server.disk.region || done != world.server.disk.log.len() {
        let what = "the same journals, merged again, are another region";
        fail(RegionRule::AnyOrder, what);
    }
}
