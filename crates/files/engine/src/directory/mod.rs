//! An open directory.
//!
//! **What is in a file** is done to the disk's file first, and recorded when it is synced: nobody has been
//! promised anything before the record is held, so a file that is ahead of the journal is one whose last
//! writes were not synced.
//!
//! **What things are called** is recorded first, and held, before it is done: names on the disk are never
//! ahead of the journal. So recovery finds every file that the catalog or a record names, whatever the disk
//! has kept of what was done since. A name that was changed is durable at once.

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
use crate::file_tree::{CatalogStore, FileTree};
use crate::name_table::{InodeIdentity, NameError, NameTable};
use crate::recover::{self, DirectoryRecovery};

pub use self::open::OpenFile;
use self::open::OpenFiles;

/// How a directory is opened.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryOptions {
    /// Which journal it is.
    pub journal: JournalId,
    /// What a sync waits for.
    pub durability: Durability,
    /// The journal's last records may be missing, and that is accepted: names on the disk that are ahead of
    /// it are taken as they are.
    pub loss_accepted: bool,
    /// Files that may be open at a time: the descriptors that there are for them.
    pub files_max: usize,
    /// A fault, for the simulator.
    pub planted: FaultSwitch,
}

/// How a directory stands.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryStatus {
    /// Files, directories and links.
    pub nodes: usize,
    /// Of them, those that the disk is to be synced for.
    pub dirty: usize,
    /// Files that are open on the disk.
    pub open: usize,
    /// Where its journal stands.
    pub log: LogState,
    /// Why nothing is changed any more.
    pub failed: Option<CheckpointError>,
}

/// What has changed since the last checkpoint.
struct DirtySet<F> {
    /// What the disk is to be synced for, with the file if that is open. In order: the simulator wants the
    /// same one again.
    dirty: BTreeMap<InodeId, Option<Arc<OpenFile<F>>>>,
    /// The last record of each node.
    last_ticket: HashMap<InodeId, CommitTicket>,
    /// Where the catalog is.
    catalog: Lsn,
    /// Files, directories and links that are no more, since the last checkpoint.
    removed: HashSet<InodeIdentity>,
}

/// A directory of files whose changes are in a journal.
pub struct JournaledDirectory<L, T: FileTree, K> {
    log: L,
    tree: T,
    catalog_store: K,
    options: DirectoryOptions,
    /// Who changes names holds it until that is done on the disk.
    names_lock: Mutex<()>,
    names: RwLock<NameTable>,
    dirty_set: Mutex<DirtySet<T::File>>,
    open: OpenFiles<T::File>,
    checkpoint: Mutex<()>,
    failed: OnceLock<CheckpointError>,
}

impl<L: RecordLog, T: FileTree, K: CatalogStore> JournaledDirectory<L, T, K> {
    /// Opens the directory on this disk, and does again what the journal has of it.
    pub fn open(
        log: L,
        tree: T,
        keep: K,
        options: DirectoryOptions,
    ) -> Result<(JournaledDirectory<L, T, K>, DirectoryRecovery), DirectoryOpenError> {
        let (names, recovered) = recover::recover(&log, &tree, &keep, &options)?;
        let catalog = log.state().tail;
        let directory = JournaledDirectory {
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
        };
        Ok((directory, recovered))
    }

    /// The names as they are.
    pub fn names(&self) -> RwLockReadGuard<'_, NameTable> {
        self.names.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk beneath.
    pub fn tree(&self) -> &T {
        &self.tree
    }

    /// The journal.
    pub fn log(&self) -> &L {
        &self.log
    }

    /// How it stands.
    pub fn status(&self) -> DirectoryStatus {
        DirectoryStatus {
            nodes: self.names().len(),
            dirty: lock(&self.dirty_set).dirty.len(),
            open: self.open.count(),
            log: self.log.state(),
            failed: self.failed.get().copied(),
        }
    }

    /// Writes. Held as soon as [`JournaledDirectory::sync`] has returned.
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

    /// Records what was written, as it is in the file by now. What cannot be recorded stays pending: no later
    /// sync may pass it over.
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
                // The file has become shorter meanwhile, which has a record of its own.
                break;
            }
            let bytes = &bytes[..read];
            self.record(Some(file), node, &DirectoryChange::Write { node, offset, bytes })?;
            offset += read as u64;
        }
        Ok(())
    }

    /// Gives a file a length: recorded and held, then done. The other way round a crash in between left a
    /// file that is shorter, into which what was written before is written again: the part that the journal
    /// has of it, behind zeros.
    pub fn resize(&self, file: &Arc<OpenFile<T::File>>, size: u64) -> Result<(), ChangeError> {
        let mut pending = lock(&file.pending);
        loop {
            self.check_failed()?;
            self.record_pending(file, &mut pending)?;
            let (node, turn) = (file.node(), lock(&self.names_lock));
            if self.names().kind(node).is_none() {
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
            // Until it is done no checkpoint takes it for done.
            self.log.wait(ticket, self.options.durability)?;
            if let Err(error) = self.tree.resize(file.inner(), size) {
                self.revoke_record(ticket, turn)?;
                return Err(ChangeError::Disk(error));
            }
            self.note_ticket(node, ticket);
            return Ok(());
        }
    }

    /// Allocates a part of a file.
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

    /// Sets attributes.
    pub fn set_attributes(&self, node: InodeId, attributes: AttributeChange) -> Result<(), ChangeError> {
        let change = DirectoryChange::SetAttributes { node, attributes };
        self.change_attributes(
            node,
            &change,
            |tree, path| tree.set_attributes(path, &attributes),
            |tree, file| tree.set_attributes_of_file(file, &attributes),
        )
    }

    /// Sets an extended attribute, or takes it away.
    pub fn set_xattr(&self, node: InodeId, name: &[u8], value: Option<&[u8]>) -> Result<(), ChangeError> {
        let change = DirectoryChange::SetXattr { node, name, value };
        self.change_attributes(
            node,
            &change,
            |tree, path| tree.set_xattr(path, name, value),
            |tree, file| tree.set_xattr_of_file(file, name, value),
        )
    }

    /// Waits until all that was done to a node is held.
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

    /// Records what was written and not synced, so that lenders have it soon: a program whose server is
    /// killed may have closed its files, and think no more of them. One file that cannot be read does not
    /// keep the others from being recorded.
    pub fn record_written(&self) -> Result<(), ChangeError> {
        let written: Vec<Arc<OpenFile<T::File>>> =
            lock(&self.dirty_set).dirty.values().flatten().cloned().collect();
        let recorded = { written.iter() }.map(|file| self.record_pending(file, &mut lock(&file.pending)));
        recorded.fold(Ok(()), Result::and)
    }

    fn record_file(&self, node: InodeId) -> Result<(), ChangeError> {
        // One that nobody has open, and that is not marked, has been synced by a checkpoint since it was
        // written.
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

    /// Changes what a node looks like: one that has a name, or a file that is only open.
    fn change_attributes(
        &self,
        node: InodeId,
        change: &DirectoryChange<'_>,
        act: impl FnOnce(&T, &[u8]) -> Result<(), IoError>,
        act_on_open: impl FnOnce(&T, &T::File) -> Result<(), IoError>,
    ) -> Result<(), ChangeError> {
        self.check_failed()?;
        // A time that is set is the file's until it is written again, and not until that is recorded.
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

    /// Records what has been done to a node.
    fn record(
        &self,
        file: Option<&Arc<OpenFile<T::File>>>,
        node: InodeId,
        change: &DirectoryChange<'_>,
    ) -> Result<(), ChangeError> {
        if self.names().kind(node).is_none() {
            // It has no name any more, and is gone with whoever has it open.
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

    /// A sync of the node waits for this record.
    fn note_ticket(&self, node: InodeId, ticket: CommitTicket) {
        let mut books = lock(&self.dirty_set);
        let last = books.last_ticket.entry(node).or_insert(ticket);
        *last = (*last).max(ticket);
    }

    /// The next checkpoint syncs the node. A file stays open until that is done, with what is not recorded of
    /// it.
    fn mark_dirty(&self, file: Option<&Arc<OpenFile<T::File>>>, node: InodeId) {
        let mut books = lock(&self.dirty_set);
        let marked = books.dirty.entry(node).or_default();
        *marked = marked.take().or_else(|| file.cloned());
    }

    fn append(&self, change: &DirectoryChange<'_>) -> Result<CommitTicket, AppendError> {
        let (head, tail) = (change.head(), change.tail());
        self.log
            .append(change.kind(), head.len() + tail.len(), &mut |into| {
                let (front, back) = into.split_at_mut(head.len());
                front.copy_from_slice(&head);
                back.copy_from_slice(tail);
            })
    }
}

/// What is behind it is sound at every moment: a thread that panicked has left it so.
fn lock<V>(mutex: &Mutex<V>) -> MutexGuard<'_, V> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
