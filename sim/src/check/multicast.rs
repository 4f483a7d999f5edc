//! Oracle of multicast: bytes are sent once, and where no frame is lost every listening lender is served by
//! the multicast alone.

use netram_proto::journal::MulticastStats;

use super::violation::fail;
use crate::world::World;

/// Over links without loss, at most one multicast byte in this many is sent again. The rest would be a timing
/// error: an answer that takes far longer than earlier ones cannot be foreseen.
const AGAIN: u64 = 8;
/// Bytes allowed beside that for the first wrong estimate.
const AGAIN_BYTES: u64 = 4096;

/// Multicast statistics of the serving writer.
pub(crate) fn stats(world: &World, process: usize) -> MulticastStats {
    world
        .processes
        .serving(process)
        .map(|serving| serving.writer.multicast_stats())
        .unwrap_or_default()
}

/// Checks that every lender listens.
pub(crate) fn all_listen(world: &World, process: usize) {
    let Some(serving) = world.processes.serving(process) else {
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

/// Checks that since `before` little was sent to listeners over their own links, and that no listener fell
/// back to its own link.
pub(crate) fn check_sent_once(world: &World, process: usize, before: MulticastStats) {
    let now = stats(world, process);
    let again = now.linked_bytes - before.linked_bytes;
    let bytes = now.bytes - before.bytes;
    if now.deaf_listeners > before.deaf_listeners || again > bytes / AGAIN + AGAIN_BYTES {
        fail(
            0,
            format!(
                "without loss, {again} of {bytes} multicast bytes were sent again, or listeners fell back: {now:?}"
            ),
        );
    }
}
