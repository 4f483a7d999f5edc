//! The longest wait for a page. It does not last until a silent lender is given up if another one has the
//! page and answers.

use netram_far_machine::deposit::Page;
use netram_far_machine::limit::HEDGE_MAX;
use netram_proto::time::{Nanos, Time};

use super::world::World;
use crate::check;

/// Longest wait: the hedge delay, then a round trip behind the frames sent before.
const WAIT_MAX: Nanos = Nanos(HEDGE_MAX.0 + 500_000_000);

/// Checks that a page arrives in time if a lender that has it could have answered for that long.
pub(super) fn check_waits(world: &mut World, arena: usize) {
    // Frames delayed when the faults ended stay delayed for a while.
    let Some(owner) = world.owners[arena].as_ref().filter(|_| !world.kernel.is_calm()) else {
        return;
    };
    let mut twice = 0;
    for (page, since) in &owner.waiting {
        twice += u64::from(owner.directory().asked(*page).iter().count() > 1);
        let mut places = owner.directory().places(*page).filter(|(.., held)| *held);
        let had = places.find(|(lender, ..)| {
            let able = answerable_since(world, arena, *lender);
            able.is_some_and(|able| world.kernel.now().since(able.max(*since)) > WAIT_MAX)
        });
        if let Some((lender, ..)) = had {
            fail_long_wait(world, arena, *page, *since, lender);
        }
    }
    world.kernel.add("far: pages asked for twice", twice);
}

/// Time since which a lender could have answered all requests. `None` if it cannot.
fn answerable_since(world: &World, arena: usize, lender: usize) -> Option<Time> {
    let conns = &world.owners[arena].as_ref()?.conns;
    let conn = &world.network[(*conns.get(lender)?)?];
    let machine = &world.lenders[lender];
    let stands = conn.open && !conn.broken && machine.up && machine.boot == conn.boot;
    let able = { conn.since }
        .max(machine.paused_until)
        .max(world.network.blocked_until(arena, lender));
    (stands && !machine.is_hostile()).then_some(able)
}

fn fail_long_wait(world: &World, arena: usize, page: Page, since: Time, lender: usize) -> ! {
    let ms = world.kernel.now().since(since).0 / 1_000_000;
    check::fail(
        0,
        format!("owner {arena} has waited {ms} ms for {page:?}, and lender {lender} has it"),
    );
}
