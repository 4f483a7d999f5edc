//! The event loop: takes the next event off the schedule and passes it to the driver that it is for.

use netram_proto::time::Nanos;

use super::delivery::{dial, on_closed, on_connected, on_frame};
use super::disk_events::{on_disk, open_disk};
use super::kernel::Event;
use super::nemesis::{on_nemesis, on_stop};
use super::owner_events::{give_up_silent, settle, start_arena};
use super::pressure::{on_pressure_end, send_reclaims};
use super::program::on_program;
use super::wait_bound::check_waits;
use super::world::World;

/// Interval at which owners and lenders handle timers.
pub(super) const TICK: Nanos = Nanos::from_ms(100);

/// Runs the world for a while.
pub(super) fn run_for(world: &mut World, span: Nanos) {
    let until = world.kernel.now() + span;
    world.kernel.push(until, Event::Mark);
    while world.kernel.now() < until {
        step(world);
    }
}

/// Handles the next event.
fn step(world: &mut World) {
    match world.kernel.next_event() {
        Event::Connected { conn } => on_connected(world, conn),
        Event::Frame { conn, way } => on_frame(world, conn, way),
        Event::Closed { conn } => on_closed(world, conn),
        Event::Dial { arena, life, lender } => dial(world, arena, life, lender),
        Event::LenderUp { lender } => world.lenders[lender].up = true,
        Event::Stop { lender } => on_stop(world, lender),
        Event::PressureEnd { lender, turn } => on_pressure_end(world, lender, turn),
        Event::ArenaUp { arena } => start_arena(world, arena),
        Event::Program { arena, life } => on_program(world, arena, life),
        Event::OpenDisk { arena, life } => open_disk(world, arena, life),
        Event::Disk { arena, life, way } => on_disk(world, arena, life, way),
        Event::Tick => on_tick(world),
        Event::Nemesis => on_nemesis(world),
        Event::Mark => (),
    }
}

fn on_tick(world: &mut World) {
    let now = world.kernel.now();
    for lender in &mut world.lenders {
        lender.end_leases(now);
    }
    send_reclaims(world);
    for arena in 0..world.owners.len() {
        if let Some(owner) = &mut world.owners[arena] {
            owner.directory_mut().tick(now);
        }
        give_up_silent(world, arena);
        settle(world, arena);
        check_waits(world, arena);
    }
    world.kernel.at(TICK, Event::Tick);
}
