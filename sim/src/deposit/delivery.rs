//! Deliveries of the network: connections begin and end, and frames reach lenders and owners.

use netram_proto::time::Nanos;
use netram_proto::wire::{Frame, FrameKind, RefusalReason};

use super::check::{check_released_slots, fail};
use super::kernel::Event;
use super::lenders::frame;
use super::net::DepositConnection;
use super::owner::deposit_of;
use super::owner_events::{on_lender_frame, settle};
use super::world::World;
use crate::event::FrameDirection;

/// Lets an owner connect to a lender.
pub(super) fn dial(world: &mut World, arena: usize, life: u64, lender: usize) {
    let Some(owner) = world.owners.alive(arena, life) else {
        return;
    };
    let epoch = owner.directory_mut().next_session(lender);
    let target = (lender, world.lenders[lender].boot);
    let conn = world
        .network
        .connect(&mut world.kernel, (arena, life), target, epoch);
    owner.conns[lender] = Some(conn);
}

pub(super) fn on_connected(world: &mut World, conn: usize) {
    let DepositConnection {
        arena,
        lender,
        epoch,
        open,
        ..
    } = world.network[conn];
    let reachable = world.network.blocked_until(arena, lender) <= world.kernel.now();
    let machine = &world.lenders[lender];
    let Some(owner) = world.owners[arena].as_ref().filter(|_| open) else {
        return;
    };
    if !machine.up || !reachable || machine.leaving {
        return on_closed(world, conn);
    }
    world.network.on_connected(conn, machine.boot);
    let mut packet = frame(FrameKind::Deposit, epoch, owner.writer())
        .encode(16)
        .to_vec();
    packet.extend_from_slice(&owner.id.0.to_le_bytes());
    world
        .network
        .send(&mut world.kernel, conn, FrameDirection::Up, packet);
}

pub(super) fn on_frame(world: &mut World, conn: usize, way: FrameDirection) {
    let arrival = world.network.arrive(&mut world.kernel, &world.lenders, conn, way);
    let Some(packet) = arrival else { return };
    match way {
        FrameDirection::Up => deliver_to_lender(world, conn, &packet),
        FrameDirection::Down if world.network[conn].open => deliver_to_owner(world, conn, &packet),
        FrameDirection::Down => (),
    }
}

fn deliver_to_lender(world: &mut World, conn: usize, packet: &[u8]) {
    let DepositConnection {
        lender,
        boot,
        life,
        epoch,
        open,
        ..
    } = world.network[conn];
    let machine = &mut world.lenders[lender];
    if !machine.up || machine.boot != boot {
        return world.network.break_conn(&mut world.kernel, conn);
    }
    let Ok(frame) = Frame::parse(packet) else {
        unreachable!("owners send frames")
    };
    if !open {
        world.kernel.hit("far: frames of a dead connection delivered");
    }
    let id = deposit_of(life);
    if frame.header.kind == FrameKind::Resize {
        check_released_slots(world, conn, &frame);
    }
    let machine = &mut world.lenders[lender];
    let answer = if frame.header.kind == FrameKind::Deposit {
        let new = world.kernel.rng.draw();
        Some(machine.open(&frame, id, new, world.kernel.now(), world.kernel.planted()))
    } else {
        machine.handle(&frame, id, &mut world.kernel.rng)
    };
    if !open {
        // The lender has seen the end of the connection with its last frame.
        machine.leave(id, epoch, world.kernel.now());
    }
    if machine.slots_used() > machine.room && world.kernel.profile.within_budget {
        fail(format!("lender {lender} has lent more than it has"));
    }
    match answer {
        Some(answer) if open => world
            .network
            .send(&mut world.kernel, conn, FrameDirection::Down, answer),
        Some(_) => (),
        None => world.network.break_conn(&mut world.kernel, conn),
    }
}

fn deliver_to_owner(world: &mut World, conn: usize, packet: &[u8]) {
    let DepositConnection { arena, lender, .. } = world.network[conn];
    let Ok(frame) = Frame::parse(packet) else {
        return world.network.break_conn(&mut world.kernel, conn);
    };
    if on_lender_frame(world, arena, lender, &frame).is_err() {
        let told = RefusalReason::from_byte(frame.header.flags);
        world.kernel.tell(|| {
            format!(
                "owner {arena} closes its link to {lender}: {:?} {told:?}",
                frame.header.kind
            )
        });
        world.network.break_conn(&mut world.kernel, conn);
    }
    settle(world, arena);
}

/// Closes a connection for its owner, which closes it, knows that it is closed, or is dead.
pub(super) fn on_closed(world: &mut World, conn: usize) {
    let DepositConnection {
        arena,
        lender,
        life,
        open,
        ..
    } = world.network[conn];
    if !open {
        return;
    }
    world.network.close(&mut world.kernel, &mut world.lenders, conn);
    if let Some(owner) = world.owners.alive(arena, life) {
        owner.on_unlinked(lender, world.kernel.now());
        let ms = world.kernel.rng.pick(&[0, 20, 300]);
        let dial = Event::Dial { arena, life, lender };
        world.kernel.at(Nanos::from_ms(ms + 1), dial);
        settle(world, arena);
    }
}
