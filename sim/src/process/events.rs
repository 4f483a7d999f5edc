//! Events of a process: time passes, links come and go, frames arrive. Each is handed to the machine that
//! waits for it, and the process then does what the machine wants done.

use netram_proto::journal::ServerAck;
use netram_proto::wire::Frame;

use super::table::ProcessPhase;
use crate::check::rule20;
use crate::event::WorldEvent;
use crate::kernel::TICK;
use crate::server::SimServer;
use crate::world::World;

impl World {
    pub(crate) fn on_tick(&mut self, process: usize) {
        if !self.processes.alive(process) {
            return;
        }
        let now = self.kernel.now();
        if let ProcessPhase::Serving(serving) = &mut self.processes[process].phase {
            serving.writer.on_tick(now);
        }
        self.kernel.at(TICK, WorldEvent::Tick { process });
        self.settle(process);
    }

    pub(crate) fn link_up(&mut self, process: usize, slot: usize) {
        let now = self.kernel.now();
        match &mut self.processes[process].phase {
            ProcessPhase::Dead => return,
            ProcessPhase::Opening(opening) => opening.recovery.on_connected(slot),
            ProcessPhase::Serving(serving) => serving.writer.on_connected(slot, now),
        }
        self.settle(process);
    }

    pub(crate) fn link_lost(&mut self, process: usize, slot: usize) {
        let now = self.kernel.now();
        self.kernel.hit("links lost");
        self.kernel
            .tell(|| format!("process {process} loses its link to lender {}", slot));
        match &mut self.processes[process].phase {
            ProcessPhase::Dead => return,
            ProcessPhase::Opening(opening) => opening.recovery.on_lost(slot),
            ProcessPhase::Serving(serving) => serving.writer.on_lost(slot, now),
        }
        self.settle(process);
    }

    pub(crate) fn process_gets(&mut self, process: usize, slot: usize, packet: &[u8]) {
        let now = self.kernel.now();
        let Ok(frame) = Frame::parse(packet) else {
            if let Some(conn) = self.network.conn_in(process, slot) {
                self.network.break_conn(&mut self.kernel, conn);
            }
            return;
        };
        self.kernel
            .mark(3, frame.header.kind as u64 ^ frame.header.lsn.0 << 8);
        match &mut self.processes[process].phase {
            ProcessPhase::Dead => return,
            ProcessPhase::Opening(opening) => {
                opening.tried_at[slot] = now;
                opening.recovery.on_frame(slot, &frame);
                rule20::recovery(&opening.recovery, self.kernel.profile.window);
            }
            ProcessPhase::Serving(serving) => serving.writer.on_frame(slot, &frame, now),
        }
        self.settle(process);
    }

    /// Begins everything that the machine inside wants done after an event.
    pub(crate) fn settle(&mut self, process: usize) {
        if self.processes[process].paused_until > self.kernel.now() {
            return;
        }
        match &self.processes[process].phase {
            ProcessPhase::Dead => (),
            ProcessPhase::Opening(_) => self.settle_opening(process),
            ProcessPhase::Serving(_) => self.settle_serving(process),
        }
    }

    /// Handles an acknowledgement of the node's server.
    pub(crate) fn on_server_ack(&mut self, process: usize, said: ServerAck) {
        let now = self.kernel.now();
        self.with_serving(process, |_, serving| serving.writer.on_server_ack(said, now));
        self.settle(process);
    }

    /// Lets a node hear that its server has given it up.
    pub(crate) fn on_node_fenced(&mut self, process: usize) {
        let Some(seen) = self.server.as_ref().map(SimServer::fence) else {
            return;
        };
        self.with_serving(process, |_, serving| serving.writer.on_replica_fenced(seen));
        self.settle(process);
    }

    /// Starts the server, whose nodes notice.
    pub(crate) fn on_server_starts(&mut self) {
        if let Some(server) = &mut self.server {
            server.start();
        }
        self.kernel.tell(|| String::from("the server is up"));
        let living: Vec<usize> = (0..self.processes.len())
            .filter(|&process| self.processes.alive(process))
            .collect();
        living.into_iter().for_each(|process| self.settle(process));
    }
}
