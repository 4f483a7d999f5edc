//! The store in the words of the machine that decides ([`netram_shared_machine::Server`]).

use std::collections::BTreeMap;

use netram_proto::id::Lsn;
use netram_shared_machine::server::{self as machine, Fact, Journal, Row};

use super::{Joining, Store, StoreError};
use crate::server::table::{Node, Standing};

impl Store {
    /// What the machine begins with: the table as it was opened.
    pub fn known(&self) -> machine::Table {
        let table = &self.table;
        let mut nodes = BTreeMap::new();
        for gone in &table.gone {
            let buried = table.buried.iter().find(|node| node.id == gone.id);
            let row = Row {
                standing: machine::Standing::Gone,
                id: gone.journal,
                journal: buried.map(journal_of),
                number: gone.last,
            };
            nodes.insert(gone.id, row);
        }
        for node in &table.nodes {
            let standing = match node.standing {
                Standing::Live => machine::Standing::Live,
                Standing::Fencing => machine::Standing::Fencing,
                Standing::Buried => unreachable!("those are not among the nodes"),
            };
            let row = Row {
                standing,
                id: node.view.journal,
                journal: Some(journal_of(node)),
                number: node.merged,
            };
            nodes.insert(node.id, row);
        }
        let versions = table.spans.iter().zip(table.versions.iter());
        machine::Table {
            position: table.counters.position,
            versions: versions.map(|(span, version)| (span.lock, version)).collect(),
            nodes,
            last_node: table.counters.last_node,
            ceiling: table.counters.ceiling,
        }
    }

    /// Makes a fact part of the table. It is durable when the log is, up to the position returned.
    pub fn write_down(&mut self, fact: Fact) -> Result<Lsn, StoreError> {
        match fact {
            Fact::Joined { node, name, journal } => {
                let joining = Joining {
                    name,
                    view: journal.view,
                    key: journal.key,
                    begins: journal.end,
                };
                self.join_as(node, joining)
            }
            Fact::Viewed { node, view } => self.set_view(node, view),
            Fact::Fencing { node } => self.fence(node),
            Fact::Gone { node } => self.bury_untold(node),
            Fact::Told { node } => self.told(node),
            Fact::Ceiling(ceiling) => self.raise_ceiling(ceiling),
        }
    }
}

fn journal_of(node: &Node) -> Journal {
    Journal {
        view: node.view.clone(),
        key: node.key.clone(),
        // Records between this and the last were read from there, and are read again: their numbers tell.
        kept: node.marked,
        end: node.end,
    }
}
