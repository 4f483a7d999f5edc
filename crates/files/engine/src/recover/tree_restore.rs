//! Restores the tree on the disk to the names at the journal's end.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use netram_proto::id::Lsn;
use netram_proto::planted::PlantedFault;
use netram_proto::port::{IoError, RecordLog};

use super::name_replay::{CreatedInode, NameReplay, for_each_change};
use super::{DirectoryRecovery, at, below};
use crate::catalog::Catalog;
use crate::change::{DirectoryChange, DirectoryEntry, InodeId, InodeKind, InodeSpec};
use crate::directory::DirectoryOptions;
use crate::error::DirectoryOpenError;
use crate::file_tree::FileTree;
use crate::limit::ASIDE_PREFIX;
use crate::name_table::{InodeIdentity, NameTable};

/// Maximum number of files kept open while writes are replayed.
const OPEN_MAX: usize = 64;

/// An entry found on the disk.
struct DiskEntry {
    path: Vec<u8>,
    kind: Option<InodeKind>,
    /// Inode of the entry. `None`: the catalog has none with its identity.
    node: Option<InodeId>,
    stays: bool,
    /// The journal does not know the entry, and it is left alone.
    unknown: bool,
}

/// Restores the tree on the disk to the names at the journal's end.
pub(super) struct TreeRestore<'s, T: FileTree> {
    tree: &'s T,
    replay: &'s NameReplay,
    catalog_names: &'s NameTable,
    /// All entries on the disk, directories before their content.
    entries: Vec<DiskEntry>,
    /// Inodes moved to a temporary name; `in_place` has those at their final paths.
    aside: BTreeSet<InodeId>,
    in_place: BTreeMap<InodeId, Vec<u8>>,
    recovered: DirectoryRecovery,
    /// Leaves entries alone that the journal does not account for.
    loss_accepted: bool,
    /// Files that are missing: `loss_accepted` allows it, or they had no name and the kernel has forgotten
    /// them, which no record says.
    missing: BTreeSet<InodeId>,
    /// Files made since the catalog that the disk has kept.
    surviving: BTreeSet<InodeId>,
}

impl<'s, T: FileTree> TreeRestore<'s, T> {
    pub(super) fn new(
        tree: &'s T,
        catalog: &'s Catalog,
        story: &'s NameReplay,
        options: &DirectoryOptions,
    ) -> Result<TreeRestore<'s, T>, DirectoryOpenError> {
        let old = &catalog.names;
        let mut known: HashMap<InodeIdentity, InodeId> = { old.nodes() }
            .filter_map(|node| Some((old.entry(node)?.identity?, node)))
            .collect();
        if !options.planted.is(PlantedFault::UnrecordedRemoved) {
            let born = |(node, born): (&InodeId, &CreatedInode)| Some((born.identity?, *node));
            known.extend(story.created.iter().filter_map(born));
        }
        let mut there = Vec::new();
        let mut directories = vec![Vec::new()];
        while let Some(directory) = directories.pop() {
            for found in tree.list(&directory).map_err(at(&directory))? {
                let path = below(&directory, &found.name);
                if found.kind == Some(InodeKind::Directory) {
                    directories.push(path.clone());
                }
                let node = known.get(&found.identity).copied();
                there.push(DiskEntry {
                    node: node.or_else(|| find_adoptable(story, &path, found.kind)),
                    path,
                    kind: found.kind,
                    stays: false,
                    unknown: false,
                });
            }
        }
        there.sort_by_key(|there| (depth(&there.path), there.path.clone()));
        let kept = { there.iter() }
            .filter(|there| there.kind == Some(InodeKind::File))
            .filter_map(|there| there.node.filter(|node| story.created.contains_key(node)))
            .collect();
        Ok(TreeRestore {
            tree,
            replay: story,
            catalog_names: old,
            entries: there,
            aside: BTreeSet::new(),
            in_place: BTreeMap::from([(InodeId::ROOT, Vec::new())]),
            recovered: DirectoryRecovery::default(),
            loss_accepted: options.loss_accepted,
            missing: BTreeSet::new(),
            surviving: kept,
        })
    }

    /// Decides which entries stay and refuses entries that cannot be explained. Changes nothing.
    pub(super) fn sort(&mut self) -> Result<(), DirectoryOpenError> {
        let names = &self.replay.names;
        let wanted: HashMap<Vec<u8>, InodeId> = { names.nodes() }
            .flat_map(|node| names.names_of(node).map(move |at| (at, node)))
            .filter_map(|(at, node)| Some((names.path_of(at)?, node)))
            .collect();
        let mut staying: BTreeSet<Vec<u8>> = BTreeSet::from([Vec::new()]);
        for there in &mut self.entries {
            let directory = parent(&there.path).to_vec();
            let wanted = wanted.get(&there.path).copied();
            let itself = there.node.is_some() && there.node == wanted;
            there.stays = staying.contains(&directory) && itself;
            if there.stays {
                staying.insert(there.path.clone());
            }
        }
        let found: BTreeSet<InodeId> = self.entries.iter().filter_map(|there| there.node).collect();
        for node in names.nodes().filter(|node| *node != InodeId::ROOT) {
            if names.is_orphan(node) && !found.contains(&node) {
                self.missing.insert(node);
                continue;
            }
            let is_file = names.kind(node) != Some(InodeKind::Directory);
            if is_file && self.was_in_catalog(node) && !found.contains(&node) {
                if self.loss_accepted {
                    self.missing.insert(node);
                    continue;
                }
                let path = self.catalog_names.path(node).unwrap_or_default();
                return Err(DirectoryOpenError::Missing { path });
            }
        }
        // An interrupted recovery has made the file anew, because the disk had lost the one in the record.
        let made_anew = |there: &DiskEntry| {
            let node = wanted.get(&there.path);
            let born =
                node.is_some_and(|node| self.replay.created.contains_key(node) && !found.contains(node));
            born && there.kind == node.and_then(|node| names.kind(*node))
        };
        for there in &mut self.entries {
            let known = there.node.is_some()
                || there.stays
                || self.replay.had_path(&there.path, there.kind)
                || made_anew(there);
            let left = name(&there.path).starts_with(ASIDE_PREFIX);
            if !known && !left {
                if self.loss_accepted {
                    there.unknown = true;
                    continue;
                }
                let path = there.path.clone();
                return Err(DirectoryOpenError::UnknownFile { path });
            }
        }
        Ok(())
    }

    fn was_in_catalog(&self, node: InodeId) -> bool {
        self.catalog_names.kind(node).is_some()
    }

    /// Moves aside or removes every entry that does not stay, a directory's content before the directory.
    pub(super) fn lay_aside(&mut self) -> Result<(), DirectoryOpenError> {
        let there = std::mem::take(&mut self.entries);
        for there in { there.iter() }.filter(|there| there.stays) {
            if let Some(node) = there.node {
                self.in_place.entry(node).or_insert_with(|| there.path.clone());
            }
        }
        let survives = |there: &DiskEntry| there.node.filter(|node| self.replay.names.kind(*node).is_some());
        // Files that an interrupted recovery has moved aside already; their other names cannot be moved there
        // again.
        let laid = |there: &DiskEntry| survives(there).filter(|node| there.path == aside(*node));
        let laid: BTreeSet<InodeId> = { there.iter() }
            .filter_map(laid)
            .filter(|node| !self.in_place.contains_key(node))
            .collect();
        self.aside.extend(&laid);
        for there in { there.iter().rev() }.filter(|there| !there.stays && !there.unknown) {
            let directory = there.kind == Some(InodeKind::Directory);
            match { there.node }.filter(|node| self.replay.names.kind(*node).is_some()) {
                Some(node) if laid.contains(&node) && there.path == aside(node) => (),
                Some(node) if !self.aside.contains(&node) && !self.in_place.contains_key(&node) => {
                    self.tree
                        .rename(&there.path, &aside(node), false)
                        .map_err(at(&there.path))?;
                    self.aside.insert(node);
                }
                // The file has another final name, or none.
                _ => match self.tree.remove(&there.path, directory) {
                    Ok(()) => self.recovered.removed += 1,
                    // The directory contains an unknown file.
                    Err(IoError { errno: ENOTEMPTY }) if self.loss_accepted => (),
                    Err(error) => return Err(at(&there.path)(error)),
                },
            }
        }
        Ok(())
    }

    /// Moves or makes everything at its final path, directories first, from the root down.
    pub(super) fn build(&mut self) -> Result<(), DirectoryOpenError> {
        let names = &self.replay.names;
        let mut wanted: Vec<(Vec<u8>, InodeId)> = { names.nodes() }
            .flat_map(|node| names.names_of(node).map(move |at| (at, node)))
            .filter_map(|(at, node)| Some((names.path_of(at)?, node)))
            .collect();
        let is_file = |node: InodeId| names.kind(node) != Some(InodeKind::Directory);
        wanted.sort_by_key(|(path, node)| (is_file(*node), depth(path), path.clone()));
        for (path, node) in wanted {
            self.put_in_place(&path, node)?;
        }
        Ok(())
    }

    fn put_in_place(&mut self, path: &[u8], node: InodeId) -> Result<(), DirectoryOpenError> {
        if self.missing.contains(&node) || self.in_place.get(&node).is_some_and(|place| place == path) {
            return Ok(());
        }
        if self.aside.remove(&node) {
            self.tree.rename(&aside(node), path, false).map_err(at(path))?;
            self.recovered.renamed += 1;
        } else if let Some(place) = self.in_place.get(&node) {
            // One more name of the file; it may exist already.
            match self.tree.link(place, path) {
                Ok(()) => self.recovered.renamed += 1,
                Err(IoError { errno: EEXIST }) => (),
                Err(error) => return Err(at(path)(error)),
            }
            return Ok(());
        } else {
            self.make(path, node)?;
        }
        self.in_place.insert(node, path.to_vec());
        Ok(())
    }

    fn make(&mut self, path: &[u8], node: InodeId) -> Result<(), DirectoryOpenError> {
        let born = self.replay.created.get(&node);
        let made = match (born, self.catalog_names.entry(node)) {
            (Some(born), _) => InodeSpec {
                kind: born.kind,
                mode: born.mode,
                owner: born.owner,
                target: &born.target,
            },
            // A directory whose last name the disk has lost.
            (None, Some(entry)) => InodeSpec {
                kind: entry.kind,
                mode: entry.mode,
                owner: entry.owner,
                target: b"",
            },
            (None, None) => unreachable!("every inode is in the catalog or was made since"),
        };
        self.tree.make(path, &made).map_err(at(path))?;
        self.recovered.created += 1;
        Ok(())
    }

    /// Replays changes of content and attributes.
    pub(super) fn replay_writes<L: RecordLog>(
        &mut self,
        log: &L,
        from: Lsn,
    ) -> Result<(), DirectoryOpenError> {
        let mut open: HashMap<InodeId, T::File> = HashMap::new();
        let mut begun: BTreeSet<InodeId> = BTreeSet::new();
        for_each_change(log, from, |lsn, change, _| {
            if self.replay.refused.contains(&lsn) {
                return Ok(());
            }
            let node = match change {
                DirectoryChange::Write { node, .. }
                | DirectoryChange::Resize { node, .. }
                | DirectoryChange::Allocate { node, .. }
                | DirectoryChange::SetAttributes { node, .. }
                | DirectoryChange::SetXattr { node, .. } => node,
                _ => return Ok(()),
            };
            let Some(path) = self.in_place.get(&node) else {
                // The inode is gone by the journal's end.
                return Ok(());
            };
            let failed = |error| at(path)(error);
            if let DirectoryChange::SetAttributes { attributes, .. } = &change {
                return self.tree.set_attributes(path, attributes).map_err(failed);
            }
            if let DirectoryChange::SetXattr { name, value, .. } = change {
                return self.tree.set_xattr(path, name, value).map_err(failed);
            }
            if !open.contains_key(&node) {
                if open.len() >= OPEN_MAX {
                    open.clear();
                }
                // Only before the first write: from then on an error counts.
                if begun.insert(node) {
                    self.tree.forget_failed_writes(path);
                }
                open.insert(node, self.tree.open_to_write(path).map_err(failed)?);
            }
            let file = &open[&node];
            match change {
                DirectoryChange::Write { offset, bytes, .. } => {
                    self.recovered.bytes += bytes.len() as u64;
                    self.tree.write(file, offset, bytes)
                }
                DirectoryChange::Resize { size, .. } => self.tree.resize(file, size),
                DirectoryChange::Allocate {
                    mode: how,
                    offset,
                    length,
                    ..
                } => self.tree.allocate(file, how, offset, length),
                _ => Ok(()),
            }
            .map_err(failed)
        })
    }

    /// Makes the recorded changes of extended attributes again. Each was recorded before it was made, and the
    /// server may have been killed in between. The last record of an attribute is its newest value.
    pub(super) fn replay_xattrs<L: RecordLog>(&self, log: &L, from: Lsn) -> Result<(), DirectoryOpenError> {
        for_each_change(log, from, |lsn, change, _| {
            let DirectoryChange::SetXattr { node, name, value } = change else {
                return Ok(());
            };
            match self.in_place.get(&node) {
                Some(path) if !self.replay.refused.contains(&lsn) => self
                    .tree
                    .set_xattr(path, name, value)
                    .map_err(|error| at(path)(error)),
                _ => Ok(()),
            }
        })
    }

    /// Files with bytes on the disk and no record; called before any write is replayed.
    pub(super) fn unrecorded(&self) -> Result<Vec<Vec<u8>>, DirectoryOpenError> {
        let mut all = Vec::new();
        for node in self.surviving.difference(&self.replay.written) {
            let Some(path) = self.in_place.get(node) else {
                continue;
            };
            let file = self.tree.open_to_write(path).map_err(at(path))?;
            if self.tree.read(&file, 0, &mut [0]).map_err(at(path))? > 0 {
                all.push(path.clone());
            }
        }
        Ok(all)
    }

    /// Files without a name that the kernel has forgotten.
    pub(super) fn forgotten(&self) -> Vec<InodeId> {
        let missing = self.missing.iter().copied();
        missing
            .filter(|node| self.replay.names.is_orphan(*node))
            .collect()
    }

    pub(super) fn finish(self) -> DirectoryRecovery {
        self.recovered
    }
}

/// Finds the inode for a file whose record carries no identity, as earlier versions wrote it, and whose bytes
/// have no record. The file with its name is adopted, lest the only copy of its bytes be removed.
fn find_adoptable(story: &NameReplay, path: &[u8], kind: Option<InodeKind>) -> Option<InodeId> {
    let mut node = InodeId::ROOT;
    for name in path.split(|byte| *byte == b'/') {
        node = story.names.look_up(DirectoryEntry {
            directory: node,
            name,
        })?;
    }
    let born = story.created.get(&node)?;
    let unknown = born.identity.is_none() && !story.written.contains(&node);
    (unknown && born.kind == InodeKind::File && kind == Some(InodeKind::File)).then_some(node)
}

const EEXIST: i32 = 17;
const ENOTEMPTY: i32 = 39;

fn aside(node: InodeId) -> Vec<u8> {
    [ASIDE_PREFIX, node.0.to_string().as_bytes()].concat()
}

fn depth(path: &[u8]) -> usize {
    path.iter().filter(|byte| **byte == b'/').count()
}

fn parent(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    &path[..slash.unwrap_or(0)]
}

fn name(path: &[u8]) -> &[u8] {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    &path[slash.map_or(0, |slash| slash + 1)..]
}
