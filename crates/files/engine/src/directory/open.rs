//! Open files: one for each node, and no more of them than there are descriptors for.
//!
//! A file that was written stays open until a checkpoint has synced it: only the descriptor by which it was
//! written is sure to be told that a write-back failed, and what is not recorded of it is read by way of it.
//! So a program that makes many small files would use up all descriptors there are. Before that those that
//! only the books have open are recorded, synced and closed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use netram_proto::port::{IoError, RecordLog};

use super::{JournaledDirectory, lock};
use crate::change::{InodeId, InodeKind};
use crate::dirty_ranges::DirtyRanges;
use crate::error::{ChangeError, CheckpointError};
use crate::file_tree::{CatalogStore, FileTree};
use crate::limit::EVICTION_BATCH_MIN;
use crate::name_table::NameError;

/// An open file: one for each node, whoever has opened it.
#[derive(Debug)]
pub struct OpenFile<F> {
    node: InodeId,
    file: F,
    /// Opened later, where the first one can only be read.
    writable: OnceLock<F>,
    /// What is not recorded yet. Who holds it writes alone, so that records are in the order of what they
    /// say.
    pub(super) pending: Mutex<DirtyRanges>,
    _descriptor: Descriptor,
}

impl<F> OpenFile<F> {
    /// Which node.
    pub fn node(&self) -> InodeId {
        self.node
    }

    /// The disk's file.
    pub fn inner(&self) -> &F {
        self.writable.get().unwrap_or(&self.file)
    }
}

/// Counts a file as long as it is open.
#[derive(Debug)]
struct Descriptor(Arc<AtomicUsize>);

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All open files.
#[derive(Debug)]
pub(super) struct OpenFiles<F> {
    files: Mutex<HashMap<InodeId, Weak<OpenFile<F>>>>,
    count: Arc<AtomicUsize>,
    /// At so many some are closed.
    eviction_threshold: AtomicUsize,
    max: usize,
}

impl<F> OpenFiles<F> {
    pub(super) fn new(max: usize) -> OpenFiles<F> {
        OpenFiles {
            files: Mutex::default(),
            count: Arc::default(),
            eviction_threshold: AtomicUsize::new(max / 2),
            max,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Whether a checkpoint, which closes files, is better made now than by whoever opens the next one.
    pub(super) fn are_near_limit(&self) -> bool {
        self.count() > self.max / 8 * 3
    }

    fn get(&self, node: InodeId) -> Option<Arc<OpenFile<F>>> {
        lock(&self.files).get(&node).and_then(Weak::upgrade)
    }

    /// Takes one in; or the other that somebody has opened meanwhile.
    fn insert(&self, node: InodeId, file: F) -> Arc<OpenFile<F>> {
        let mut files = lock(&self.files);
        if let Some(file) = files.get(&node).and_then(Weak::upgrade) {
            return file;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let file = Arc::new(OpenFile {
            node,
            file,
            writable: OnceLock::new(),
            pending: Mutex::default(),
            _descriptor: Descriptor(Arc::clone(&self.count)),
        });
        if files.len() > 64 && files.len() > 2 * self.count() {
            files.retain(|_, file| file.strong_count() > 0);
        }
        files.insert(node, Arc::downgrade(&file));
        file
    }
}

impl<L: RecordLog, T: FileTree, K: CatalogStore> JournaledDirectory<L, T, K> {
    /// A file that somebody has open.
    pub fn open_file_of(&self, node: InodeId) -> Option<Arc<OpenFile<T::File>>> {
        self.open.get(node)
    }

    /// Opens a file. One that cannot be written to by whoever serves the directory can be read.
    pub fn open_file(&self, node: InodeId) -> Result<Arc<OpenFile<T::File>>, ChangeError> {
        if let Some(file) = self.open_file_of(node) {
            return Ok(file);
        }
        self.reserve_descriptor()?;
        match self.open_anew(node) {
            // The whole machine may have none left, or this process fewer than it was told.
            Err(ChangeError::Disk(IoError::EMFILE | IoError::ENFILE)) if self.evict_files() > 0 => {
                self.open_anew(node)
            }
            opened => opened,
        }
    }

    /// Opens a file that somebody is allowed to write to.
    pub fn open_to_write(&self, node: InodeId) -> Result<Arc<OpenFile<T::File>>, ChangeError> {
        let file = self.open_file(node)?;
        if !self.tree.may_write(file.inner()) {
            let names = self.names();
            let path = names.path(node).ok_or(NameError::Missing)?;
            let writable = self.tree.open_to_write(&path).map_err(ChangeError::Disk)?;
            let _ = file.writable.set(writable);
        }
        Ok(file)
    }

    fn open_anew(&self, node: InodeId) -> Result<Arc<OpenFile<T::File>>, ChangeError> {
        let names = self.names();
        match names.kind(node) {
            None => return Err(NameError::Missing.into()),
            Some(InodeKind::File) => (),
            Some(_) => return Err(NameError::IsDirectory.into()),
        }
        // While the names are held nobody calls it otherwise.
        let path = names.path(node).ok_or(NameError::Missing)?;
        let file = match self.tree.open(&path) {
            Err(IoError::EACCES) => self.tree.open_to_write(&path),
            opened => opened,
        };
        Ok(self.open.insert(node, file.map_err(ChangeError::Disk)?))
    }

    /// Takes a file in that was just made.
    pub(super) fn insert(&self, node: InodeId, file: T::File) -> Arc<OpenFile<T::File>> {
        self.open.insert(node, file)
    }

    /// Sees to it that one more file can be opened.
    pub(super) fn reserve_descriptor(&self) -> Result<(), ChangeError> {
        let open = &self.open;
        if open.count() < open.eviction_threshold.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.evict_files();
        // The rest is open because programs have it so: it is not gone through again for each one more.
        let left = open.count();
        let next = (left + left / 8 + 1).clamp(open.max / 2, open.max);
        open.eviction_threshold.store(next, Ordering::Relaxed);
        match left < open.max {
            true => Ok(()),
            false => Err(ChangeError::Disk(IoError::ENFILE)),
        }
    }

    /// Records, syncs and closes some of the files that only the books have open. Returns how many.
    fn evict_files(&self) -> usize {
        let most = EVICTION_BATCH_MIN.max(self.open.max / 8);
        let idle: Vec<Arc<OpenFile<T::File>>> = {
            let books = lock(&self.dirty_set);
            let all = books.dirty.values().flatten();
            all.filter(|file| Arc::strong_count(file) == 1)
                .take(most)
                .cloned()
                .collect()
        };
        let mut closed = 0;
        for file in idle {
            match self.close_unused(file) {
                Ok(true) => closed += 1,
                Ok(false) => (),
                // It stays open, and with it what is not recorded.
                Err(_) => break,
            }
        }
        closed
    }

    /// `false`: somebody has opened it meanwhile.
    fn close_unused(&self, file: Arc<OpenFile<T::File>>) -> Result<bool, ChangeError> {
        self.check_failed()?;
        self.record_pending(&file, &mut lock(&file.pending))?;
        self.sync_open(&file).map_err(ChangeError::Failed)?;
        let mut books = lock(&self.dirty_set);
        let Some(kept) = books.dirty.get_mut(&file.node) else {
            return Ok(true);
        };
        // Two: the books', and this one.
        let unused = Arc::strong_count(&file) == 2;
        // Who writes has it, and waits for the books perhaps: nobody waits for it with the books.
        let recorded = file
            .pending
            .try_lock()
            .is_ok_and(|pending| *pending == DirtyRanges::default());
        let unused = unused && recorded;
        if unused && kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &file)) {
            // Its directory knows it by now or by the next checkpoint, which syncs it once more by its name.
            *kept = None;
        }
        Ok(unused)
    }

    /// Syncs an open file; what that reports is final.
    pub(super) fn sync_open(&self, file: &OpenFile<T::File>) -> Result<(), CheckpointError> {
        self.tree
            .sync_file(file.inner())
            .map_err(|error| self.on_sync_failure(error))
    }
}
