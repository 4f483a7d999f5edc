//! Deliveries of the network: what happens to a connection is passed on to its owner.

use netram_proto::wire::Frame;

use super::journal_events::{lender_linked, lender_lost, on_lender_frame};
use super::net::ConnectionOwner;
use super::query_events::{on_query_frame, query_linked, query_lost};
use super::world::World;
use crate::event::FrameDirection;

pub(super) fn on_connected(world: &mut World, conn: usize) {
    match world.network.connected(&world.kernel, &world.lenders, conn) {
        None => (),
        Some(true) => owner_linked(world, conn),
        Some(false) => owner_lost(world, conn),
    }
}

pub(super) fn on_frame(world: &mut World, conn: usize, way: FrameDirection) {
    let paused_until = world.paused_until(world.network.host_of(conn));
    let arrival = world
        .network
        .arrive(&mut world.kernel, &mut world.lenders, (conn, way), paused_until);
    if let Some(packet) = arrival {
        deliver_to_owner(world, conn, &packet);
    }
}

pub(super) fn on_closed(world: &mut World, conn: usize) {
    if world.network.is_open(conn) {
        world.network.close(&mut world.kernel, &mut world.lenders, conn);
        owner_lost(world, conn);
    }
}

fn owner_linked(world: &mut World, conn: usize) {
    let (owner, index) = world.network.owner_of(conn);
    match owner {
        ConnectionOwner::Process { slot, life } => lender_linked(world, slot, life, index),
        ConnectionOwner::Query(query) => query_linked(world, query, index),
    }
}

fn owner_lost(world: &mut World, conn: usize) {
    let (owner, index) = world.network.owner_of(conn);
    match owner {
        ConnectionOwner::Process { slot, life } => lender_lost(world, slot, life, index),
        ConnectionOwner::Query(query) => query_lost(world, query, index),
    }
}

fn deliver_to_owner(world: &mut World, conn: usize, packet: &[u8]) {
    let (owner, index) = world.network.owner_of(conn);
    let Ok(frame) = Frame::parse(packet) else {
        return world.network.break_conn(&mut world.kernel, conn);
    };
    match owner {
        ConnectionOwner::Process { slot, life } => on_lender_frame(world, slot, life, index, &frame),
        ConnectionOwner::Query(query) => on_query_frame(world, query, index, &frame),
    }
}
