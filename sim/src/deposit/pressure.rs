//! Lenders that reclaim lent slots.

use netram_proto::time::Nanos;

use super::event_loop::run_for;
use super::kernel::Event;
use super::net::DepositConnection;
use super::owner::deposit_of;
use super::world::World;
use crate::check;
use crate::event::FrameDirection;

/// Makes a lender reclaim a part of its lent slots for a while.
pub(super) fn press(world: &mut World, lender: usize, span: Nanos) {
    let machine = &mut world.lenders[lender];
    if !machine.up {
        return;
    }
    let limit = world.kernel.rng.between(0, machine.slots_used().into()) as u32;
    machine.limit = Some(limit);
    machine.limit_changes += 1;
    let turn = machine.limit_changes;
    world
        .kernel
        .tell(|| format!("lender {lender} wants to lend {limit} slots only"));
    world.kernel.hit("far: lenders under pressure");
    world.kernel.at(span, Event::PressureEnd { lender, turn });
}

pub(super) fn on_pressure_end(world: &mut World, lender: usize, turn: u64) {
    if world.lenders[lender].limit_changes == turn {
        world.lenders[lender].limit = None;
    }
}

/// Sends the lenders' reclaims, and their ends.
pub(super) fn send_reclaims(world: &mut World) {
    for conn in 0..world.network.len() {
        let DepositConnection {
            lender,
            life,
            epoch,
            open,
            ..
        } = world.network[conn];
        let machine = &mut world.lenders[lender];
        if !open || !machine.up || machine.paused_until > world.kernel.now() {
            continue;
        }
        let id = deposit_of(life);
        if let Some(wish) = machine.poll_reclaim(id, epoch) {
            world.kernel.hit("far: wishes for slots told");
            let packet = wish.encode(0).to_vec();
            world
                .network
                .send(&mut world.kernel, conn, FrameDirection::Down, packet);
        }
    }
}

/// Makes one lender reclaim half of its slots, with all else well. It gets them if the pages fit
/// elsewhere, and its owners get more when it lends them again.
pub(super) fn press_one(world: &mut World, patience: Nanos) {
    let Some(lender) = (0..world.lenders.len()).max_by_key(|lender| world.lenders[*lender].slots_used())
    else {
        return;
    };
    let limit = world.lenders[lender].slots_used() / 2;
    world.lenders[lender].limit = Some(limit);
    world
        .kernel
        .tell(|| format!("lender {lender} wants half of its slots back"));
    run_for(world, patience);
    let profile = &world.kernel.profile;
    let ample = profile.slots_max > profile.pages;
    let others = if ample { world.lenders.len() - 1 } else { 0 };
    let file = usize::from(profile.spill > profile.pages);
    let lent = world.lenders[lender].slots_used();
    if others + file >= profile.copies && profile.hostile.is_none() && lent > limit {
        check::fail(
            0,
            format!("lender {lender} has not got back what it wants: {lent} slots, not {limit}"),
        );
    }
    world.lenders[lender].limit = None;
    run_for(world, patience);
}
