//! True history of a volume, kept outside the tested code.

use netram_block::SECTOR_BYTES;
use netram_proto::id::Lsn;

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
    pub(crate) fn when(&self, sector: u64, bytes: &[u8]) -> Option<Lsn> {
        let at = (sector * SECTOR_BYTES) as usize;
        let ends = self.records.iter().rev().map(|record| record.0);
        ends.chain([Lsn(0)])
            .find(|end| self.contents_at(*end)[at..at + bytes.len()] == *bytes)
    }

    /// Contents of the volume with every change below `lsn`.
    pub(crate) fn contents_at(&self, lsn: Lsn) -> Vec<u8> {
        let mut volume = vec![0; self.bytes];
        for (_, offset, bytes) in self.records.iter().take_while(|record| record.0 <= lsn) {
            volume[*offset..*offset + bytes.len()].copy_from_slice(bytes);
        }
        volume
    }

    /// LSN at which the newest change ends.
    pub(crate) fn end(&self) -> Lsn {
        self.records.last().map_or(Lsn(0), |record| record.0)
    }
}
