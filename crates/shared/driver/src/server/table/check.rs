//! Finds contradictions in a table.

use std::collections::HashSet;

use netram_shared_machine::{LockId, LockVersion, NodeId, Position};

use super::RegionTable;

/// A contradiction in the table. None exists unless disk or memory are faulty.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableFault {
    /// The number of all nodes' records is not the region's position.
    #[error("the nodes' records are {records} in number, but {position} were merged")]
    Sum {
        /// Number of records of all nodes, including forgotten ones.
        records: u64,
        /// Number of merged records.
        position: Position,
    },
    /// A lock has a higher version than there are records.
    #[error("lock {lock} has version {version} after {position} records")]
    Version {
        /// Which lock.
        lock: LockId,
        /// Its version.
        version: LockVersion,
        /// Number of merged records.
        position: Position,
    },
    /// A node id is higher than any that was assigned.
    #[error("node {node} exists, but no id above {last} was assigned")]
    Early {
        /// The node.
        node: NodeId,
        /// Highest id that was assigned.
        last: NodeId,
    },
    /// A node id occurs twice.
    #[error("node {node} occurs twice in the table")]
    Twice {
        /// The node.
        node: NodeId,
    },
}

impl RegionTable {
    /// All contradictions in the table.
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
