//! Which nodes there are, and what they are called.

use std::collections::BTreeMap;

use crate::change::{Change, Made, Node, NodeKind, Owner, Place};
use crate::limit::{ASIDE, NAME_BYTES_MAX, NODES_MAX, PATH_BYTES_MAX};

/// What tells a node's file from every other that its disk has or has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The inode's number, which a disk uses again.
    pub inode: u64,
    /// When that inode was made, in nanoseconds since 1970; 0 where the file system does not say.
    pub made_ns: u64,
}

/// Why a name cannot be changed so. Nothing was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is no such name, or node.
    #[error("there is no such file")]
    Missing,
    /// There is one already.
    #[error("there is such a file already")]
    Exists,
    /// It would have to be a folder.
    #[error("it is no folder")]
    NotFolder,
    /// It must not be a folder.
    #[error("it is a folder")]
    IsFolder,
    /// A folder that is to go has something in it.
    #[error("the folder is not empty")]
    NotEmpty,
    /// A folder cannot be inside of itself.
    #[error("a folder cannot go into itself")]
    Loop,
    /// A name or path that is too long.
    #[error("the name is too long")]
    TooLong,
    /// A name that is none, or is kept for recovery.
    #[error("names that begin with `.netram-aside-` are kept for recovery")]
    Reserved,
    /// There are too many nodes.
    #[error("a folder has 1,048,576 files and folders at most")]
    TooMany,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) kind: NodeKind,
    /// A folder's permissions and owner, so that one that is missing can be made again. Of others the disk knows.
    pub(crate) mode: u32,
    pub(crate) owner: Owner,
    /// What it is on the disk; `None`: nothing yet.
    pub(crate) identity: Option<Identity>,
    inside: BTreeMap<Box<[u8]>, Node>,
    places: Vec<(Node, Box<[u8]>)>,
}

/// All nodes and their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    nodes: BTreeMap<Node, Entry>,
    next: u64,
}

impl Names {
    /// A folder with nothing in it.
    pub fn new(mode: u32, owner: Owner) -> Names {
        let root = Entry {
            kind: NodeKind::Folder,
            mode,
            owner,
            identity: None,
            inside: BTreeMap::new(),
            places: Vec::new(),
        };
        Names {
            nodes: BTreeMap::from([(Node::ROOT, root)]),
            next: Node::ROOT.0 + 1,
        }
    }

    /// The number of the next node that is made.
    pub fn next(&self) -> Node {
        Node(self.next)
    }

    pub(crate) fn set_next(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// How many nodes there are, the folder itself among them.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether nothing is in the folder.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// What a node is. `None`: it is gone.
    pub fn kind(&self, node: Node) -> Option<NodeKind> {
        self.nodes.get(&node).map(|entry| entry.kind)
    }

    pub(crate) fn entry(&self, node: Node) -> Option<&Entry> {
        self.nodes.get(&node)
    }

    pub(crate) fn entry_mut(&mut self, node: Node) -> Option<&mut Entry> {
        self.nodes.get_mut(&node)
    }

    /// Each node, in the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = Node> {
        self.nodes.keys().copied()
    }

    /// Nodes of which it is not known which files they are.
    pub(crate) fn unidentified(&self) -> impl Iterator<Item = Node> {
        let unknown = |(node, entry): (&Node, &Entry)| entry.identity.is_none().then_some(*node);
        self.nodes.iter().filter_map(unknown)
    }

    /// How many names it has.
    pub fn links(&self, node: Node) -> usize {
        self.nodes.get(&node).map_or(0, |entry| entry.places.len())
    }

    /// The node with this name.
    pub fn look_up(&self, at: Place<'_>) -> Option<Node> {
        self.nodes.get(&at.folder)?.inside.get(at.name).copied()
    }

    /// What is in a folder: each name, and what it names.
    pub fn inside(&self, folder: Node) -> impl Iterator<Item = (&[u8], Node)> {
        let entry = self.nodes.get(&folder);
        { entry.into_iter() }.flat_map(|entry| entry.inside.iter().map(|(name, node)| (&name[..], *node)))
    }

    /// The names of a node: each with the folder that has it.
    pub fn places(&self, node: Node) -> impl Iterator<Item = Place<'_>> {
        let entry = self.nodes.get(&node);
        { entry.into_iter() }.flat_map(|entry| {
            entry.places.iter().map(|(folder, name)| Place {
                folder: *folder,
                name,
            })
        })
    }

    /// The folder in which a node is; the folder itself is in itself.
    pub fn parent(&self, node: Node) -> Node {
        self.places(node).next().map_or(Node::ROOT, |place| place.folder)
    }

    /// A path to a node, from the folder on: empty for that itself. `None`: the node is gone.
    pub fn path(&self, node: Node) -> Option<Vec<u8>> {
        let mut parts = Vec::new();
        let mut at = node;
        while at != Node::ROOT {
            let (folder, name) = self.nodes.get(&at)?.places.first()?;
            parts.push(&name[..]);
            at = *folder;
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    /// The path of a name, whether there is one or not. `None`: the folder is gone.
    pub fn path_of(&self, at: Place<'_>) -> Option<Vec<u8>> {
        let mut path = self.path(at.folder)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(at.name);
        Some(path)
    }

    /// Whether a change of names could be made. Any other can, if its node is there.
    pub fn check(&self, change: &Change<'_>) -> Result<(), NameError> {
        match *change {
            Change::Make { at, .. } => {
                self.is_free(at)?;
                match self.nodes.len() < NODES_MAX {
                    true => Ok(()),
                    false => Err(NameError::TooMany),
                }
            }
            Change::Link { node, at } => {
                match self.kind(node) {
                    None => return Err(NameError::Missing),
                    Some(NodeKind::Folder) => return Err(NameError::IsFolder),
                    Some(_) => (),
                }
                self.is_free(at)
            }
            Change::Remove { at } => {
                let node = self.look_up(at).ok_or(NameError::Missing)?;
                self.may_go(node)
            }
            Change::Rename { from, to, exchange } => self.check_rename(from, to, exchange),
            Change::Write { node, .. }
            | Change::Resize { node, .. }
            | Change::Allocate { node, .. }
            | Change::Set { node, .. }
            | Change::Label { node, .. } => match self.kind(node) {
                Some(_) => Ok(()),
                None => Err(NameError::Missing),
            },
            Change::Refused { .. } => Ok(()),
        }
    }

    fn is_free(&self, at: Place<'_>) -> Result<(), NameError> {
        self.may_be(at)?;
        match self.look_up(at) {
            Some(_) => Err(NameError::Exists),
            None => Ok(()),
        }
    }

    /// Whether there could be such a name.
    fn may_be(&self, at: Place<'_>) -> Result<(), NameError> {
        match self.kind(at.folder) {
            None => return Err(NameError::Missing),
            Some(NodeKind::Folder) => (),
            Some(_) => return Err(NameError::NotFolder),
        }
        if at.name.is_empty() || matches!(at.name, b"." | b"..") || at.name.contains(&b'/') {
            return Err(NameError::Missing);
        }
        if at.name.starts_with(ASIDE) {
            return Err(NameError::Reserved);
        }
        let path = self.path_of(at).ok_or(NameError::Missing)?;
        match at.name.len() <= NAME_BYTES_MAX && path.len() <= PATH_BYTES_MAX {
            true => Ok(()),
            false => Err(NameError::TooLong),
        }
    }

    fn may_go(&self, node: Node) -> Result<(), NameError> {
        match self.inside(node).next() {
            Some(_) => Err(NameError::NotEmpty),
            None => Ok(()),
        }
    }

    fn check_rename(&self, from: Place<'_>, to: Place<'_>, exchange: bool) -> Result<(), NameError> {
        let node = self.look_up(from).ok_or(NameError::Missing)?;
        self.may_be(to)?;
        let there = self.look_up(to);
        if self.is_within(to.folder, node) {
            return Err(NameError::Loop);
        }
        match (exchange, there) {
            (true, None) => Err(NameError::Missing),
            (true, Some(other)) if self.is_within(from.folder, other) => Err(NameError::Loop),
            (true, Some(_)) | (false, None) => Ok(()),
            (false, Some(other)) if other == node => Ok(()),
            (false, Some(other)) => {
                let folders = [node, other].map(|node| self.kind(node) == Some(NodeKind::Folder));
                match folders {
                    [true, false] => Err(NameError::NotFolder),
                    [false, true] => Err(NameError::IsFolder),
                    [true, true] => self.may_go(other),
                    [false, false] => Ok(()),
                }
            }
        }
    }

    /// Whether a folder is another one, or inside of it.
    fn is_within(&self, folder: Node, outer: Node) -> bool {
        let mut at = folder;
        while at != Node::ROOT {
            if at == outer {
                return true;
            }
            at = self.parent(at);
        }
        outer == Node::ROOT
    }

    /// The node that a change takes a name from, or puts another in the place of: it may be gone afterwards.
    pub(crate) fn leaving(&self, change: &Change<'_>) -> Option<Node> {
        match *change {
            Change::Remove { at } => self.look_up(at),
            Change::Rename { to, .. } => self.look_up(to),
            _ => None,
        }
    }

    /// Makes a change, as far as it is of names. Returns the node that is gone with it: the one that has lost its last name.
    pub fn apply(&mut self, change: &Change<'_>) -> Result<Option<Node>, NameError> {
        self.check(change)?;
        match *change {
            Change::Make {
                at,
                node,
                made,
                identity,
            } => {
                self.add(node, &made);
                self.name(node, at);
                if let Some(entry) = self.nodes.get_mut(&node) {
                    entry.identity = identity;
                }
                Ok(None)
            }
            Change::Link { node, at } => {
                self.name(node, at);
                Ok(None)
            }
            Change::Remove { at } => Ok(self.unname(at)),
            Change::Rename { from, to, exchange } => Ok(self.rename(from, to, exchange)),
            Change::Set { node, attributes } => {
                if let Some(entry) = self.nodes.get_mut(&node) {
                    entry.mode = attributes.mode.unwrap_or(entry.mode);
                    entry.owner.user = attributes.user.unwrap_or(entry.owner.user);
                    entry.owner.group = attributes.group.unwrap_or(entry.owner.group);
                }
                Ok(None)
            }
            Change::Write { .. }
            | Change::Resize { .. }
            | Change::Allocate { .. }
            | Change::Label { .. }
            | Change::Refused { .. } => Ok(None),
        }
    }

    /// A node without a name.
    pub(crate) fn add(&mut self, node: Node, made: &Made<'_>) {
        let entry = Entry {
            kind: made.kind,
            mode: made.mode,
            owner: made.owner,
            identity: None,
            inside: BTreeMap::new(),
            places: Vec::new(),
        };
        self.nodes.insert(node, entry);
        self.next = self.next.max(node.0 + 1);
    }

    /// Gives a node a name.
    pub(crate) fn name(&mut self, node: Node, at: Place<'_>) {
        if let Some(folder) = self.nodes.get_mut(&at.folder) {
            folder.inside.insert(at.name.into(), node);
        }
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.places.push((at.folder, at.name.into()));
        }
    }

    /// Takes a name away. Which node has none left, and is gone.
    fn unname(&mut self, at: Place<'_>) -> Option<Node> {
        let node = self.nodes.get_mut(&at.folder)?.inside.remove(at.name)?;
        let entry = self.nodes.get_mut(&node)?;
        entry
            .places
            .retain(|(folder, name)| (*folder, &name[..]) != (at.folder, at.name));
        if entry.places.is_empty() {
            self.nodes.remove(&node);
            return Some(node);
        }
        None
    }

    fn rename(&mut self, from: Place<'_>, to: Place<'_>, exchange: bool) -> Option<Node> {
        let (node, there) = (self.look_up(from)?, self.look_up(to));
        if there == Some(node) {
            // Two names of one file: nothing happens, as POSIX has it.
            return None;
        }
        let gone = match (exchange, there) {
            (false, Some(_)) => self.unname(to),
            _ => None,
        };
        self.move_name(node, from, to);
        if let (true, Some(other)) = (exchange, there) {
            self.move_place(other, to, from);
            if let Some(folder) = self.nodes.get_mut(&from.folder) {
                folder.inside.insert(from.name.into(), other);
            }
        }
        gone
    }

    fn move_name(&mut self, node: Node, from: Place<'_>, to: Place<'_>) {
        if let Some(folder) = self.nodes.get_mut(&from.folder) {
            folder.inside.remove(from.name);
        }
        if let Some(folder) = self.nodes.get_mut(&to.folder) {
            folder.inside.insert(to.name.into(), node);
        }
        self.move_place(node, from, to);
    }

    fn move_place(&mut self, node: Node, from: Place<'_>, to: Place<'_>) {
        let places = self.nodes.get_mut(&node).map(|entry| &mut entry.places);
        let place = places
            .into_iter()
            .flatten()
            .find(|(folder, name)| (*folder, &name[..]) == (from.folder, from.name));
        if let Some(place) = place {
            *place = (to.folder, to.name.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner = Owner { user: 0, group: 0 };

    fn at(folder: u64, name: &str) -> Place<'_> {
        Place {
            folder: Node(folder),
            name: name.as_bytes(),
        }
    }

    fn make(names: &mut Names, at: Place<'_>, kind: NodeKind) -> Node {
        let (node, made) = (
            names.next(),
            Made {
                kind,
                mode: 0o600,
                owner: OWNER,
                target: b"",
            },
        );
        let change = Change::Make {
            at,
            node,
            made,
            identity: None,
        };
        assert_eq!(names.apply(&change), Ok(None));
        node
    }

    fn rename(
        names: &mut Names,
        from: Place<'_>,
        to: Place<'_>,
        exchange: bool,
    ) -> Result<Option<Node>, NameError> {
        names.apply(&Change::Rename { from, to, exchange })
    }

    /// `a`, the folder `d`, and in it `b`.
    fn some() -> (Names, [Node; 3]) {
        let mut names = Names::new(0o700, OWNER);
        let a = make(&mut names, at(1, "a"), NodeKind::File);
        let d = make(&mut names, at(1, "d"), NodeKind::Folder);
        let b = make(&mut names, at(d.0, "b"), NodeKind::File);
        (names, [a, d, b])
    }

    #[test]
    fn a_file_has_paths_as_long_as_it_has_names() {
        let (mut names, [a, d, b]) = some();
        assert_eq!(names.path(b).unwrap(), b"d/b");
        assert_eq!(names.path(Node::ROOT).unwrap(), b"");
        let second = at(d.0, "second");
        assert_eq!(names.apply(&Change::Link { node: a, at: second }), Ok(None));
        assert_eq!(names.links(a), 2);
        assert_eq!(names.apply(&Change::Remove { at: at(1, "a") }), Ok(None));
        assert_eq!(names.path(a).unwrap(), b"d/second");
        assert_eq!(names.apply(&Change::Remove { at: second }), Ok(Some(a)));
        assert_eq!((names.path(a), names.kind(a)), (None, None));
        assert_eq!(names.next(), Node(5), "no number is given out twice");
    }

    #[test]
    fn a_renamed_file_takes_the_place_of_another() {
        let (mut names, [a, d, b]) = some();
        assert_eq!(rename(&mut names, at(1, "a"), at(d.0, "b"), false), Ok(Some(b)));
        assert_eq!(
            (names.path(a).unwrap(), names.look_up(at(1, "a"))),
            (b"d/b".to_vec(), None)
        );
        assert_eq!(rename(&mut names, at(1, "d"), at(1, "e"), false), Ok(None));
        assert_eq!(names.path(a).unwrap(), b"e/b", "its folder was renamed");
    }

    #[test]
    fn two_change_places() {
        let (mut names, [a, d, b]) = some();
        assert_eq!(rename(&mut names, at(1, "a"), at(d.0, "b"), true), Ok(None));
        assert_eq!(
            (names.path(a).unwrap(), names.path(b).unwrap()),
            (b"d/b".to_vec(), b"a".to_vec())
        );
        assert_eq!(
            rename(&mut names, at(1, "a"), at(1, "none"), true),
            Err(NameError::Missing)
        );
        let link = Change::Link {
            node: a,
            at: at(1, "c"),
        };
        assert_eq!(names.apply(&link), Ok(None));
        assert_eq!(rename(&mut names, at(1, "c"), at(d.0, "b"), false), Ok(None));
        assert_eq!(names.links(a), 2, "both name the same file, and stay");
    }

    #[test]
    fn what_makes_no_sense_is_refused_and_changes_nothing() {
        let (mut names, [a, d, _]) = some();
        let before = names.clone();
        let made = Made {
            kind: NodeKind::File,
            mode: 0,
            owner: OWNER,
            target: b"",
        };
        let long = "x".repeat(256);
        for (place, error) in [
            (at(1, "a"), NameError::Exists),
            (at(a.0, "x"), NameError::NotFolder),
            (at(99, "x"), NameError::Missing),
            (at(1, ".."), NameError::Missing),
            (at(1, ""), NameError::Missing),
            (at(1, "x/y"), NameError::Missing),
            (at(1, ".netram-aside-7"), NameError::Reserved),
            (at(1, &long), NameError::TooLong),
        ] {
            let node = names.next();
            assert_eq!(
                names.apply(&Change::Make {
                    at: place,
                    node,
                    made,
                    identity: None,
                }),
                Err(error)
            );
        }
        let inner = make(&mut names, at(d.0, "inner"), NodeKind::Folder);
        assert_eq!(
            rename(&mut names, at(1, "d"), at(inner.0, "d"), false),
            Err(NameError::Loop)
        );
        assert_eq!(
            rename(&mut names, at(1, "d"), at(1, "a"), false),
            Err(NameError::NotFolder)
        );
        assert_eq!(
            rename(&mut names, at(1, "a"), at(1, "d"), false),
            Err(NameError::IsFolder)
        );
        assert_eq!(
            names.apply(&Change::Remove { at: at(1, "d") }),
            Err(NameError::NotEmpty)
        );
        assert_eq!(
            names.apply(&Change::Link {
                node: d,
                at: at(1, "x")
            }),
            Err(NameError::IsFolder)
        );
        assert_eq!(
            names.apply(&Change::Remove { at: at(d.0, "inner") }),
            Ok(Some(inner))
        );
        let settled = |names: &Names| (names.len(), names.path(a), names.path(d));
        assert_eq!(settled(&names), settled(&before));
    }
}
