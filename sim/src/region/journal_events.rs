//! Events of a process's journal: its disk gets on, connections to lenders come and go, frames arrive.

use netram_proto::wire::Frame;

use super::net::ConnectionOwner;
use super::node_events::settle;
use super::world::World;
use crate::event::FrameDirection;

/// Begins the due operations of the journal's disk.
pub(super) fn run_disk(world: &mut World, slot: usize) {
    let times = (world.kernel.disk_time(), world.kernel.disk_time());
    if let Some(process) = &mut world.slots[slot].process {
        let owner = (slot, process.life);
        process.journal.run_disk(&mut world.kernel, owner, times);
    }
}

pub(super) fn on_flushed(world: &mut World, slot: usize, life: u64) {
    let now = world.local(slot);
    if let Some(process) = world.slots[slot].alive(life) {
        process.journal.on_flushed(now);
        settle(world, slot);
    }
}

pub(super) fn on_view_stored(world: &mut World, slot: usize, life: u64) {
    let now = world.local(slot);
    if let Some(process) = world.slots[slot].alive(life) {
        process.journal.on_view_stored(now);
        settle(world, slot);
    }
}

/// Connects, and sends the frames that are due and have room.
pub(super) fn pump(world: &mut World, slot: usize) {
    let now = world.local(slot);
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    let given_up: Vec<usize> = process.journal.writer.take_disconnects().iter().collect();
    for index in given_up {
        if let Some(conn) = process.conns[index].take() {
            world.network.close(&mut world.kernel, &mut world.lenders, conn);
        }
    }
    for index in 0..world.kernel.profile.lenders {
        if process.journal.writer.wants_connection(index, now) {
            if let Some(old) = process.conns[index].take() {
                world.network.close(&mut world.kernel, &mut world.lenders, old);
            }
            let life = process.life;
            let owner = (ConnectionOwner::Process { slot, life }, index);
            let (ends, journal) = ((slot, index), process.journal.id);
            let conn = world.network.connect(&mut world.kernel, owner, ends, journal);
            process.conns[index] = Some(conn);
            continue;
        }
        let Some(conn) = process.conns[index] else {
            continue;
        };
        while world.network.has_room(conn)
            && let Some(outgoing) = process.journal.writer.next_frame(index, now)
        {
            let packet = process.journal.packet(&outgoing);
            world
                .network
                .send(&mut world.kernel, conn, FrameDirection::Up, packet);
        }
    }
}

pub(super) fn lender_linked(world: &mut World, slot: usize, life: u64, index: usize) {
    let now = world.local(slot);
    if let Some(process) = world.slots[slot].alive(life) {
        process.journal.writer.on_connected(index, now);
        settle(world, slot);
    }
}

pub(super) fn lender_lost(world: &mut World, slot: usize, life: u64, index: usize) {
    let now = world.local(slot);
    if let Some(process) = world.slots[slot].alive(life) {
        process.conns[index] = None;
        process.journal.writer.on_lost(index, now);
        settle(world, slot);
    }
}

pub(super) fn on_lender_frame(world: &mut World, slot: usize, life: u64, index: usize, frame: &Frame<'_>) {
    let now = world.local(slot);
    if let Some(process) = world.slots[slot].alive(life) {
        process.journal.writer.on_frame(index, frame, now);
        settle(world, slot);
    }
}
