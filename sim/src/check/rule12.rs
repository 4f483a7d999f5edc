//! Rule 12, *a replica is what it says*: everything that a data lender calls flushed is on its platter, and a
//! replica that calls itself whole equals the volume at its log's end.

use netram_block::{BLOCK_BYTES, SECTOR_BYTES};
use netram_proto::id::Lsn;

use super::violation::fail;
use crate::history::JournalHistory;
use crate::kernel::SimKernel;
use crate::volume_history::VolumeHistory;

/// Checks a whole replica with these `contents`, whose log ends at `end`.
pub(crate) fn whole(kernel: &mut SimKernel, volume: &VolumeHistory, end: Lsn, contents: &[u8]) {
    let wanted = volume.contents_at(end);
    if let Some(at) = wanted
        .iter()
        .zip(contents)
        .position(|(ours, theirs)| ours != theirs)
    {
        let sector = at as u64 / SECTOR_BYTES;
        let from = (sector * SECTOR_BYTES) as usize;
        let found = volume.when(sector, &contents[from..from + SECTOR_BYTES as usize]);
        fail(
            12,
            format!(
                "the replica calls itself whole at {end}, and has sector {sector} as of {found:?} of a log that ends at {}",
                volume.end()
            ),
        );
    }
    kernel.hit("data: replicas compared with history");
}

/// Checks blocks that the client is about to send, from block `first`: a write that its machine may still
/// lose must not be among them.
pub(crate) fn sent(kernel: &mut SimKernel, volume: &VolumeHistory, stable: Lsn, first: u64, bytes: &[u8]) {
    let from = (first * BLOCK_BYTES) as usize;
    if volume.contents_at(stable)[from..from + bytes.len()] != *bytes {
        fail(
            12,
            format!(
                "the data lender is sent {} bytes from block {first} on, which are not those that the disk has up to {stable}",
                bytes.len()
            ),
        );
    }
    kernel.hit("data: blocks compared with what the disk has");
}

/// Checks a volume that was restored up to `end`.
pub(crate) fn restored(volume: &VolumeHistory, end: Lsn, contents: &[u8]) {
    if volume.contents_at(end) != contents {
        fail(
            12,
            format!("the volume was restored up to {end}, and has something else"),
        );
    }
}

/// Checks the data lender's report that everything below `end` is flushed: its platter has `bytes` from
/// `head`.
pub(crate) fn flushed(history: &JournalHistory, end: Lsn, head: Lsn, bytes: &[u8]) {
    if history.bytes(head, end) != bytes {
        fail(
            12,
            format!("the data lender has flushed up to {end}, it says, and its platter has something else"),
        );
    }
}
