//! The event loop: takes the next event off the schedule and passes it to the part that it is for.

use netram_proto::time::{Nanos, Time};

use crate::client_faults;
use crate::data::events::{on_data_connected, on_data_down, on_data_lost, on_data_up};
use crate::delivery::{on_closed, on_connected, on_datagram, on_packet};
use crate::event::WorldEvent;
use crate::inject::{lender_stops, on_nemesis, start_lender};
use crate::lender::LENDER_BYTES;
use crate::process::append::on_busy;
use crate::process::events::{on_node_fenced, on_server_ack, on_server_starts, on_tick, settle};
use crate::process::serve::{on_flushed, on_view_stored};
use crate::silent_window;
use crate::spilling;
use crate::world::World;

/// Handles the next event.
pub(crate) fn step(world: &mut World) {
    let Some(event) = world.kernel.next_event() else {
        return;
    };
    if let Some(until) = standing_still(world, &event) {
        world.kernel.push(until, event);
        return;
    }
    match event {
        WorldEvent::Frame(frame) => on_packet(world, frame),
        WorldEvent::Datagram {
            conn,
            channel,
            packet,
        } => on_datagram(world, conn, channel, packet),
        WorldEvent::Connected { conn } => on_connected(world, conn),
        WorldEvent::Closed { conn } => on_closed(world, conn),
        WorldEvent::Tick { process } => on_tick(world, process),
        WorldEvent::Flushed { process } => {
            on_flushed(world, process);
            settle(world, process);
        }
        WorldEvent::ViewStored { process } => {
            on_view_stored(world, process);
            settle(world, process);
        }
        WorldEvent::LenderUp { lender } => start_lender(world, lender),
        WorldEvent::LenderStops { lender } => lender_stops(world, lender),
        WorldEvent::LenderRoomBack { lender } => world.lenders[lender].window.limit = LENDER_BYTES,
        WorldEvent::SpillStep { lender, run } => spilling::step(world, lender, run),
        WorldEvent::WindowStep { lender, boot, step } => silent_window::step(world, lender, boot, step),
        WorldEvent::ClientsGranted { lender } => client_faults::grant(world, lender),
        WorldEvent::Nemesis => on_nemesis(world),
        WorldEvent::Busy { process } => on_busy(world, process),
        WorldEvent::DataConnected { process, session } => on_data_connected(world, process, session),
        WorldEvent::DataUp {
            process,
            session,
            packet,
        } => on_data_up(world, process, session, &packet),
        WorldEvent::DataDown {
            process,
            session,
            packet,
        } => on_data_down(world, process, session, &packet),
        WorldEvent::DataLost { process, session } => on_data_lost(world, process, session),
        WorldEvent::DataFlushed => world.data.on_flushed(&mut world.kernel, world.hosts.volume()),
        WorldEvent::DataStarts => world.data.start(&mut world.kernel),
        WorldEvent::ServerMessage { process, boot, word } => {
            if let Some(server) = &mut world.server {
                server.on_message(&mut world.kernel, process, boot, word);
            }
        }
        WorldEvent::ServerStores { process, boot, word } => {
            if let Some(server) = &mut world.server {
                server.on_stored(&mut world.kernel, process, boot, word);
            }
        }
        WorldEvent::ServerStarts => on_server_starts(world),
        WorldEvent::ServerAck { process, said } => on_server_ack(world, process, said),
        WorldEvent::NodeFenced { process } => on_node_fenced(world, process),
        WorldEvent::Mark => (),
    }
}

/// The time until which the process stands still, if it does.
fn standing_still(world: &World, event: &WorldEvent) -> Option<Time> {
    let now = world.kernel.now();
    let server_away = || world.server.as_ref()?.away(now);
    let process = match *event {
        WorldEvent::Tick { process }
        | WorldEvent::Flushed { process }
        | WorldEvent::ViewStored { process }
        | WorldEvent::DataConnected { process, .. }
        | WorldEvent::DataDown { process, .. }
        | WorldEvent::DataLost { process, .. }
        | WorldEvent::Busy { process } => process,
        WorldEvent::ServerMessage { .. } => return server_away(),
        WorldEvent::ServerAck { process, .. } | WorldEvent::NodeFenced { process } => {
            let until = world.processes[process].paused_until;
            return server_away().max((until > world.kernel.now()).then_some(until));
        }
        WorldEvent::DataUp { .. } | WorldEvent::DataFlushed => {
            let until = world.data.lender()?.paused_until;
            return (until > world.kernel.now()).then_some(until);
        }
        WorldEvent::Connected { conn } | WorldEvent::Closed { conn } => world.network.process_of(conn),
        _ => return None,
    };
    let until = world.processes[process].paused_until;
    (until > world.kernel.now()).then_some(until)
}

/// Lets `span` pass.
pub(crate) fn run_for(world: &mut World, span: Nanos) {
    let until = world.kernel.now() + span;
    world.kernel.push(until, WorldEvent::Mark);
    while world.kernel.now() < until {
        step(world);
    }
}
