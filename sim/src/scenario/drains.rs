//! A rolling restart under load: one lender after the other is drained, stopped once it holds no window, and
//! started again, with its memory or without. Often the next drain begins while the last lender is still
//! away. At no moment may the durable view have fewer copies than wanted, nor may a drain end before enough
//! lenders are there; and once they are, every drain ends.

use netram_proto::time::Nanos;

use super::journal;
use crate::check::rule03;
use crate::event_loop;
use crate::inject::{drain, start_lender, undrain};
use crate::world::World;

/// Time between two commits.
const PAUSE: Nanos = Nanos::from_ms(5);
/// Maximum time of a drain for which there are enough lenders: as long as it takes to find a lender that has
/// just been started, and to fill it, over the slowest links and disks.
const DRAIN_MAX: Nanos = Nanos::from_ms(10_000);

pub(super) fn run(world: &mut World) {
    let Some(process) = journal::open(world, 0) else {
        return;
    };
    // Long enough for all to join.
    event_loop::run_for(world, Nanos::from_ms(2000));
    let lenders = world.lenders.len();
    // Without a spare a drained lender has no successor, and one copy is missing while it is away.
    world.copies_promised = world.kernel.profile.wanted.min(lenders - 1);
    let mut away: Option<usize> = None;
    for _ in 0..world.kernel.rng.between(2, 6) {
        let lender = world.kernel.rng.index(lenders);
        if away == Some(lender) {
            continue;
        }
        world.kernel.hit("drains: begun");
        drain(world, lender);
        if let Some(other) = away.take() {
            let ms = world.kernel.rng.pick(&[10, 700, 3000]);
            commit_for(world, process, Nanos::from_ms(ms));
            if is_needed(world, lender) {
                world.kernel.hit("drains: waited for a lender that was away");
            }
            start_lender(world, other);
        }
        if world.kernel.rng.chance(150) {
            let ms = world.kernel.rng.pick(&[0, 1, 5, 50, 1000]);
            commit_for(world, process, Nanos::from_ms(ms));
            world.kernel.hit("drains: taken back");
            undrain(world, lender);
            commit_for(world, process, Nanos::from_ms(1000));
            continue;
        }
        let until = world.kernel.now() + DRAIN_MAX;
        while is_needed(world, lender) && world.kernel.now() < until {
            commit_for(world, process, PAUSE);
        }
        rule03::is_drained(world, lender);
        stop(world, lender);
        if world.kernel.rng.chance(500) {
            away = Some(lender);
            let ms = world.kernel.rng.pick(&[0, 5, 300, 2000]);
            commit_for(world, process, Nanos::from_ms(ms));
        } else {
            start_lender(world, lender);
            commit_for(world, process, Nanos::from_ms(1000));
        }
    }
    if let Some(lender) = away {
        start_lender(world, lender);
    }
    world.copies_promised = 0;
    journal::settle_down(world, 0);
}

/// Stops a lender that is drained. Its operator may switch its machine off.
fn stop(world: &mut World, lender: usize) {
    world.network.break_all(&mut world.kernel, lender);
    if world.kernel.rng.chance(500) {
        world.kernel.hit("drains: machines switched off");
        let now = world.kernel.now();
        world.lenders.lose(lender, now);
    } else {
        world.lenders[lender].kill();
    }
    world
        .kernel
        .tell(|| format!("lender {lender} is drained, and stops"));
}

/// Whether a lender has a window that a client may still need.
fn is_needed(world: &World, lender: usize) -> bool {
    world.lenders[lender].state().joined
}

pub(super) fn commit_for(world: &mut World, process: usize, span: Nanos) {
    let until = world.kernel.now() + span;
    while world.kernel.now() < until {
        if journal::append(world, process).is_err() {
            journal::trim_all(world, process);
        }
        event_loop::run_for(world, PAUSE);
    }
}
