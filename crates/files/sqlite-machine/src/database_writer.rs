//! A database writer: one process's part in writing a database. It tracks unrecorded writes, records them at
//! a sync, and runs checkpoints.
//!
//! Every write goes to the files first, where all processes see it at once. It is recorded when a file is
//! synced, since SQLite promises nothing earlier. A **checkpoint** syncs the files and discards the records
//! of all processes. A sync falls back to a checkpoint when
//!
//! - there is no journal yet, or it has failed;
//! - a transaction is too large for the journal;
//! - another process wrote to the file and no record covers that.
//!
//! A sync is therefore never weaker than the disk's own, whatever happens to lenders and journals.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use netram_files::DirtyRanges;
use netram_proto::failure::CallError;
use netram_proto::id::Lsn;
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::port::{AppendError, CommitTicket, Durability, IoError, RecordLog, WaitError};

use crate::backing_files::BackingFiles;
use crate::change::{DatabaseChange, FileOp, FileRole, HEADER_BYTES};
use crate::limit::{CHECKPOINT_PERCENT, LARGE_SYNC_DIVISOR, RANGES_MAX};
use crate::shared_index::{PROCESS_SLOTS, SharedIndex};

/// Read access to a file's current content.
pub trait FileContents {
    /// Length in bytes.
    fn size(&mut self) -> Result<u64, IoError>;
    /// Reads from `offset` on; returns the number of bytes read.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, IoError>;
}

/// Medium that holds synced data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMedium {
    /// The journal, as the durability demands: at lenders or on the journal's disk.
    Journal,
    /// The disk of the database's files.
    Disk,
}

/// Why an operation failed or is not known to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseWriterError {
    /// The system refused a call other than a sync. Nothing is lost, and the next commit tries again.
    #[error("the system refused: {0}; nothing is lost, and the next commit tries again")]
    Refused(IoError),
    /// A sync of the disk failed, so its content is unknown. No process runs a checkpoint any more.
    #[error("the disk failed in a sync: {0}")]
    SyncFailed(IoError),
    /// A sync of the disk failed earlier, in this or another process.
    #[error(
        "the disk failed in an earlier sync, so its content is unknown; repair it and close the database in all processes: the next open brings the journals into it"
    )]
    Failed,
    /// Another process has taken over this process's journal: the directory was copied and both copies are in
    /// use.
    #[error(
        "another process has taken over this process's journal: is a copy of the directory in use? Stop one of the two"
    )]
    Fenced,
}

impl From<IoError> for DatabaseWriterError {
    fn from(error: IoError) -> DatabaseWriterError {
        DatabaseWriterError::Refused(error)
    }
}

impl From<CallError> for DatabaseWriterError {
    fn from(error: CallError) -> DatabaseWriterError {
        match error.is_final() {
            true => DatabaseWriterError::SyncFailed(error.error),
            false => DatabaseWriterError::Refused(error.error),
        }
    }
}

/// Counters of a database writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterCounts {
    /// Number of syncs made durable by a journal.
    pub recorded: u64,
    /// Number of checkpoints.
    pub checkpoints: u64,
}

/// Unrecorded writes of this process to one file.
#[derive(Default)]
struct UnrecordedWrites {
    pending: DirtyRanges,
    /// Shortest length since the last record. Everything after it is pending, and so is the length itself.
    truncated_to: Option<u64>,
    /// Last record of the file, with the index of its journal.
    last: Option<(u64, CommitTicket)>,
    bytes: Vec<u8>,
}

/// A journal of this process.
struct JournalHandle<L> {
    /// Index among the journals that this process has had.
    index: u64,
    log: Arc<L>,
}

// Written by hand: `derive` would require `L: Clone`.
impl<L> Clone for JournalHandle<L> {
    fn clone(&self) -> JournalHandle<L> {
        JournalHandle {
            index: self.index,
            log: Arc::clone(&self.log),
        }
    }
}

/// One process's part in writing a database.
pub struct DatabaseWriter<L, B> {
    files: B,
    shared_index: SharedIndex,
    slot: usize,
    durability: Durability,
    log: RwLock<Option<JournalHandle<L>>>,
    roles: [Mutex<UnrecordedWrites>; FileRole::ALL.len()],
    /// Held while a number is taken and its record appended, so that numbers rise within a journal.
    append_lock: Mutex<()>,
    checkpoint_lock: Mutex<()>,
    counts: Mutex<WriterCounts>,
    /// Number of journals that this process has had.
    journals: AtomicU64,
    planted: FaultSwitch,
}

enum RecordError {
    Disk(IoError),
    Log(AppendError),
}

impl<L: RecordLog, B: BackingFiles> DatabaseWriter<L, B> {
    /// Takes a process slot. Unrecorded writes of its previous process are brought to the disk by a
    /// checkpoint.
    ///
    /// # Errors
    ///
    /// See [`DatabaseWriterError`].
    pub fn join(
        beneath: B,
        ledger: SharedIndex,
        slot: usize,
        durability: Durability,
        planted: FaultSwitch,
    ) -> Result<DatabaseWriter<L, B>, DatabaseWriterError> {
        let party = DatabaseWriter {
            files: beneath,
            shared_index: ledger,
            slot,
            durability,
            log: RwLock::new(None),
            roles: Default::default(),
            append_lock: Mutex::default(),
            checkpoint_lock: Mutex::default(),
            counts: Mutex::default(),
            journals: AtomicU64::new(0),
            planted,
        };
        for role in FileRole::ALL {
            party.shared_index.end_dead_write(slot, role);
        }
        if FileRole::ALL
            .iter()
            .any(|role| party.shared_index.is_dirty(slot, *role))
        {
            party.checkpoint_files()?;
        }
        Ok(party)
    }

    pub(crate) fn planted(&self) -> FaultSwitch {
        self.planted
    }

    /// Counters so far.
    pub fn counts(&self) -> WriterCounts {
        *lock(&self.counts)
    }

    /// The journal, if this process has one.
    pub fn log(&self) -> Option<Arc<L>> {
        self.journal_handle().map(|kept| kept.log)
    }

    fn journal_handle(&self) -> Option<JournalHandle<L>> {
        self.log.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Attaches a journal. Its earlier records must be on the disk.
    pub fn attach_journal(&self, log: L) {
        let which = self.journals.fetch_add(1, Ordering::Relaxed);
        let log = Arc::new(log);
        *self.log.write().unwrap_or_else(PoisonError::into_inner) = Some(JournalHandle { index: which, log });
    }

    /// Detaches the journal. A sync that waits for it falls back to a checkpoint.
    pub fn detach_journal(&self) -> Option<Arc<L>> {
        let mut place = self.log.write().unwrap_or_else(PoisonError::into_inner);
        place.take().map(|kept| kept.log)
    }

    fn role(&self, role: FileRole) -> MutexGuard<'_, UnrecordedWrites> {
        lock(&self.roles[role as usize])
    }

    /// Writes to a file: runs `act` and notes the range as unrecorded.
    pub fn write<T>(&self, role: FileRole, offset: u64, length: u64, act: impl FnOnce() -> T) -> T {
        let mut unrecorded = self.role(role);
        self.shared_index.begin_write(self.slot, role);
        let done = act();
        // Even if the write failed: whatever the file has then is recorded.
        unrecorded.pending.add(offset, length);
        if unrecorded.pending.ranges() > RANGES_MAX {
            unrecorded.pending.coalesce();
        }
        self.shared_index.end_write(self.slot, role);
        done
    }

    /// Sets a file's length: runs `act` and notes the change as unrecorded.
    pub fn resize<T>(&self, role: FileRole, size: u64, act: impl FnOnce() -> T) -> T {
        let mut unrecorded = self.role(role);
        self.shared_index.begin_write(self.slot, role);
        let done = act();
        unrecorded.pending.truncate(size);
        unrecorded.truncated_to = Some(unrecorded.truncated_to.map_or(size, |before| before.min(size)));
        self.shared_index.end_write(self.slot, role);
        done
    }

    /// Removes a file; the removal is durable on return.
    ///
    /// # Errors
    ///
    /// The error of `act`, or a [`DatabaseWriterError`] if the removal is not durable.
    pub fn remove<T, E: From<DatabaseWriterError>>(
        &self,
        role: FileRole,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut unrecorded = self.role(role);
        self.shared_index.begin_write(self.slot, role);
        let done = act();
        self.shared_index.end_write(self.slot, role);
        let done = done?;
        unrecorded.pending = DirtyRanges::default();
        // Until the removal is recorded or on the disk, a later sync records the whole file that then has
        // this name.
        unrecorded.truncated_to = Some(0);
        let written = self.shared_index.written(self.slot, role);
        let mut held = None;
        if let Some(JournalHandle { index: which, log }) = self.journal_handle() {
            let appended = self.append(&log, role, |_| Ok(Some(FileOp::Remove)), &mut Vec::new());
            match appended {
                Ok(ticket) => {
                    unrecorded.truncated_to = None;
                    unrecorded.last = ticket.map(|ticket| (which, ticket));
                    drop(unrecorded);
                    held = ticket.map_or(Ok(None), |ticket| self.wait(&log, ticket))?;
                }
                Err(RecordError::Log(error)) => {
                    drop(unrecorded);
                    self.check_fenced(error)?;
                }
                Err(RecordError::Disk(error)) => return Err(DatabaseWriterError::from(error).into()),
            }
        } else {
            drop(unrecorded);
        }
        match held {
            Some(()) => self.shared_index.mark_durable(self.slot, role, written),
            None => self.checkpoint_files()?,
        }
        Ok(done)
    }

    /// Makes all earlier writes to a file durable, by any process.
    ///
    /// # Errors
    ///
    /// See [`DatabaseWriterError`].
    pub fn sync(
        &self,
        role: FileRole,
        file: &mut dyn FileContents,
    ) -> Result<SyncMedium, DatabaseWriterError> {
        if let Some(kept) = self.journal_handle()
            && self.sync_to_journal(&kept, role, file)?
        {
            return Ok(SyncMedium::Journal);
        }
        self.checkpoint_files()?;
        Ok(SyncMedium::Disk)
    }

    /// Returns `false` if the journal cannot make them durable.
    fn sync_to_journal(
        &self,
        kept: &JournalHandle<L>,
        role: FileRole,
        file: &mut dyn FileContents,
    ) -> Result<bool, DatabaseWriterError> {
        let log = &kept.log;
        let mut unrecorded = self.role(role);
        if self.shared_index.is_dirty_elsewhere(self.slot, role)
            || unrecorded.pending.bytes() > log.state().capacity / LARGE_SYNC_DIVISOR
        {
            return Ok(false);
        }
        let written = self.shared_index.written(self.slot, role);
        match self.record(kept, role, &mut unrecorded, file) {
            Ok(()) => (),
            Err(RecordError::Disk(error)) => return Err(error.into()),
            Err(RecordError::Log(error)) => {
                self.check_fenced(error)?;
                return Ok(false);
            }
        }
        let last = unrecorded.last;
        drop(unrecorded);
        let held = match last {
            Some((which, ticket)) if which == kept.index => self.wait(log, ticket)?.is_some(),
            // The last record is in a detached journal of unknown state, or there was nothing to record.
            _ => !self.shared_index.is_dirty(self.slot, role),
        };
        if !held {
            return Ok(false);
        }
        self.shared_index.mark_durable(self.slot, role, written);
        lock(&self.counts).recorded += 1;
        Ok(true)
    }

    /// Records the unrecorded ranges with the file's current content. A range that cannot be recorded stays
    /// pending, so that a later sync cannot skip it.
    fn record(
        &self,
        kept: &JournalHandle<L>,
        role: FileRole,
        unrecorded: &mut UnrecordedWrites,
        file: &mut dyn FileContents,
    ) -> Result<(), RecordError> {
        let JournalHandle { index: which, log } = kept;
        let UnrecordedWrites {
            pending,
            truncated_to: cut,
            last,
            bytes,
        } = unrecorded;
        // Reads the current length and marks everything after `from` as pending.
        let measure = |from: u64, pending: &mut DirtyRanges, file: &mut dyn FileContents| {
            let mut now = 0;
            let find = |_| {
                now = file.size()?;
                Ok(Some(FileOp::Resize { size: now }))
            };
            let ticket = self.append(log, role, find, &mut Vec::new())?;
            pending.add(from, now.saturating_sub(from));
            Ok(ticket.map(|ticket| (*which, ticket)))
        };
        if let Some(from) = *cut {
            *last = measure(from, pending, file)?;
            *cut = None;
        }
        let most = (log.state().payload_max - HEADER_BYTES) as u64;
        while let Some((from, to)) = pending.take_first() {
            let length = most.min(to - from);
            if to - from > length {
                pending.add(from + length, to - from - length);
            }
            let mut there = 0;
            let recorded = self.append(
                log,
                role,
                |bytes| {
                    bytes.resize(length as usize, 0);
                    while there < bytes.len() {
                        match file.read(from + there as u64, &mut bytes[there..])? {
                            0 => break,
                            more => there += more,
                        }
                    }
                    let bytes = &bytes[..there];
                    Ok((there > 0).then_some(FileOp::Write { offset: from, bytes }))
                },
                bytes,
            );
            match recorded {
                Ok(None) => (),
                Ok(Some(ticket)) => *last = Some((*which, ticket)),
                Err(error) => {
                    pending.add(from, length);
                    return Err(error);
                }
            }
            // Another process has shortened the file in this moment.
            if (there as u64) < length {
                *cut = Some(from + there as u64);
                *last = measure(from + there as u64, pending, file)?;
                *cut = None;
            }
        }
        Ok(())
    }

    /// Appends a record of the operation that `deed` reads after the number is taken
    /// ([`SharedIndex::take_number`]). None if it returns none.
    fn append<'a>(
        &self,
        log: &L,
        role: FileRole,
        deed: impl FnOnce(&'a mut Vec<u8>) -> Result<Option<FileOp<'a>>, IoError>,
        bytes: &'a mut Vec<u8>,
    ) -> Result<Option<CommitTicket>, RecordError> {
        let _turn = lock(&self.append_lock);
        let number = self.shared_index.take_number();
        let Some(deed) = deed(bytes).map_err(RecordError::Disk)? else {
            return Ok(None);
        };
        let change = DatabaseChange {
            number,
            role,
            op: deed,
        };
        log.append(change.kind(), change.payload_bytes(), &mut |into| {
            change.encode(into);
        })
        .map(Some)
        .map_err(RecordError::Log)
    }

    /// `None`: the journal has failed.
    fn wait(&self, log: &L, ticket: CommitTicket) -> Result<Option<()>, DatabaseWriterError> {
        match log.wait(ticket, self.durability) {
            Ok(_) => Ok(Some(())),
            Err(WaitError::Fenced { .. }) => Err(DatabaseWriterError::Fenced),
            Err(error) => {
                tracing::warn!(%error, "the journal failed; commits now wait for the disk");
                self.detach_journal();
                Ok(None)
            }
        }
    }

    /// Passes on the one error that a checkpoint cannot make up for.
    fn check_fenced(&self, error: AppendError) -> Result<(), DatabaseWriterError> {
        match error {
            AppendError::Fenced { .. } => Err(DatabaseWriterError::Fenced),
            AppendError::Full { .. } => Ok(()),
            error => {
                tracing::warn!(%error, "the journal failed; commits now wait for the disk");
                self.detach_journal();
                Ok(())
            }
        }
    }

    /// Runs a checkpoint: syncs the files with all processes' writes, and discards all records so far.
    ///
    /// # Errors
    ///
    /// See [`DatabaseWriterError`].
    pub fn checkpoint_files(&self) -> Result<(), DatabaseWriterError> {
        self.checkpoint_files_up_to().map(drop)
    }

    /// As [`DatabaseWriter::checkpoint_files`]. Returns this process's journal and the end of its records
    /// that are no longer needed.
    fn checkpoint_files_up_to(&self) -> Result<Option<(Arc<L>, Lsn)>, DatabaseWriterError> {
        let _turn = lock(&self.checkpoint_lock);
        let _alone = self.files.lock_checkpoint()?;
        if self.shared_index.has_failed() {
            return Err(DatabaseWriterError::Failed);
        }
        let others = (0..PROCESS_SLOTS).filter(|slot| *slot != self.slot);
        // Held until their writes are marked durable: a process that takes such a slot continues its
        // counters.
        let dead: Vec<(usize, B::DeadSlot)> = others
            .filter(|slot| {
                FileRole::ALL
                    .iter()
                    .any(|role| self.shared_index.is_dirty(*slot, *role))
            })
            .filter_map(|slot| Some((slot, self.files.claim_dead_slot(slot)?)))
            .collect();
        for (slot, _) in &dead {
            for role in FileRole::ALL {
                self.shared_index.end_dead_write(*slot, role);
            }
        }
        let written: Vec<[u64; 3]> = (0..PROCESS_SLOTS)
            .map(|slot| FileRole::ALL.map(|role| self.shared_index.written(slot, role)))
            .collect();
        let (start, end) = {
            let _appending = lock(&self.append_lock);
            let end = self.log().map(|log| {
                let tail = log.state().tail;
                (log, tail)
            });
            (self.shared_index.next(), end)
        };
        // Records with lower numbers were written before this sync.
        self.sync_and_advance(start).inspect_err(|error| {
            // A refused call says nothing about the disk, and does not concern other processes.
            if error.is_final() || self.planted.is(PlantedFault::RefusalIsFailure) {
                self.shared_index.fail();
            }
        })?;
        for (slot, written) in written.iter().enumerate() {
            for role in FileRole::ALL {
                let written = written[role as usize];
                // A write in progress may have come after the sync.
                if written.is_multiple_of(2) {
                    self.shared_index.mark_durable(slot, role, written);
                }
            }
        }
        for role in FileRole::ALL {
            let mut unrecorded = self.role(role);
            if self.shared_index.written(self.slot, role) == written[self.slot][role as usize] {
                unrecorded.pending = DirtyRanges::default();
                unrecorded.truncated_to = None;
            }
        }
        lock(&self.counts).checkpoints += 1;
        Ok(end)
    }

    fn sync_and_advance(&self, start: u64) -> Result<(), CallError> {
        self.files.sync()?;
        self.files.set_start(start)
    }

    /// Runs a checkpoint and trims this process's journal, if it has one.
    ///
    /// # Errors
    ///
    /// See [`DatabaseWriterError`]. A journal that cannot be trimmed is not an error.
    pub fn checkpoint(&self) -> Result<(), DatabaseWriterError> {
        if let Some((log, end)) = self.checkpoint_files_up_to()?
            && let Err(error) = Self::trim(&log, end)
        {
            tracing::warn!(%error, "the journal could not be trimmed after a checkpoint; the next one tries again");
        }
        Ok(())
    }

    fn trim(log: &L, end: Lsn) -> Result<(), Box<dyn std::error::Error>> {
        let state = log.state();
        if state.head >= end {
            return Ok(());
        }
        // Only records on the journal's disk can be trimmed; they get there within a millisecond.
        let ticket = CommitTicket { lsn: state.head, end };
        log.wait(ticket, Durability::Disk)?;
        Ok(log.trim(end)?)
    }

    /// Whether a [`DatabaseWriter::checkpoint`] is due.
    pub fn needs_checkpoint(&self) -> bool {
        self.log().is_some_and(|log| {
            let state = log.state();
            (state.tail.0 - state.head.0) * 100 >= state.capacity * CHECKPOINT_PERCENT
        })
    }

    /// Whether this process's journal has records.
    pub fn has_records(&self) -> bool {
        self.log().is_some_and(|log| {
            let state = log.state();
            state.head < state.tail
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
