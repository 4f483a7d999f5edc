//! A process's life: its start and its death, alone or with its machine.

use netram_proto::id::WriterId;

use super::serving::ServingState;
use super::table::ProcessPhase;
use crate::event::WorldEvent;
use crate::kernel::TICK;
use crate::world::World;

/// Starts a process on `host`.
pub(crate) fn spawn(world: &mut World, host: usize) -> usize {
    world.hosts[host].disk.borrow_mut().revive();
    let process = world.processes.add(host, WriterId(world.kernel.rng.draw()));
    world.network.slots_mut().add_process();
    world.kernel.at(TICK, WorldEvent::Tick { process });
    process
}

/// Kills the process without a farewell; with `power_cut`, its machine.
pub(crate) fn crash(world: &mut World, process: usize, power_cut: bool) {
    if !world.processes.alive(process) {
        return;
    }
    world.kernel.mark(4, process as u64 * 2 + u64::from(power_cut));
    let kind = if power_cut {
        "its machine lost power"
    } else {
        "it crashed"
    };
    world.kernel.tell(|| format!("process {process} ends: {kind}"));
    world.kernel.hit(if power_cut {
        "client power cuts"
    } else {
        "client crashes"
    });
    leave_view_in_doubt(world, process);
    reap(world, process);
    let host = world.processes[process].host;
    if power_cut {
        world.hosts[host].disk.borrow_mut().power_cut();
    }
    world.backing_disk.stop(&mut world.kernel, power_cut);
    world.hosts.refresh_view(host);
}

/// Ends a process for whatever reason: connections close, and events for it are dropped.
pub(crate) fn reap(world: &mut World, process: usize) {
    world
        .network
        .close_all(&mut world.kernel, &mut world.lenders, process);
    world.processes[process].last_state = world.processes.log_state(&world.kernel.profile, process);
    world.processes[process].phase = ProcessPhase::Dead;
    world.network.slots_mut().set(process, core::iter::empty());
}

/// Handles a process that died between two disk operations. Whether its machine died too is drawn.
pub(crate) fn died_midway(world: &mut World, process: usize) -> bool {
    let host = world.processes[process].host;
    if !world.hosts[host].disk.borrow().is_dead() {
        return false;
    }
    let power_cut = world.kernel.rng.chance(500);
    crash(world, process, power_cut);
    true
}

/// Runs `work` on the process's serving machine, if it serves.
pub(crate) fn with_serving<T>(
    world: &mut World,
    process: usize,
    work: impl FnOnce(&mut World, &mut ServingState) -> T,
) -> Option<T> {
    let mut serving = world.processes.take_serving(process)?;
    let out = work(world, &mut serving);
    world.processes.put_serving(process, serving);
    Some(out)
}

/// Leaves a half-done store of a view, as a machine does that dies now.
pub(super) fn leave_view_in_doubt(world: &mut World, process: usize) {
    // Number of operations done on two slots, each written and synced. Zero: nothing was written.
    let operations = world.kernel.rng.below(5) as u32;
    with_serving(world, process, |world, serving| {
        let host = world.processes[process].host;
        world.hosts[host].storing = None;
        let Some(view) = serving.storing.take() else {
            return;
        };
        if operations > 0 && !world.hosts[host].disk.borrow().is_dead() {
            world.kernel.hit("views cut off while being stored");
            world.hosts[host].disk.borrow_mut().crash_after(operations);
            let _ = view.store(
                &mut serving.view_slots,
                &serving.view_file,
                &mut serving.view_full,
            );
        }
    });
}

/// Handles a process that died between two operations on its directory's disk. Whether its machine died
/// too is drawn.
pub(crate) fn died_on_backing_disk(world: &mut World, process: usize) -> bool {
    if !world.backing_disk.has_stopped() {
        return false;
    }
    if world.processes.alive(process) {
        world.kernel.hit("files: deaths between two operations");
        let power_cut = world.kernel.rng.chance(500);
        crash(world, process, power_cut);
    }
    true
}
