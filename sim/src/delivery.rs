//! Deliveries of the network: frames that arrive are passed on to lenders and to processes.

use crate::check::rule16;
use crate::client_faults;
use crate::event::{FrameDirection, FrameInFlight};
use crate::hostile;
use crate::net::{FrameArrival, trace_packet};
use crate::process::events::{link_lost, link_up, process_gets};
use crate::silent_window;
use crate::world::World;

pub(crate) fn on_connected(world: &mut World, conn: usize) {
    let outcome = world
        .network
        .connected(&mut world.kernel, &mut world.lenders, conn);
    let Some(outcome) = outcome else { return };
    match outcome.connected {
        true => link_up(world, outcome.process, outcome.slot),
        false => link_lost(world, outcome.process, outcome.slot),
    }
}

pub(crate) fn on_closed(world: &mut World, conn: usize) {
    let closed = world.network.closed(&mut world.kernel, &mut world.lenders, conn);
    if let Some((process, slot)) = closed {
        link_lost(world, process, slot);
    }
}

pub(crate) fn on_datagram(world: &mut World, conn: usize, channel: u32, packet: Vec<u8>) {
    let to = (conn, channel);
    world
        .network
        .on_datagram(&mut world.kernel, &mut world.lenders, to, packet);
}

pub(crate) fn on_packet(world: &mut World, frame: FrameInFlight) {
    let conn = frame.conn;
    let paused_until = world.processes[world.network.process_of(conn)].paused_until;
    let arrival = world
        .network
        .arrive(&mut world.kernel, &world.lenders, frame, paused_until);
    match arrival {
        None => (),
        Some(FrameArrival::Lender { lender, packet }) => deliver_to_lender(world, conn, lender, &packet),
        Some(FrameArrival::Process {
            process,
            slot,
            packet,
        }) => process_gets(world, process, slot, &packet),
    }
}

fn deliver_to_lender(world: &mut World, conn: usize, lender: usize, packet: &[u8]) {
    let open = world.network.is_open(conn);
    if !open {
        world.kernel.hit("frames of a dead connection delivered");
    }
    let (journal, planted) = (world.kernel.journal(), world.kernel.planted());
    trace_packet(&mut world.kernel, lender, packet, "gets");
    world.kernel.mark(2, packet.first().copied().unwrap_or(0).into());
    let before = world.lenders[lender].state();
    let outcome = world.lenders[lender].on_packet(conn, packet, journal, planted);
    silent_window::read_if_due(world, lender);
    rule16::not_emptied(world, &world.lenders[lender], &before);
    client_faults::check_answer(world, lender, packet, &outcome);
    if let Some(made_up) = hostile::perhaps_make_up(&mut world.kernel, lender, packet)
        && open
    {
        return world
            .network
            .send(&mut world.kernel, conn, FrameDirection::Down, made_up);
    }
    world.network.send_answer(&mut world.kernel, conn, outcome);
}
