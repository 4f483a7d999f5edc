//! A journal that is being opened: the recovery inside speaks to the members.

use netram_proto::journal::FrameBody;
use netram_proto::time::Nanos;

use super::table::ProcessPhase;
use crate::event::FrameDirection;
use crate::lender::packet_of;
use crate::world::World;

/// Delay after which a member is tried again that cannot be reached or does not answer.
const RETRY: Nanos = Nanos::from_ms(250);

impl World {
    pub(super) fn settle_opening(&mut self, process: usize) {
        let now = self.kernel.now();
        for slot in 0..self.network.slot_count(process) {
            let conn = self.network.conn_in(process, slot);
            let stream = self.kernel.is_stream();
            let ProcessPhase::Opening(opening) = &mut self.processes[process].phase else {
                return;
            };
            let due = now.since(opening.tried_at[slot]) >= RETRY;
            let Some(conn) = conn else {
                if due {
                    opening.tried_at[slot] = now;
                    let host = self.processes[process].host;
                    self.network
                        .connect(&mut self.kernel, &self.lenders, (process, host), slot);
                }
                continue;
            };
            if let Some(outgoing) = opening.recovery.next_frame(slot) {
                opening.tried_at[slot] = now;
                let FrameBody::Inline(bytes, length) = outgoing.body else {
                    unreachable!("recovery has no ring")
                };
                let packet = packet_of(&outgoing.header, &bytes[..length]);
                self.network
                    .send(&mut self.kernel, conn, FrameDirection::Up, packet);
            } else if !stream && due {
                // A frame was lost; begin anew.
                opening.tried_at[slot] = now;
                opening.recovery.on_lost(slot);
                self.network.close_here(&mut self.kernel, &mut self.lenders, conn);
            }
        }
    }
}
