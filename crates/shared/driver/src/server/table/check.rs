//! What in a table contradicts the rest.

use std::collections::HashSet;

use netram_shared_machine::{LockId, LockVersion, NodeId, Position};

use super::RegionTable;

/// A contradiction. There is none while disk and memory do what they should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableFault {
    /// Every record is one of somebody's.
    #[error("the nodes' records are {records}, and {position} were merged")]
    Sum {
        /// Records of all nodes, the forgotten too.
        records: u64,
        /// Records of the region.
        position: Position,
    },
    /// A lock was written under at most once a record.
    #[error("lock {lock} has version {version} after {position} records")]
    Version {
        /// Which lock.
        lock: LockId,
        /// Its version.
        version: LockVersion,
        /// Records of the region.
        position: Position,
    },
    /// A node id that was not given yet.
    #[error("there is a node {node}, and none above {last} was given")]
    Early {
        /// Who.
        node: NodeId,
        /// The last id that was given.
        last: NodeId,
    },
    /// A node id that stands twice.
    #[error("node {node} stands twice in the table")]
    Twice {
        /// Who.
        node: NodeId,
    },
}

impl RegionTable {
    /// Everything in the table that contradicts the rest.
    pub fn faults(&self) -> Vec<TableFault> {
        let position = self.counters.position;
        let mut faults = Vec::new();
        let records = self.numbers().fold(self.counters.forgotten, |sum, (_, number)| {
            sum.saturating_add(number.0)
        });
        if records != position.0 {
            faults.push(TableFault::Sum { records, position });
        }
        for (lock, version) in self.versions() {
            if version.0 > position.0 {
                faults.push(TableFault::Version {
                    lock,
                    version,
                    position,
                });
            }
        }
        let mut seen = HashSet::new();
        for (node, _) in self.numbers() {
            if node > self.counters.last_node {
                let last = self.counters.last_node;
                faults.push(TableFault::Early { node, last });
            }
            if !seen.insert(node) {
                faults.push(TableFault::Twice { node });
            }
        }
        faults
    }
}
