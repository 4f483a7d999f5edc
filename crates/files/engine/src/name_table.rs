//! Inodes of a directory and their names.

use std::collections::BTreeMap;

use crate::change::{DirectoryChange, DirectoryEntry, FileOwner, InodeId, InodeKind, InodeSpec};
use crate::limit::{ASIDE_PREFIX, INODES_MAX, NAME_BYTES_MAX, ORPHAN_PREFIX, PATH_BYTES_MAX};

/// Identifies a file on its disk, distinct from every other that the disk has or has had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeIdentity {
    /// Inode number on the disk; disks reuse it.
    pub inode: u64,
    /// Birth time of the inode in nanoseconds since 1970; 0 if the file system does not record it.
    pub made_ns: u64,
}

/// Why a change of names is not allowed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The name or inode does not exist.
    #[error("no such file or directory")]
    Missing,
    /// The name is taken.
    #[error("the file exists already")]
    Exists,
    /// The operation requires a directory.
    #[error("not a directory")]
    NotDirectory,
    /// The operation does not accept a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The directory to be removed or replaced is not empty.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The rename would move a directory into itself.
    #[error("a directory cannot be moved into itself")]
    Loop,
    /// The name or path is too long.
    #[error("the name is too long")]
    TooLong,
    /// The name begins with a prefix that recovery uses.
    #[error("names that begin with `.netram-aside-` are reserved for recovery")]
    Reserved,
    /// The directory has the maximum number of inodes.
    #[error("a mounted directory holds at most 1,048,576 files and directories")]
    TooMany,
}

/// An inode in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InodeEntry {
    pub(crate) kind: InodeKind,
    /// Permissions and owner of a directory, needed to make it again if it is missing. Of other types the
    /// disk has them.
    pub(crate) mode: u32,
    pub(crate) owner: FileOwner,
    /// Identity on the disk; `None` until it is made there.
    pub(crate) identity: Option<InodeIdentity>,
    children: BTreeMap<Box<[u8]>, InodeId>,
    names: Vec<(InodeId, Box<[u8]>)>,
    /// Whether it has lost its last name and is kept for the programs that have it open. Its only name is
    /// then the hidden one on the disk.
    is_orphan: bool,
}

/// All inodes and their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTable {
    nodes: BTreeMap<InodeId, InodeEntry>,
    next: u64,
}

impl NameTable {
    /// Makes an empty directory.
    pub fn new(mode: u32, owner: FileOwner) -> NameTable {
        let root = InodeEntry {
            kind: InodeKind::Directory,
            mode,
            owner,
            identity: None,
            children: BTreeMap::new(),
            names: Vec::new(),
            is_orphan: false,
        };
        NameTable {
            nodes: BTreeMap::from([(InodeId::ROOT, root)]),
            next: InodeId::ROOT.0 + 1,
        }
    }

    /// Number of the next inode that is made.
    pub fn next(&self) -> InodeId {
        InodeId(self.next)
    }

    pub(crate) fn set_next(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Number of inodes, including the directory itself.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether the directory has no entries.
    pub fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Type of an inode. `None`: the inode is gone.
    pub fn kind(&self, node: InodeId) -> Option<InodeKind> {
        self.nodes.get(&node).map(|entry| entry.kind)
    }

    pub(crate) fn entry(&self, node: InodeId) -> Option<&InodeEntry> {
        self.nodes.get(&node)
    }

    pub(crate) fn entry_mut(&mut self, node: InodeId) -> Option<&mut InodeEntry> {
        self.nodes.get_mut(&node)
    }

    /// All inodes in the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = InodeId> {
        self.nodes.keys().copied()
    }

    /// Inodes whose identity is not known yet.
    pub(crate) fn unidentified(&self) -> impl Iterator<Item = InodeId> {
        let unknown = |(node, entry): (&InodeId, &InodeEntry)| entry.identity.is_none().then_some(*node);
        self.nodes.iter().filter_map(unknown)
    }

    /// Whether a file has lost its last name and is kept for the programs that have it open.
    pub fn is_orphan(&self, node: InodeId) -> bool {
        self.nodes.get(&node).is_some_and(|entry| entry.is_orphan)
    }

    /// Whether an inode has a name that a program can find.
    pub fn is_named(&self, node: InodeId) -> bool {
        self.nodes.get(&node).is_some_and(|entry| !entry.is_orphan)
    }

    /// All files that have lost their last name.
    pub fn orphans(&self) -> impl Iterator<Item = InodeId> {
        let orphans = self.nodes.iter().filter(|(_, entry)| entry.is_orphan);
        orphans.map(|(node, _)| *node)
    }

    /// Whether this is the hidden name of a file that has lost its last one.
    pub(crate) fn is_orphan_place(node: InodeId, at: DirectoryEntry<'_>) -> bool {
        at.directory == InodeId::ROOT && *at.name == *orphan_name(node)
    }

    /// Keeps a file without a name under its hidden one. `false`: it has a name, or is no file.
    pub(crate) fn keep_orphan(&mut self, node: InodeId) -> bool {
        let Some(entry) = self.nodes.get_mut(&node) else {
            return false;
        };
        let keeps = entry.kind == InodeKind::File && entry.names.is_empty();
        if keeps {
            entry.is_orphan = true;
            entry.names.push((InodeId::ROOT, orphan_name(node)));
        }
        keeps
    }

    /// Drops a file that has lost its last name. Returns its identity.
    pub(crate) fn drop_orphan(&mut self, node: InodeId) -> Option<InodeIdentity> {
        match self.is_orphan(node) {
            true => self.nodes.remove(&node)?.identity,
            false => None,
        }
    }

    /// Number of names of an inode.
    pub fn links(&self, node: InodeId) -> usize {
        self.nodes.get(&node).map_or(0, |entry| entry.names.len())
    }

    /// Inode with this name.
    pub fn look_up(&self, at: DirectoryEntry<'_>) -> Option<InodeId> {
        self.nodes.get(&at.directory)?.children.get(at.name).copied()
    }

    /// Entries of a directory: each name with its inode.
    pub fn children(&self, directory: InodeId) -> impl Iterator<Item = (&[u8], InodeId)> {
        let entry = self.nodes.get(&directory);
        { entry.into_iter() }.flat_map(|entry| entry.children.iter().map(|(name, node)| (&name[..], *node)))
    }

    /// Names of an inode, each with its directory.
    pub fn names_of(&self, node: InodeId) -> impl Iterator<Item = DirectoryEntry<'_>> {
        let entry = self.nodes.get(&node);
        { entry.into_iter() }.flat_map(|entry| {
            entry.names.iter().map(|(directory, name)| DirectoryEntry {
                directory: *directory,
                name,
            })
        })
    }

    /// Directory of an inode's first name; the root is its own parent.
    pub fn parent(&self, node: InodeId) -> InodeId {
        self.names_of(node)
            .next()
            .map_or(InodeId::ROOT, |place| place.directory)
    }

    /// Path of an inode relative to the root, which has the empty path. `None`: the inode is gone.
    pub fn path(&self, node: InodeId) -> Option<Vec<u8>> {
        let mut parts = Vec::new();
        let mut at = node;
        while at != InodeId::ROOT {
            let (directory, name) = self.nodes.get(&at)?.names.first()?;
            parts.push(&name[..]);
            at = *directory;
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    /// Path of a name, whether it exists or not. `None`: its directory is gone.
    pub fn path_of(&self, at: DirectoryEntry<'_>) -> Option<Vec<u8>> {
        let mut path = self.path(at.directory)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(at.name);
        Some(path)
    }

    /// Checks whether a change of names is allowed. Other changes are allowed if their inode exists.
    ///
    /// # Errors
    ///
    /// The rule that the change would break.
    pub fn check(&self, change: &DirectoryChange<'_>) -> Result<(), NameError> {
        match *change {
            DirectoryChange::Make { at, .. } => {
                self.check_free(at)?;
                match self.nodes.len() < INODES_MAX {
                    true => Ok(()),
                    false => Err(NameError::TooMany),
                }
            }
            DirectoryChange::Link { node, at } => {
                match self.kind(node).filter(|_| self.is_named(node)) {
                    None => return Err(NameError::Missing),
                    Some(InodeKind::Directory) => return Err(NameError::IsDirectory),
                    Some(_) => (),
                }
                self.check_free(at)
            }
            DirectoryChange::Remove { at } => {
                let node = self.look_up(at).ok_or(NameError::Missing)?;
                self.check_empty(node)
            }
            DirectoryChange::Rename { from, to, exchange } => self.check_rename(from, to, exchange),
            DirectoryChange::Write { node, .. }
            | DirectoryChange::Resize { node, .. }
            | DirectoryChange::Allocate { node, .. }
            | DirectoryChange::SetAttributes { node, .. }
            | DirectoryChange::SetXattr { node, .. } => match self.kind(node) {
                Some(_) => Ok(()),
                None => Err(NameError::Missing),
            },
            DirectoryChange::Revoked { .. } => Ok(()),
        }
    }

    fn check_free(&self, at: DirectoryEntry<'_>) -> Result<(), NameError> {
        self.check_name(at)?;
        match self.look_up(at) {
            Some(_) => Err(NameError::Exists),
            None => Ok(()),
        }
    }

    /// Checks that the directory exists and the name is legal.
    fn check_name(&self, at: DirectoryEntry<'_>) -> Result<(), NameError> {
        match self.kind(at.directory) {
            None => return Err(NameError::Missing),
            Some(InodeKind::Directory) => (),
            Some(_) => return Err(NameError::NotDirectory),
        }
        if at.name.is_empty() || matches!(at.name, b"." | b"..") || at.name.contains(&b'/') {
            return Err(NameError::Missing);
        }
        if at.name.starts_with(ASIDE_PREFIX) {
            return Err(NameError::Reserved);
        }
        let path = self.path_of(at).ok_or(NameError::Missing)?;
        match at.name.len() <= NAME_BYTES_MAX && path.len() <= PATH_BYTES_MAX {
            true => Ok(()),
            false => Err(NameError::TooLong),
        }
    }

    fn check_empty(&self, node: InodeId) -> Result<(), NameError> {
        match self.children(node).next() {
            Some(_) => Err(NameError::NotEmpty),
            None => Ok(()),
        }
    }

    fn check_rename(
        &self,
        from: DirectoryEntry<'_>,
        to: DirectoryEntry<'_>,
        exchange: bool,
    ) -> Result<(), NameError> {
        let node = self.look_up(from).ok_or(NameError::Missing)?;
        self.check_name(to)?;
        let there = self.look_up(to);
        if self.is_within(to.directory, node) {
            return Err(NameError::Loop);
        }
        match (exchange, there) {
            (true, None) => Err(NameError::Missing),
            (true, Some(other)) if self.is_within(from.directory, other) => Err(NameError::Loop),
            (true, Some(_)) | (false, None) => Ok(()),
            (false, Some(other)) if other == node => Ok(()),
            (false, Some(other)) => {
                let directories = [node, other].map(|node| self.kind(node) == Some(InodeKind::Directory));
                match directories {
                    [true, false] => Err(NameError::NotDirectory),
                    [false, true] => Err(NameError::IsDirectory),
                    [true, true] => self.check_empty(other),
                    [false, false] => Ok(()),
                }
            }
        }
    }

    /// Whether a directory is `outer` or lies below it.
    fn is_within(&self, directory: InodeId, outer: InodeId) -> bool {
        let mut at = directory;
        while at != InodeId::ROOT {
            if at == outer {
                return true;
            }
            at = self.parent(at);
        }
        outer == InodeId::ROOT
    }

    /// File that loses its last name by the change.
    pub(crate) fn orphaned(&self, change: &DirectoryChange<'_>) -> Option<InodeId> {
        let node = match *change {
            DirectoryChange::Remove { at } => self.look_up(at),
            DirectoryChange::Rename {
                from,
                to,
                exchange: false,
            } => self.look_up(to).filter(|node| self.look_up(from) != Some(*node)),
            _ => None,
        };
        node.filter(|node| self.kind(*node) == Some(InodeKind::File) && self.links(*node) == 1)
    }

    /// Inode that loses a name by the change, by removal or replacement. It may be gone afterwards.
    pub(crate) fn displaced(&self, change: &DirectoryChange<'_>) -> Option<InodeId> {
        match *change {
            DirectoryChange::Remove { at } => self.look_up(at),
            DirectoryChange::Rename { to, .. } => self.look_up(to),
            _ => None,
        }
    }

    /// Applies the names of a change. Returns the inode that lost its last name and is gone.
    ///
    /// # Errors
    ///
    /// As [`NameTable::check`]; nothing has changed then.
    pub fn apply(&mut self, change: &DirectoryChange<'_>) -> Result<Option<InodeId>, NameError> {
        self.apply_keeping(change, false)
    }

    /// As [`NameTable::apply`]. `keeps`: a file that loses its last name is kept under a hidden one.
    ///
    /// # Errors
    ///
    /// As [`NameTable::check`]; nothing has changed then.
    pub fn apply_keeping(
        &mut self,
        change: &DirectoryChange<'_>,
        keeps: bool,
    ) -> Result<Option<InodeId>, NameError> {
        self.check(change)?;
        match *change {
            DirectoryChange::Make {
                at,
                node,
                spec: made,
                identity,
            } => {
                self.add(node, &made);
                self.name(node, at);
                if let Some(entry) = self.nodes.get_mut(&node) {
                    entry.identity = identity;
                }
                Ok(None)
            }
            DirectoryChange::Link { node, at } => {
                self.name(node, at);
                Ok(None)
            }
            DirectoryChange::Remove { at } => Ok(self.remove_name(at, keeps)),
            DirectoryChange::Rename { from, to, exchange } => Ok(self.rename(from, to, exchange, keeps)),
            DirectoryChange::SetAttributes { node, attributes } => {
                if let Some(entry) = self.nodes.get_mut(&node) {
                    entry.mode = attributes.mode.unwrap_or(entry.mode);
                    entry.owner.user = attributes.user.unwrap_or(entry.owner.user);
                    entry.owner.group = attributes.group.unwrap_or(entry.owner.group);
                }
                Ok(None)
            }
            DirectoryChange::Write { .. }
            | DirectoryChange::Resize { .. }
            | DirectoryChange::Allocate { .. }
            | DirectoryChange::SetXattr { .. }
            | DirectoryChange::Revoked { .. } => Ok(None),
        }
    }

    /// Adds an inode without a name.
    pub(crate) fn add(&mut self, node: InodeId, made: &InodeSpec<'_>) {
        let entry = InodeEntry {
            kind: made.kind,
            mode: made.mode,
            owner: made.owner,
            identity: None,
            children: BTreeMap::new(),
            names: Vec::new(),
            is_orphan: false,
        };
        self.nodes.insert(node, entry);
        self.next = self.next.max(node.0 + 1);
    }

    /// Gives an inode a name.
    pub(crate) fn name(&mut self, node: InodeId, at: DirectoryEntry<'_>) {
        if let Some(directory) = self.nodes.get_mut(&at.directory) {
            directory.children.insert(at.name.into(), node);
        }
        if let Some(entry) = self.nodes.get_mut(&node) {
            entry.names.push((at.directory, at.name.into()));
        }
    }

    /// Removes a name. Returns its inode if that was the last one and the inode is gone.
    fn remove_name(&mut self, at: DirectoryEntry<'_>, keeps: bool) -> Option<InodeId> {
        let node = self.nodes.get_mut(&at.directory)?.children.remove(at.name)?;
        let entry = self.nodes.get_mut(&node)?;
        entry
            .names
            .retain(|(directory, name)| (*directory, &name[..]) != (at.directory, at.name));
        if entry.names.is_empty() && !(keeps && self.keep_orphan(node)) {
            self.nodes.remove(&node);
            return Some(node);
        }
        None
    }

    fn rename(
        &mut self,
        from: DirectoryEntry<'_>,
        to: DirectoryEntry<'_>,
        exchange: bool,
        keeps: bool,
    ) -> Option<InodeId> {
        let (node, there) = (self.look_up(from)?, self.look_up(to));
        if there == Some(node) {
            // Both names belong to one file: POSIX requires that nothing happens.
            return None;
        }
        let gone = match (exchange, there) {
            (false, Some(_)) => self.remove_name(to, keeps),
            _ => None,
        };
        self.move_name(node, from, to);
        if let (true, Some(other)) = (exchange, there) {
            self.move_back_reference(other, to, from);
            if let Some(directory) = self.nodes.get_mut(&from.directory) {
                directory.children.insert(from.name.into(), other);
            }
        }
        gone
    }

    fn move_name(&mut self, node: InodeId, from: DirectoryEntry<'_>, to: DirectoryEntry<'_>) {
        if let Some(directory) = self.nodes.get_mut(&from.directory) {
            directory.children.remove(from.name);
        }
        if let Some(directory) = self.nodes.get_mut(&to.directory) {
            directory.children.insert(to.name.into(), node);
        }
        self.move_back_reference(node, from, to);
    }

    fn move_back_reference(&mut self, node: InodeId, from: DirectoryEntry<'_>, to: DirectoryEntry<'_>) {
        let places = self.nodes.get_mut(&node).map(|entry| &mut entry.names);
        let place = places
            .into_iter()
            .flatten()
            .find(|(directory, name)| (*directory, &name[..]) == (from.directory, from.name));
        if let Some(place) = place {
            *place = (to.directory, to.name.into());
        }
    }
}

/// Hidden name of a file that has lost its last one.
pub(crate) fn orphan_name(node: InodeId) -> Box<[u8]> {
    [ORPHAN_PREFIX, node.0.to_string().as_bytes()].concat().into()
}

#[cfg(test)]
mod tests;
