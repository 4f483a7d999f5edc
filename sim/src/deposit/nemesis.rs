//! Fault injection into a world of deposits.

use netram_proto::time::Nanos;
use netram_proto::wire::{FrameHeader, FrameKind};

use super::delivery::on_closed;
use super::disk_events::{fill_disk, inject_disk_fault, stall_disk};
use super::kernel::{Event, LEASE};
use super::net::DepositConnection;
use super::pressure::press;
use super::profile::DepositFault;
use super::spill::SpillFault;
use super::world::World;
use crate::event::FrameDirection;

pub(super) fn plan_nemesis(world: &mut World) {
    if !world.kernel.profile.faults.is_empty() {
        let interval = world.kernel.profile.fault_interval;
        let us = world.kernel.rng.below(2 * interval.0 / 1000);
        world.kernel.at(Nanos::from_us(us + 1), Event::Nemesis);
    }
}

pub(super) fn on_nemesis(world: &mut World) {
    if world.kernel.is_calm() {
        return;
    }
    let at = world.kernel.rng.index(world.kernel.profile.faults.len());
    let action = world.kernel.profile.faults[at];
    world.kernel.mark(31, action as u64);
    inject_fault(world, action);
    plan_nemesis(world);
}

fn inject_fault(world: &mut World, action: DepositFault) {
    // Within budget one fault comes at a time: bytes may be lost while one copy remains, which must stand
    // until the loss is noticed.
    if world.kernel.profile.within_budget && world.network.has_unnoticed() {
        return;
    }
    // Without lenders, faults that need one are not drawn.
    let lender = match world.lenders.len() {
        0 => 0,
        count => world.kernel.rng.index(count),
    };
    let arena = world.kernel.rng.index(world.owners.len());
    match action {
        DepositFault::Break => {
            let open = world.network.open_conns(|_| true);
            if !open.is_empty() {
                let conn = open[world.kernel.rng.index(open.len())];
                world.kernel.tell(|| format!("connection {conn} breaks"));
                world.network.break_conn(&mut world.kernel, conn);
                world.kernel.hit("far: connections broken");
            }
        }
        DepositFault::Partition => partition(world, arena, lender),
        DepositFault::Pause => {
            // The longest pause is too long to wait for. The lease may end during it if the link breaks
            // too.
            let ms = world.kernel.rng.pick(&[5, 100, 1000, 3500]);
            if ms >= 2000 && world.kernel.profile.within_budget {
                return;
            }
            let until = &mut world.lenders[lender].paused_until;
            *until = (*until).max(world.kernel.now() + Nanos::from_ms(ms));
            world.kernel.hit("far: lenders that stood still");
        }
        DepositFault::Kill => kill(world, lender),
        DepositFault::WithdrawLender => withdraw(world, lender),
        DepositFault::PressLender => {
            let ms = world.kernel.rng.pick(&[50, 1000, 4000]);
            press(world, lender, Nanos::from_ms(ms));
        }
        DepositFault::ResizeLender => {
            let most = u64::from(world.kernel.profile.room[lender]);
            world.lenders[lender].room = world.kernel.rng.between(0, most) as u32;
            world.kernel.hit("far: lenders with less room");
        }
        DepositFault::KillOwner => kill_owner(world, arena),
        DepositFault::DiskFails => inject_disk_fault(world, arena, SpillFault::WriteError),
        DepositFault::DiskTears => inject_disk_fault(world, arena, SpillFault::TornWrite),
        DepositFault::DiskLoses => inject_disk_fault(world, arena, SpillFault::ReadError),
        DepositFault::DiskStalls => {
            let ms = world.kernel.rng.pick(&[20, 1000, 3000, 7000]);
            stall_disk(world, arena, Nanos::from_ms(ms));
        }
        DepositFault::DiskRoom => fill_disk(world, arena),
    }
}

/// Blocks frames between an owner and a lender for a while.
fn partition(world: &mut World, arena: usize, lender: usize) {
    let ms = world.kernel.rng.pick(&[20, 300, 2500, 3500, LEASE.ms() + 500]);
    // A lender that is away for longer than the lease counts as dead.
    if ms >= 2000 && world.kernel.profile.within_budget && !can_spare(world, lender) {
        return;
    }
    world
        .kernel
        .tell(|| format!("owner {arena} and lender {lender} do not reach each other for {ms} ms"));
    let until = world.kernel.now() + Nanos::from_ms(ms);
    world.network.block(arena, lender, until);
    world.kernel.hit("far: partitions");
    let between = |conn: &DepositConnection| (conn.arena, conn.lender) == (arena, lender);
    // The machines notice sooner or later.
    for conn in world.network.open_conns(between) {
        if world.kernel.rng.chance(700) {
            world.network.break_conn(&mut world.kernel, conn);
        }
    }
}

/// Whether every page of the lender has another copy, and no other lender is about to go.
fn can_spare(world: &World, lender: usize) -> bool {
    let now = world.kernel.now();
    let mut others = world
        .lenders
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != lender);
    let sound =
        others.all(|(other, machine)| machine.up && !machine.leaving && world.network.reaches(other, now));
    let placed = world.owners.living().all(|owner| {
        let status = owner.directory().status();
        let linked = status
            .lenders
            .iter()
            .enumerate()
            .all(|(at, one)| at == lender || one.linked);
        let file = status.spill.as_ref().is_none_or(|file| file.linked);
        status.short == 0 && linked && file
    });
    sound && placed && world.owners.disks_are_sound(now)
}

fn kill(world: &mut World, lender: usize) {
    if world.kernel.profile.within_budget && !can_spare(world, lender) {
        return;
    }
    if world.kernel.profile.within_budget {
        world.owners.cancel_disk_faults();
    }
    world.kernel.tell(|| format!("lender {lender} dies"));
    world.lenders[lender].die();
    world.network.break_conns_to(&mut world.kernel, lender);
    world.kernel.hit("far: lenders that died");
    let ms = world.kernel.rng.pick(&[1, 200, 3000]);
    world.kernel.at(Nanos::from_ms(ms), Event::LenderUp { lender });
}

/// Lets a lender announce its withdrawal. It stops a while later, or its operator cancels that.
fn withdraw(world: &mut World, lender: usize) {
    if !world.lenders[lender].up || world.lenders[lender].leaving {
        return;
    }
    let mut others = world
        .lenders
        .iter()
        .enumerate()
        .filter(|(other, _)| *other != lender);
    let nowhere = world.kernel.profile.spill == 0 && others.all(|(_, machine)| machine.leaving);
    if nowhere || (world.kernel.profile.within_budget && !can_spare(world, lender)) {
        return;
    }
    world.kernel.tell(|| format!("lender {lender} is about to stop"));
    world.lenders[lender].leaving = true;
    world.kernel.hit("far: lenders that were about to stop");
    let ms = world.kernel.rng.pick(&[50, 1000, 3000]);
    world.kernel.at(Nanos::from_ms(ms), Event::Stop { lender });
    let packet = FrameHeader::new(FrameKind::Withdraw).encode(0).to_vec();
    for conn in world.network.open_conns(|conn| conn.lender == lender) {
        world
            .network
            .send(&mut world.kernel, conn, FrameDirection::Down, packet.clone());
    }
}

pub(super) fn on_stop(world: &mut World, lender: usize) {
    if world.kernel.is_calm() || !world.lenders[lender].leaving {
        return;
    }
    let empty = world.lenders[lender].slots_used() == 0;
    world.kernel.hit(if empty {
        "far: lenders that were left in time"
    } else {
        "far: lenders that were not left in time"
    });
    world.lenders[lender].leaving = false;
    if empty || !world.kernel.profile.within_budget {
        kill(world, lender);
    }
    world.network.break_conns_to(&mut world.kernel, lender);
}

fn kill_owner(world: &mut World, arena: usize) {
    let Some(owner) = world.owners[arena].take() else {
        return;
    };
    world.kernel.tell(|| format!("owner {arena} dies"));
    world.kernel.hit("far: owners that died");
    for conn in owner.conns.into_iter().flatten() {
        on_closed(world, conn);
    }
    let ms = world.kernel.rng.pick(&[1, 500, 3000]);
    world.kernel.at(Nanos::from_ms(ms), Event::ArenaUp { arena });
}
