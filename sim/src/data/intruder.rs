//! A client with the right to data sessions that means harm: it poses as the client of the replica, in the
//! name of its writer or in its own. It owns a journal of its own, or none. From a journal without owner it
//! could take the replica, so it leaves those alone.

use netram_block_machine::{ReplicaDescription, ReplicaHeader, ReplicaMessage};
use netram_proto::id::{Epoch, JournalId, WriterId};
use netram_proto::journal::View;
use netram_proto::owner::{is_owned, owned_id};
use netram_proto::wire::ChainPoint;

use super::machine::{SimDataLender, VOLUME};
use crate::check::rule15;
use crate::lender::packet_of;
use crate::world::World;

/// Number of the intruder's process.
const CLIENT: usize = usize::MAX;
const NAME: u64 = 0xBAD;

/// The parts of a replica that no stranger may change: session, header, view, end of the durable log.
pub(crate) type ReplicaStanding = (Option<u64>, ReplicaHeader, View, ChainPoint);

impl SimDataLender {
    fn standing(&self) -> Option<ReplicaStanding> {
        let process = self.process.as_ref()?;
        let replica = &process.replica;
        let (header, view) = (*replica.replica_header(), replica.view().clone());
        Some((process.session, header, view, replica.flushed()))
    }
}

/// Sends a harmful first frame to the data lender.
pub(crate) fn intrude(world: &mut World) {
    let World { kernel, data, .. } = world;
    if !is_owned(kernel.journal().0) || !data.is_reachable(kernel.now()) {
        return;
    }
    let (session, follow) = (data.open_session(), data.follow_request(kernel));
    let Some(lender) = data
        .lender_mut()
        .filter(|lender| lender.paused_until <= kernel.now())
    else {
        return;
    };
    let Some(before) = lender.standing() else { return };
    let message = match kernel.rng.below(4) {
        0 => ReplicaMessage::inquire(Some(VOLUME.0)),
        _ => {
            let epoch = Epoch(before.2.epoch.0 + kernel.rng.pick(&[0, 1, 1000]));
            let writer = kernel.rng.pick(&[before.2.writer, WriterId(NAME)]);
            follow.claim(epoch, writer, kernel.rng.chance(500))
        }
    };
    let own = kernel.rng.chance(500).then(|| JournalId(owned_id(&[0xBA; 32])));
    kernel.hit("data: intruders");
    kernel.tell(|| format!("an intruder says {:?} to the data lender", message.header));
    let packet = packet_of(&message.header, &message.body);
    let served = lender.handle_packet_of(own, CLIENT, session, &packet);
    rule15::untouched_replica(&before, lender.standing().as_ref());
    for answer in served.answers {
        if let Ok(told) = ReplicaDescription::decode(&answer.frame()) {
            rule15::told_little(&told);
        }
    }
}
