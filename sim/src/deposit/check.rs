//! Oracles of rule 14 of `docs/design/failure-model.md`.

use netram_far_machine::deposit::{DepositServer, Page};
use netram_proto::wire::Frame;

use super::net::DepositConnection;
use super::owner::deposit_of;
use super::world::World;
use crate::check;

/// Ends the run: a page did not come back as it was evicted.
pub(super) fn fail(what: String) -> ! {
    check::fail(14, what)
}

/// Checks slots before they are released: their owner counts on none of the pages in them, and each page
/// has another copy.
pub(super) fn check_released_slots(world: &mut World, conn: usize, frame: &Frame<'_>) {
    let DepositConnection {
        arena, lender, life, ..
    } = world.network[conn];
    let (id, keep) = (deposit_of(life), frame.header.lsn.0);
    let Some(owner) = world.owners[arena].as_ref().filter(|owner| owner.life == life) else {
        return;
    };
    let Some(holder) = world.lenders[lender].deposit(id) else {
        return;
    };
    if frame.header.epoch != holder.epoch() || keep >= u64::from(holder.slots()) {
        return;
    }
    let keep = keep as u32;
    let is_gone = |page: Page| {
        let mut places = owner.directory().places(page);
        places.any(|(at, slot, _)| at == lender && slot >= keep)
    };
    let has = |holder: &DepositServer, below: u32, version| {
        (0..holder.slots().min(below)).any(|slot| holder.version(slot) == Some(version))
    };
    let is_nowhere = |page: Page, version| {
        let machines = world.lenders.iter().enumerate();
        let mut holders = machines.filter_map(|(at, machine)| Some((at, machine.deposit(id)?)));
        let lent = holders.any(|(at, other)| has(other, if at == lender { keep } else { u32::MAX }, version));
        let file = owner.disk.as_ref().map(|disk| disk.spill.server());
        !lent && !file.is_some_and(|file| has(file, u32::MAX, version)) && !owner.directory().is_pending(page)
    };
    let versions: Vec<u64> = (keep..holder.slots())
        .filter_map(|slot| holder.version(slot))
        .collect();
    for page in owner.pages() {
        let Some(version) = owner.directory().version(page) else {
            continue;
        };
        if is_gone(page) {
            fail(format!(
                "owner {arena} gives up slots from {keep} on of lender {lender}, with {page:?}"
            ));
        }
        if world.kernel.profile.within_budget && versions.contains(&version) && is_nowhere(page, version) {
            fail(format!(
                "owner {arena} gives up the last copy of {page:?}, at lender {lender}"
            ));
        }
    }
    world.kernel.hit("far: slots given up");
    if world.lenders[lender].limit.is_some() && keep > 0 {
        world.kernel.hit("far: slots given up that were wanted back");
    }
}
