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

use netram_files::Pending;
use netram_proto::failure::CallError;
use netram_proto::id::Lsn;
use netram_proto::planted::{Fault, Planted};
use netram_proto::port::{AppendError, Durability, IoError, Log, Ticket, WaitError};

use crate::beneath::Beneath;
use crate::change::{Change, Deed, HEADER_BYTES, Role};
use crate::ledger::{Ledger, SLOTS};
use crate::limit::{CROWDED_PERCENT, LARGE_PART, RANGES_MAX};

/// A file as it is now.
pub trait Contents {
    /// Bytes in it.
    fn size(&mut self) -> Result<u64, IoError>;
    /// Reads from an offset: how many bytes there were.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<usize, IoError>;
}

/// What holds what was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synced {
    /// Whoever the durability asks for: lenders, or the journal's disk.
    Journal,
    /// The files' own disk.
    Disk,
}

/// Why something is not done, or not known to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartyError {
    /// The system refused what is not a sync. Nothing is lost, and it is tried again.
    #[error("the system refused: {0}; nothing is lost, and the next commit tries again")]
    Refused(IoError),
    /// A sync of the disk failed, by which what it has is not known. No process settles any more.
    #[error("the disk failed in a sync: {0}")]
    Lost(IoError),
    /// A sync of the disk failed before, in whichever process.
    #[error(
        "the disk failed before, and what it has is not known; mend it, and close the database in all processes: whoever opens it then brings the journals into it"
    )]
    Failed,
    /// Somebody else has this process's journal: the folder was copied, and both are used.
    #[error(
        "another process has taken this one's journal over; was the folder copied, and is the copy in use? Stop one of them"
    )]
    Fenced,
}

impl From<IoError> for PartyError {
    fn from(error: IoError) -> PartyError {
        PartyError::Refused(error)
    }
}

impl From<CallError> for PartyError {
    fn from(error: CallError) -> PartyError {
        match error.is_final() {
            true => PartyError::Lost(error.error),
            false => PartyError::Refused(error.error),
        }
    }
}

/// How often things were done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Syncs that a journal made durable.
    pub recorded: u64,
    /// How often everything went to the disk.
    pub settled: u64,
}

/// What of a file this process wrote and did not record.
#[derive(Default)]
struct Unrecorded {
    pending: Pending,
    /// It was made as short as this: all behind it is pending too, and how long it is.
    cut: Option<u64>,
    /// The last record, and in which of the journals that this process has had.
    last: Option<(u64, Ticket)>,
    bytes: Vec<u8>,
}

/// A journal that this process has.
struct Kept<L> {
    /// Which one.
    which: u64,
    log: Arc<L>,
}

// Not derived: that would ask it of the journal.
impl<L> Clone for Kept<L> {
    fn clone(&self) -> Kept<L> {
        Kept {
            which: self.which,
            log: Arc::clone(&self.log),
        }
    }
}

/// One process of those that have a database open.
pub struct Party<L, B> {
    beneath: B,
    ledger: Ledger,
    slot: usize,
    durability: Durability,
    log: RwLock<Option<Kept<L>>>,
    roles: [Mutex<Unrecorded>; Role::ALL.len()],
    /// Who holds it gives numbers and appends: records stand in the journal in their numbers' order.
    appending: Mutex<()>,
    settling: Mutex<()>,
    counts: Mutex<Counts>,
    /// How many journals it has had.
    journals: AtomicU64,
    planted: Planted,
}

enum RecordError {
    Disk(IoError),
    Log(AppendError),
}

impl<L: Log, B: Beneath> Party<L, B> {
    /// Takes this slot, whoever had it before. What he wrote and did not record is settled.
    pub fn join(
        beneath: B,
        ledger: Ledger,
        slot: usize,
        durability: Durability,
        planted: Planted,
    ) -> Result<Party<L, B>, PartyError> {
        let party = Party {
            beneath,
            ledger,
            slot,
            durability,
            log: RwLock::new(None),
            roles: Default::default(),
            appending: Mutex::default(),
            settling: Mutex::default(),
            counts: Mutex::default(),
            journals: AtomicU64::new(0),
            planted,
        };
        for role in Role::ALL {
            party.ledger.end_write_of_the_dead(slot, role);
        }
        if Role::ALL.iter().any(|role| party.ledger.is_dirty(slot, *role)) {
            party.settle()?;
        }
        Ok(party)
    }

    pub(crate) fn planted(&self) -> Planted {
        self.planted
    }

    /// What was done so far.
    pub fn counts(&self) -> Counts {
        *lock(&self.counts)
    }

    /// The journal, if it has one.
    pub fn log(&self) -> Option<Arc<L>> {
        self.kept().map(|kept| kept.log)
    }

    fn kept(&self) -> Option<Kept<L>> {
        self.log.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has a journal from now on. What was in it before was settled.
    pub fn adopt(&self, log: L) {
        let which = self.journals.fetch_add(1, Ordering::Relaxed);
        let log = Arc::new(log);
        *self.log.write().unwrap_or_else(PoisonError::into_inner) = Some(Kept { which, log });
    }

    /// Has none any more. Whoever waits for it settles.
    pub fn give_up(&self) -> Option<Arc<L>> {
        let mut place = self.log.write().unwrap_or_else(PoisonError::into_inner);
        place.take().map(|kept| kept.log)
    }

    fn role(&self, role: Role) -> MutexGuard<'_, Unrecorded> {
        lock(&self.roles[role as usize])
    }

    /// Writes.
    pub fn write<T>(&self, role: Role, offset: u64, length: u64, act: impl FnOnce() -> T) -> T {
        let mut unrecorded = self.role(role);
        self.ledger.begin_write(self.slot, role);
        let done = act();
        // Whether or not it was: what of it is in the file is recorded.
        unrecorded.pending.add(offset, length);
        if unrecorded.pending.ranges() > RANGES_MAX {
            unrecorded.pending.cover();
        }
        self.ledger.end_write(self.slot, role);
        done
    }

    /// Gives a file a length.
    pub fn resize<T>(&self, role: Role, size: u64, act: impl FnOnce() -> T) -> T {
        let mut unrecorded = self.role(role);
        self.ledger.begin_write(self.slot, role);
        let done = act();
        unrecorded.pending.cut(size);
        unrecorded.cut = Some(unrecorded.cut.map_or(size, |before| before.min(size)));
        self.ledger.end_write(self.slot, role);
        done
    }

    /// Removes a file, which is durable when this returns.
    pub fn remove<T, E: From<PartyError>>(
        &self,
        role: Role,
        act: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut unrecorded = self.role(role);
        self.ledger.begin_write(self.slot, role);
        let done = act();
        self.ledger.end_write(self.slot, role);
        let done = done?;
        unrecorded.pending = Pending::default();
        // Until that is recorded, or on the disk, a later sync records the whole of what has the name by then.
        unrecorded.cut = Some(0);
        let written = self.ledger.written(self.slot, role);
        let mut held = None;
        if let Some(Kept { which, log }) = self.kept() {
            let appended = self.append(&log, role, |_| Ok(Some(Deed::Remove)), &mut Vec::new());
            match appended {
                Ok(ticket) => {
                    unrecorded.cut = None;
                    unrecorded.last = ticket.map(|ticket| (which, ticket));
                    drop(unrecorded);
                    held = ticket.map_or(Ok(None), |ticket| self.wait(&log, ticket))?;
                }
                Err(RecordError::Log(error)) => {
                    drop(unrecorded);
                    self.is_fenced(error)?;
                }
                Err(RecordError::Disk(error)) => return Err(PartyError::from(error).into()),
            }
        } else {
            drop(unrecorded);
        }
        match held {
            Some(()) => self.ledger.make_safe(self.slot, role, written),
            None => self.settle()?,
        }
        Ok(done)
    }

    /// Makes all that was written to a file before durable, whoever of the processes has written it.
    pub fn sync(&self, role: Role, file: &mut dyn Contents) -> Result<Synced, PartyError> {
        if let Some(kept) = self.kept()
            && self.sync_by(&kept, role, file)?
        {
            return Ok(Synced::Journal);
        }
        self.settle()?;
        Ok(Synced::Disk)
    }

    /// `false`: the journal cannot do it.
    fn sync_by(&self, kept: &Kept<L>, role: Role, file: &mut dyn Contents) -> Result<bool, PartyError> {
        let log = &kept.log;
        let mut unrecorded = self.role(role);
        if self.ledger.is_dirty_but_for(self.slot, role)
            || unrecorded.pending.bytes() > log.state().capacity / LARGE_PART
        {
            return Ok(false);
        }
        let written = self.ledger.written(self.slot, role);
        match self.record(kept, role, &mut unrecorded, file) {
            Ok(()) => (),
            Err(RecordError::Disk(error)) => return Err(error.into()),
            Err(RecordError::Log(error)) => {
                self.is_fenced(error)?;
                return Ok(false);
            }
        }
        let last = unrecorded.last;
        drop(unrecorded);
        let held = match last {
            Some((which, ticket)) if which == kept.which => self.wait(log, ticket)?.is_some(),
            // Recorded in a journal that is given up, and nobody knows what has become of that; or nothing is
            // to be held.
            _ => !self.ledger.is_dirty(self.slot, role),
        };
        if !held {
            return Ok(false);
        }
        self.ledger.make_safe(self.slot, role, written);
        lock(&self.counts).recorded += 1;
        Ok(true)
    }

    /// Records what was written, as it is in the file by now. What cannot be recorded stays pending: no later
    /// sync may pass it over.
    fn record(
        &self,
        kept: &Kept<L>,
        role: Role,
        unrecorded: &mut Unrecorded,
        file: &mut dyn Contents,
    ) -> Result<(), RecordError> {
        let Kept { which, log } = kept;
        let Unrecorded {
            pending,
            cut,
            last,
            bytes,
        } = unrecorded;
        // How long it is. All behind `from` is pending then.
        let measure = |from: u64, pending: &mut Pending, file: &mut dyn Contents| {
            let mut now = 0;
            let find = |_| {
                now = file.size()?;
                Ok(Some(Deed::Resize { size: now }))
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
                    Ok((there > 0).then_some(Deed::Write { offset: from, bytes }))
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

    /// Appends a record of what `deed` finds once the number is given ([`Ledger::take_number`]), if it finds
    /// something.
    fn append<'a>(
        &self,
        log: &L,
        role: Role,
        deed: impl FnOnce(&'a mut Vec<u8>) -> Result<Option<Deed<'a>>, IoError>,
        bytes: &'a mut Vec<u8>,
    ) -> Result<Option<Ticket>, RecordError> {
        let _turn = lock(&self.appending);
        let number = self.ledger.take_number();
        let Some(deed) = deed(bytes).map_err(RecordError::Disk)? else {
            return Ok(None);
        };
        let change = Change { number, role, deed };
        log.append(change.kind(), change.payload_bytes(), &mut |into| {
            change.encode(into);
        })
        .map(Some)
        .map_err(RecordError::Log)
    }

    /// `None`: the journal cannot tell.
    fn wait(&self, log: &L, ticket: Ticket) -> Result<Option<()>, PartyError> {
        match log.wait(ticket, self.durability) {
            Ok(_) => Ok(Some(())),
            Err(WaitError::Fenced { .. }) => Err(PartyError::Fenced),
            Err(error) => {
                tracing::warn!(%error, "the journal failed; commits go to the disk");
                self.give_up();
                Ok(None)
            }
        }
    }

    /// Whatever else it is, the disk can do.
    fn is_fenced(&self, error: AppendError) -> Result<(), PartyError> {
        match error {
            AppendError::Fenced { .. } => Err(PartyError::Fenced),
            AppendError::Full { .. } => Ok(()),
            error => {
                tracing::warn!(%error, "the journal failed; commits go to the disk");
                self.give_up();
                Ok(())
            }
        }
    }

    /// Syncs the files: all that any process has written to them is on the disk, and all records so far are
    /// given up.
    pub fn settle(&self) -> Result<(), PartyError> {
        self.settle_up_to().map(drop)
    }

    /// The same. This process's journal, if it has one, and up to where that is not needed any more.
    fn settle_up_to(&self) -> Result<Option<(Arc<L>, Lsn)>, PartyError> {
        let _turn = lock(&self.settling);
        let _alone = self.beneath.alone()?;
        if self.ledger.has_failed() {
            return Err(PartyError::Failed);
        }
        let others = (0..SLOTS).filter(|slot| *slot != self.slot);
        // Held until it is said that what they wrote is safe: whoever takes the slot meanwhile goes on
        // counting where they were.
        let dead: Vec<(usize, B::Held)> = others
            .filter(|slot| Role::ALL.iter().any(|role| self.ledger.is_dirty(*slot, *role)))
            .filter_map(|slot| Some((slot, self.beneath.dead(slot)?)))
            .collect();
        for (slot, _) in &dead {
            for role in Role::ALL {
                self.ledger.end_write_of_the_dead(*slot, role);
            }
        }
        let written: Vec<[u64; 3]> = (0..SLOTS)
            .map(|slot| Role::ALL.map(|role| self.ledger.written(slot, role)))
            .collect();
        let (start, end) = {
            let _appending = lock(&self.appending);
            let end = self.log().map(|log| {
                let tail = log.state().tail;
                (log, tail)
            });
            (self.ledger.next(), end)
        };
        // What has a lower number was written before this.
        self.put_down(start).inspect_err(|error| {
            // A call that was refused says nothing of the disk, and is no other process's affair.
            if error.is_final() || self.planted.is(Fault::RefusalIsFailure) {
                self.ledger.fail();
            }
        })?;
        for (slot, written) in written.iter().enumerate() {
            for role in Role::ALL {
                let written = written[role as usize];
                // A write that was going on may have come after the sync.
                if written.is_multiple_of(2) {
                    self.ledger.make_safe(slot, role, written);
                }
            }
        }
        for role in Role::ALL {
            let mut unrecorded = self.role(role);
            if self.ledger.written(self.slot, role) == written[self.slot][role as usize] {
                unrecorded.pending = Pending::default();
                unrecorded.cut = None;
            }
        }
        lock(&self.counts).settled += 1;
        Ok(end)
    }

    fn put_down(&self, start: u64) -> Result<(), CallError> {
        self.beneath.sync()?;
        self.beneath.set_start(start)
    }

    /// Settles, and gives this process's journal back what it needs no more. `Ok` also where it has none.
    pub fn checkpoint(&self) -> Result<(), PartyError> {
        if let Some((log, end)) = self.settle_up_to()?
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
        let ticket = Ticket { lsn: state.head, end };
        log.wait(ticket, Durability::Disk)?;
        Ok(log.trim(end)?)
    }

    /// Whether it is time for a [`Party::checkpoint`].
    pub fn is_crowded(&self) -> bool {
        self.log().is_some_and(|log| {
            let state = log.state();
            (state.tail.0 - state.head.0) * 100 >= state.capacity * CROWDED_PERCENT
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
