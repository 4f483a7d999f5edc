//! Names: recorded and held before they are given on the disk.
//!
//! A file is made on the disk before that, under a name that no program can see, so that its record says which file it is. Recovery then finds it
//! whatever became of its name, and need not remove what has no record of its own: bytes that were written and not recorded yet.

use std::sync::{Arc, MutexGuard};

use netram_proto::port::{AppendError, Log, Ticket};

use super::{File, Folder, lock};
use crate::change::{Change, Made, Node, NodeKind, Place};
use crate::deed::Deed;
use crate::error::ChangeError;
use crate::limit::{PATH_BYTES_MAX, STAGED, STAGINGS_MAX};
use crate::names::{Identity, NameError, Names};
use crate::tree::{Keep, Tree};

impl<L: Log, T: Tree, K: Keep> Folder<L, T, K> {
    /// Makes a node, which is durable with its name when this returns.
    pub fn make(&self, at: Place<'_>, made: Made<'_>) -> Result<Node, ChangeError> {
        if made.kind == NodeKind::File {
            return self.create(at, made).map(|file| file.node());
        }
        let mut node = Node::ROOT;
        self.alter(&mut |names| {
            node = names.next();
            Ok(Change::Make {
                at,
                node,
                made,
                identity: None,
            })
        })?;
        Ok(node)
    }

    /// Makes a file, and opens it.
    pub fn create(&self, at: Place<'_>, made: Made<'_>) -> Result<Arc<File<T::File>>, ChangeError> {
        assert!(made.kind == NodeKind::File, "others are made, and not opened");
        self.make_way()?;
        loop {
            self.is_sound()?;
            let turn = lock(&self.turn);
            let (mut change, path, node) = self.next_file(at, made)?;
            let staged = staged(&path);
            let (file, identity) = self.stage(&staged, &made)?;
            if let Change::Make { identity: known, .. } = &mut change {
                *known = identity;
            }
            let ticket = match self.append(&change) {
                Ok(ticket) => ticket,
                Err(error) => {
                    let _ = self.tree.remove(&staged, false);
                    drop(turn);
                    match error {
                        AppendError::Full { .. } => self.make_room()?,
                        error => return Err(error.into()),
                    }
                    continue;
                }
            };
            self.log.wait(ticket, self.options.durability)?;
            if let Err(error) = self.tree.rename(&staged, &path, false) {
                let _ = self.tree.remove(&staged, false);
                self.take_back(ticket, turn)?;
                return Err(ChangeError::Disk(error));
            }
            self.have_done(&change, &path, [Some(at.folder), None]);
            return Ok(self.enter(node, file));
        }
    }

    fn next_file<'c>(
        &self,
        at: Place<'c>,
        made: Made<'c>,
    ) -> Result<(Change<'c>, Vec<u8>, Node), ChangeError> {
        let names = self.names();
        let node = names.next();
        let change = Change::Make {
            at,
            node,
            made,
            identity: None,
        };
        names.check(&change)?;
        let path = names.path_of(at).ok_or(NameError::Missing)?;
        Ok((change, path, node))
    }

    /// A new file that can be told from all that recovery may meet. An inode that was given up is used again at once, and its time of birth is as coarse as
    /// a clock's tick: two files of one tick could not be told from each other. `None`: that cannot be had.
    fn stage(&self, path: &[u8], made: &Made<'_>) -> Result<(T::File, Option<Identity>), ChangeError> {
        let mut held = Vec::new();
        loop {
            let (file, identity) = self.tree.stage(path, made).map_err(ChangeError::Disk)?;
            if !lock(&self.books).gone.contains(&identity) {
                return Ok((file, Some(identity)));
            }
            if held.len() == STAGINGS_MAX {
                return Ok((file, None));
            }
            // As long as it is open its inode is nobody else's.
            held.push(file);
        }
    }

    /// Gives a file one more name.
    pub fn link(&self, node: Node, at: Place<'_>) -> Result<(), ChangeError> {
        self.record_file(node)?;
        self.alter(&mut |_| Ok(Change::Link { node, at }))
    }

    /// Takes a name away, of a folder or of anything else.
    pub fn remove(&self, at: Place<'_>, folder: bool) -> Result<(), ChangeError> {
        self.alter(&mut |names| {
            let node = names.look_up(at).ok_or(NameError::Missing)?;
            match (names.kind(node) == Some(NodeKind::Folder), folder) {
                (true, false) => Err(NameError::IsFolder),
                (false, true) => Err(NameError::NotFolder),
                _ => Ok(Change::Remove { at }),
            }
        })
    }

    /// Gives a node another name; over the one that has it if it may be `over` it.
    ///
    /// What was written to it is recorded before: many programs write a file, rename it over another one, and take it for granted that one of the two is there.
    pub fn rename(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        over: bool,
        exchange: bool,
    ) -> Result<(), ChangeError> {
        let renamed = self.names().look_up(from);
        renamed.map_or(Ok(()), |node| self.record_file(node))?;
        self.alter(&mut |names| match over || names.look_up(to).is_none() {
            true => Ok(Change::Rename { from, to, exchange }),
            false => Err(NameError::Exists),
        })
    }

    /// Changes names: recorded and held, then done.
    fn alter<'c>(
        &self,
        change: &mut dyn FnMut(&Names) -> Result<Change<'c>, NameError>,
    ) -> Result<(), ChangeError> {
        loop {
            self.is_sound()?;
            let turn = lock(&self.turn);
            let (change, deed) = {
                let names = self.names();
                let change = change(&names)?;
                names.check(&change)?;
                let deed = Deed::of(&names, &change).ok_or(NameError::Missing)?;
                (change, deed)
            };
            let ticket = match self.append(&change) {
                Err(AppendError::Full { .. }) => {
                    drop(turn);
                    self.make_room()?;
                    continue;
                }
                appended => appended?,
            };
            self.log.wait(ticket, self.options.durability)?;
            if let Err(error) = deed.carry_out(&self.tree) {
                self.take_back(ticket, turn)?;
                return Err(ChangeError::Disk(error));
            }
            self.have_done(&change, &deed.path, deed.folders);
            return Ok(());
        }
    }

    /// The disk has refused what was recorded: nobody may do it again. That is said before anybody else changes names: he would be given the same node.
    pub(super) fn take_back(&self, ticket: Ticket, turn: MutexGuard<'_, ()>) -> Result<(), ChangeError> {
        let appended = self.append(&Change::Refused { lsn: ticket.lsn });
        drop(turn);
        match appended {
            // With the record itself this one is given up, and there is no room for a longer one before.
            Err(AppendError::Full { .. }) => self.make_room(),
            appended => {
                self.log.wait(appended?, self.options.durability)?;
                Ok(())
            }
        }
    }

    fn have_done(&self, change: &Change<'_>, path: &[u8], folders: [Option<Node>; 2]) {
        let made = match change {
            Change::Make { node, identity, .. } => Some((*node, *identity)),
            _ => None,
        };
        let asked = made.map(|(node, known)| (node, known.or_else(|| self.tree.identity(path).ok())));
        let mut names = self
            .names
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let leaves = names.leaving(change);
        let identity = leaves.and_then(|node| names.entry(node)?.identity);
        let applied = names.apply(change);
        assert!(
            applied.is_ok(),
            "it was checked, and nobody else changes names meanwhile"
        );
        if let Some((node, identity)) = asked
            && let Some(entry) = names.entry_mut(node)
        {
            entry.identity = identity;
        }
        let is_gone = leaves.is_some_and(|node| names.kind(node).is_none());
        drop(names);
        let mut books = lock(&self.books);
        books.gone.extend(identity.filter(|_| is_gone));
        for node in folders.into_iter().flatten().chain(made.map(|(node, _)| node)) {
            books.dirty.entry(node).or_default();
        }
    }
}

/// What a new file is called until its record is held: in its folder, or where that is too deep in the outermost one.
fn staged(path: &[u8]) -> Vec<u8> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let folder = &path[..slash.map_or(0, |slash| slash + 1)];
    match folder.len() + STAGED.len() <= PATH_BYTES_MAX {
        true => [folder, STAGED].concat(),
        false => STAGED.to_vec(),
    }
}
