//! The disk, on its way to where the story ends.

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

/// Files that are held open while records are written again.
const OPEN_MAX: usize = 64;

/// Something on the disk.
struct DiskEntry {
    path: Vec<u8>,
    kind: Option<InodeKind>,
    /// Which node it is. `None`: none that the catalog has.
    node: Option<InodeId>,
    stays: bool,
    /// Nobody knows it, and it is let be.
    unknown: bool,
}

/// The disk, on its way to where the story ends.
pub(super) struct TreeRestore<'s, T: FileTree> {
    tree: &'s T,
    replay: &'s NameReplay,
    catalog_names: &'s NameTable,
    /// All that is on the disk, directories before what is in them.
    entries: Vec<DiskEntry>,
    /// Nodes that are laid aside, or where they belong.
    aside: BTreeSet<InodeId>,
    in_place: BTreeMap<InodeId, Vec<u8>>,
    recovered: DirectoryRecovery,
    /// What the journal does not account for is let be.
    loss_accepted: bool,
    /// Files that are not there, and that nobody insists on.
    missing: BTreeSet<InodeId>,
    /// Files that were made since the catalog, and that the disk has kept.
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

    /// Says what stays, and refuses what nobody can account for. Nothing is changed yet.
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
        // A recovery that was cut off has made it anew, for the disk had not kept the one that the record
        // tells of.
        let made_anew = |there: &DiskEntry| {
            let node = wanted.get(&there.path);
            let born =
                node.is_some_and(|node| self.replay.created.contains_key(node) && !found.contains(node));
            born && there.kind == Some(InodeKind::File)
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

    /// What does not stay is laid aside, or removed. What is in a directory goes before it.
    pub(super) fn lay_aside(&mut self) -> Result<(), DirectoryOpenError> {
        let there = std::mem::take(&mut self.entries);
        for there in { there.iter() }.filter(|there| there.stays) {
            if let Some(node) = self.node_at(&there.path) {
                self.in_place.entry(node).or_insert_with(|| there.path.clone());
            }
        }
        let survives = |there: &DiskEntry| there.node.filter(|node| self.replay.names.kind(*node).is_some());
        // What a recovery that was cut off has laid aside: another name of it cannot be laid there once more.
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
                // It has another name by now; or nobody wants it any more.
                _ => match self.tree.remove(&there.path, directory) {
                    Ok(()) => self.recovered.removed += 1,
                    // Something strange is in it.
                    Err(IoError { errno: ENOTEMPTY }) if self.loss_accepted => (),
                    Err(error) => return Err(at(&there.path)(error)),
                },
            }
        }
        Ok(())
    }

    fn node_at(&self, path: &[u8]) -> Option<InodeId> {
        let mut node = InodeId::ROOT;
        for name in path.split(|byte| *byte == b'/') {
            node = self.replay.names.look_up(DirectoryEntry {
                directory: node,
                name,
            })?;
        }
        Some(node)
    }

    /// Everything gets to where it belongs: directories first, from the top.
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
            // One more name of it, which may be there already.
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
            // A directory whose last name the disk has not kept.
            (None, Some(entry)) => InodeSpec {
                kind: entry.kind,
                mode: entry.mode,
                owner: entry.owner,
                target: b"",
            },
            (None, None) => unreachable!("each node is the catalog's, or was made since"),
        };
        self.tree.make(path, &made).map_err(at(path))?;
        self.recovered.created += 1;
        Ok(())
    }

    /// What was done to what is in files, and to what they look like, is done again.
    pub(super) fn replay_writes<L: RecordLog>(
        &mut self,
        log: &L,
        from: Lsn,
    ) -> Result<(), DirectoryOpenError> {
        let mut open: HashMap<InodeId, T::File> = HashMap::new();
        for_each_change(log, from, |lsn, change| {
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
                // It is gone by now.
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

    /// Files with bytes that no record has, before any record is written again.
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

    pub(super) fn finish(self) -> DirectoryRecovery {
        self.recovered
    }
}

/// A file whose record does not say which one it is, as earlier versions have written it, and with nothing
/// recorded of its bytes: the one with its name is taken for it, lest the only copy of them be removed.
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
