//! Rule 12, *a replica is what it says*: everything that a data lender calls flushed is on its platter, and a
//! replica that calls itself whole equals the volume at its log's end.

use netram_block::{BLOCK_BYTES, SECTOR_BYTES};
use netram_proto::id::Lsn;

use super::violation::fail;
use crate::world::World;

/// Checks a whole replica with these `contents`, whose log ends at `end`.
pub(crate) fn whole(world: &mut World, end: Lsn, contents: &[u8]) {
    let wanted = world.hosts.volume().contents_at(end);
    if let Some(at) = wanted
        .iter()
        .zip(contents)
        .position(|(ours, theirs)| ours != theirs)
    {
        let sector = at as u64 / SECTOR_BYTES;
        let from = (sector * SECTOR_BYTES) as usize;
        let found = world
            .hosts
            .volume()
            .when(sector, &contents[from..from + SECTOR_BYTES as usize]);
        fail(
            12,
            format!(
                "the replica calls itself whole at {end}, and has sector {sector} as of {found:?} of a log that ends at {}",
                world.hosts.volume().end()
            ),
        );
    }
    world.kernel.hit("data: replicas compared with history");
}

/// Checks blocks that the client is about to send, from block `first`: a write that its machine may still
/// lose must not be among them.
pub(crate) fn sent(world: &mut World, process: usize, first: u64, bytes: &[u8]) {
    let Some(stable) = world.serving(process).map(|serving| serving.writer.stable()) else {
        return;
    };
    let from = (first * BLOCK_BYTES) as usize;
    if world.hosts.volume().contents_at(stable)[from..from + bytes.len()] != *bytes {
        fail(
            12,
            format!(
                "the data lender is sent {} bytes from block {first} on, which are not those that the disk has up to {stable}",
                bytes.len()
            ),
        );
    }
    world.kernel.hit("data: blocks compared with what the disk has");
}

/// Checks a volume that was restored up to `end`.
pub(crate) fn restored(world: &World, end: Lsn, contents: &[u8]) {
    if world.hosts.volume().contents_at(end) != contents {
        fail(
            12,
            format!("the volume was restored up to {end}, and has something else"),
        );
    }
}

/// Checks the data lender's report that everything below `end` is flushed.
pub(crate) fn flushed(world: &World, process: usize, end: Lsn) {
    let Some((head, platter)) = world.data.as_ref().and_then(|data| data.platter(end)) else {
        return;
    };
    let host = world.processes[process].host;
    if world.hosts[host].history.bytes(head, end) != platter {
        fail(
            12,
            format!("the data lender has flushed up to {end}, it says, and its platter has something else"),
        );
    }
}
