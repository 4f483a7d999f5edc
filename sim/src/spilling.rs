//! Lenders that write their memory to a disk and are taken up again: power that fails at any step, a disk
//! that is full, an old copy put back, and one spill on two machines.

use netram_proto::spill::SpillRun;
use netram_proto::time::Nanos;

use crate::event::WorldEvent;
use crate::world::World;

/// A lender is told to stop; what it holds then, it writes to its disk.
pub(crate) fn begin(world: &mut World, lender: usize) {
    if !world.lenders[lender].up {
        return;
    }
    world.kernel.hit("nemesis: lenders spilled");
    world.lenders[lender].kill();
    world.lenders[lender].is_spilling = true;
    world.network.break_all(&mut world.kernel, lender);
    next_step(world, lender, SpillRun::default());
}

fn next_step(world: &mut World, lender: usize, run: SpillRun) {
    let most = world.kernel.rng.pick(&[2, 200]);
    let delay = Nanos::from_ms(world.kernel.rng.between(1, most));
    world.kernel.at(delay, WorldEvent::SpillStep { lender, run });
}

/// The step of a spill that is due.
pub(crate) fn step(world: &mut World, lender: usize, mut run: SpillRun) {
    if !world.lenders[lender].is_spilling {
        // The process was killed in between.
        return;
    }
    let may_fail = !world.kernel.profile.within_budget;
    let step = run.step();
    match world.kernel.rng.below(12) {
        // The file may have its final name, or not.
        0 if may_fail => {
            let renamed = world.kernel.rng.chance(500);
            world.kernel.hit("spills: power lost midway");
            cut(world, lender, renamed);
            return come_up(world, lender);
        }
        1 if may_fail => {
            world.kernel.hit("spills: failed");
            if run.is_final() {
                // A call that reports an error may have done its work.
                world.lenders[lender].spill_step(&mut run);
            }
            return come_up(world, lender);
        }
        _ => world.lenders[lender].spill_step(&mut run),
    }
    world
        .kernel
        .tell(|| format!("lender {lender} spills: {step:?} is done"));
    if run.step().is_some() {
        return next_step(world, lender, run);
    }
    if world.kernel.rng.chance(700) {
        world.kernel.hit("spills: followed by a loss of power");
        cut(world, lender, true);
    }
    if may_fail && world.kernel.rng.chance(200) && world.lenders[lender].spill.has_copies() {
        world.kernel.hit("spills: an old copy put back");
        let copy = world.kernel.rng.index(8);
        world.lenders[lender].spill.put_back(copy);
    }
    if may_fail && world.kernel.rng.chance(200) {
        load_elsewhere(world, lender);
    }
    come_up(world, lender);
}

/// The machine's memory goes, unless nobody could do without it.
fn cut(world: &mut World, lender: usize, renamed: bool) {
    world.lenders[lender].spill.cut(renamed);
    world.lenders.lose(lender, world.kernel.now());
}

/// Another machine takes up a copy of the spill in place of its own memory.
fn load_elsewhere(world: &mut World, lender: usize) {
    let other = world.kernel.rng.index(world.lenders.len());
    let Some(copy) = world.lenders[lender].spill_copy() else {
        return;
    };
    if other == lender || !world.lenders[other].up {
        return;
    }
    world.kernel.hit("spills: one on two machines");
    world.lenders.lose(other, world.kernel.now());
    world.lenders[other].spill = copy;
    world.network.lender_died(&mut world.kernel, other);
}

fn come_up(world: &mut World, lender: usize) {
    world.lenders[lender].is_spilling = false;
    let delay = Nanos::from_ms(world.kernel.rng.pick(&[5, 300, 2000]));
    world.kernel.at(delay, WorldEvent::LenderUp { lender });
}
