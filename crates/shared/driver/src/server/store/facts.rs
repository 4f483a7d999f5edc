//! Conversion between the store and the state machine ([`netram_shared_machine::RegionServer`]).

use std::collections::BTreeMap;

use netram_proto::id::Lsn;
use netram_shared_machine::server::{self as machine, DurableFact, DurableNode, NodeJournal};

use super::{NewNode, RegionStore, RegionStoreError};
use crate::server::table::{NodeEntry, NodeEntryState};

impl RegionStore {
    /// The machine's initial state: the table as it was opened.
    pub fn region_state(&self) -> machine::RegionState {
        let table = &self.table;
        let mut nodes = BTreeMap::new();
        for gone in &table.gone {
            let buried = table.retired.iter().find(|node| node.id == gone.id);
            let row = DurableNode {
                state: machine::NodeState::Gone,
                id: gone.journal,
                journal: buried.map(journal_of),
                number: gone.last,
            };
            nodes.insert(gone.id, row);
        }
        for node in &table.nodes {
            let standing = match node.state {
                NodeEntryState::Live => machine::NodeState::Live,
                NodeEntryState::Fencing => machine::NodeState::Fencing,
                NodeEntryState::Retired => unreachable!("those are not among the nodes"),
            };
            let row = DurableNode {
                state: standing,
                id: node.view.journal,
                journal: Some(journal_of(node)),
                number: node.merged,
            };
            nodes.insert(node.id, row);
        }
        let versions = table.spans.iter().zip(table.versions.iter());
        machine::RegionState {
            position: table.counters.position,
            versions: versions.map(|(span, version)| (span.lock, version)).collect(),
            nodes,
            last_node: table.counters.last_node,
            ceiling: table.counters.ceiling,
        }
    }

    /// Records a fact in the table. It is durable when the log is durable up to the returned LSN.
    ///
    /// # Errors
    ///
    /// [`RegionStoreError`] if the log did not take the change.
    pub fn record_fact(&mut self, fact: DurableFact) -> Result<Lsn, RegionStoreError> {
        match fact {
            DurableFact::Joined { node, name, journal } => {
                let joining = NewNode {
                    name,
                    view: journal.view,
                    key: journal.key,
                    begins: journal.end,
                };
                self.join_as(node, joining)
            }
            DurableFact::Viewed { node, view } => self.set_view(node, view),
            DurableFact::Fencing { node } => self.fence(node),
            DurableFact::Gone { node } => self.retire_pending_forget(node),
            DurableFact::Forgotten { node } => self.mark_forgotten(node),
            DurableFact::Ceiling(ceiling) => self.raise_ceiling(ceiling),
        }
    }
}

fn journal_of(node: &NodeEntry) -> NodeJournal {
    NodeJournal {
        view: node.view.clone(),
        key: node.key.clone(),
        // Later records were read from the journal, and are read again; their numbers show that they are
        // known.
        kept: node.marked,
        end: node.end,
    }
}
