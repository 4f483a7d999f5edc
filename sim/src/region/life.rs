//! The life of a node's process: it starts, stands still, is killed, or ends because its machine says so.

use netram_proto::planted::PlantedFault;
use netram_proto::time::{Nanos, Time};
use netram_shared_machine::node::NodeEnd;

use super::check::{RegionRule, fail};
use super::kernel::Event;
use super::orphan::RegionOrphan;
use super::process::RegionProcess;
use super::queries::QueryOwner;
use super::world::World;

/// Starts a process that joins with a new journal.
pub(super) fn start_process(world: &mut World, slot: usize) {
    if world.slots[slot].process.is_some() {
        return;
    }
    let life = world.slots.next_life();
    let disk = world.slots[slot].disk.clone();
    disk.borrow_mut().revive();
    let process = RegionProcess::new(&mut world.kernel, &disk, slot, life);
    world.history.begin(process.journal.id);
    world.slots[slot].process = Some(process);
    world.kernel.tell(|| format!("slot {slot} starts life {life}"));
    world.kernel.at(Nanos(1), Event::Tick { slot, life });
    world.kernel.at(Nanos(2), Event::Program { slot, life });
}

/// Lets a node stand still and then handle everything that has waited: its process was stopped, or its
/// machine slept.
pub(super) fn pause_node(world: &mut World, slot: usize, span: Nanos) {
    let machine = &mut world.slots[slot];
    machine.paused_until = world.kernel.now() + span;
    if world.kernel.planted().is(PlantedFault::SleepStopsClock) {
        machine.stop_clock(span);
    }
    if let Some(process) = &mut machine.process {
        process.was_paused = true;
    }
    world
        .kernel
        .tell(|| format!("slot {slot} sleeps for {} ms", span.ms()));
}

/// Kills its process; with `power_cut`, its machine.
pub(super) fn kill_process(world: &mut World, slot: usize, power_cut: bool) {
    world.slots[slot].paused_until = Time(0);
    if let Some(process) = world.slots[slot].process.take() {
        world
            .kernel
            .tell(|| format!("slot {slot} dies, node {:?}", process.node.id()));
        let told = !power_cut && world.kernel.rng.chance(500);
        reap(world, slot, &process, told);
    }
    if power_cut {
        world.slots[slot].disk.borrow_mut().power_cut();
    }
}

/// Handles the end of a process. Its journal stays, and the outcome of its transactions is unknown.
fn reap(world: &mut World, slot: usize, process: &RegionProcess, told: bool) {
    for conn in process.conns.iter().flatten() {
        world.network.close(&mut world.kernel, &mut world.lenders, *conn);
    }
    let ended = QueryOwner::Orphan {
        slot,
        life: process.life,
    };
    world.queries.stop(
        &mut world.kernel,
        &mut world.network,
        &mut world.lenders,
        |query| query.owner == ended,
    );
    let machine = &mut world.slots[slot];
    for left in &mut machine.orphans {
        left.interrupt();
    }
    if let Some(session) = process.session {
        world.node_links.drop_link(&mut world.kernel, session, told);
    }
    if let Some(node) = process.node.id() {
        let unknown = process.committing().map(|(_, number)| (node, number));
        machine.unknown_outcomes.extend(unknown);
        let orphan = RegionOrphan::from_journal(node, &process.journal);
        machine.orphans.push(orphan);
    } else {
        // The node never heard that it had joined, so it cannot ask whether the server needs the members, and
        // tells them nothing.
        world.history.keep_windows(process.journal.id);
    }
    let ms = world.kernel.rng.pick(&[1, 20, 100, 400]);
    world.kernel.after_ms(ms, Event::SlotUp { slot });
}

/// Handles a node's machine that says that it has ended.
pub(super) fn on_node_end(world: &mut World, slot: usize, over: NodeEnd) {
    if over == NodeEnd::Diverged && world.history.excused.is_empty() {
        let what = format!("slot {slot}: it has a record that does not count");
        fail(RegionRule::Survives, &what);
    }
    if let NodeEnd::Violation(misled) = over {
        fail(RegionRule::Applied, &format!("slot {slot}: {misled}"));
    }
    let Some(process) = world.slots[slot].process.take() else {
        return;
    };
    world
        .kernel
        .tell(|| format!("slot {slot}, node {:?}: {over}", process.node.id()));
    if over == NodeEnd::Fenced && process.was_paused {
        world.kernel.hit("region: nodes that slept, and woke up fenced");
    }
    world.kernel.hit(match over {
        NodeEnd::Left => "region: nodes that left",
        _ => "region: nodes that were told that they are fenced",
    });
    if over == NodeEnd::Left && process.committing().next().is_some() {
        fail(RegionRule::Ends, "a node has left with a commit on its way");
    }
    reap(world, slot, &process, false);
    if over == NodeEnd::Left {
        // The server has all of it and forgets it: there is nothing to offer.
        world.slots[slot].orphans.pop();
    }
}
