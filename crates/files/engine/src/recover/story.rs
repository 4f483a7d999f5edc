//! What the records say of names, from the catalog to the journal's end.

use std::collections::{BTreeMap, BTreeSet};

use netram_proto::id::Lsn;
use netram_proto::port::Log;

use crate::catalog::Catalog;
use crate::change::{Change, Node, NodeKind, Owner};
use crate::error::OpenError;
use crate::names::{Identity, Names};

/// A node that was made since the catalog.
pub(super) struct Born {
    pub(super) kind: NodeKind,
    pub(super) mode: u32,
    pub(super) owner: Owner,
    pub(super) target: Vec<u8>,
    pub(super) identity: Option<Identity>,
}

/// What the records say of names.
pub(super) struct Story {
    /// As they are at the end.
    pub(super) names: Names,
    pub(super) refused: BTreeSet<Lsn>,
    pub(super) born: BTreeMap<Node, Born>,
    /// Each path that a node had that was made since the catalog and whose file no record tells, with the node's kind.
    named: BTreeSet<(Vec<u8>, u64)>,
    /// Files of which some record says what is in them.
    pub(super) written: BTreeSet<Node>,
    pub(super) records: u64,
}

impl Story {
    pub(super) fn read<L: Log>(log: &L, catalog: &Catalog) -> Result<Story, OpenError> {
        let mut story = Story {
            names: catalog.names.clone(),
            refused: BTreeSet::new(),
            born: BTreeMap::new(),
            named: BTreeSet::new(),
            written: BTreeSet::new(),
            records: 0,
        };
        each(log, catalog.lsn, |_, change| {
            if let Change::Refused { lsn } = change {
                story.refused.insert(lsn);
            }
            Ok(())
        })?;
        each(log, catalog.lsn, |lsn, change| {
            story.records += 1;
            story.tell(lsn, &change)
        })?;
        Ok(story)
    }

    fn tell(&mut self, lsn: Lsn, change: &Change<'_>) -> Result<(), OpenError> {
        if self.refused.contains(&lsn) {
            return Ok(());
        }
        if let Change::Write { node, .. } | Change::Resize { node, .. } | Change::Allocate { node, .. } =
            change
        {
            self.written.insert(*node);
        }
        if !change.is_of_names() {
            // Of a node that is gone by then, whoever had it open may still have written to it.
            let _ = self.names.apply(change);
            return Ok(());
        }
        if let Change::Make {
            node, made, identity, ..
        } = change
        {
            let born = Born {
                identity: *identity,
                kind: made.kind,
                mode: made.mode,
                owner: made.owner,
                target: made.target.to_vec(),
            };
            self.born.insert(*node, born);
        }
        let applied = self.names.apply(change);
        applied.map_err(|reason| OpenError::Story { lsn, reason })?;
        self.remember(change);
        Ok(())
    }

    /// Whether such a node had that path, of which no record says which file it is.
    pub(super) fn has_named(&self, path: &[u8], kind: Option<NodeKind>) -> bool {
        kind.is_some_and(|kind| self.named.contains(&(path.to_vec(), kind as u64)))
    }

    /// A folder that is renamed takes what is in it along.
    fn remember(&mut self, change: &Change<'_>) {
        let mut nodes: Vec<Node> = match *change {
            Change::Make { node, .. } | Change::Link { node, .. } => vec![node],
            Change::Rename { from, to, .. } => [from, to]
                .iter()
                .filter_map(|at| self.names.look_up(*at))
                .collect(),
            _ => Vec::new(),
        };
        while let Some(node) = nodes.pop() {
            if let Some(born) = self.born.get(&node).filter(|born| born.identity.is_none()) {
                let kind = born.kind as u64;
                let paths = self.names.places(node).filter_map(|at| self.names.path_of(at));
                self.named.extend(paths.map(|path| (path, kind)));
            }
            nodes.extend(self.names.inside(node).map(|(_, node)| node));
        }
    }
}

/// Gives each change since the catalog.
pub(super) fn each<L: Log>(
    log: &L,
    from: Lsn,
    mut give: impl FnMut(Lsn, Change<'_>) -> Result<(), OpenError>,
) -> Result<(), OpenError> {
    let mut failed = None;
    let end = log.read(from, &mut |record| {
        let told = match Change::decode(record.kind, record.payload) {
            Ok(Some(change)) => give(record.lsn, change),
            Ok(None) => Ok(()),
            Err(reason) => Err(OpenError::Record {
                lsn: record.lsn,
                reason,
            }),
        };
        failed = told.err();
        failed.is_none()
    })?;
    if let Some(error) = failed {
        return Err(error);
    }
    let state = log.state();
    match end == state.tail {
        true => Ok(()),
        // What is behind it is not on the disk yet, which an opened journal always is.
        false => Err(OpenError::Gap {
            catalog: from,
            head: end,
            tail: state.tail,
        }),
    }
}
