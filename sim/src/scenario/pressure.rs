//! Lenders under load whose machines lack memory for a while, often several at a time. No copy is ever
//! missing, whether another lender can take a window or not. A machine that lacks memory alone gets its
//! lender's window, if there is another place for it, and such a lender is asked again afterwards.

use netram_proto::time::Nanos;

use super::drains::{commit_for, is_needed};
use super::journal;
use crate::check::{liveness, rule03};
use crate::event_loop;
use crate::inject::start_lender;
use crate::reclaiming::{press, settle};
use crate::world::World;

/// Time between two looks of the lenders.
const LOOK: Nanos = Nanos::from_ms(20);
/// Maximum time until a window for which there is another place has moved: as long as it takes to find a
/// lender that was refused before, and to fill it, over the slowest links and disks.
const MOVE_MAX: Nanos = Nanos::from_ms(10_000);

pub(super) fn run(world: &mut World) {
    let Some(process) = journal::open(world, 0) else {
        return;
    };
    // Long enough for all to join.
    event_loop::run_for(world, Nanos::from_ms(2000));
    let (lenders, wanted) = (world.lenders.len(), world.kernel.profile.wanted);
    world.copies_promised = wanted;
    for _ in 0..world.kernel.rng.between(2, 8) {
        let lender = world.kernel.rng.index(lenders);
        let short = !world.lenders[lender].memory.short;
        world.kernel.hit("pressure: begun or over");
        press(world, lender, short);
        if world.kernel.rng.chance(150) {
            restart(world, lender);
        }
        let lacking = (0..lenders).filter(|&lender| world.lenders[lender].memory.short);
        if short && lacking.count() == 1 && lenders > wanted {
            let until = world.kernel.now() + MOVE_MAX;
            while is_needed(world, lender) && world.kernel.now() < until {
                look_for(world, process, LOOK);
            }
            rule03::has_moved(world, lender);
            world.kernel.hit("pressure: machines that got their memory back");
        }
        let ms = world.kernel.rng.pick(&[0, 5, 300, 3000]);
        look_for(world, process, Nanos::from_ms(ms));
    }
    for lender in (0..lenders)
        .filter(|&lender| world.lenders[lender].memory.short)
        .collect::<Vec<_>>()
    {
        press(world, lender, false);
    }
    look_for(world, process, Nanos::from_ms(2000));
    world.copies_promised = 0;
    if lenders > wanted {
        // Any of the others may have been asked for its window before, and takes this one's place.
        let lender = world.kernel.rng.index(lenders);
        world.network.break_all(&mut world.kernel, lender);
        world.lenders[lender].kill();
        look_for(world, process, MOVE_MAX);
        liveness::has_wanted(world, process, wanted);
        start_lender(world, lender);
    }
    journal::settle_down(world, 0);
}

/// Restarts a lender's process; its memory stays.
fn restart(world: &mut World, lender: usize) {
    world.network.break_all(&mut world.kernel, lender);
    world.lenders[lender].kill();
    start_lender(world, lender);
}

fn look_for(world: &mut World, process: usize, span: Nanos) {
    let until = world.kernel.now() + span;
    while world.kernel.now() < until {
        commit_for(world, process, LOOK);
        settle(world);
    }
}
