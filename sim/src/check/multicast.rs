//! What multicast is for: bytes go once. Where nothing is lost, whoever listens is served by it.

use netram_proto::journal::MulticastStats;

use super::fail;
use crate::world::World;

/// Of the bytes multicast, at most one in this many goes again over links where nothing is lost: an answer
/// that takes far longer than those before it cannot be foreseen.
const AGAIN: u64 = 8;
/// Beside that: what a first misjudgement costs.
const AGAIN_BYTES: u64 = 4096;

/// What multicast has come to.
pub(crate) fn stats(world: &World, process: usize) -> MulticastStats {
    world
        .serving(process)
        .map(|serving| serving.writer.multicast_stats())
        .unwrap_or_default()
}

/// Every lender listens.
pub(crate) fn all_listen(world: &World, process: usize) {
    let Some(serving) = world.serving(process) else {
        return;
    };
    let (listeners, all) = (serving.writer.listeners(), world.lenders.len());
    if listeners < all {
        fail(
            0,
            format!("nothing is lost, yet {listeners} of {all} lenders are multicast to"),
        );
    }
}

/// Since `before` little was sent to listeners over their links, and none was left to its own.
pub(crate) fn check_sent_once(world: &World, process: usize, before: MulticastStats) {
    let now = stats(world, process);
    let again = now.linked_bytes - before.linked_bytes;
    let bytes = now.bytes - before.bytes;
    if now.deaf_listeners > before.deaf_listeners || again > bytes / AGAIN + AGAIN_BYTES {
        fail(
            0,
            format!(
                "nothing is lost, yet of {bytes} bytes {again} went again, and listeners were given up: {now:?}"
            ),
        );
    }
}
