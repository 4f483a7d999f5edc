//! Names: recorded and held before they are given on the disk.
//!
//! A file is made on the disk before that, under a name that no program can see, so that its record says
//! which file it is. Recovery then finds it whatever became of its name, and need not remove what has no
//! record of its own: bytes that were written and not recorded yet.

use std::sync::{Arc, MutexGuard};

use netram_proto::port::{AppendError, CommitTicket, RecordLog};

use super::{JournaledDirectory, OpenFile, lock};
use crate::change::{DirectoryChange, DirectoryEntry, InodeId, InodeKind, InodeSpec};
use crate::error::ChangeError;
use crate::file_tree::{CatalogStore, FileTree};
use crate::limit::{PATH_BYTES_MAX, STAGED_NAME, STAGINGS_MAX};
use crate::name_table::{InodeIdentity, NameError, NameTable};
use crate::path_op::PathOp;

impl<L: RecordLog, T: FileTree, K: CatalogStore> JournaledDirectory<L, T, K> {
    /// Makes a node, which is durable with its name when this returns.
    pub fn make(&self, at: DirectoryEntry<'_>, made: InodeSpec<'_>) -> Result<InodeId, ChangeError> {
        if made.kind == InodeKind::File {
            return self.create(at, made).map(|file| file.node());
        }
        let mut node = InodeId::ROOT;
        self.change_names(&mut |names| {
            node = names.next();
            Ok(DirectoryChange::Make {
                at,
                node,
                spec: made,
                identity: None,
            })
        })?;
        Ok(node)
    }

    /// Makes a file, and opens it.
    pub fn create(
        &self,
        at: DirectoryEntry<'_>,
        made: InodeSpec<'_>,
    ) -> Result<Arc<OpenFile<T::File>>, ChangeError> {
        assert!(made.kind == InodeKind::File, "others are made, and not opened");
        self.reserve_descriptor()?;
        loop {
            self.check_failed()?;
            let turn = lock(&self.names_lock);
            let (mut change, path, node) = self.plan_new_file(at, made)?;
            let staged = staging_path(&path);
            let (file, identity) = self.stage(&staged, &made)?;
            if let DirectoryChange::Make { identity: known, .. } = &mut change {
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
                self.revoke_record(ticket, turn)?;
                return Err(ChangeError::Disk(error));
            }
            self.finish_change(&change, &path, [Some(at.directory), None]);
            return Ok(self.insert(node, file));
        }
    }

    fn plan_new_file<'c>(
        &self,
        at: DirectoryEntry<'c>,
        made: InodeSpec<'c>,
    ) -> Result<(DirectoryChange<'c>, Vec<u8>, InodeId), ChangeError> {
        let names = self.names();
        let node = names.next();
        let change = DirectoryChange::Make {
            at,
            node,
            spec: made,
            identity: None,
        };
        names.check(&change)?;
        let path = names.path_of(at).ok_or(NameError::Missing)?;
        Ok((change, path, node))
    }

    /// A new file that can be told from all that recovery may meet. An inode that was given up is used again
    /// at once, and its time of birth is as coarse as a clock's tick: two files of one tick could not be told
    /// from each other. `None`: that cannot be had.
    fn stage(
        &self,
        path: &[u8],
        made: &InodeSpec<'_>,
    ) -> Result<(T::File, Option<InodeIdentity>), ChangeError> {
        let mut held = Vec::new();
        loop {
            let (file, identity) = self.tree.stage(path, made).map_err(ChangeError::Disk)?;
            if !lock(&self.dirty_set).removed.contains(&identity) {
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
    pub fn link(&self, node: InodeId, at: DirectoryEntry<'_>) -> Result<(), ChangeError> {
        self.record_file(node)?;
        self.change_names(&mut |_| Ok(DirectoryChange::Link { node, at }))
    }

    /// Takes a name away, of a directory or of anything else.
    pub fn remove(&self, at: DirectoryEntry<'_>, directory: bool) -> Result<(), ChangeError> {
        self.change_names(&mut |names| {
            let node = names.look_up(at).ok_or(NameError::Missing)?;
            match (names.kind(node) == Some(InodeKind::Directory), directory) {
                (true, false) => Err(NameError::IsDirectory),
                (false, true) => Err(NameError::NotDirectory),
                _ => Ok(DirectoryChange::Remove { at }),
            }
        })
    }

    /// Gives a node another name; over the one that has it if it may be `over` it.
    ///
    /// What was written to it is recorded before: many programs write a file, rename it over another one, and
    /// take it for granted that one of the two is there.
    pub fn rename(
        &self,
        from: DirectoryEntry<'_>,
        to: DirectoryEntry<'_>,
        over: bool,
        exchange: bool,
    ) -> Result<(), ChangeError> {
        let renamed = self.names().look_up(from);
        renamed.map_or(Ok(()), |node| self.record_file(node))?;
        self.change_names(&mut |names| match over || names.look_up(to).is_none() {
            true => Ok(DirectoryChange::Rename { from, to, exchange }),
            false => Err(NameError::Exists),
        })
    }

    /// Changes names: recorded and held, then done.
    fn change_names<'c>(
        &self,
        change: &mut dyn FnMut(&NameTable) -> Result<DirectoryChange<'c>, NameError>,
    ) -> Result<(), ChangeError> {
        loop {
            self.check_failed()?;
            let turn = lock(&self.names_lock);
            let (change, deed) = {
                let names = self.names();
                let change = change(&names)?;
                names.check(&change)?;
                let deed = PathOp::of(&names, &change).ok_or(NameError::Missing)?;
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
                self.revoke_record(ticket, turn)?;
                return Err(ChangeError::Disk(error));
            }
            self.finish_change(&change, &deed.path, deed.directories);
            return Ok(());
        }
    }

    /// The disk has refused what was recorded: nobody may do it again. That is said before anybody else
    /// changes names: he would be given the same node.
    pub(super) fn revoke_record(
        &self,
        ticket: CommitTicket,
        turn: MutexGuard<'_, ()>,
    ) -> Result<(), ChangeError> {
        let appended = self.append(&DirectoryChange::Revoked { lsn: ticket.lsn });
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

    fn finish_change(&self, change: &DirectoryChange<'_>, path: &[u8], directories: [Option<InodeId>; 2]) {
        let made = match change {
            DirectoryChange::Make { node, identity, .. } => Some((*node, *identity)),
            _ => None,
        };
        let asked = made.map(|(node, known)| (node, known.or_else(|| self.tree.identity(path).ok())));
        let mut names = self
            .names
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let leaves = names.displaced(change);
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
        let mut books = lock(&self.dirty_set);
        books.removed.extend(identity.filter(|_| is_gone));
        for node in directories
            .into_iter()
            .flatten()
            .chain(made.map(|(node, _)| node))
        {
            books.dirty.entry(node).or_default();
        }
    }
}

/// What a new file is called until its record is held: in its directory, or where that is too deep in the
/// outermost one.
fn staging_path(path: &[u8]) -> Vec<u8> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let directory = &path[..slash.map_or(0, |slash| slash + 1)];
    match directory.len() + STAGED_NAME.len() <= PATH_BYTES_MAX {
        true => [directory, STAGED_NAME].concat(),
        false => STAGED_NAME.to_vec(),
    }
}
