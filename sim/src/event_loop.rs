//! The event loop: takes the next event off the schedule and passes it to the part that it is for.

use netram_proto::time::{Nanos, Time};

use crate::event::WorldEvent;
use crate::lender::LENDER_BYTES;
use crate::net::FrameInFlight;
use crate::world::World;

impl World {
    /// Handles the next event.
    pub fn step(&mut self) {
        let Some(event) = self.kernel.next_event() else {
            return;
        };
        if let Some(until) = self.standing_still(&event) {
            self.kernel.push(until, event);
            return;
        }
        match event {
            WorldEvent::Frame {
                conn,
                way,
                number,
                packet,
            } => self.on_packet(FrameInFlight {
                conn,
                way,
                number,
                packet,
            }),
            WorldEvent::Datagram {
                conn,
                channel,
                packet,
            } => self.on_datagram(conn, channel, packet),
            WorldEvent::Connected { conn } => self.on_connected(conn),
            WorldEvent::Closed { conn } => self.on_closed(conn),
            WorldEvent::Tick { process } => self.on_tick(process),
            WorldEvent::Flushed { process } => self.on_flushed(process),
            WorldEvent::ViewStored { process } => self.on_view_stored(process),
            WorldEvent::LenderUp { lender } => self.start_lender(lender),
            WorldEvent::LenderStops { lender } => self.lender_stops(lender),
            WorldEvent::LenderRoomBack { lender } => self.lenders[lender].window.limit = LENDER_BYTES,
            WorldEvent::Nemesis => self.on_nemesis(),
            WorldEvent::Busy { process } => self.on_busy(process),
            WorldEvent::DataConnected { process, session } => self.on_data_connected(process, session),
            WorldEvent::DataUp {
                process,
                session,
                packet,
            } => self.on_data_up(process, session, &packet),
            WorldEvent::DataDown {
                process,
                session,
                packet,
            } => self.on_data_down(process, session, &packet),
            WorldEvent::DataLost { process, session } => self.on_data_lost(process, session),
            WorldEvent::DataFlushed => self.data.on_flushed(&mut self.kernel, self.hosts.volume()),
            WorldEvent::DataStarts => self.data.start(&mut self.kernel),
            WorldEvent::ServerMessage { process, boot, word } => {
                if let Some(server) = &mut self.server {
                    server.on_message(&mut self.kernel, process, boot, word);
                }
            }
            WorldEvent::ServerStores { process, boot, word } => {
                if let Some(server) = &mut self.server {
                    server.on_stored(&mut self.kernel, process, boot, word);
                }
            }
            WorldEvent::ServerStarts => self.on_server_starts(),
            WorldEvent::ServerAck { process, said } => self.on_server_ack(process, said),
            WorldEvent::NodeFenced { process } => self.on_node_fenced(process),
            WorldEvent::Mark => (),
        }
    }

    /// The time until which the process stands still, if it does.
    pub(crate) fn standing_still(&self, event: &WorldEvent) -> Option<Time> {
        let now = self.kernel.now();
        let server_away = || self.server.as_ref()?.away(now);
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
                let until = self.processes[process].paused_until;
                return server_away().max((until > self.kernel.now()).then_some(until));
            }
            WorldEvent::DataUp { .. } | WorldEvent::DataFlushed => {
                let until = self.data.lender()?.paused_until;
                return (until > self.kernel.now()).then_some(until);
            }
            WorldEvent::Connected { conn } | WorldEvent::Closed { conn } => self.network.process_of(conn),
            _ => return None,
        };
        let until = self.processes[process].paused_until;
        (until > self.kernel.now()).then_some(until)
    }

    /// Lets `span` pass.
    pub fn run_for(&mut self, span: Nanos) {
        let until = self.kernel.now() + span;
        self.kernel.push(until, WorldEvent::Mark);
        while self.kernel.now() < until {
            self.step();
        }
    }
}
