//! Deliveries of the network: frames that arrive are passed on to lenders and to processes.

use crate::check::rule16;
use crate::event::FrameDirection;
use crate::hostile;
use crate::net::{FrameArrival, FrameInFlight, trace_packet};
use crate::world::World;

impl World {
    pub(crate) fn on_connected(&mut self, conn: usize) {
        let outcome = self.network.connected(&mut self.kernel, &mut self.lenders, conn);
        let Some(outcome) = outcome else { return };
        match outcome.connected {
            true => self.link_up(outcome.process, outcome.slot),
            false => self.link_lost(outcome.process, outcome.slot),
        }
    }

    pub(crate) fn on_closed(&mut self, conn: usize) {
        let closed = self.network.closed(&mut self.kernel, &mut self.lenders, conn);
        if let Some((process, slot)) = closed {
            self.link_lost(process, slot);
        }
    }

    pub(crate) fn on_datagram(&mut self, conn: usize, channel: u32, packet: Vec<u8>) {
        let to = (conn, channel);
        self.network
            .on_datagram(&mut self.kernel, &mut self.lenders, to, packet);
    }

    pub(crate) fn on_packet(&mut self, frame: FrameInFlight) {
        let conn = frame.conn;
        let paused_until = self.processes[self.network.process_of(conn)].paused_until;
        let arrival = self
            .network
            .arrive(&mut self.kernel, &self.lenders, frame, paused_until);
        match arrival {
            None => (),
            Some(FrameArrival::Lender { lender, packet }) => self.deliver_to_lender(conn, lender, &packet),
            Some(FrameArrival::Process {
                process,
                slot,
                packet,
            }) => self.process_gets(process, slot, &packet),
        }
    }

    fn deliver_to_lender(&mut self, conn: usize, lender: usize, packet: &[u8]) {
        let open = self.network.is_open(conn);
        if !open {
            self.kernel.hit("frames of a dead connection delivered");
        }
        let (journal, planted) = (self.kernel.journal(), self.kernel.planted());
        trace_packet(&mut self.kernel, lender, packet, "gets");
        self.kernel.mark(2, packet.first().copied().unwrap_or(0).into());
        let before = self.lenders[lender].state();
        let outcome = self.lenders[lender].on_packet(conn, packet, journal, planted);
        rule16::not_emptied(self, &self.lenders[lender], &before);
        if let Some(made_up) = hostile::perhaps_make_up(&mut self.kernel, lender, packet)
            && open
        {
            return self
                .network
                .send(&mut self.kernel, conn, FrameDirection::Down, made_up);
        }
        self.network.send_answer(&mut self.kernel, conn, outcome);
    }
}
