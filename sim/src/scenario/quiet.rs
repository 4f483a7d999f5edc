//! A world with one event at a time. An idle journal is clean and survives the loss of everything else; a
//! writer that stands still keeps its members; a member that answers but accepts nothing is dropped.

use netram_proto::port::Durability;
use netram_proto::time::Nanos;

use super::journal;
use crate::check::{rule19, rule20};
use crate::client;
use crate::event_loop;
use crate::inject::start_lender;
use crate::process::life::crash;
use crate::world::World;

pub(super) fn run(world: &mut World) {
    for _ in 0..world.kernel.rng.between(1, 4) {
        let Some(process) = journal::open(world, 0) else {
            return;
        };
        // Long enough for all to join.
        event_loop::run_for(world, Nanos::from_ms(1500));
        for _ in 0..world.kernel.rng.between(1, 4) {
            match world.kernel.rng.below(3) {
                0 => pause_writer(world, process),
                1 => stall_member(world, process),
                _ => commit(world, process),
            }
        }
        let us = world.kernel.rng.below(2_000_000);
        event_loop::run_for(world, Nanos::from_us(us));
        commit(world, process);
        lose_everything(world, process);
    }
    journal::settle_down(world, 0);
}

fn commit(world: &mut World, process: usize) {
    for _ in 0..world.kernel.rng.between(1, 4) {
        let Ok(ticket) = journal::append(world, process) else {
            journal::trim_all(world, process);
            continue;
        };
        let _ = client::wait(world, process, ticket, Durability::Remote);
    }
}

/// Makes the process stand still under load, for longer than a lender may be silent.
fn pause_writer(world: &mut World, process: usize) {
    let before = world
        .processes
        .serving(process)
        .map_or(0, |serving| serving.writer.view().len());
    let _ = journal::append(world, process);
    let still = Nanos::from_ms(world.kernel.rng.between(600, 5000));
    world.processes[process].paused_until = world.kernel.now() + still;
    event_loop::run_for(world, Nanos(still.0 + Nanos::from_ms(300).0));
    world.kernel.hit("quiet: writers that stood still");
    rule20::kept_members(world, process, before);
}

/// Makes a member answer but accept nothing.
fn stall_member(world: &mut World, process: usize) {
    let lender = world.kernel.rng.index(world.lenders.len());
    world.lenders[lender].stalled = true;
    for _ in 0..35 {
        if journal::append(world, process).is_err() {
            journal::trim_all(world, process);
        }
        event_loop::run_for(world, Nanos::from_ms(100));
    }
    world.kernel.hit("quiet: lenders that made no progress");
    rule20::gave_up(world, process, lender);
    world.lenders[lender].stalled = false;
    event_loop::run_for(world, Nanos::from_ms(6000));
}

/// Lets the journal rest. Then every lender loses its memory, and the client's machine its power.
fn lose_everything(world: &mut World, process: usize) {
    let idle = world.kernel.profile.timing.idle;
    event_loop::run_for(world, Nanos(idle.0 + Nanos::from_ms(2500).0));
    rule19::rests(world, process);
    let counted = world
        .processes
        .serving(process)
        .is_some_and(|serving| serving.writer.blocked().is_none());
    for lender in 0..world.lenders.len() {
        let next = world.lenders.next_incarnation();
        world.lenders[lender].lose(next);
        start_lender(world, lender);
    }
    crash(world, process, true);
    match client::open(world, 0, false) {
        Ok(again) => {
            world.kernel.hit(match counted {
                true => "quiet: idle journals that lost everything else",
                false => "quiet: journals without members that lost everything else",
            });
            let cut = world.kernel.rng.chance(500);
            crash(world, again, cut);
        }
        Err(failure) => rule19::opened(&failure),
    }
}
