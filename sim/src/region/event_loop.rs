//! The event loop: takes the next event off the schedule and passes it to the driver that it is for.

use netram_proto::time::{Nanos, Time};

use super::delivery::{on_closed, on_connected, on_frame};
use super::hints::on_hint;
use super::journal_events::{on_flushed, on_view_stored};
use super::kernel::Event;
use super::life::start_process;
use super::link_events::{on_down, on_hung_up, on_linked, on_unlinked, on_up};
use super::nemesis::{on_late_commit, on_nemesis};
use super::node_events::on_tick;
use super::program::on_program;
use super::query_events::on_query;
use super::scenario::on_scenario;
use super::server_events::{on_server_flushed, on_server_tick, start_server};
use super::world::World;

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
    let event = world.kernel.next_event();
    if let Some(until) = standing_still(world, &event) {
        return world.kernel.push(until, event);
    }
    match event {
        Event::Connected { conn } => on_connected(world, conn),
        Event::Frame { conn, way } => on_frame(world, conn, way),
        Event::Closed { conn } => on_closed(world, conn),
        Event::Query { query } => on_query(world, query),
        Event::LenderUp { lender } => world.lenders.start(&mut world.kernel, lender),
        Event::SlotUp { slot } => start_process(world, slot),
        Event::Tick { slot, life } => on_tick(world, slot, life),
        Event::Program { slot, life } => on_program(world, slot, life),
        Event::LateCommit { slot, life } => on_late_commit(world, slot, life),
        Event::Flushed { slot, life } => on_flushed(world, slot, life),
        Event::ViewStored { slot, life } => on_view_stored(world, slot, life),
        Event::Linked { session } => on_linked(world, session),
        Event::Up { session } => on_up(world, session),
        Event::Down { session } => on_down(world, session),
        Event::Unlinked { session } => on_unlinked(world, session),
        Event::HungUp { session, closed } => on_hung_up(world, session, closed),
        Event::Hint { slot, bytes } => on_hint(world, slot, &bytes),
        Event::ServerUp => start_server(world),
        Event::ServerTick { boot } => on_server_tick(world, boot),
        Event::ServerFlushed { boot, count } => on_server_flushed(world, boot, count),
        Event::Nemesis => on_nemesis(world),
        Event::Scenario => on_scenario(world),
        Event::Mark => (),
    }
}

/// Time until which the receiver of an event stands still.
fn standing_still(world: &World, event: &Event) -> Option<Time> {
    let until = match event {
        Event::Hint { slot, .. }
        | Event::Tick { slot, .. }
        | Event::Program { slot, .. }
        | Event::Flushed { slot, .. }
        | Event::ViewStored { slot, .. } => world.slots[*slot].paused_until,
        Event::Linked { session } => world.slots[world.node_links.slot_of(*session)?].paused_until,
        Event::Connected { conn } | Event::Closed { conn } => {
            world.paused_until(world.network.host_of(*conn))
        }
        Event::ServerTick { .. } | Event::ServerFlushed { .. } => world.server.paused_until,
        _ => return None,
    };
    (until > world.kernel.now()).then_some(until)
}
