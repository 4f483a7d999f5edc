//! State that must hold once no more faults happen.

use std::collections::BTreeSet;

use netram_proto::time::Nanos;

use super::check::fail;
use super::delivery::on_closed;
use super::event_loop::run_for;
use super::kernel::LEASE;
use super::owner::DepositOwner;
use super::owner_events::settle;
use super::pressure::press_one;
use super::program::fault;
use super::world::World;
use crate::check;

/// Longest time until quiescence. By then every link is up and every page has its copies: a disk that began
/// to stall at the last moment is given up within 7 s and opened again after 2.5 s.
const QUIESCE_MAX: Nanos = Nanos::from_ms(10_000);

pub(super) fn quiesce(world: &mut World) {
    world.kernel.calm_down();
    // Operators cancel the withdrawals.
    for (lender, machine) in world.lenders.iter().enumerate() {
        if machine.leaving {
            world.network.break_conns_to(&mut world.kernel, lender);
        }
    }
    for (machine, room) in world.lenders.iter_mut().zip(&world.kernel.profile.room) {
        machine.heal(*room);
    }
    world.owners.heal_disks(world.kernel.profile.spill);
    world.network.heal();
    run_for(world, QUIESCE_MAX);
    (0..world.owners.len()).for_each(|arena| check_owner(world, arena));
    press_one(world, QUIESCE_MAX);
    for arena in 0..world.owners.len() {
        check_owner(world, arena);
        fetch_all(world, arena);
    }
    run_for(world, QUIESCE_MAX);
    for owner in world.owners.living() {
        if !owner.waiting.is_empty() {
            check::fail(0, format!("pages never came: {:?}", owner.waiting));
        }
        if !owner.gathers.is_empty() {
            check::fail(0, format!("blocks never came: {:?}", owner.gathers));
        }
    }
    end(world);
    world.kernel.hit("far: worlds at rest");
}

/// Checks that every slot is free or has a page of this owner, and that every page has its copies.
fn check_owner(world: &World, arena: usize) {
    let Some(owner) = &world.owners[arena] else {
        return;
    };
    let status = owner.directory().status();
    let file = owner.disk.as_ref().map(|disk| disk.spill.server().slots());
    for (index, lender) in { status.lenders.iter() }.chain(&status.spill).enumerate() {
        if !lender.linked {
            check::fail(0, format!("owner {arena} never reconnected to lender {index}"));
        }
        let mut slots: Vec<u32> = owner.directory().free_slots(index).collect();
        for page in owner.pages() {
            let places = owner.directory().places(page);
            slots.extend(
                places
                    .filter(|(lender, ..)| *lender == index)
                    .map(|(_, slot, _)| slot),
            );
        }
        let different: BTreeSet<u32> = slots.iter().copied().collect();
        let all = different.len() == lender.slots as usize
            && different.last().is_none_or(|last| *last < lender.slots);
        if different.len() != slots.len() || !all {
            fail(format!(
                "owner {arena}: slots of lender {index} leaked or used twice"
            ));
        }
        let held = match world.lenders.get(index) {
            Some(machine) => machine.deposit(owner.id).map(|holder| holder.slots()),
            None => file,
        };
        if held != Some(lender.slots) {
            fail(format!(
                "lender {index} has {held:?} slots, owner {arena} knows of {}",
                lender.slots
            ));
        }
    }
    check_placed(world, arena, owner);
}

/// Checks that every page has its copies if there is room, and that lenders have what they have room for.
fn check_placed(world: &World, arena: usize, owner: &DepositOwner) {
    let (status, profile) = (owner.directory().status(), &world.kernel.profile);
    let lenders = match profile.slots_max > profile.pages {
        true => profile.lenders,
        false => 0,
    };
    let file = profile.spill > profile.pages;
    let roomy = lenders + usize::from(file) >= profile.copies;
    let spilled = status.spill.as_ref().map_or(0, |file| file.used);
    if lenders >= profile.copies && profile.hostile.is_none() && spilled > 0 {
        check::fail(
            0,
            format!("owner {arena}: {spilled} pages stay in the spill file, and lenders have room"),
        );
    }
    if roomy && profile.hostile.is_none() && (status.short > 0 || owner.pending_pages() > 0) {
        check::fail(
            0,
            format!(
                "owner {arena}: {} pages short, {} aside, and there is room",
                status.short,
                owner.pending_pages()
            ),
        );
    }
}

fn fetch_all(world: &mut World, arena: usize) {
    let pages = world.owners[arena].as_ref().map(DepositOwner::pages);
    for page in pages.unwrap_or_default() {
        let here = |owner: &DepositOwner| owner.is_resident(page) || owner.waiting.contains_key(&page);
        if !world.owners[arena].as_ref().is_some_and(here) {
            fault(world, arena, page);
            settle(world, arena);
        }
    }
}

/// Ends all owners. After the lease no slot of theirs is left.
fn end(world: &mut World) {
    for arena in 0..world.owners.len() {
        let owner = world.owners[arena].take().into_iter();
        for conn in owner.flat_map(|owner| owner.conns).flatten() {
            on_closed(world, conn);
        }
    }
    run_for(world, LEASE);
    run_for(world, Nanos::from_ms(2000));
    if let Some(lender) = world.lenders.iter().position(|machine| machine.slots_used() > 0) {
        fail(format!("lender {lender} still has slots of owners that are gone"));
    }
}
