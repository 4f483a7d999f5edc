//! Replay of the records' names, from the catalog to the journal's end.

use std::collections::{BTreeMap, BTreeSet};

use netram_proto::id::Lsn;
use netram_proto::port::RecordLog;

use crate::catalog::Catalog;
use crate::change::{DirectoryChange, FileOwner, InodeId, InodeKind};
use crate::error::DirectoryOpenError;
use crate::executed::RequestId;
use crate::name_table::{InodeIdentity, NameTable};

/// An inode made since the catalog.
pub(super) struct CreatedInode {
    pub(super) kind: InodeKind,
    pub(super) mode: u32,
    pub(super) owner: FileOwner,
    pub(super) target: Vec<u8>,
    pub(super) identity: Option<InodeIdentity>,
}

/// Result of following all records since the catalog.
pub(super) struct NameReplay {
    /// Names at the journal's end.
    pub(super) names: NameTable,
    pub(super) refused: BTreeSet<Lsn>,
    pub(super) created: BTreeMap<InodeId, CreatedInode>,
    /// Paths of inodes made since the catalog whose records carry no identity, with the inode's kind.
    created_paths: BTreeSet<(Vec<u8>, u64)>,
    /// Files whose content some record changes.
    pub(super) written: BTreeSet<InodeId>,
    pub(super) records: u64,
    /// Requests that the records name, each with the inode of its reply.
    pub(super) requests: Vec<(RequestId, InodeId)>,
}

impl NameReplay {
    pub(super) fn read<L: RecordLog>(log: &L, catalog: &Catalog) -> Result<NameReplay, DirectoryOpenError> {
        let mut story = NameReplay {
            names: catalog.names.clone(),
            refused: BTreeSet::new(),
            created: BTreeMap::new(),
            created_paths: BTreeSet::new(),
            written: BTreeSet::new(),
            records: 0,
            requests: Vec::new(),
        };
        for_each_change(log, catalog.lsn, |_, change, _| {
            if let DirectoryChange::Revoked { lsn } = change {
                story.refused.insert(lsn);
            }
            Ok(())
        })?;
        for_each_change(log, catalog.lsn, |lsn, change, request| {
            story.records += 1;
            match story.refused.contains(&lsn) {
                true => Ok(()),
                false => story.apply(lsn, &change, request),
            }
        })?;
        Ok(story)
    }

    /// Drops the files that have lost their last name.
    pub(super) fn drop_orphans(&mut self) {
        let orphans: Vec<InodeId> = self.names.orphans().collect();
        for node in orphans {
            self.names.drop_orphan(node);
        }
    }

    fn apply(
        &mut self,
        lsn: Lsn,
        change: &DirectoryChange<'_>,
        request: Option<RequestId>,
    ) -> Result<(), DirectoryOpenError> {
        self.requests
            .extend(request.map(|request| (request, change.replied_node())));
        if let DirectoryChange::Write { node, .. }
        | DirectoryChange::Resize { node, .. }
        | DirectoryChange::Allocate { node, .. } = change
        {
            self.written.insert(*node);
        }
        if !change.is_of_names() {
            // An unlinked inode may still be written through an open descriptor; its records change no names.
            let _ = self.names.apply(change);
            return Ok(());
        }
        if let DirectoryChange::Make {
            node,
            spec: made,
            identity,
            ..
        } = change
        {
            let born = CreatedInode {
                identity: *identity,
                kind: made.kind,
                mode: made.mode,
                owner: made.owner,
                target: made.target.to_vec(),
            };
            self.created.insert(*node, born);
        }
        // A mount that records requests keeps files that programs may have open.
        let applied = self.names.apply_keeping(change, request.is_some());
        applied.map_err(|reason| DirectoryOpenError::Inconsistent { lsn, reason })?;
        self.record_paths(change);
        Ok(())
    }

    /// Whether an inode without a recorded identity had this path.
    pub(super) fn had_path(&self, path: &[u8], kind: Option<InodeKind>) -> bool {
        kind.is_some_and(|kind| self.created_paths.contains(&(path.to_vec(), kind as u64)))
    }

    /// Records new paths; renaming a directory renames everything below it.
    fn record_paths(&mut self, change: &DirectoryChange<'_>) {
        let mut nodes: Vec<InodeId> = match *change {
            DirectoryChange::Make { node, .. } | DirectoryChange::Link { node, .. } => vec![node],
            DirectoryChange::Rename { from, to, .. } => [from, to]
                .iter()
                .filter_map(|at| self.names.look_up(*at))
                .collect(),
            _ => Vec::new(),
        };
        while let Some(node) = nodes.pop() {
            if let Some(born) = self.created.get(&node).filter(|born| born.identity.is_none()) {
                let kind = born.kind as u64;
                let paths = self.names.names_of(node).filter_map(|at| self.names.path_of(at));
                self.created_paths.extend(paths.map(|path| (path, kind)));
            }
            nodes.extend(self.names.children(node).map(|(_, node)| node));
        }
    }
}

/// Calls a function for each change since the catalog.
pub(super) fn for_each_change<L: RecordLog>(
    log: &L,
    from: Lsn,
    mut give: impl FnMut(Lsn, DirectoryChange<'_>, Option<RequestId>) -> Result<(), DirectoryOpenError>,
) -> Result<(), DirectoryOpenError> {
    let mut failed = None;
    let end = log.read(from, &mut |record| {
        let told = match DirectoryChange::decode(record.kind, record.payload) {
            Ok(Some((change, request))) => give(record.lsn, change, request),
            Ok(None) => Ok(()),
            Err(reason) => Err(DirectoryOpenError::Record {
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
        // Records after `end` are not on the disk yet, although opening a journal flushes them.
        false => Err(DirectoryOpenError::Gap {
            catalog: from,
            head: end,
            tail: state.tail,
        }),
    }
}
