//! Open files: one per inode, bounded by the number of descriptors.
//!
//! A written file stays open until a checkpoint has synced it. Only the descriptor that wrote is sure to see
//! a failed write-back, and pending ranges are read through it. A program that makes many small files would
//! use up all descriptors. Before that, files that only the dirty set holds open are recorded, synced and
//! closed.

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

/// An open file. All users of an inode share one.
#[derive(Debug)]
pub struct OpenFile<F> {
    node: InodeId,
    file: F,
    /// Second descriptor, opened when the first one turns out to be read-only.
    writable: OnceLock<F>,
    /// Written ranges without a record. The lock also serialises writers, so that records follow the order of
    /// the writes.
    pub(super) pending: Mutex<DirtyRanges>,
    _descriptor: Descriptor,
}

impl<F> OpenFile<F> {
    /// Number of the file's inode.
    pub fn node(&self) -> InodeId {
        self.node
    }

    /// Descriptor on the disk: writable if one was opened.
    pub fn inner(&self) -> &F {
        self.writable.get().unwrap_or(&self.file)
    }
}

/// Counts a file while it is open.
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
    /// Number of open files at which the next open evicts some.
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

    /// Whether a checkpoint, which closes files, should run now in the background instead of in the next
    /// open.
    pub(super) fn are_near_limit(&self) -> bool {
        self.count() > self.max / 8 * 3
    }

    fn get(&self, node: InodeId) -> Option<Arc<OpenFile<F>>> {
        lock(&self.files).get(&node).and_then(Weak::upgrade)
    }

    /// Adds an open file, or returns the one that another thread has added meanwhile.
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
    /// The open file of an inode, if any.
    pub fn open_file_of(&self, node: InodeId) -> Option<Arc<OpenFile<T::File>>> {
        self.open.get(node)
    }

    /// Opens a file, for reading only if the mount's own user may not write to it.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Name`] if the inode is gone, [`ChangeError::Disk`] if the disk refuses the open.
    pub fn open_file(&self, node: InodeId) -> Result<Arc<OpenFile<T::File>>, ChangeError> {
        if let Some(file) = self.open_file_of(node) {
            return Ok(file);
        }
        self.reserve_descriptor()?;
        match self.open_anew(node) {
            // The whole system may be out of descriptors, or this process has fewer than configured.
            Err(ChangeError::Disk(IoError::EMFILE | IoError::ENFILE)) if self.evict_files() > 0 => {
                self.open_anew(node)
            }
            opened => opened,
        }
    }

    /// Opens a file for writing on behalf of a caller with permission.
    ///
    /// # Errors
    ///
    /// As [`JournaledDirectory::open_file`].
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
        // The names lock keeps the path valid until the file is open.
        let path = names.path(node).ok_or(NameError::Missing)?;
        let file = match self.tree.open(&path) {
            Err(IoError::EACCES) => self.tree.open_to_write(&path),
            opened => opened,
        };
        Ok(self.open.insert(node, file.map_err(ChangeError::Disk)?))
    }

    /// Adds a file that was just made.
    pub(super) fn insert(&self, node: InodeId, file: T::File) -> Arc<OpenFile<T::File>> {
        self.open.insert(node, file)
    }

    /// Makes sure that one more file can be opened.
    pub(super) fn reserve_descriptor(&self) -> Result<(), ChangeError> {
        let open = &self.open;
        if open.count() < open.eviction_threshold.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.evict_files();
        // The remaining files are held open by programs. Raising the threshold avoids a scan at each further
        // open.
        let left = open.count();
        let next = (left + left / 8 + 1).clamp(open.max / 2, open.max);
        open.eviction_threshold.store(next, Ordering::Relaxed);
        match left < open.max {
            true => Ok(()),
            false => Err(ChangeError::Disk(IoError::ENFILE)),
        }
    }

    /// Records, syncs and closes some of the files that only the dirty set holds open. Returns their number.
    fn evict_files(&self) -> usize {
        let most = EVICTION_BATCH_MIN.max(self.open.max / 8);
        let idle: Vec<Arc<OpenFile<T::File>>> = {
            let dirty_set = lock(&self.dirty_set);
            let all = dirty_set.dirty.values().flatten();
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
                // The file stays open, together with its pending ranges.
                Err(_) => break,
            }
        }
        closed
    }

    /// Returns `false` if another thread has opened the file meanwhile.
    fn close_unused(&self, file: Arc<OpenFile<T::File>>) -> Result<bool, ChangeError> {
        self.check_failed()?;
        self.record_pending(&file, &mut lock(&file.pending))?;
        self.sync_open(&file).map_err(ChangeError::Failed)?;
        let mut dirty_set = lock(&self.dirty_set);
        let Some(kept) = dirty_set.dirty.get_mut(&file.node) else {
            return Ok(true);
        };
        // Two references: the dirty set's and this one.
        let unused = Arc::strong_count(&file) == 2;
        // A writer holds this lock and may be waiting for the dirty set. Waiting for it here, with the dirty
        // set locked, would deadlock.
        let recorded = file
            .pending
            .try_lock()
            .is_ok_and(|pending| *pending == DirtyRanges::default());
        let unused = unused && recorded;
        if unused && kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, &file)) {
            // The directory entry is durable by now, or the next checkpoint syncs the inode once more by its
            // name.
            *kept = None;
        }
        Ok(unused)
    }

    /// Syncs an open file. An error it reports is final.
    pub(super) fn sync_open(&self, file: &OpenFile<T::File>) -> Result<(), CheckpointError> {
        self.tree
            .sync_file(file.inner())
            .map_err(|error| self.on_sync_failure(error))
    }
}
