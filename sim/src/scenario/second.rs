//! A second writer by mistake: an operator copies a journal's directory and opens the copy, while the first
//! writer runs on or stands still and wakes later.

use netram_proto::time::Nanos;

use super::journal;
use crate::check;
use crate::event::WorldEvent;
use crate::inject::heal;
use crate::process::life::crash;
use crate::world::World;

pub(super) fn run(world: &mut World) {
    let Some(first) = journal::open(world, 0) else {
        return;
    };
    let deeds = world.kernel.rng.between(5, 30);
    journal::work(world, first, deeds);
    let copy = world.copy_host(0);
    world.kernel.hit("second writers");
    if world.processes.alive(first) {
        world.processes[first].appends_itself = true;
        world.kernel.at(Nanos(1), WorldEvent::Busy { process: first });
        if world.kernel.rng.chance(500) {
            let ms = world.kernel.rng.pick(&[5, 50, 500, 5000]);
            world.processes[first].paused_until = world.kernel.now() + Nanos::from_ms(ms);
            world.kernel.hit("first writers that stood still");
        }
    }
    let lives = world.kernel.rng.between(1, 3);
    for _ in 0..lives {
        if let Some(second) = journal::open(world, copy) {
            let deeds = world.kernel.rng.between(5, 40);
            journal::work(world, second, deeds);
            let cut = world.kernel.rng.chance(500);
            crash(world, second, cut);
        }
    }
    heal(world);
    journal::settle_down(world, copy);
    check::liveness::fenced(world, first, copy);
}
