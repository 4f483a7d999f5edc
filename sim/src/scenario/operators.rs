//! Operators who type the wrong command at the worst time. The directory is copied, and original and copy are
//! opened by turns while the other serves, stands still, or was killed during its own opening, and while
//! lenders come and go. A refused opening has changed nothing, and a directory that could be opened can be
//! opened again.

use netram_proto::journal::RecoveryError;
use netram_proto::time::Nanos;

use super::journal;
use crate::check::rule18;
use crate::client;
use crate::event::WorldEvent;
use crate::event_loop;
use crate::inject::heal;
use crate::process::OpenFailure;
use crate::process::life::crash;
use crate::world::World;

pub(super) fn run(world: &mut World) {
    let Some(first) = journal::open(world, 0) else {
        return;
    };
    let deeds = world.kernel.rng.between(5, 30);
    journal::work(world, first, deeds);
    let copy = world.copy_host(0);
    world.kernel.hit("operators: stories");
    let mut last = 0;
    for _ in 0..world.kernel.rng.between(2, 6) {
        // Once the copy has opened, the world does not know which records the original may take back from it.
        let begun = world.hosts[copy].copied_from.is_none();
        let host = if world.kernel.rng.chance(500) && !begun {
            0
        } else {
            copy
        };
        let other = if host == 0 { copy } else { 0 };
        // A journal's lock excludes a second process from the same directory, but not from a copy of it.
        if let Some(process) = world.processes.living(host) {
            let cut = world.kernel.rng.chance(300);
            crash(world, process, cut);
        }
        disturb(world, other);
        let opened = client::open(world, host, false);
        if world
            .processes
            .last()
            .is_some_and(|process| process.proven && process.host == host)
        {
            last = host;
        }
        match opened {
            Ok(process) => {
                world.kernel.hit("operators: openings");
                let deeds = world.kernel.rng.between(1, 20);
                journal::work(world, process, deeds);
            }
            Err(OpenFailure::Refused(_)) => world.kernel.hit("operators: openings refused"),
            Err(_) => world.kernel.hit("operators: openings cut off"),
        }
        let pause = world.kernel.rng.pick(&[0, 1, 50, 1000]);
        event_loop::run_for(world, Nanos::from_ms(pause));
    }
    settle_down(world, last);
}

/// Disturbs the other directory's process: it stands still or works on, and its disk may be about to die.
fn disturb(world: &mut World, other: usize) {
    let Some(process) = world.processes.living(other) else {
        return;
    };
    match world.kernel.rng.below(4) {
        0 => {
            let ms = world.kernel.rng.pick(&[5, 50, 500, 5000]);
            world.processes[process].paused_until = world.kernel.now() + Nanos::from_ms(ms);
            world.kernel.hit("operators: the other stands still");
        }
        1 => {
            world.processes[process].appends_itself = true;
            world.kernel.at(Nanos(1), WorldEvent::Busy { process });
            world.kernel.hit("operators: the other writes on");
        }
        2 => crash(world, process, false),
        _ => (),
    }
}

/// Opens, with everything healed, the directory that was last proven. That must succeed unless too much was
/// lost.
fn settle_down(world: &mut World, last: usize) {
    heal(world);
    event_loop::run_for(world, Nanos::from_ms(3000));
    rule18::fences_are_proven(world);
    for host in 0..world.hosts.len() {
        if let Some(process) = world.processes.living(host) {
            crash(world, process, false);
        }
    }
    event_loop::run_for(world, Nanos::from_ms(3000));
    match client::open(world, last, false) {
        Ok(_) => world.kernel.hit("operators: the last to be proven opens"),
        Err(OpenFailure::Refused(RecoveryError::Fenced { .. })) => rule18::is_fenced(world, last),
        Err(_) => world.kernel.hit("operators: the last to be proven lacks members"),
    }
}
