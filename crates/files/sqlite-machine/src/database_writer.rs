//! One process of those that have a database open: what it wrote, what of it is recorded, and when all of it
//! goes to the disk.
//!
//! Everything is done to the files first, which all processes of the machine see at once, and recorded when a
//! file is synced: SQLite has promised nothing before. **Settling** syncs the files and gives all records up,
//! of all processes. It is what a sync falls back to: when there is no journal yet, or none any more; when a
//! transaction is too large for one; when another process wrote to the file what no record covers. So
//! whatever happens to lenders and journals, a sync is worth no less than the disk's own.

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

/// A file as it is now.
pub trait FileContents {
    /// Bytes in it.
    fn size(&mut self) -> Result<u64, IoError>;
    /// Reads from an offset: how many bytes there were.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, IoError>;
}

/// What holds what was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMedium {
    /// Whoever the durability asks for: lenders, or the journal's disk.
    Journal,
    /// The files' own disk.
    Disk,
}

/// Why something is not done, or not known to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DatabaseWriterError {
    /// The system refused what is not a sync. Nothing is lost, and it is tried again.
    #[error("the system refused: {0}; nothing is lost, and the next commit tries again")]
    Refused(IoError),
    /// A sync of the disk failed, by which what it has is not known. No process settles any more.
    #[error("the disk failed in a sync: {0}")]
    SyncFailed(IoError),
    /// A sync of the disk failed before, in whichever process.
    #[error(
        "the disk failed before, and what it has is not known; mend it, and close the database in all processes: whoever opens it then brings the journals into it"
    )]
    Failed,
    /// Somebody else has this process's journal: the directory was copied, and both are used.
    #[error(
        "another process has taken this one's journal over; was the directory copied, and is the copy in use? Stop one of them"
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

/// How often things were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterCounts {
    /// Syncs that a journal made durable.
    pub recorded: u64,
    /// How often everything went to the disk.
    pub checkpoints: u64,
}

/// What of a file this process wrote and did not record.
#[derive(Default)]
struct UnrecordedWrites {
    pending: DirtyRanges,
    /// It was made as short as this: all behind it is pending too, and how long it is.
    truncated_to: Option<u64>,
    /// The last record, and in which of the journals that this process has had.
    last: Option<(u64, CommitTicket)>,
    bytes: Vec<u8>,
}

/// A journal that this process has.
struct JournalHandle<L> {
    /// Which one.
    index: u64,
    log: Arc<L>,
}

// Not derived: that would ask it of the journal.
impl<L> Clone for JournalHandle<L> {
    fn clone(&self) -> JournalHandle<L> {
        JournalHandle {
            index: self.index,
            log: Arc::clone(&self.log),
        }
    }
}

/// One process of those that have a database open.
pub struct DatabaseWriter<L, B> {
    files: B,
    shared_index: SharedIndex,
    slot: usize,
    durability: Durability,
    log: RwLock<Option<JournalHandle<L>>>,
    roles: [Mutex<UnrecordedWrites>; FileRole::ALL.len()],
    /// Who holds it gives numbers and appends: records stand in the journal in their numbers' order.
    append_lock: Mutex<()>,
    checkpoint_lock: Mutex<()>,
    counts: Mutex<WriterCounts>,
    /// How many journals it has had.
    journals: AtomicU64,
    planted: FaultSwitch,
}

enum RecordError {
    Disk(IoError),
    Log(AppendError),
}

impl<L: RecordLog, B: BackingFiles> DatabaseWriter<L, B> {
    /// Takes this slot, whoever had it before. What he wrote and did not record is settled.
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

    /// What was done so far.
    pub fn counts(&self) -> WriterCounts {
        *lock(&self.counts)
    }

    /// The journal, if it has one.
    pub fn log(&self) -> Option<Arc<L>> {
        self.journal_handle().map(|kept| kept.log)
    }

    fn journal_handle(&self) -> Option<JournalHandle<L>> {
        self.log.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has a journal from now on. What was in it before was settled.
    pub fn attach_journal(&self, log: L) {
        let which = self.journals.fetch_add(1, Ordering::Relaxed);
        let log = Arc::new(log);
        *self.log.write().unwrap_or_else(PoisonError::into_inner) = Some(JournalHandle { index: which, log });
    }

    /// Has none any more. Whoever waits for it settles.
    pub fn detach_journal(&self) -> Option<Arc<L>> {
        let mut place = self.log.write().unwrap_or_else(PoisonError::into_inner);
        place.take().map(|kept| kept.log)
    }

    fn role(&self, role: FileRole) -> MutexGuard<'_, UnrecordedWrites> {
        lock(&self.roles[role as usize])
    }

    /// Writes.
    pub fn write<T>(&self, role: FileRole, offset: u64, length: u64, act: impl FnOnce() -> T) -> T {
        let mut unrecorded = self.role(role);
        self.shared_index.begin_write(self.slot, role);
        let done = act();
        // Whether or not it was: what of it is in the file is recorded.
        unrecorded.pending.add(offset, length);
        if unrecorded.pending.ranges() > RANGES_MAX {
            unrecorded.pending.coalesce();
        }
        self.shared_index.end_write(self.slot, role);
        done
    }

    /// Gives a file a length.
    pub fn resize<T>(&self, role: FileRole, size: u64, act: impl FnOnce() -> T) -> T {
        let mut unrecorded = self.role(role);
        self.shared_index.begin_write(self.slot, role);
        let done = act();
        unrecorded.pending.truncate(size);
        unrecorded.truncated_to = Some(unrecorded.truncated_to.map_or(size, |before| before.min(size)));
        self.shared_index.end_write(self.slot, role);
        done
    }

    /// Removes a file, which is durable when this returns.
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
        // Until that is recorded, or on the disk, a later sync records the whole of what has the name by
        // then.
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

    /// Makes all that was written to a file before durable, whoever of the processes has written it.
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

    /// `false`: the journal cannot do it.
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
            // Recorded in a journal that is given up, and nobody knows what has become of that; or nothing is
            // to be held.
            _ => !self.shared_index.is_dirty(self.slot, role),
        };
        if !held {
            return Ok(false);
        }
        self.shared_index.mark_durable(self.slot, role, written);
        lock(&self.counts).recorded += 1;
        Ok(true)
    }

    /// Records what was written, as it is in the file by now. What cannot be recorded stays pending: no later
    /// sync may pass it over.
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
        // How long it is. All behind `from` is pending then.
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
            // Another process has made it shorter in this moment.
            if (there as u64) < length {
                *cut = Some(from + there as u64);
                *last = measure(from + there as u64, pending, file)?;
                *cut = None;
            }
        }
        Ok(())
    }

    /// Appends a record of what `deed` finds once the number is given ([`SharedIndex::take_number`]), if it
    /// finds something.
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

    /// `None`: the journal cannot tell.
    fn wait(&self, log: &L, ticket: CommitTicket) -> Result<Option<()>, DatabaseWriterError> {
        match log.wait(ticket, self.durability) {
            Ok(_) => Ok(Some(())),
            Err(WaitError::Fenced { .. }) => Err(DatabaseWriterError::Fenced),
            Err(error) => {
                tracing::warn!(%error, "the journal failed; commits go to the disk");
                self.detach_journal();
                Ok(None)
            }
        }
    }

    /// Whatever else it is, the disk can do.
    fn check_fenced(&self, error: AppendError) -> Result<(), DatabaseWriterError> {
        match error {
            AppendError::Fenced { .. } => Err(DatabaseWriterError::Fenced),
            AppendError::Full { .. } => Ok(()),
            error => {
                tracing::warn!(%error, "the journal failed; commits go to the disk");
                self.detach_journal();
                Ok(())
            }
        }
    }

    /// Syncs the files: all that any process has written to them is on the disk, and all records so far are
    /// given up.
    pub fn checkpoint_files(&self) -> Result<(), DatabaseWriterError> {
        self.checkpoint_files_up_to().map(drop)
    }

    /// The same. This process's journal, if it has one, and up to where that is not needed any more.
    fn checkpoint_files_up_to(&self) -> Result<Option<(Arc<L>, Lsn)>, DatabaseWriterError> {
        let _turn = lock(&self.checkpoint_lock);
        let _alone = self.files.lock_checkpoint()?;
        if self.shared_index.has_failed() {
            return Err(DatabaseWriterError::Failed);
        }
        let others = (0..PROCESS_SLOTS).filter(|slot| *slot != self.slot);
        // Held until it is said that what they wrote is safe: whoever takes the slot meanwhile goes on
        // counting where they were.
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
        // What has a lower number was written before this.
        self.sync_and_advance(start).inspect_err(|error| {
            // A call that was refused says nothing of the disk, and is no other process's affair.
            if error.is_final() || self.planted.is(PlantedFault::RefusalIsFailure) {
                self.shared_index.fail();
            }
        })?;
        for (slot, written) in written.iter().enumerate() {
            for role in FileRole::ALL {
                let written = written[role as usize];
                // A write that was going on may have come after the sync.
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

    /// Settles, and gives this process's journal back what it needs no more. `Ok` also where it has none.
    pub fn checkpoint(&self) -> Result<(), DatabaseWriterError> {
        if let Some((log, end)) = self.checkpoint_files_up_to()?
            && let Err(error) = Self::trim(&log, end)
        {
            tracing::warn!(%error, "the journal is not trimmed");
        }
        Ok(())
    }

    fn trim(log: &L, end: Lsn) -> Result<(), Box<dyn std::error::Error>> {
        let state = log.state();
        if state.head >= end {
            return Ok(());
        }
        // Trimmed is only what the journal's disk has; which it gets within a millisecond.
        let ticket = CommitTicket { lsn: state.head, end };
        log.wait(ticket, Durability::Disk)?;
        Ok(log.trim(end)?)
    }

    /// Whether it is time for a [`DatabaseWriter::checkpoint`].
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
