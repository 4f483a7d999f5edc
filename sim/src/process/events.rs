//! Events of a process: time passes, links come and go, frames arrive. Each is handed to the machine that
//! waits for it, and the process then does what the machine wants done.

use netram_proto::id::Incarnation;
use netram_proto::journal::ServerAck;
use netram_proto::wire::{Frame, FrameKind};

use super::table::ProcessPhase;
use crate::check::rule20;
use crate::event::WorldEvent;
use crate::kernel::TICK;
use crate::process::life::with_serving;
use crate::process::opening::settle_opening;
use crate::process::serve::settle_serving;
use crate::server::SimServer;
use crate::signatures::is_believed;
use crate::world::World;

pub(crate) fn on_tick(world: &mut World, process: usize) {
    if !world.processes.alive(process) {
        return;
    }
    let now = world.kernel.now();
    if let ProcessPhase::Serving(serving) = &mut world.processes[process].phase {
        serving.writer.on_tick(now);
    }
    world.kernel.at(TICK, WorldEvent::Tick { process });
    settle(world, process);
}

pub(crate) fn link_up(world: &mut World, process: usize, slot: usize) {
    let now = world.kernel.now();
    match &mut world.processes[process].phase {
        ProcessPhase::Dead => return,
        ProcessPhase::Opening(opening) => opening.recovery.on_connected(slot),
        ProcessPhase::Serving(serving) => serving.writer.on_connected(slot, now),
    }
    settle(world, process);
}

pub(crate) fn link_lost(world: &mut World, process: usize, slot: usize) {
    let now = world.kernel.now();
    world.kernel.hit("links lost");
    world
        .kernel
        .tell(|| format!("process {process} loses its link to lender {}", slot));
    match &mut world.processes[process].phase {
        ProcessPhase::Dead => return,
        ProcessPhase::Opening(opening) => opening.recovery.on_lost(slot),
        ProcessPhase::Serving(serving) => serving.writer.on_lost(slot, now),
    }
    settle(world, process);
}

pub(crate) fn process_gets(world: &mut World, process: usize, slot: usize, packet: &[u8]) {
    let now = world.kernel.now();
    let Ok(frame) = Frame::parse(packet) else {
        if let Some(conn) = world.network.slots().conn(process, slot) {
            world.network.break_conn(&mut world.kernel, conn);
        }
        return;
    };
    if !is_believed(world.kernel.journal(), &frame, world.kernel.planted()) {
        world.kernel.hit("fences that nobody made");
        if let Some(conn) = world.network.slots().conn(process, slot) {
            world.network.break_conn(&mut world.kernel, conn);
        }
        return;
    }
    world
        .kernel
        .mark(3, frame.header.kind as u64 ^ frame.header.lsn.0 << 8);
    let id = world.processes[process].writer;
    match &mut world.processes[process].phase {
        ProcessPhase::Dead => return,
        ProcessPhase::Opening(opening) => {
            opening.tried_at[slot] = now;
            opening.recovery.on_frame(slot, &frame);
            rule20::recovery(&opening.recovery, world.kernel.profile.window);
        }
        ProcessPhase::Serving(serving) => {
            let before = serving.writer.fenced();
            let memory = Incarnation(frame.header.sender);
            let is_member =
                frame.header.kind == FrameKind::Refuse && rule20::is_member(&serving.writer, slot, memory);
            serving.writer.on_frame(slot, &frame, now);
            rule20::believed_fence((&serving.writer, id), before, (slot, is_member), &frame);
        }
    }
    settle(world, process);
}

/// Begins everything that the machine inside wants done after an event.
pub(crate) fn settle(world: &mut World, process: usize) {
    if world.processes[process].paused_until > world.kernel.now() {
        return;
    }
    match &world.processes[process].phase {
        ProcessPhase::Dead => (),
        ProcessPhase::Opening(_) => settle_opening(world, process),
        ProcessPhase::Serving(_) => settle_serving(world, process),
    }
}

/// Handles an acknowledgement of the node's server.
pub(crate) fn on_server_ack(world: &mut World, process: usize, said: ServerAck) {
    let now = world.kernel.now();
    with_serving(world, process, |_, serving| {
        serving.writer.on_server_ack(said, now)
    });
    settle(world, process);
}

/// Lets a node hear that its server has given it up.
pub(crate) fn on_node_fenced(world: &mut World, process: usize) {
    let Some(seen) = world.server.as_ref().map(SimServer::fence) else {
        return;
    };
    with_serving(world, process, |_, serving| {
        serving.writer.on_replica_fenced(seen)
    });
    settle(world, process);
}

/// Starts the server, whose nodes notice.
pub(crate) fn on_server_starts(world: &mut World) {
    if let Some(server) = &mut world.server {
        server.start();
    }
    world.kernel.tell(|| String::from("the server is up"));
    let living: Vec<usize> = (0..world.processes.len())
        .filter(|&process| world.processes.alive(process))
        .collect();
    living.into_iter().for_each(|process| settle(world, process));
}
