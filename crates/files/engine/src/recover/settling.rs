//! The disk, on its way to where the story ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use netram_proto::id::Lsn;
use netram_proto::planted::Fault;
use netram_proto::port::{IoError, Log};

use super::story::{Born, Story, each};
use super::{Recovered, at, below};
use crate::catalog::Catalog;
use crate::change::{Change, Made, Node, NodeKind, Place};
use crate::error::OpenError;
use crate::folder::Options;
use crate::limit::ASIDE;
use crate::names::{Identity, Names};
use crate::tree::Tree;

/// Files that are held open while records are written again.
const OPEN_MAX: usize = 64;

/// Something on the disk.
struct There {
    path: Vec<u8>,
    kind: Option<NodeKind>,
    /// Which node it is. `None`: none that the catalog has.
    node: Option<Node>,
    stays: bool,
    /// Nobody knows it, and it is let be.
    strange: bool,
}

/// The disk, on its way to where the story ends.
pub(super) struct Settling<'s, T: Tree> {
    tree: &'s T,
    story: &'s Story,
    old: &'s Names,
    /// All that is on the disk, folders before what is in them.
    there: Vec<There>,
    /// Nodes that are laid aside, or where they belong.
    aside: BTreeSet<Node>,
    in_place: BTreeMap<Node, Vec<u8>>,
    recovered: Recovered,
    /// What the journal does not account for is let be.
    lenient: bool,
    /// Files that are not there, and that nobody insists on.
    lost: BTreeSet<Node>,
    /// Files that were made since the catalog, and that the disk has kept.
    kept: BTreeSet<Node>,
}

impl<'s, T: Tree> Settling<'s, T> {
    pub(super) fn new(
        tree: &'s T,
        catalog: &'s Catalog,
        story: &'s Story,
        options: &Options,
    ) -> Result<Settling<'s, T>, OpenError> {
        let old = &catalog.names;
        let mut known: HashMap<Identity, Node> = { old.nodes() }
            .filter_map(|node| Some((old.entry(node)?.identity?, node)))
            .collect();
        if !options.planted.is(Fault::UnrecordedRemoved) {
            let born = |(node, born): (&Node, &Born)| Some((born.identity?, *node));
            known.extend(story.born.iter().filter_map(born));
        }
        let mut there = Vec::new();
        let mut folders = vec![Vec::new()];
        while let Some(folder) = folders.pop() {
            for found in tree.list(&folder).map_err(at(&folder))? {
                let path = below(&folder, &found.name);
                if found.kind == Some(NodeKind::Folder) {
                    folders.push(path.clone());
                }
                let node = known.get(&found.identity).copied();
                there.push(There {
                    node: node.or_else(|| adopted(story, &path, found.kind)),
                    path,
                    kind: found.kind,
                    stays: false,
                    strange: false,
                });
            }
        }
        there.sort_by_key(|there| (depth(&there.path), there.path.clone()));
        let kept = { there.iter() }
            .filter(|there| there.kind == Some(NodeKind::File))
            .filter_map(|there| there.node.filter(|node| story.born.contains_key(node)))
            .collect();
        Ok(Settling {
            tree,
            story,
            old,
            there,
            aside: BTreeSet::new(),
            in_place: BTreeMap::from([(Node::ROOT, Vec::new())]),
            recovered: Recovered::default(),
            lenient: options.loss_accepted,
            lost: BTreeSet::new(),
            kept,
        })
    }

    /// Says what stays, and refuses what nobody can account for. Nothing is changed yet.
    pub(super) fn sort(&mut self) -> Result<(), OpenError> {
        let names = &self.story.names;
        let wanted: HashMap<Vec<u8>, Node> = { names.nodes() }
            .flat_map(|node| names.places(node).map(move |at| (at, node)))
            .filter_map(|(at, node)| Some((names.path_of(at)?, node)))
            .collect();
        let mut staying: BTreeSet<Vec<u8>> = BTreeSet::from([Vec::new()]);
        for there in &mut self.there {
            let folder = parent(&there.path).to_vec();
            let wanted = wanted.get(&there.path).copied();
            let itself = there.node.is_some() && there.node == wanted;
            there.stays = staying.contains(&folder) && itself;
            if there.stays {
                staying.insert(there.path.clone());
            }
        }
        let found: BTreeSet<Node> = self.there.iter().filter_map(|there| there.node).collect();
        for node in names.nodes().filter(|node| *node != Node::ROOT) {
            let is_file = names.kind(node) != Some(NodeKind::Folder);
            if is_file && self.old_has(node) && !found.contains(&node) {
                if self.lenient {
                    self.lost.insert(node);
                    continue;
                }
                let path = self.old.path(node).unwrap_or_default();
                return Err(OpenError::Missing { path });
            }
        }
        // A recovery that was cut off has made it anew, for the disk had not kept the one that the record tells of.
        let made_anew = |there: &There| {
            let node = wanted.get(&there.path);
            let born = node.is_some_and(|node| self.story.born.contains_key(node) && !found.contains(node));
            born && there.kind == Some(NodeKind::File)
        };
        for there in &mut self.there {
            let known = there.node.is_some()
                || there.stays
                || self.story.has_named(&there.path, there.kind)
                || made_anew(there);
            let left = name(&there.path).starts_with(ASIDE);
            if !known && !left {
                if self.lenient {
                    there.strange = true;
                    continue;
                }
                let path = there.path.clone();
                return Err(OpenError::Stranger { path });
            }
        }
        Ok(())
    }

    fn old_has(&self, node: Node) -> bool {
        self.old.kind(node).is_some()
    }

    /// What does not stay is laid aside, or removed. What is in a folder goes before it.
    pub(super) fn lay_aside(&mut self) -> Result<(), OpenError> {
        let there = std::mem::take(&mut self.there);
        for there in { there.iter() }.filter(|there| there.stays) {
            if let Some(node) = self.node_at(&there.path) {
                self.in_place.entry(node).or_insert_with(|| there.path.clone());
            }
        }
        let survives = |there: &There| there.node.filter(|node| self.story.names.kind(*node).is_some());
        // What a recovery that was cut off has laid aside: another name of it cannot be laid there once more.
        let laid = |there: &There| survives(there).filter(|node| there.path == aside(*node));
        let laid: BTreeSet<Node> = { there.iter() }
            .filter_map(laid)
            .filter(|node| !self.in_place.contains_key(node))
            .collect();
        self.aside.extend(&laid);
        for there in { there.iter().rev() }.filter(|there| !there.stays && !there.strange) {
            let folder = there.kind == Some(NodeKind::Folder);
            match { there.node }.filter(|node| self.story.names.kind(*node).is_some()) {
                Some(node) if laid.contains(&node) && there.path == aside(node) => (),
                Some(node) if !self.aside.contains(&node) && !self.in_place.contains_key(&node) => {
                    self.tree
                        .rename(&there.path, &aside(node), false)
                        .map_err(at(&there.path))?;
                    self.aside.insert(node);
                }
                // It has another name by now; or nobody wants it any more.
                _ => match self.tree.remove(&there.path, folder) {
                    Ok(()) => self.recovered.removed += 1,
                    // Something strange is in it.
                    Err(IoError { errno: ENOTEMPTY }) if self.lenient => (),
                    Err(error) => return Err(at(&there.path)(error)),
                },
            }
        }
        Ok(())
    }

    fn node_at(&self, path: &[u8]) -> Option<Node> {
        let mut node = Node::ROOT;
        for name in path.split(|byte| *byte == b'/') {
            node = self.story.names.look_up(Place { folder: node, name })?;
        }
        Some(node)
    }

    /// Everything gets to where it belongs: folders first, from the top.
    pub(super) fn build(&mut self) -> Result<(), OpenError> {
        let names = &self.story.names;
        let mut wanted: Vec<(Vec<u8>, Node)> = { names.nodes() }
            .flat_map(|node| names.places(node).map(move |at| (at, node)))
            .filter_map(|(at, node)| Some((names.path_of(at)?, node)))
            .collect();
        let is_file = |node: Node| names.kind(node) != Some(NodeKind::Folder);
        wanted.sort_by_key(|(path, node)| (is_file(*node), depth(path), path.clone()));
        for (path, node) in wanted {
            self.place(&path, node)?;
        }
        Ok(())
    }

    fn place(&mut self, path: &[u8], node: Node) -> Result<(), OpenError> {
        if self.lost.contains(&node) || self.in_place.get(&node).is_some_and(|place| place == path) {
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

    fn make(&mut self, path: &[u8], node: Node) -> Result<(), OpenError> {
        let born = self.story.born.get(&node);
        let made = match (born, self.old.entry(node)) {
            (Some(born), _) => Made {
                kind: born.kind,
                mode: born.mode,
                owner: born.owner,
                target: &born.target,
            },
            // A folder whose last name the disk has not kept.
            (None, Some(entry)) => Made {
                kind: entry.kind,
                mode: entry.mode,
                owner: entry.owner,
                target: b"",
            },
            (None, None) => unreachable!("each node is the catalog's, or was made since"),
        };
        self.tree.make(path, &made).map_err(at(path))?;
        self.recovered.made += 1;
        Ok(())
    }

    /// What was done to what is in files, and to what they look like, is done again.
    pub(super) fn write_again<L: Log>(&mut self, log: &L, from: Lsn) -> Result<(), OpenError> {
        let mut open: HashMap<Node, T::File> = HashMap::new();
        each(log, from, |lsn, change| {
            if self.story.refused.contains(&lsn) {
                return Ok(());
            }
            let node = match change {
                Change::Write { node, .. }
                | Change::Resize { node, .. }
                | Change::Allocate { node, .. }
                | Change::Set { node, .. }
                | Change::Label { node, .. } => node,
                _ => return Ok(()),
            };
            let Some(path) = self.in_place.get(&node) else {
                // It is gone by now.
                return Ok(());
            };
            let failed = |error| at(path)(error);
            if let Change::Set { attributes, .. } = &change {
                return self.tree.set(path, attributes).map_err(failed);
            }
            if let Change::Label { name, value, .. } = change {
                return self.tree.label(path, name, value).map_err(failed);
            }
            if !open.contains_key(&node) {
                if open.len() >= OPEN_MAX {
                    open.clear();
                }
                open.insert(node, self.tree.open_to_write(path).map_err(failed)?);
            }
            let file = &open[&node];
            match change {
                Change::Write { offset, bytes, .. } => {
                    self.recovered.bytes += bytes.len() as u64;
                    self.tree.write(file, offset, bytes)
                }
                Change::Resize { size, .. } => self.tree.resize(file, size),
                Change::Allocate {
                    how, offset, length, ..
                } => self.tree.allocate(file, how, offset, length),
                _ => Ok(()),
            }
            .map_err(failed)
        })
    }

    /// Files with bytes that no record has, before any record is written again.
    pub(super) fn unrecorded(&self) -> Result<Vec<Vec<u8>>, OpenError> {
        let mut all = Vec::new();
        for node in self.kept.difference(&self.story.written) {
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

    pub(super) fn done(self) -> Recovered {
        self.recovered
    }
}

/// A file whose record does not say which one it is, as earlier versions have written it, and with nothing recorded of
/// its bytes: the one with its name is taken for it, lest the only copy of them be removed.
fn adopted(story: &Story, path: &[u8], kind: Option<NodeKind>) -> Option<Node> {
    let mut node = Node::ROOT;
    for name in path.split(|byte| *byte == b'/') {
        node = story.names.look_up(Place { folder: node, name })?;
    }
    let born = story.born.get(&node)?;
    let unknown = born.identity.is_none() && !story.written.contains(&node);
    (unknown && born.kind == NodeKind::File && kind == Some(NodeKind::File)).then_some(node)
}

const EEXIST: i32 = 17;
const ENOTEMPTY: i32 = 39;

fn aside(node: Node) -> Vec<u8> {
    [ASIDE, node.0.to_string().as_bytes()].concat()
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
