//! Checkpoints: sync the changed files, store a catalog, trim the journal.
//!
//! A catalog describes only what the disk holds by then. A crash between any two steps is harmless: until the
//! new catalog replaces the old one, the old one and all records since it are valid.

use std::collections::BTreeMap;
use std::sync::Arc;

use netram_proto::failure::{FailureClass, SystemCall};
use netram_proto::port::{CommitTicket, Durability, IoError, RecordLog};

use super::{JournaledDirectory, OpenFile, lock};
use crate::catalog::Catalog;
use crate::change::InodeId;
use crate::error::{ChangeError, CheckpointError};
use crate::file_tree::{CatalogStore, FileTree};
use crate::limit::CHECKPOINT_PERCENT;
use crate::name_table::NameTable;

impl<L: RecordLog, T: FileTree, K: CatalogStore> JournaledDirectory<L, T, K> {
    /// Whether a checkpoint is due: the journal is half full, or many files are open.
    pub fn needs_checkpoint(&self) -> bool {
        if self.open.are_near_limit() {
            return true;
        }
        let state = self.log.state();
        let used = state.tail.0 - lock(&self.dirty_set).catalog.0;
        used > state.capacity / 100 * CHECKPOINT_PERCENT
    }

    /// Syncs all changes made before the call to the disk and trims their records from the journal.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Sync`] is final: no later checkpoint is tried. After any other error the journal
    /// keeps the records, and a later call tries again.
    pub fn checkpoint(&self) -> Result<(), CheckpointError> {
        let _one = lock(&self.checkpoint);
        if let Some(failed) = self.failed.get() {
            return Err(*failed);
        }
        self.run_checkpoint()
    }

    /// Classifies a failed sync. The disk's content is unknown after it and a later sync would succeed
    /// without telling, so it is final. After any other error the previous catalog remains valid.
    pub(super) fn on_sync_failure(&self, error: IoError) -> CheckpointError {
        match SystemCall::Sync.class(error) {
            FailureClass::DataLost => {
                let failed = CheckpointError::Sync(error);
                if let Some(notify) = self.options.on_failed_sync {
                    notify();
                }
                let _ = self.failed.set(failed);
                failed
            }
            FailureClass::Retry | FailureClass::Report => CheckpointError::Open(error),
        }
    }

    /// Runs a checkpoint because the journal is full.
    pub(super) fn make_room(&self) -> Result<(), ChangeError> {
        self.checkpoint().map_err(|error| match error {
            CheckpointError::Sync(_) => ChangeError::Failed(error),
            _ => ChangeError::Full(error),
        })
    }

    /// Runs the last checkpoint and deletes the catalog: from then on the disk alone has everything. Returns
    /// the journal.
    ///
    /// # Errors
    ///
    /// As [`JournaledDirectory::checkpoint`], and [`CheckpointError::CatalogIo`] if the catalog cannot be
    /// deleted.
    pub fn close(self) -> Result<L, CheckpointError> {
        let orphans: Vec<InodeId> = self.names().orphans().collect();
        for node in orphans {
            self.forget(node)
                .map_err(|error| CheckpointError::Orphan(error.io()))?;
        }
        self.checkpoint()?;
        self.catalog_store.clear().map_err(CheckpointError::CatalogIo)?;
        Ok(self.log)
    }

    fn run_checkpoint(&self) -> Result<(), CheckpointError> {
        let (catalog, dirty, gone) = {
            let _turn = lock(&self.names_lock);
            // Read the tail first: every file recorded before it has been marked dirty by now.
            let lsn = self.log.state().tail;
            let mut dirty_set = lock(&self.dirty_set);
            if dirty_set.catalog == lsn && dirty_set.dirty.is_empty() {
                return Ok(());
            }
            let mut names = self.names().clone();
            self.record_identities(&mut names)
                .map_err(CheckpointError::Stat)?;
            let dirty_set = &mut *dirty_set;
            let (dirty, gone) = (&mut dirty_set.dirty, &mut dirty_set.removed);
            let catalog = Catalog {
                journal: self.options.journal,
                lsn,
                names,
                executed: self.executed.as_ref().map(|executed| lock(executed).clone()),
            };
            (catalog, std::mem::take(dirty), std::mem::take(gone))
        };
        let lsn = catalog.lsn;
        if let Err(error) = self.sync_and_store_catalog(&catalog, &dirty) {
            // Dirty marks and pending ranges are kept until a catalog has the file. For a file made since the
            // previous catalog, recovery knows only what has a record.
            let mut dirty_set = lock(&self.dirty_set);
            dirty_set.removed.extend(gone);
            for (node, file) in dirty {
                let marked = dirty_set.dirty.entry(node).or_default();
                *marked = marked.take().or(file);
            }
            return Err(error);
        }
        let mut dirty_set = lock(&self.dirty_set);
        dirty_set.catalog = lsn;
        dirty_set.last_ticket.retain(|_, ticket| ticket.end > lsn);
        Ok(())
    }

    /// Syncs everything done before the catalog's LSN, then stores the catalog.
    fn sync_and_store_catalog(
        &self,
        catalog: &Catalog,
        dirty: &BTreeMap<InodeId, Option<Arc<OpenFile<T::File>>>>,
    ) -> Result<(), CheckpointError> {
        self.sync_all(dirty)?;
        let lsn = catalog.lsn;
        let before = CommitTicket { lsn, end: lsn };
        self.log
            .wait(before, Durability::Disk)
            .map_err(CheckpointError::Wait)?;
        self.catalog_store
            .store(&catalog.encode())
            .map_err(CheckpointError::CatalogIo)?;
        self.log.trim(lsn).map_err(CheckpointError::Log)
    }

    /// Looks up missing identities. An inode without one must not be in a catalog: recovery could not find
    /// its file.
    fn record_identities(&self, names: &mut NameTable) -> Result<(), IoError> {
        let unknown: Vec<InodeId> = names.unidentified().collect();
        for node in unknown {
            let path = names.path(node).unwrap_or_default();
            let identity = self.tree.identity(&path)?;
            if let Some(entry) = names.entry_mut(node) {
                entry.identity = Some(identity);
            }
        }
        Ok(())
    }

    fn sync_all(
        &self,
        dirty: &BTreeMap<InodeId, Option<Arc<OpenFile<T::File>>>>,
    ) -> Result<(), CheckpointError> {
        for file in dirty.values().flatten() {
            // If the name is gone, a record says so or is about to, and recovery never looks for the bytes.
            if self.names().is_named(file.node()) {
                self.sync_open(file)?;
            }
        }
        // If a directory is gone, its entries were moved elsewhere or removed with it. The root
        // directory's sync stands for both.
        let mut elsewhere = false;
        for (node, _) in dirty.iter().filter(|(_, file)| file.is_none()) {
            match self.open_node_for_sync(*node)? {
                Some(held) => self.sync_handle(&held)?,
                None => elsewhere = true,
            }
        }
        match self.open_node_for_sync(InodeId::ROOT)? {
            Some(root) if elsewhere => self.sync_handle(&root),
            _ => Ok(()),
        }
    }

    /// Opens an inode under the names lock, so that no rename can interfere; the sync itself runs without it.
    /// `None`: the inode is gone.
    fn open_node_for_sync(&self, node: InodeId) -> Result<Option<T::SyncHandle>, CheckpointError> {
        let _turn = lock(&self.names_lock);
        let path = self.names().is_named(node).then(|| self.names().path(node));
        let Some(path) = path.flatten() else {
            return Ok(None);
        };
        let held = self.tree.open_for_sync(&path).map_err(CheckpointError::Open)?;
        Ok(Some(held))
    }

    fn sync_handle(&self, held: &T::SyncHandle) -> Result<(), CheckpointError> {
        self.tree
            .sync_handle(held)
            .map_err(|error| self.on_sync_failure(error))
    }
}
