//! Hints from node to node. Links between peers are not simulated: every running node can be reached.

use netram_proto::time::Nanos;
use netram_shared_machine::message::ToPeer;
use netram_shared_machine::node::PeerAction;

use super::bytes::PayloadBytes;
use super::check::check_hint;
use super::kernel::Event;
use super::node_events::settle;
use super::world::World;

/// Handles a node's message to its peers.
pub(super) fn on_peer_action(world: &mut World, from: usize, action: PeerAction<PayloadBytes>) {
    let PeerAction::Hint(hint) = action else {
        return;
    };
    let message = ToPeer::Hint(hint);
    let mut bytes = Vec::new();
    message.head(&mut bytes);
    bytes.extend_from_slice(message.payload().map_or(&[], |payload| payload));
    let arrives = world.kernel.profile.hints_permille;
    for slot in (0..world.slots.len()).filter(|slot| *slot != from) {
        // Hints are lost, repeated, late, and in any order.
        for permille in [arrives, arrives / 10] {
            if world.kernel.rng.chance(permille) {
                let late = world.kernel.rng.pick(&[0, 0, 0, 3, 60]);
                let delay = Nanos(world.kernel.latency().0 + Nanos::from_ms(late).0);
                let bytes = bytes.clone();
                world.kernel.at(delay, Event::Hint { slot, bytes });
            }
        }
    }
}

pub(super) fn on_hint(world: &mut World, slot: usize, bytes: &[u8]) {
    let now = world.local(slot);
    let message = ToPeer::decode(bytes).expect("what a node says is a message");
    let ToPeer::Hint(hint) = message.map(PayloadBytes::from) else {
        return;
    };
    let payload = hint.payload.clone();
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    let taken = process.node.on_hint(now, hint);
    settle(world, slot);
    if taken {
        world.kernel.hit("region: hints taken");
        check_hint(world, slot, &payload);
    }
}
