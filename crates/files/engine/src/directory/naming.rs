//! Changes of names: recorded and held before the names change on the disk.
//!
//! A file is an exception. It is made on the disk before its record, under a name hidden from programs, so
//! that the record can contain its identity. Recovery then finds the file under any name. It never needs to
//! remove a file for want of a record, which could hold bytes that were written but not recorded yet.

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
    /// Makes an inode; it is durable with its name when this returns.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Name`] if the name is taken or not allowed, [`ChangeError::Disk`] if the disk refuses
    /// it, and the journal's errors.
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

    /// Makes a file and opens it.
    ///
    /// # Errors
    ///
    /// As [`JournaledDirectory::make`].
    pub fn create(
        &self,
        at: DirectoryEntry<'_>,
        made: InodeSpec<'_>,
    ) -> Result<Arc<OpenFile<T::File>>, ChangeError> {
        assert!(
            made.kind == InodeKind::File,
            "only regular files are created open"
        );
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

    /// Makes a file whose identity differs from every file that recovery may meet. File systems reuse a freed
    /// inode at once, and birth times are as coarse as the clock tick, so two files can look alike. `None`:
    /// no such identity was found in [`STAGINGS_MAX`] attempts.
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
            // While this file is open, its inode cannot be reused.
            held.push(file);
        }
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    ///
    /// As [`JournaledDirectory::make`].
    pub fn link(&self, node: InodeId, at: DirectoryEntry<'_>) -> Result<(), ChangeError> {
        self.record_file(node)?;
        self.change_names(&mut |_| Ok(DirectoryChange::Link { node, at }))
    }

    /// Removes the name of a directory (`directory`) or of any other inode.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Name`] if it is missing, of the other type or a directory that is not empty; else as
    /// [`JournaledDirectory::make`].
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

    /// Renames an inode, replacing an existing target only if `over` allows it.
    ///
    /// Pending writes are recorded first. Many programs write a file and rename it over another, and rely on
    /// finding one of the two complete.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Name`] if the names do not allow it; else as [`JournaledDirectory::make`].
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

    /// Records a change of names, waits until it is held, then makes it.
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

    /// Records that the disk refused the change, so that replay skips it. The caller still holds the names
    /// lock: the next change may use the same inode number.
    pub(super) fn revoke_record(
        &self,
        ticket: CommitTicket,
        turn: MutexGuard<'_, ()>,
    ) -> Result<(), ChangeError> {
        let appended = self.append(&DirectoryChange::Revoked { lsn: ticket.lsn });
        drop(turn);
        match appended {
            // The checkpoint trims the refused record as well; a longer record would not fit before it.
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
        assert!(applied.is_ok(), "the change was checked under the names lock");
        if let Some((node, identity)) = asked
            && let Some(entry) = names.entry_mut(node)
        {
            entry.identity = identity;
        }
        let is_gone = leaves.is_some_and(|node| names.kind(node).is_none());
        drop(names);
        let mut dirty_set = lock(&self.dirty_set);
        dirty_set.removed.extend(identity.filter(|_| is_gone));
        for node in directories
            .into_iter()
            .flatten()
            .chain(made.map(|(node, _)| node))
        {
            dirty_set.dirty.entry(node).or_default();
        }
    }
}

/// Path of a new file until its record is held: in its own directory, or in the root directory if the path
/// would be too long.
fn staging_path(path: &[u8]) -> Vec<u8> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let directory = &path[..slash.map_or(0, |slash| slash + 1)];
    match directory.len() + STAGED_NAME.len() <= PATH_BYTES_MAX {
        true => [directory, STAGED_NAME].concat(),
        false => STAGED_NAME.to_vec(),
    }
}
