//! A journal that is being opened: the recovery inside speaks to the members.

use netram_proto::journal::FrameBody;
use netram_proto::time::Nanos;

use super::table::ProcessPhase;
use crate::event::FrameDirection;
use crate::signatures::owners_packet;
use crate::world::World;

/// Delay after which a member is tried again that cannot be reached or does not answer.
const RETRY: Nanos = Nanos::from_ms(250);

pub(super) fn settle_opening(world: &mut World, process: usize) {
    let now = world.kernel.now();
    for slot in 0..world.network.slots().count(process) {
        let conn = world.network.slots().conn(process, slot);
        let stream = world.kernel.is_stream();
        let ProcessPhase::Opening(opening) = &mut world.processes[process].phase else {
            return;
        };
        let due = now.since(opening.tried_at[slot]) >= RETRY;
        let Some(conn) = conn else {
            if due {
                opening.tried_at[slot] = now;
                let host = world.processes[process].host;
                world
                    .network
                    .connect(&mut world.kernel, &world.lenders, (process, host), slot);
            }
            continue;
        };
        if let Some(outgoing) = opening.recovery.next_frame(slot) {
            opening.tried_at[slot] = now;
            let FrameBody::Inline(bytes, length) = outgoing.body else {
                unreachable!("recovery has no ring")
            };
            let packet = owners_packet(world.kernel.journal(), &outgoing.header, &bytes[..length]);
            world
                .network
                .send(&mut world.kernel, conn, FrameDirection::Up, packet);
        } else if !stream && due {
            // A frame was lost; begin anew.
            opening.tried_at[slot] = now;
            opening.recovery.on_lost(slot);
            world
                .network
                .close_here(&mut world.kernel, &mut world.lenders, conn);
        }
    }
}
