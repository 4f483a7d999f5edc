//! An open directory.
//!
//! **Content** is written to the disk's file first and recorded at its sync. Nothing is promised before the
//! record is held, so a file ahead of the journal has only unsynced writes.
//!
//! **Names** are recorded and held before they change on the disk, so names on the disk are never ahead of
//! the journal. Recovery can therefore find every file that the catalog or a record names, whichever later
//! changes the disk has kept. A change of names is durable when the call returns.

mod checkpoint;
mod naming;
mod open;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use netram_proto::id::{JournalId, Lsn};
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::port::{AppendError, CommitTicket, CommitVotes, Durability, IoError, LogState, RecordLog};

use crate::change::{AttributeChange, DirectoryChange, FallocateMode, InodeId, WRITE_HEADER_BYTES};
use crate::dirty_ranges::{DirtyRanges, record_bytes};
use crate::error::{ChangeError, CheckpointError, DirectoryOpenError};
use crate::executed::ExecutedRequests;
use crate::file_tree::{CatalogStore, FileTree};
use crate::name_table::{InodeIdentity, NameError, NameTable};
use crate::recover::{self, DirectoryRecovery};

pub use self::open::OpenFile;
use self::open::OpenFiles;

/// Options for opening a directory.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryOptions {
    /// Journal that the directory's catalog must belong to.
    pub journal: JournalId,
    /// Condition that a sync waits for.
    pub durability: Durability,
    /// Accepts that the journal's last records are missing. Names on the disk that are ahead of the journal
    /// are then taken as they are.
    pub loss_accepted: bool,
    /// Maximum number of files open at a time, one descriptor each.
    pub files_max: usize,
    /// Called when a sync of the disk has failed for good, before any call returns that error.
    pub on_failed_sync: Option<fn()>,
    /// Number of a new mount that outlives its server: every change of names is then recorded with its
    /// request, and a file that loses its last name is kept until [`JournaledDirectory::forget`].
    pub reign: Option<u64>,
    /// Planted fault, for the simulator.
    pub planted: FaultSwitch,
}

/// Status of an open directory.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryStatus {
    /// Number of files, directories and symbolic links.
    pub nodes: usize,
    /// Number of these that the next checkpoint must sync.
    pub dirty: usize,
    /// Number of files open on the disk.
    pub open: usize,
    /// Extent and state of the journal.
    pub log: LogState,
    /// Error that stopped all further changes.
    pub failed: Option<CheckpointError>,
}

/// Changes since the last checkpoint.
struct DirtySet<F> {
    /// Inodes to sync, with the open file if there is one. The order is fixed, so that simulations replay.
    dirty: BTreeMap<InodeId, Option<Arc<OpenFile<F>>>>,
    /// Last record of each inode.
    last_ticket: HashMap<InodeId, CommitTicket>,
    /// LSN of the stored catalog.
    catalog: Lsn,
    /// Identities of inodes removed since the last checkpoint.
    removed: HashSet<InodeIdentity>,
}

/// An open directory whose changes are recorded in a journal.
pub struct JournaledDirectory<L, T: FileTree, K> {
    log: L,
    tree: T,
    catalog_store: K,
    options: DirectoryOptions,
    /// Held by a thread that changes names until the change is made on the disk.
    names_lock: Mutex<()>,
    names: RwLock<NameTable>,
    dirty_set: Mutex<DirtySet<T::File>>,
    open: OpenFiles<T::File>,
    checkpoint: Mutex<()>,
    failed: OnceLock<CheckpointError>,
    /// Executed requests that may be sent again; `None` if no server can take over.
    executed: Option<Mutex<ExecutedRequests>>,
}

impl<L: RecordLog, T: FileTree, K: CatalogStore> JournaledDirectory<L, T, K> {
    /// Opens the directory on this disk and replays the journal's records into it.
    ///
    /// # Errors
    ///
    /// See [`DirectoryOpenError`]. Neither the journal nor the catalog has changed then.
    pub fn open(
        log: L,
        tree: T,
        keep: K,
        options: DirectoryOptions,
    ) -> Result<(JournaledDirectory<L, T, K>, DirectoryRecovery), DirectoryOpenError> {
        let (names, recovered) = recover::recover(&log, &tree, &keep, &options)?;
        let executed = options.reign.map(ExecutedRequests::new);
        let directory = JournaledDirectory::new(log, tree, keep, options, names, executed);
        Ok((directory, recovered))
    }

    /// Continues with the directory of a server that was killed, while programs have files open. The machine
    /// has not lost power, so the files are as the programs left them. Only names are brought to the
    /// journal's end; `reign` of the options is the killed server's.
    ///
    /// # Errors
    ///
    /// See [`DirectoryOpenError`]. Journal and catalog have not changed then.
    pub fn take_over(
        log: L,
        tree: T,
        keep: K,
        options: DirectoryOptions,
    ) -> Result<(JournaledDirectory<L, T, K>, DirectoryRecovery), DirectoryOpenError> {
        let (names, executed, recovered) = recover::take_over(&log, &tree, &keep, &options)?;
        let directory = JournaledDirectory::new(log, tree, keep, options, names, Some(executed));
        Ok((directory, recovered))
    }

    fn new(
        log: L,
        tree: T,
        keep: K,
        options: DirectoryOptions,
        names: NameTable,
        executed: Option<ExecutedRequests>,
    ) -> JournaledDirectory<L, T, K> {
        let catalog = log.state().tail;
        JournaledDirectory {
            log,
            tree,
            catalog_store: keep,
            options,
            names_lock: Mutex::new(()),
            names: RwLock::new(names),
            dirty_set: Mutex::new(DirtySet {
                dirty: BTreeMap::new(),
                last_ticket: HashMap::new(),
                catalog,
                removed: HashSet::new(),
            }),
            open: OpenFiles::new(options.files_max),
            checkpoint: Mutex::new(()),
            failed: OnceLock::new(),
            executed: executed.map(Mutex::new),
        }
    }

    /// Whether another server can take over when this one is killed.
    fn survives(&self) -> bool {
        self.executed.is_some()
    }

    /// Whether a server before this one executed the request with this number, which is now sent again.
    /// Returns the inode that the reply names.
    pub fn executed_before(&self, number: u64) -> Option<InodeId> {
        lock(self.executed.as_ref()?).executed_before(number)
    }

    /// Notes that a request was answered.
    pub fn on_answered(&self, number: u64) {
        if let Some(executed) = &self.executed {
            lock(executed).on_answered(number);
        }
    }

    /// Notes that every request which servers before this one left is answered.
    pub fn on_all_answered(&self) {
        if let Some(executed) = &self.executed {
            lock(executed).on_all_answered();
        }
    }

    /// Current names, locked for reading.
    pub fn names(&self) -> RwLockReadGuard<'_, NameTable> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backing file system.
    pub fn tree(&self) -> &T {
        &self.tree
    }

    /// The journal.
    pub fn log(&self) -> &L {
        &self.log
    }

    /// Current figures, for monitoring.
    pub fn status(&self) -> DirectoryStatus {
        DirectoryStatus {
            nodes: self.names().len(),
            dirty: lock(&self.dirty_set).dirty.len(),
            open: self.open.count(),
            log: self.log.state(),
            failed: self.failure(),
        }
    }

    /// Error that stopped all further changes. Takes no lock.
    pub fn failure(&self) -> Option<CheckpointError> {
        self.failed.get().copied()
    }

    /// Writes bytes. They are durable once [`JournaledDirectory::sync`] has returned.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Disk`] if the disk refuses the write, [`ChangeError::Failed`] after a failed
    /// checkpoint, and the journal's errors if pending bytes had to be recorded first.
    pub fn write(&self, file: &Arc<OpenFile<T::File>>, offset: u64, bytes: &[u8]) -> Result<(), ChangeError> {
        self.check_failed()?;
        let mut pending = lock(&file.pending);
        self.tree
            .write(file.inner(), offset, bytes)
            .map_err(ChangeError::Disk)?;
        self.mark_dirty(Some(file), file.node());
        pending.add(offset, bytes.len() as u64);
        if pending.is_large() {
            self.record_pending(file, &mut pending)?;
        }
        Ok(())
    }

    /// Records the pending ranges with the file's current content. A range that cannot be recorded stays
    /// pending, so that a later sync cannot skip it.
    fn record_pending(
        &self,
        file: &Arc<OpenFile<T::File>>,
        pending: &mut DirtyRanges,
    ) -> Result<(), ChangeError> {
        while let Some((from, to)) = pending.take_first() {
            if let Err(error) = self.record_range(file, from, to) {
                pending.add(from, to - from);
                return Err(error);
            }
        }
        Ok(())
    }

    fn record_range(&self, file: &Arc<OpenFile<T::File>>, from: u64, to: u64) -> Result<(), ChangeError> {
        let node = file.node();
        let most = self.log.state().payload_max - WRITE_HEADER_BYTES;
        let mut bytes = vec![0; most.min((to - from) as usize)];
        let mut offset = from;
        while offset < to {
            let room = match self.options.planted.is(PlantedFault::PageCut) {
                true => bytes.len().min((to - offset) as usize),
                false => record_bytes(offset, to - offset, bytes.len()),
            };
            let read = self
                .tree
                .read(file.inner(), offset, &mut bytes[..room])
                .map_err(ChangeError::Disk)?;
            if read == 0 {
                // The file was truncated meanwhile; that has a record of its own.
                break;
            }
            let bytes = &bytes[..read];
            self.record(Some(file), node, &DirectoryChange::Write { node, offset, bytes })?;
            offset += read as u64;
        }
        Ok(())
    }

    /// Sets a file's length: the change is recorded and held, then made. In the opposite order a crash in
    /// between would leave a shorter file. Replay would restore only the part of its old content that the
    /// journal has.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Disk`] if the disk refuses it, the journal's errors if it cannot be recorded.
    pub fn resize(&self, file: &Arc<OpenFile<T::File>>, size: u64) -> Result<(), ChangeError> {
        let mut pending = lock(&file.pending);
        loop {
            self.check_failed()?;
            self.record_pending(file, &mut pending)?;
            let (node, turn) = (file.node(), lock(&self.names_lock));
            if !self.names().is_named(node) {
                return self.tree.resize(file.inner(), size).map_err(ChangeError::Disk);
            }
            self.mark_dirty(Some(file), node);
            let ticket = match self.append(&DirectoryChange::Resize { node, size }) {
                Err(AppendError::Full { .. }) => {
                    drop(turn);
                    self.make_room()?;
                    continue;
                }
                appended => appended?,
            };
            // Keep the names lock until the change is made, so that no checkpoint counts it as done.
            self.log.wait(ticket, self.options.durability)?;
            if let Err(error) = self.tree.resize(file.inner(), size) {
                self.revoke_record(ticket, turn)?;
                return Err(ChangeError::Disk(error));
            }
            self.note_ticket(node, ticket);
            return Ok(());
        }
    }

    /// Allocates, zeros or punches out a range of a file.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Disk`] if the disk refuses it, the journal's errors if it cannot be recorded.
    pub fn allocate(
        &self,
        file: &Arc<OpenFile<T::File>>,
        how: FallocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), ChangeError> {
        self.check_failed()?;
        let mut pending = lock(&file.pending);
        self.record_pending(file, &mut pending)?;
        self.tree
            .allocate(file.inner(), how, offset, length)
            .map_err(ChangeError::Disk)?;
        let change = DirectoryChange::Allocate {
            node: file.node(),
            mode: how,
            offset,
            length,
        };
        self.record(Some(file), file.node(), &change)
    }

    /// Sets attributes of an inode.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Disk`] if the disk refuses it, the journal's errors if it cannot be recorded.
    pub fn set_attributes(&self, node: InodeId, attributes: AttributeChange) -> Result<(), ChangeError> {
        let change = DirectoryChange::SetAttributes { node, attributes };
        self.change_attributes(
            node,
            &change,
            |tree, path| tree.set_attributes(path, &attributes),
            |tree, file| tree.set_attributes_of_file(file, &attributes),
        )
    }

    /// Sets an extended attribute; `None` removes it.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Disk`] if the disk refuses it, the journal's errors if it cannot be recorded.
    pub fn set_xattr(
        &self,
        node: InodeId,
        name: &[u8],
        value: Option<&[u8]>,
        request: Option<u64>,
    ) -> Result<(), ChangeError> {
        let change = DirectoryChange::SetXattr { node, name, value };
        if self.survives() {
            // Recorded first, so that it is not made twice: a second time it could fail.
            return self.change_names(request, &mut |_| Ok(change));
        }
        self.change_attributes(
            node,
            &change,
            |tree, path| tree.set_xattr(path, name, value),
            |tree, file| tree.set_xattr_of_file(file, name, value),
        )
    }

    /// Waits until every change made to the inode is held. Returns the votes, or `None` if it had no record.
    ///
    /// # Errors
    ///
    /// [`ChangeError::Append`] or [`ChangeError::Full`] if pending bytes cannot be recorded,
    /// [`ChangeError::Wait`] if the record is not known to be held.
    pub fn sync(&self, node: InodeId) -> Result<Option<CommitVotes>, ChangeError> {
        self.record_file(node)?;
        let last = lock(&self.dirty_set).last_ticket.get(&node).copied();
        let Some(ticket) = last else {
            self.check_failed()?;
            return Ok(None);
        };
        let votes = self.log.wait(ticket, self.options.durability)?;
        Ok(Some(votes))
    }

    /// Records all pending writes, so that lenders get them soon even if the program never syncs. An error in
    /// one file does not keep the others from being recorded.
    ///
    /// # Errors
    ///
    /// The first error that occurred.
    pub fn record_written(&self) -> Result<(), ChangeError> {
        let written: Vec<Arc<OpenFile<T::File>>> =
            lock(&self.dirty_set).dirty.values().flatten().cloned().collect();
        let recorded = { written.iter() }.map(|file| self.record_pending(file, &mut lock(&file.pending)));
        recorded.fold(Ok(()), Result::and)
    }

    fn record_file(&self, node: InodeId) -> Result<(), ChangeError> {
        // An unopened file without a dirty mark was synced by a checkpoint after its last write.
        match self.open_file_of(node) {
            Some(file) => self.record_pending(&file, &mut lock(&file.pending)),
            None => Ok(()),
        }
    }

    fn check_failed(&self) -> Result<(), ChangeError> {
        match self.failed.get() {
            Some(error) => Err(ChangeError::Failed(*error)),
            None => Ok(()),
        }
    }

    /// Changes attributes of an inode that has a name, or of an open file without one.
    fn change_attributes(
        &self,
        node: InodeId,
        change: &DirectoryChange<'_>,
        act: impl FnOnce(&T, &[u8]) -> Result<(), IoError>,
        act_on_open: impl FnOnce(&T, &T::File) -> Result<(), IoError>,
    ) -> Result<(), ChangeError> {
        self.check_failed()?;
        // Record pending writes first: replaying them later would overwrite a modification time that is set
        // now.
        self.record_file(node)?;
        {
            let _turn = lock(&self.names_lock);
            let mut names = self.names.write().unwrap_or_else(PoisonError::into_inner);
            let Some(path) = names.path(node) else {
                let file = self.open_file_of(node).ok_or(NameError::Missing)?;
                return act_on_open(&self.tree, file.inner()).map_err(ChangeError::Disk);
            };
            act(&self.tree, &path).map_err(ChangeError::Disk)?;
            names.apply(change)?;
        }
        self.record(None, node, change)
    }

    /// Records a change of an inode.
    fn record(
        &self,
        file: Option<&Arc<OpenFile<T::File>>>,
        node: InodeId,
        change: &DirectoryChange<'_>,
    ) -> Result<(), ChangeError> {
        if !self.names().is_named(node) {
            // The inode has no name left and disappears when its last user closes it.
            return Ok(());
        }
        loop {
            self.mark_dirty(file, node);
            match self.append(change) {
                Err(AppendError::Full { .. }) => self.make_room()?,
                appended => {
                    self.note_ticket(node, appended?);
                    return Ok(());
                }
            }
        }
    }

    /// Makes the next sync of the inode wait for this record.
    fn note_ticket(&self, node: InodeId, ticket: CommitTicket) {
        let mut dirty_set = lock(&self.dirty_set);
        let last = dirty_set.last_ticket.entry(node).or_insert(ticket);
        *last = (*last).max(ticket);
    }

    /// Marks the inode for the next checkpoint to sync. An open file stays open until then, with its pending
    /// ranges.
    fn mark_dirty(&self, file: Option<&Arc<OpenFile<T::File>>>, node: InodeId) {
        let mut dirty_set = lock(&self.dirty_set);
        let marked = dirty_set.dirty.entry(node).or_default();
        *marked = marked.take().or_else(|| file.cloned());
    }

    fn append(&self, change: &DirectoryChange<'_>) -> Result<CommitTicket, AppendError> {
        self.append_for(change, None)
    }

    /// Appends a change with the request that asked for it.
    fn append_for(
        &self,
        change: &DirectoryChange<'_>,
        request: Option<u64>,
    ) -> Result<CommitTicket, AppendError> {
        let (mut head, tail) = (change.head(), change.tail());
        if let (Some(number), Some(executed)) = (request, &self.executed) {
            lock(executed).id(number).put(&mut head);
        }
        self.log
            .append(change.kind(), head.len() + tail.len(), &mut |into| {
                let (front, back) = into.split_at_mut(head.len());
                front.copy_from_slice(&head);
                back.copy_from_slice(tail);
            })
    }
}

/// Locks a mutex, poisoned or not: the guarded state is consistent between any two statements.
fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
