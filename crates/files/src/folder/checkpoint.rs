//! What was done is brought to the disk, and the journal's records of it are given up.
//!
//! What is in the catalog is what the disk has by then. Between any two steps all may stop: until the catalog is replaced the one before holds, with the
//! records since.

use std::collections::BTreeMap;
use std::sync::Arc;

use netram_proto::id::Lsn;
use netram_proto::port::{Durability, IoError, Log, Ticket};

use super::{File, Folder, lock};
use crate::catalog::Catalog;
use crate::change::Node;
use crate::error::{ChangeError, CheckpointError};
use crate::limit::CHECKPOINT_PERCENT;
use crate::names::Names;
use crate::tree::{Keep, Tree};

impl<L: Log, T: Tree, K: Keep> Folder<L, T, K> {
    /// Whether it is time for a checkpoint: the journal is half full.
    pub fn is_crowded(&self) -> bool {
        let state = self.log.state();
        let used = state.tail.0 - lock(&self.books).catalog.0;
        used > state.capacity / 100 * CHECKPOINT_PERCENT
    }

    /// Brings everything that was done before to the disk, and gives up the journal's records of it.
    pub fn checkpoint(&self) -> Result<(), CheckpointError> {
        let _one = lock(&self.checkpoint);
        if let Some(failed) = self.failed.get() {
            return Err(*failed);
        }
        let done = self.bring_down();
        if let Err(error @ CheckpointError::Sync(_)) = done {
            // What the disk has of it nobody knows, and a later sync would not tell. After any other error the catalog before is as good as it was.
            let _ = self.failed.set(error);
        }
        done
    }

    /// Empties a full journal.
    pub(super) fn make_room(&self) -> Result<(), ChangeError> {
        self.checkpoint().map_err(|error| match error {
            CheckpointError::Sync(_) => ChangeError::Failed(error),
            _ => ChangeError::Full(error),
        })
    }

    /// The last checkpoint: afterwards the disk alone has everything, and the catalog is given up. Returns the journal.
    pub fn close(self) -> Result<L, CheckpointError> {
        self.checkpoint()?;
        self.keep.clear().map_err(CheckpointError::Keep)?;
        Ok(self.log)
    }

    fn bring_down(&self) -> Result<(), CheckpointError> {
        let (lsn, names, dirty) = {
            let _turn = lock(&self.turn);
            // The tail first: what is recorded before it is marked by now.
            let lsn = self.log.state().tail;
            let mut books = lock(&self.books);
            if books.catalog == lsn && books.dirty.is_empty() {
                return Ok(());
            }
            let mut names = self.names().clone();
            self.identify(&mut names).map_err(CheckpointError::Identity)?;
            (lsn, names, std::mem::take(&mut books.dirty))
        };
        if let Err(error) = self.put_down(lsn, names, &dirty) {
            // Nothing may be forgotten of a file before a catalog has it: not that it was not synced, and not what of it has no record yet. Of a file that
            // was made since the catalog before, recovery knows only what has one.
            let mut books = lock(&self.books);
            for (node, file) in dirty {
                let marked = books.dirty.entry(node).or_default();
                *marked = marked.take().or(file);
            }
            return Err(error);
        }
        let mut books = lock(&self.books);
        books.catalog = lsn;
        books.last.retain(|_, ticket| ticket.end > lsn);
        Ok(())
    }

    /// Everything that was done before is on the disk, with a catalog that says so.
    fn put_down(
        &self,
        lsn: Lsn,
        names: Names,
        dirty: &BTreeMap<Node, Option<Arc<File<T::File>>>>,
    ) -> Result<(), CheckpointError> {
        self.sync_all(dirty).map_err(CheckpointError::Sync)?;
        let before = Ticket { lsn, end: lsn };
        self.log
            .wait(before, Durability::Disk)
            .map_err(CheckpointError::Wait)?;
        let catalog = Catalog {
            journal: self.options.journal,
            lsn,
            names,
        };
        self.keep
            .store(&catalog.encode())
            .map_err(CheckpointError::Keep)?;
        self.log.trim(lsn).map_err(CheckpointError::Log)
    }

    /// Without knowing which file it is no node may be in a catalog: nothing would ever be found for it.
    fn identify(&self, names: &mut Names) -> Result<(), IoError> {
        let unknown: Vec<Node> = names.unidentified().collect();
        for node in unknown {
            let path = names.path(node).unwrap_or_default();
            let identity = self.tree.identity(&path)?;
            if let Some(entry) = names.entry_mut(node) {
                entry.identity = Some(identity);
            }
        }
        Ok(())
    }

    fn sync_all(&self, dirty: &BTreeMap<Node, Option<Arc<File<T::File>>>>) -> Result<(), IoError> {
        for file in dirty.values().flatten() {
            self.tree.sync_file(&file.file)?;
        }
        // Nobody calls them otherwise meanwhile.
        let _turn = lock(&self.turn);
        for (node, _) in dirty.iter().filter(|(_, file)| file.is_none()) {
            let path = self.names().path(*node);
            if let Some(path) = path {
                self.tree.sync(&path)?;
            }
        }
        Ok(())
    }
}
