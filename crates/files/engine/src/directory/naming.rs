//! Changes of names: recorded and held before the names change on the disk.
//!
//! A file is an exception. It is made on the disk before its record, under a name hidden from programs, so
//! that the record can contain its identity. Recovery then finds the file under any name. It never needs to
//! remove a file for want of a record, which could hold bytes that were written but not recorded yet.

use std::sync::{Arc, MutexGuard, PoisonError};

use netram_proto::port::{AppendError, CommitTicket, IoError, RecordLog};

use super::{JournaledDirectory, OpenFile, lock};
use crate::change::{DirectoryChange, DirectoryEntry, InodeId, InodeKind, InodeSpec};
use crate::error::ChangeError;
use crate::file_tree::{CatalogStore, FileTree};
use crate::limit::{PATH_BYTES_MAX, STAGED_NAME, STAGINGS_MAX};
use crate::name_table::{InodeIdentity, NameError, NameTable, orphan_name};
use crate::path_op::PathOp;

/// An inode made under a hidden name, and its identity if no earlier inode may have had it.
type StagedInode<V> = Result<(V, Option<InodeIdentity>), ChangeError>;

impl<L: RecordLog, T: FileTree, K: CatalogStore> JournaledDirectory<L, T, K> {
    /// Makes an inode; it is durable with its name when this returns. Like every change of names: `request`
    /// is the number of the request for it, on a mount that outlives its server.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Name`] if the name is taken or not allowed, [`ChangeError::Disk`] if the disk refuses
    /// it, and the journal's errors.
    pub fn make(
        &self,
        at: DirectoryEntry<'_>,
        made: InodeSpec<'_>,
        request: Option<u64>,
    ) -> Result<InodeId, ChangeError> {
        if made.kind == InodeKind::File {
            return self.create(at, made, request).map(|file| file.node());
        }
        if self.survives() {
            // A server that takes over must find it under any name, with the attributes that it has by then.
            let stage = |path: &[u8]| self.stage_other(path, &made);
            return Ok(self.make_staged(at, made, request, &stage)?.0);
        }
        let mut node = InodeId::ROOT;
        self.change_names(request, &mut |names| {
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
        request: Option<u64>,
    ) -> Result<Arc<OpenFile<T::File>>, ChangeError> {
        assert!(
            made.kind == InodeKind::File,
            "only regular files are created open"
        );
        self.reserve_descriptor()?;
        let (node, file) = self.make_staged(at, made, request, &|path| self.stage(path, &made))?;
        Ok(self.insert(node, file))
    }

    /// Makes an inode on the disk, then its record, then its name.
    fn make_staged<V>(
        &self,
        at: DirectoryEntry<'_>,
        made: InodeSpec<'_>,
        request: Option<u64>,
        stage: &dyn Fn(&[u8]) -> StagedInode<V>,
    ) -> Result<(InodeId, V), ChangeError> {
        let is_directory = made.kind == InodeKind::Directory;
        loop {
            self.check_failed()?;
            let turn = lock(&self.names_lock);
            let (mut change, path, node) = self.plan_new_inode(at, made)?;
            let staged = staging_path(&path);
            let (staged_inode, identity) = stage(&staged)?;
            if let DirectoryChange::Make { identity: known, .. } = &mut change {
                *known = identity;
            }
            let ticket = match self.append_for(&change, request) {
                Ok(ticket) => ticket,
                Err(error) => {
                    let _ = self.tree.remove(&staged, is_directory);
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
                let _ = self.tree.remove(&staged, is_directory);
                self.revoke_record(ticket, turn)?;
                return Err(ChangeError::Disk(error));
            }
            self.finish_change(&change, &path, [Some(at.directory), None], request);
            return Ok((node, staged_inode));
        }
    }

    fn plan_new_inode<'c>(
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
    fn stage(&self, path: &[u8], made: &InodeSpec<'_>) -> StagedInode<T::File> {
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

    /// As [`JournaledDirectory::stage`], of a directory or symbolic link.
    fn stage_other(&self, path: &[u8], made: &InodeSpec<'_>) -> StagedInode<()> {
        self.tree.make(path, made).map_err(ChangeError::Disk)?;
        let identity = self.tree.identity(path).map_err(ChangeError::Disk)?;
        let is_new = !lock(&self.dirty_set).removed.contains(&identity);
        Ok(((), is_new.then_some(identity)))
    }

    /// Gives a file one more name.
    ///
    /// # Errors
    ///
    /// As [`JournaledDirectory::make`].
    pub fn link(
        &self,
        node: InodeId,
        at: DirectoryEntry<'_>,
        request: Option<u64>,
    ) -> Result<(), ChangeError> {
        self.record_file(node)?;
        self.change_names(request, &mut |_| Ok(DirectoryChange::Link { node, at }))
    }

    /// Removes the name of a directory (`directory`) or of any other inode.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Name`] if it is missing, of the other type or a directory that is not empty; else as
    /// [`JournaledDirectory::make`].
    pub fn remove(
        &self,
        at: DirectoryEntry<'_>,
        directory: bool,
        request: Option<u64>,
    ) -> Result<(), ChangeError> {
        self.change_names(request, &mut |names| {
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
        request: Option<u64>,
    ) -> Result<(), ChangeError> {
        let renamed = self.names().look_up(from);
        renamed.map_or(Ok(()), |node| self.record_file(node))?;
        self.change_names(request, &mut |names| match over || names.look_up(to).is_none() {
            true => Ok(DirectoryChange::Rename { from, to, exchange }),
            false => Err(NameError::Exists),
        })
    }

    /// Removes a file that has lost its last name: no program has it open any more. Nothing is done for any
    /// other inode.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Disk`] if the disk refuses it; the file is then kept.
    pub fn forget(&self, node: InodeId) -> Result<(), ChangeError> {
        if !self.names().is_orphan(node) {
            return Ok(());
        }
        let _turn = lock(&self.names_lock);
        match self.tree.remove(&orphan_name(node), false) {
            Ok(()) | Err(IoError::ENOENT) => (),
            Err(error) => return Err(ChangeError::Disk(error)),
        }
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let identity = names.drop_orphan(node);
        drop(names);
        // No record says so: a server that takes over does not miss the file. Before the directory is given
        // back, the removal must be durable.
        let mut dirty_set = lock(&self.dirty_set);
        dirty_set.removed.extend(identity);
        dirty_set.dirty.entry(InodeId::ROOT).or_default();
        Ok(())
    }

    /// Records a change of names, or of an extended attribute, waits until it is held, then makes it.
    pub(super) fn change_names<'c>(
        &self,
        request: Option<u64>,
        change: &mut dyn FnMut(&NameTable) -> Result<DirectoryChange<'c>, NameError>,
    ) -> Result<(), ChangeError> {
        loop {
            self.check_failed()?;
            let turn = lock(&self.names_lock);
            let (change, deed) = {
                let names = self.names();
                let change = change(&names)?;
                names.check(&change)?;
                let deed = PathOp::of(&names, &change, self.survives()).ok_or(NameError::Missing)?;
                (change, deed)
            };
            let ticket = match self.append_for(&change, request) {
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
            self.finish_change(&change, &deed.path, deed.directories, request);
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

    fn finish_change(
        &self,
        change: &DirectoryChange<'_>,
        path: &[u8],
        directories: [Option<InodeId>; 2],
        request: Option<u64>,
    ) {
        let made = match change {
            DirectoryChange::Make { node, identity, .. } => Some((*node, *identity)),
            _ => None,
        };
        let asked = made.map(|(node, known)| (node, known.or_else(|| self.tree.identity(path).ok())));
        let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
        let leaves = names.displaced(change);
        let identity = leaves.and_then(|node| names.entry(node)?.identity);
        let applied = names.apply_keeping(change, self.survives());
        assert!(applied.is_ok(), "the change was checked under the names lock");
        if let Some((node, identity)) = asked
            && let Some(entry) = names.entry_mut(node)
        {
            entry.identity = identity;
        }
        let is_gone = leaves.is_some_and(|node| names.kind(node).is_none());
        drop(names);
        // Before the names lock is released: a catalog that has the change has its request, too.
        if let (Some(number), Some(executed)) = (request, &self.executed) {
            lock(executed).add_executed(number, change.replied_node());
        }
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
