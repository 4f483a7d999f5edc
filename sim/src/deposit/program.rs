//! An owner's program, which knows each page's contents.

use netram_far_machine::deposit::{LenderSet, Page, PageLookup};
use netram_proto::time::Nanos;

use super::check::fail;
use super::gather::{check_lies_detected, collect_blocks, gather_block};
use super::kernel::Event;
use super::owner::DepositOwner;
use super::owner_events::settle;
use super::world::World;

pub(super) fn on_program(world: &mut World, arena: usize, life: u64) {
    if world.owners.alive(arena, life).is_none() || world.kernel.is_calm() {
        return;
    }
    let page = Page(world.kernel.rng.below(world.kernel.profile.pages.into()) as u32);
    reference(world, arena, page);
    settle(world, arena);
    let us = world.kernel.rng.between(1, world.kernel.profile.pace_us);
    world
        .kernel
        .at(Nanos::from_us(us), Event::Program { arena, life });
}

fn reference(world: &mut World, arena: usize, page: Page) {
    let (draw, content) = (world.kernel.rng.below(100), world.kernel.rng.draw() | 1);
    let Some(owner) = &mut world.owners[arena] else {
        return;
    };
    if owner.is_waited_for(page) {
        // Another thread overwrites the whole page without reading it.
        if draw < 10 {
            owner.evict(page, content);
            world.kernel.hit("far: pages put while they were waited for");
        }
        return;
    }
    if owner.is_remote(page) {
        return match draw {
            0..40 => gather_block(world, arena, page),
            _ => fault(world, arena, page),
        };
    }
    match draw {
        0..5 => {
            owner.forget(page);
            world.kernel.hit("far: pages forgotten");
        }
        5..30 if owner.is_resident(page) => owner.drop_unchanged(page),
        30..40 => owner.prefetch((page.0..page.0 + 4).map(Page)),
        _ => owner.evict(page, content),
    }
}

/// The program accesses a remote page.
pub(super) fn fault(world: &mut World, arena: usize, page: Page) {
    let now = world.kernel.now();
    let Some(owner) = &mut world.owners[arena] else {
        return;
    };
    match owner.page_client.get(page) {
        PageLookup::Zeros => fail(format!("{page:?} was evicted, but is reported as zeros")),
        PageLookup::Pending(content) => {
            world.kernel.hit("far: pages found aside");
            check_arrival(world, arena, page, content);
        }
        PageLookup::Lost(lenders) => on_page_lost(world, arena, page, lenders),
        PageLookup::Waits => {
            owner.waiting.insert(page, now);
        }
    }
}

/// The program collects pages that have arrived.
pub(super) fn collect(world: &mut World, arena: usize) {
    collect_blocks(world, arena);
    let arrived = world.owners[arena].as_ref().map(DepositOwner::arrived);
    for page in arrived.unwrap_or_default() {
        let came = world.owners[arena]
            .as_mut()
            .and_then(|owner| owner.page_client.take(page));
        match came {
            Some(Ok(content)) => {
                check_arrival(world, arena, page, Some(content));
                check_lies_detected(world, arena, page);
            }
            Some(Err(lenders)) => on_page_lost(world, arena, page, lenders),
            None => fail(format!("{page:?} is reported as arrived, but is not there")),
        }
    }
}

/// Checks that the program gets the newest content of the page.
fn check_arrival(world: &mut World, arena: usize, page: Page, content: Option<Box<u64>>) {
    let Some(owner) = &mut world.owners[arena] else {
        return;
    };
    let should = owner.expected_content(page);
    if content.as_deref() != Some(&should) {
        fail(format!("{page:?} should be {should:x}, and is {content:x?}"));
    }
    owner.receive(page);
}

/// Checks the report of a lost page: it is correct if no place can have the page any more.
pub(super) fn on_page_lost(world: &mut World, arena: usize, page: Page, lenders: LenderSet) {
    world
        .kernel
        .tell(|| format!("owner {arena}: {page:?} is lost by {lenders:?}"));
    world.kernel.hit("far: pages lost");
    let Some(owner) = &mut world.owners[arena] else {
        return;
    };
    let version = owner.directory().version(page);
    if world.kernel.profile.within_budget {
        fail(format!(
            "{page:?} is reported lost, but a copy of it always existed"
        ));
    }
    if lenders == LenderSet::default() {
        fail(format!("{page:?} is reported lost, but no lender lost it"));
    }
    for (index, machine) in world.lenders.iter().enumerate() {
        let Some(holder) = machine.deposit(owner.id) else {
            continue;
        };
        let has = (0..holder.slots()).any(|slot| holder.version(slot) == version);
        // A slot that was given up may still have the page by chance.
        if has
            && owner.has_stayed(index, world.kernel.now())
            && lenders.contains(index)
            && !machine.is_hostile()
        {
            fail(format!(
                "{page:?} is reported lost by lender {index}, which has it"
            ));
        }
    }
    let spill = owner.directory().spill();
    if let Some(disk) = { owner.disk.as_mut() }.filter(|_| spill.is_some_and(|spill| lenders.contains(spill)))
        && !disk.spill.file().faulty
    {
        fail(format!(
            "{page:?} is reported lost by a spill file that never lost a page"
        ));
    }
    owner.lose(page);
}
