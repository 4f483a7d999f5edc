//! A node's journal and its members, as far as a shared region sees them.

use netram_proto::id::Lsn;
use netram_proto::wire::ChainPoint;
use netram_shared_machine::{NodeId, RecordNumber};

use super::bytes::PayloadBytes;

#[derive(Debug, Default)]
pub(crate) struct NodeRecords {
    pub(crate) records: Vec<PayloadBytes>,
    /// The members' rule holds for so many, or the server has them. This is the commit.
    pub(crate) acked: usize,
    /// The members take nothing more of it.
    pub(crate) sealed: bool,
    /// Its members cannot be asked now.
    pub(crate) unreachable: bool,
    /// The server has said that it keeps so many: nobody else need.
    pub(crate) kept: usize,
    /// Its members take nothing now, and can be asked.
    pub(crate) slow: bool,
    /// Too few members: nothing is acknowledged but by the server's word.
    pub(crate) few: bool,
    /// Whose it is, once that is known.
    pub(crate) node: Option<NodeId>,
}

impl NodeRecords {
    pub(crate) fn end(records: usize) -> ChainPoint {
        ChainPoint {
            lsn: Lsn(64 * records as u64),
            chain: records as u32,
        }
    }

    pub(crate) fn append(&mut self, payload: PayloadBytes) -> ChainPoint {
        self.records.push(payload);
        NodeRecords::end(self.records.len())
    }

    /// What whoever seals it finds: all that was acknowledged, and so many of the others. That is not the
    /// same each time: they are at members of which some may be lost.
    pub(crate) fn read(&mut self, kept: RecordNumber, found: usize) -> Vec<(RecordNumber, PayloadBytes)> {
        self.sealed = true;
        let end = self.acked.max(found.min(self.records.len()));
        let numbered = self.records[..end].iter().enumerate();
        let numbered = numbered.map(|(index, payload)| (RecordNumber(index as u64 + 1), payload.clone()));
        numbered.skip(self.kept.max(kept.0 as usize)).collect()
    }
}
