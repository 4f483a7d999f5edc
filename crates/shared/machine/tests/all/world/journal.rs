//! A node's journal and its members, as far as a shared region sees them.

use netram_proto::id::Lsn;
use netram_proto::wire::ChainPoint;
use netram_shared_machine::{NodeId, RecordNumber};

use super::bytes::PayloadBytes;

#[derive(Debug, Default)]
pub(crate) struct NodeRecords {
    pub(crate) records: Vec<PayloadBytes>,
    /// Number of records that fulfil the members' rule, or that the server has. This is the commit.
    pub(crate) acked: usize,
    /// Whether the members are fenced against the node.
    pub(crate) sealed: bool,
    /// Whether the members cannot be reached.
    pub(crate) unreachable: bool,
    /// Number of records that the server has reported as durable, so that no one else needs them.
    pub(crate) kept: usize,
    /// Whether the members accept no records now, but can be read.
    pub(crate) slow: bool,
    /// Too few members: only the server acknowledges.
    pub(crate) few: bool,
    /// Node of the journal, once that is known.
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

    /// Fences the journal and reads it: all acknowledged records, and `found` others. The number of others
    /// may differ each time, since some members may be lost.
    pub(crate) fn read(&mut self, kept: RecordNumber, found: usize) -> Vec<(RecordNumber, PayloadBytes)> {
        self.sealed = true;
        let end = self.acked.max(found.min(self.records.len()));
        let numbered = self.records[..end].iter().enumerate();
        let numbered = numbered.map(|(index, payload)| (RecordNumber(index as u64 + 1), payload.clone()));
        numbered.skip(self.kept.max(kept.0 as usize)).collect()
    }
}
