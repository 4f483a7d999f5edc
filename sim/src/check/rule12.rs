//! Rule 12, *a replica is what it says*: everything that a data lender calls flushed is on its platter, and a
//! replica that calls itself whole equals the volume at its log's end.

use netram_block::{BLOCK_BYTES, SECTOR_BYTES};
use netram_proto::id::Lsn;

use super::violation::fail;
use crate::world::World;

/// Every change of a volume that was ever logged and is still part of its journal.
#[derive(Clone, Debug, Default)]
pub struct VolumeHistory {
    bytes: usize,
    /// End LSN, byte offset and bytes of each record, ascending.
    records: Vec<(Lsn, usize, Vec<u8>)>,
}

impl VolumeHistory {
    /// A history of a volume of `bytes` zeros.
    pub fn new(bytes: usize) -> VolumeHistory {
        VolumeHistory {
            bytes,
            records: Vec::new(),
        }
    }

    /// Records a change that was logged.
    pub fn push(&mut self, end: Lsn, offset: usize, bytes: Vec<u8>) {
        self.records.push((end, offset, bytes));
    }

    /// Drops the changes beyond `end`, where recovery found the journal to end.
    pub fn rewind(&mut self, end: Lsn) {
        let keep = self.records.partition_point(|record| record.0 <= end);
        self.records.truncate(keep);
    }

    /// LSN up to which `sector` last had these bytes.
    fn when(&self, sector: u64, bytes: &[u8]) -> Option<Lsn> {
        let at = (sector * SECTOR_BYTES) as usize;
        let ends = self.records.iter().rev().map(|record| record.0);
        ends.chain([Lsn(0)])
            .find(|end| self.at(*end)[at..at + bytes.len()] == *bytes)
    }

    /// Contents of the volume with every change below `lsn`.
    fn at(&self, lsn: Lsn) -> Vec<u8> {
        let mut volume = vec![0; self.bytes];
        for (_, offset, bytes) in self.records.iter().take_while(|record| record.0 <= lsn) {
            volume[*offset..*offset + bytes.len()].copy_from_slice(bytes);
        }
        volume
    }
}

/// Checks a whole replica with these `contents`, whose log ends at `end`.
pub(crate) fn whole(world: &mut World, end: Lsn, contents: &[u8]) {
    let wanted = world.changes.at(end);
    if let Some(at) = wanted
        .iter()
        .zip(contents)
        .position(|(ours, theirs)| ours != theirs)
    {
        let sector = at as u64 / SECTOR_BYTES;
        let from = (sector * SECTOR_BYTES) as usize;
        let found = world
            .changes
            .when(sector, &contents[from..from + SECTOR_BYTES as usize]);
        fail(
            12,
            format!(
                "the replica calls itself whole at {end}, and has sector {sector} as of {found:?} of a log that ends at {}",
                world.changes.records.last().map_or(Lsn(0), |record| record.0)
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
    if world.changes.at(stable)[from..from + bytes.len()] != *bytes {
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
    if world.changes.at(end) != contents {
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
