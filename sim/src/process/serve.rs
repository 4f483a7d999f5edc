//! Work of a serving process after each event: the log writer, the view writer, and frames to lenders.

use netram_proto::failure::{CallError, RetryPolicy, RetryVerdict, SystemCall};
use netram_proto::journal::FrameBody;
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::time::Nanos;
use netram_proto::wire::ChainPoint;

use super::serving::{ServingState, describe_view};
use crate::check;
use crate::event::FrameDirection;
use crate::event::WorldEvent;
use crate::process::life::{died_midway, with_serving};
use crate::world::World;

pub(super) fn settle_serving(world: &mut World, process: usize) {
    if died_midway(world, process) {
        return;
    }
    with_serving(world, process, |world, serving| {
        close_unwanted(world, process, serving);
        pump_data(world, process, serving);
        begin_view(world, process, serving);
        pump_data(world, process, serving);
        begin_flush(world, process, serving);
        check::after_event(world, process, serving);
        pump_server(world, process, serving);
        pump(world, process, serving);
    });
    died_midway(world, process);
}

fn close_unwanted(world: &mut World, process: usize, serving: &mut ServingState) {
    for slot in serving.writer.take_disconnects().iter() {
        if let Some(conn) = world.network.slots().conn(process, slot) {
            world.kernel.hit("links given up by the writer");
            world
                .kernel
                .tell(|| format!("process {process} gives its link to lender {slot} up"));
            world
                .network
                .close_here(&mut world.kernel, &mut world.lenders, conn);
        }
    }
}

fn pump_data(world: &mut World, process: usize, serving: &mut ServingState) {
    let may_connect = !world.data.is_held(world.processes[process].host);
    if let Some(link) = &mut serving.data {
        let log = (&serving.log, serving.superblock.head.lsn);
        link.pump(
            &mut world.kernel,
            &mut world.data,
            (process, may_connect),
            &mut serving.writer,
            log,
        );
    }
}

fn pump_server(world: &mut World, process: usize, serving: &mut ServingState) {
    let history = &world.hosts[world.processes[process].host].history;
    if let (Some(server), Some(link)) = (&world.server, &mut serving.server) {
        link.pump(&mut world.kernel, server, process, &serving.writer, history);
    }
}

fn begin_view(world: &mut World, process: usize, serving: &mut ServingState) {
    if serving.storing.is_some() || serving.poisoned.is_some() {
        return;
    }
    let Some(view) = serving.writer.view_to_store() else {
        return;
    };
    world
        .kernel
        .tell(|| format!("process {process} begins to store {}", describe_view(&view)));
    let host = world.processes[process].host;
    world.hosts[host].storing = Some(view.clone());
    if let Some(link) = &mut serving.data {
        link.source.on_view(view.clone());
    }
    if let Some(link) = &mut serving.server {
        link.on_view(view.clone());
    }
    serving.storing = Some(view);
    let delay = world.kernel.disk_time();
    world.kernel.at(delay, WorldEvent::ViewStored { process });
}

pub(crate) fn on_view_stored(world: &mut World, process: usize) {
    let now = world.kernel.now();
    with_serving(world, process, |world, serving| {
        let host = world.processes[process].host;
        let Some(view) = serving.storing.take() else {
            return;
        };
        let stored = view.store(
            &mut serving.view_slots,
            &serving.view_file,
            &mut serving.view_full,
        );
        world.hosts.refresh_view(host);
        if world.hosts[host].disk.borrow().is_dead() {
            world.hosts[host].storing = None;
            return;
        }
        if let Err(failure) = stored
            && let Some(pause) = retry_pause(world, serving.planted, &mut serving.view_policy, failure)
        {
            world.kernel.hit("views that the disk refused for a while");
            serving.storing = Some(view);
            return world.kernel.at(pause, WorldEvent::ViewStored { process });
        }
        world.hosts[host].storing = None;
        match stored {
            Ok(()) => {
                serving.view_policy.succeeded();
                world.kernel.hit("views stored");
                world
                    .kernel
                    .tell(|| format!("process {process} has stored view {}", view.version));
                check::rule03::stored(world, process, &view);
                serving.writer.on_view_stored(now);
            }
            Err(failure) => {
                world.kernel.hit("views that could not be stored");
                give_up(world, process, serving, failure);
            }
        }
    });
}

/// Handles a failure as the driver does: returns the pause before the next try, or `None` when it gives
/// up the disk.
fn retry_pause(
    world: &mut World,
    planted: FaultSwitch,
    policy: &mut RetryPolicy,
    failure: CallError,
) -> Option<Nanos> {
    match policy.failed(failure, world.kernel.now(), false) {
        RetryVerdict::GiveUp => None,
        RetryVerdict::Again(_) if planted.is(PlantedFault::RefusalIsFinal) => None,
        RetryVerdict::Again(pause) => Some(pause.pause),
    }
}

fn begin_flush(world: &mut World, process: usize, serving: &mut ServingState) {
    if serving.flushing.is_some() || serving.poisoned.is_some() || world.kernel.now() < serving.log_due {
        return;
    }
    let Some(end) = serving.ends.back().copied() else {
        return;
    };
    let from = serving.writer.stable();
    let bytes = serving.ring_bytes(from, end.lsn.since(from) as usize);
    serving.ends.clear();
    match serving.log.write(from, &bytes) {
        Ok(()) => {
            serving.flushing = Some(end);
            let delay = world.kernel.disk_time();
            world.kernel.at(delay, WorldEvent::Flushed { process });
        }
        Err(error) => not_flushed(world, process, serving, end, error.of(SystemCall::Write)),
    }
}

/// Handles a failed batch up to `end`: it is written again after a pause, or the disk is given up.
fn not_flushed(
    world: &mut World,
    process: usize,
    serving: &mut ServingState,
    end: ChainPoint,
    failure: CallError,
) {
    if died_in_operation(world, process) {
        return;
    }
    match retry_pause(world, serving.planted, &mut serving.log_policy, failure) {
        None => give_up(world, process, serving, failure),
        Some(pause) => {
            world.kernel.hit("batches that the disk refused for a while");
            serving.ends.push_front(end);
            serving.log_due = world.kernel.now() + pause;
            world.kernel.at(pause, WorldEvent::Flushed { process });
        }
    }
}

pub(crate) fn on_flushed(world: &mut World, process: usize) {
    let now = world.kernel.now();
    with_serving(world, process, |world, serving| {
        let Some(end) = serving.flushing.take() else {
            return;
        };
        if serving.poisoned.is_some() {
            // Another sync of the same file failed since, and may have failed for these bytes.
            return;
        }
        let mut synced = serving.log.sync();
        if synced.is_err() && serving.planted.is(PlantedFault::SyncRetried) {
            synced = serving.log.sync();
        }
        match synced {
            Ok(()) => {
                serving.log_policy.succeeded();
                world.kernel.mark(6, end.lsn.0);
                check::rule09::stable(world, process, end.lsn);
                serving.stable = end;
                serving.writer.on_stable(end, now);
            }
            Err(error) => not_flushed(world, process, serving, end, error.of(SystemCall::Sync)),
        }
    });
}

pub(crate) fn give_up(world: &mut World, process: usize, serving: &mut ServingState, failure: CallError) {
    if !died_in_operation(world, process) {
        world
            .kernel
            .tell(|| format!("process {process}: the disk failed: {failure}"));
        world.kernel.hit("journals that went read-only");
        check::rule17::given_up(world, process, serving, failure);
    }
    serving.poison(failure.error);
}

/// Whether the process's machine died in the operation that just failed.
fn died_in_operation(world: &World, process: usize) -> bool {
    let host = world.processes[process].host;
    world.hosts[host].disk.borrow().is_dead()
}

/// Connects, and sends the frames that are due and have room.
pub(super) fn pump(world: &mut World, process: usize, serving: &mut ServingState) {
    let now = world.kernel.now();
    while let Some(outgoing) = serving.writer.next_multicast(now) {
        check::rule04::sends(world, process, serving);
        if let FrameBody::Log { from, bytes } = outgoing.body {
            let body = serving.ring_bytes(from, bytes);
            let from = (process, serving.writer.channel());
            world
                .network
                .multicast(&mut world.kernel, &world.lenders, from, outgoing.header, &body);
        }
    }
    for slot in 0..serving.writer.lender_count() {
        if serving.writer.wants_connection(slot, now) {
            if let Some(old) = world.network.slots().conn(process, slot) {
                world
                    .network
                    .close_here(&mut world.kernel, &mut world.lenders, old);
            }
            let from = (process, world.processes[process].host);
            world
                .network
                .connect(&mut world.kernel, &world.lenders, from, slot);
            continue;
        }
        let Some(conn) = world.network.slots().conn(process, slot) else {
            continue;
        };
        while world.network.has_room(conn) {
            let Some(outgoing) = serving.writer.next_frame(slot, now) else {
                break;
            };
            check::rule04::sends(world, process, serving);
            check::rule04::closes(world, process, serving, &outgoing.header);
            let packet = serving.packet(world.kernel.journal(), &outgoing);
            world
                .network
                .send(&mut world.kernel, conn, FrameDirection::Up, packet);
        }
    }
}
