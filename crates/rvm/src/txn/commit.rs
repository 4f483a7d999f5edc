//! Committing: from declared ranges to one record in the log, without an allocation or a second copy.

use std::sync::RwLockReadGuard;

use netram_proto::planted::Fault;
use netram_proto::port::{AppendError, Durability, Log, Ticket, Votes};

use super::regions::Touched;
use super::{Buffers, Outcome, Transaction};
use crate::error::CommitError;
use crate::memory::Memory;
use crate::record::{Encoder, KIND_TRANSACTION, payload_bytes};
use crate::shared::NoRoom;
use crate::spool::Contents;
use crate::stats::add;
use crate::storage::Storage;

/// What a commit returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// Where the log has it; `None` when there was nothing to log, and of a lazy commit that is in the spool.
    pub ticket: Option<Ticket>,
    /// What was known to hold it.
    pub votes: Votes,
}

impl<L: Log, S: Storage> Transaction<L, S> {
    /// Commits: logs the declared ranges as they are now, and waits until they are as safe as asked.
    ///
    /// On an error that leaves the outcome certain the transaction is aborted, which restores memory in
    /// [`crate::Mode::Restore`]. Use [`Transaction::try_commit`] to keep it open instead.
    pub fn commit(mut self, durability: Durability) -> Result<Commit, CommitError> {
        self.try_commit(durability)
    }

    /// Commits like [`Transaction::commit`], but a refused commit leaves memory as it is and the transaction
    /// open, to be retried or aborted.
    pub fn try_commit(&mut self, durability: Durability) -> Result<Commit, CommitError> {
        if !self.open {
            return Err(CommitError::Ended);
        }
        self.verify()?;
        self.find_stores()?;
        let counters = &self.shared.counters;
        self.buffers.ranges.merge();
        let merged = self.buffers.ranges.merged();
        if merged.is_empty() {
            add(&counters.empty_commits, 1);
            self.settle_stores();
            self.finish(Outcome::Committed);
            return Ok(Commit::default());
        }
        let bytes = payload_bytes(merged.iter().map(|range| range.length));
        let max = self.shared.payload_max;
        let length = usize::try_from(bytes).ok().filter(|bytes| *bytes <= max);
        let length = length.ok_or(CommitError::TooLarge { bytes, max })?;

        let lazy = durability == Durability::Lazy;
        let ticket = self.shared.with_room(|| self.append(length, lazy))?;
        let (declared, declared_bytes) = self.buffers.ranges.told();
        let lengths = self.buffers.ranges.merged().iter().map(|range| range.length);
        self.shared.counters.commit(declared, declared_bytes, lengths);
        self.settle_stores();
        self.finish(Outcome::Committed);
        match ticket {
            Some(ticket) => self.settle(ticket, durability),
            None => {
                add(&self.shared.counters.lazy_commits, 1);
                add(&self.shared.counters.spooled_commits, 1);
                Ok(Commit::default())
            }
        }
    }

    fn settle(&self, ticket: Ticket, durability: Durability) -> Result<Commit, CommitError> {
        let counters = &self.shared.counters;
        let kind = match durability {
            Durability::Lazy => &counters.lazy_commits,
            _ => &counters.flush_commits,
        };
        match self.shared.log.wait(ticket, durability) {
            Ok(votes) => {
                add(kind, 1);
                Ok(Commit {
                    ticket: Some(ticket),
                    votes,
                })
            }
            Err(cause) => {
                add(&counters.unknown_commits, 1);
                Err(CommitError::Unknown {
                    lsn: ticket.lsn,
                    cause,
                })
            }
        }
    }

    /// Appends the merged ranges to the log, or to the spool, where there is no ticket.
    ///
    /// The regions are locked, so that no value changes while it is copied. Locks are taken regions first,
    /// then the spool, then the log.
    fn append(&self, length: usize, lazy: bool) -> Result<Option<Ticket>, AppendError> {
        with_locked(&self.buffers.regions, 0, None, &mut |held| {
            let shared = &*self.shared;
            if !shared.spool.is_active() {
                return self.log(held, length).map(Some);
            }
            let mut spool = shared.spool.lock();
            if lazy && spool.admits(length, &shared.counters) {
                self.spool(held, length, &mut spool);
                return Ok(None);
            }
            if spool.plants(Fault::SpoolAfterFlush) {
                let ticket = self.log(held, length)?;
                return shared.log_spool(&mut spool).map(|()| Some(ticket));
            }
            shared.log_spool(&mut spool)?;
            if lazy && spool.admits(length, &shared.counters) {
                self.spool(held, length, &mut spool);
                return Ok(None);
            }
            self.log(held, length).map(Some)
        })
    }

    /// Appends a record to the log; the values go straight from memory to the log's ring.
    fn log(&self, held: &Held<'_>, length: usize) -> Result<Ticket, AppendError> {
        let Buffers { regions, ranges, .. } = &self.buffers;
        let ticket = self.shared.log.append(KIND_TRANSACTION, length, &mut |payload| {
            let mut encoder = Encoder::new(payload, ranges.merged().len() as u32);
            for group in ranges.merged().chunk_by(|a, b| a.region == b.region) {
                let mapping = &regions.list[group[0].region as usize];
                let memory = held.find(regions.position(mapping.address()));
                for range in group {
                    let offset = mapping.base + range.offset;
                    let bytes = encoder.range(mapping.segment.index, offset, range.length);
                    memory.copy_out(range.offset as usize, bytes);
                }
            }
            encoder.finish();
        })?;
        for mapping in &regions.list {
            mapping.segment.note(ticket.end);
        }
        let counters = &self.shared.counters;
        add(&counters.ranges_logged, ranges.merged().len() as u64);
        add(&counters.bytes_logged, length as u64);
        self.shared.committed(ticket);
        Ok(ticket)
    }

    /// Copies the values to the spool, which admits them.
    fn spool(&self, held: &Held<'_>, length: usize, spool: &mut Contents) {
        let Buffers { regions, ranges, .. } = &self.buffers;
        for group in ranges.merged().chunk_by(|a, b| a.region == b.region) {
            let mapping = &regions.list[group[0].region as usize];
            let memory = held.find(regions.position(mapping.address()));
            for range in group {
                let bytes = spool.range(&mapping.segment, mapping.base + range.offset, range.length);
                memory.copy_out(range.offset as usize, bytes);
            }
        }
        spool.commit(ranges.merged().len(), length);
    }
}

/// Locks kept in one stack frame. More make a small commit's frame larger, fewer make a large commit's stack
/// deeper.
const FRAME_LOCKS: usize = 16;

/// Where a commit's locks are kept: a chain on the stack, so that a commit allocates nothing.
struct Held<'h> {
    /// The position, by address, of the first region locked here.
    first: usize,
    locks: [Option<RwLockReadGuard<'h, Memory>>; FRAME_LOCKS],
    before: Option<&'h Held<'h>>,
}

impl Held<'_> {
    fn find(&self, position: usize) -> &Memory {
        let mut held = self;
        while position < held.first {
            held = held.before.expect("the chain begins at position zero");
        }
        let lock = held.locks[position - held.first].as_ref();
        lock.expect("every region of the transaction is locked")
    }
}

/// Locks the regions from position `first` on, shared and by address, then runs `then`. The stack it takes is
/// stated at [`crate::limit::TRANSACTION_REGIONS_MAX`].
fn with_locked<R>(
    regions: &Touched,
    first: usize,
    before: Option<&Held<'_>>,
    then: &mut dyn FnMut(&Held<'_>) -> R,
) -> R {
    let locks = std::array::from_fn(|at| Some(regions.at(first + at)?.read()));
    let held = Held { first, locks, before };
    match first + FRAME_LOCKS {
        next if next < regions.list.len() => with_locked(regions, next, Some(&held), then),
        _ => then(&held),
    }
}

impl From<NoRoom> for CommitError {
    fn from(refusal: NoRoom) -> CommitError {
        match refusal {
            NoRoom::Full {
                used,
                capacity,
                cause,
            } => CommitError::Full {
                used,
                capacity,
                cause,
            },
            NoRoom::Refused(AppendError::TooLarge { bytes, max }) => CommitError::TooLarge {
                bytes: bytes as u64,
                max,
            },
            NoRoom::Refused(error) => CommitError::Refused(error),
        }
    }
}
