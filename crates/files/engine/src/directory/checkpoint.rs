//! What was done is brought to the disk, and the journal's records of it are given up.
//!
//! What is in the catalog is what the disk has by then. Between any two steps all may stop: until the catalog
//! is replaced the one before holds, with the records since.

use std::collections::BTreeMap;
use std::sync::Arc;

use netram_proto::failure::{FailureClass, SystemCall};
use netram_proto::id::Lsn;
use netram_proto::port::{CommitTicket, Durability, IoError, RecordLog};

use super::{JournaledDirectory, OpenFile, lock};
use crate::catalog::Catalog;
use crate::change::InodeId;
use crate::error::{ChangeError, CheckpointError};
use crate::file_tree::{CatalogStore, FileTree};
use crate::limit::CHECKPOINT_PERCENT;
use crate::name_table::NameTable;

impl<L: RecordLog, T: FileTree, K: CatalogStore> JournaledDirectory<L, T, K> {
    /// Whether it is time for a checkpoint: the journal is half full, or many files are open.
    pub fn needs_checkpoint(&self) -> bool {
        if self.open.are_near_limit() {
            return true;
        }
        let state = self.log.state();
        let used = state.tail.0 - lock(&self.dirty_set).catalog.0;
        used > state.capacity / 100 * CHECKPOINT_PERCENT
    }

    /// Brings everything that was done before to the disk, and gives up the journal's records of it.
    pub fn checkpoint(&self) -> Result<(), CheckpointError> {
        let _one = lock(&self.checkpoint);
        if let Some(failed) = self.failed.get() {
            return Err(*failed);
        }
        self.run_checkpoint()
    }

    /// What a sync that failed means. What the disk has nobody knows after that, and a later sync would not
    /// tell: it is final. After any other error the catalog before is as good as it was.
    pub(super) fn on_sync_failure(&self, error: IoError) -> CheckpointError {
        match SystemCall::Sync.class(error) {
            FailureClass::DataLost => {
                let failed = CheckpointError::Sync(error);
                let _ = self.failed.set(failed);
                failed
            }
            FailureClass::Retry | FailureClass::Report => CheckpointError::Open(error),
        }
    }

    /// Empties a full journal.
    pub(super) fn make_room(&self) -> Result<(), ChangeError> {
        self.checkpoint().map_err(|error| match error {
            CheckpointError::Sync(_) => ChangeError::Failed(error),
            _ => ChangeError::Full(error),
        })
    }

    /// The last checkpoint: afterwards the disk alone has everything, and the catalog is given up. Returns
    /// the journal.
    pub fn close(self) -> Result<L, CheckpointError> {
        self.checkpoint()?;
        self.catalog_store.clear().map_err(CheckpointError::CatalogIo)?;
        Ok(self.log)
    }

    fn run_checkpoint(&self) -> Result<(), CheckpointError> {
        let (lsn, names, dirty, gone) = {
            let _turn = lock(&self.names_lock);
            // The tail first: what is recorded before it is marked by now.
            let lsn = self.log.state().tail;
            let mut books = lock(&self.dirty_set);
            if books.catalog == lsn && books.dirty.is_empty() {
                return Ok(());
            }
            let mut names = self.names().clone();
            self.record_identities(&mut names)
                .map_err(CheckpointError::Stat)?;
            let books = &mut *books;
            let (dirty, gone) = (&mut books.dirty, &mut books.removed);
            (lsn, names, std::mem::take(dirty), std::mem::take(gone))
        };
        if let Err(error) = self.sync_and_store_catalog(lsn, names, &dirty) {
            // Nothing may be forgotten of a file before a catalog has it: not that it was not synced, and not
            // what of it has no record yet. Of a file that was made since the catalog before, recovery knows
            // only what has one.
            let mut books = lock(&self.dirty_set);
            books.removed.extend(gone);
            for (node, file) in dirty {
                let marked = books.dirty.entry(node).or_default();
                *marked = marked.take().or(file);
            }
            return Err(error);
        }
        let mut books = lock(&self.dirty_set);
        books.catalog = lsn;
        books.last_ticket.retain(|_, ticket| ticket.end > lsn);
        Ok(())
    }

    /// Everything that was done before is on the disk, with a catalog that says so.
    fn sync_and_store_catalog(
        &self,
        lsn: Lsn,
        names: NameTable,
        dirty: &BTreeMap<InodeId, Option<Arc<OpenFile<T::File>>>>,
    ) -> Result<(), CheckpointError> {
        self.sync_all(dirty)?;
        let before = CommitTicket { lsn, end: lsn };
        self.log
            .wait(before, Durability::Disk)
            .map_err(CheckpointError::Wait)?;
        let catalog = Catalog {
            journal: self.options.journal,
            lsn,
            names,
        };
        self.catalog_store
            .store(&catalog.encode())
            .map_err(CheckpointError::CatalogIo)?;
        self.log.trim(lsn).map_err(CheckpointError::Log)
    }

    /// Without knowing which file it is no node may be in a catalog: nothing would ever be found for it.
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
            // A record says that it is no more, or is about to; nobody finds its bytes again.
            if self.names().kind(file.node()).is_some() {
                self.sync_open(file)?;
            }
        }
        // Names that a directory had which is gone went elsewhere, or with it: the outermost one stands for
        // it.
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

    /// Nobody changes names while it is opened, and everybody may while it is synced. `None`: it is gone.
    fn open_node_for_sync(&self, node: InodeId) -> Result<Option<T::SyncHandle>, CheckpointError> {
        let _turn = lock(&self.names_lock);
        let Some(path) = self.names().path(node) else {
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
