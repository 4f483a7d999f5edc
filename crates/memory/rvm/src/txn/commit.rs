//! Committing: from declared ranges to one record in the log, without an allocation or a second copy.

use netram_proto::planted::PlantedFault;
use netram_proto::port::{AppendError, CommitTicket, CommitVotes, Durability, RecordLog};

use super::locks::{CommitLocks, ExclusiveRegion, with_locked};
use super::payload::ForeignRecord;
use super::{Transaction, TransactionBuffers, TransactionOutcome};
use crate::error::{ForeignError, RvmCommitError};
use crate::record::{KIND_COMPACT, RecordChanges};
use crate::region::Region;
use crate::spool::{SpoolContents, counted_bytes};
use crate::state::NoRoom;
use crate::stats::add;
use crate::storage::SegmentStorage;

/// Result of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitReceipt {
    /// The record's position in the log; `None` if nothing was logged, or if a lazy commit is in the spool.
    pub ticket: Option<CommitTicket>,
    /// Copies known to hold the record.
    pub votes: CommitVotes,
}

impl<L: RecordLog, S: SegmentStorage> Transaction<L, S> {
    /// Commits: logs the declared ranges with their present values, and waits until they are as safe as
    /// requested.
    ///
    /// An error with a certain outcome aborts the transaction, which restores memory in
    /// [`crate::RestoreMode::Restore`]. Use [`Transaction::try_commit`] to keep it open instead.
    ///
    /// # Errors
    ///
    /// [`RvmCommitError`] if the transaction was not logged, or, for [`RvmCommitError::Unknown`], if its
    /// outcome is unknown.
    pub fn commit(mut self, durability: Durability) -> Result<CommitReceipt, RvmCommitError> {
        self.try_commit(durability)
    }

    /// Commits like [`Transaction::commit`], but a refused commit leaves memory unchanged and the transaction
    /// open, to be retried or aborted.
    ///
    /// # Errors
    ///
    /// As [`Transaction::commit`].
    pub fn try_commit(&mut self, durability: Durability) -> Result<CommitReceipt, RvmCommitError> {
        self.gather()?;
        self.commit_merged(None, durability)
    }

    /// The first half of a commit: finds and merges the ranges to be logged, for a caller that needs them
    /// before the commit. Later stores may not be logged.
    ///
    /// # Errors
    ///
    /// [`RvmCommitError::Undeclared`], [`RvmCommitError::Outside`] or [`RvmCommitError::Capture`] by the
    /// region's capture mode; [`RvmCommitError::Ended`] after the end.
    pub fn gather(&mut self) -> Result<(), RvmCommitError> {
        if !self.open {
            return Err(RvmCommitError::Ended);
        }
        self.verify()?;
        self.find_stores()?;
        self.buffers.ranges.merge();
        Ok(())
    }

    /// Ranges of a region that [`Transaction::gather`] has found: in order, without overlaps.
    pub fn gathered(&self, region: &Region) -> impl Iterator<Item = std::ops::Range<usize>> {
        let index = self.buffers.regions.find(&region.mapping).ok();
        let merged = self.buffers.ranges.merged().iter();
        merged
            .filter(move |range| Some(range.region) == index)
            .map(|range| range.offset as usize..range.end() as usize)
    }

    /// The second half of a commit: commits the gathered ranges, like [`Transaction::try_commit`].
    ///
    /// # Errors
    ///
    /// As [`Transaction::commit`].
    pub fn commit_gathered(&mut self, durability: Durability) -> Result<CommitReceipt, RvmCommitError> {
        match self.open {
            true => self.commit_merged(None, durability),
            false => Err(RvmCommitError::Ended),
        }
    }

    /// Commits like [`Transaction::try_commit`], together with a foreign record. Its ranges and the declared
    /// ones become one record of the log, and its changes are applied to `region`, where all of them must
    /// lie, in the same step. Its preamble is not copied.
    ///
    /// After a refusal, an abort finds memory as it was before this call. The declared ranges must be in
    /// other segments. The foreign record costs two copies, and 8 ns per range.
    ///
    /// # Errors
    ///
    /// [`ForeignError::Commit`] as [`Transaction::commit`]; other variants if the record cannot be taken
    /// over. Nothing was logged then.
    pub fn commit_foreign(
        &mut self,
        region: &Region,
        changes: RecordChanges<'_>,
        durability: Durability,
    ) -> Result<CommitReceipt, ForeignError> {
        if region.mapping.is_captured() {
            return Err(ForeignError::Captured);
        }
        region.mapping.admits(&changes)?;
        self.gather()?;
        if changes.count() == 0 {
            return Ok(self.commit_merged(None, durability)?);
        }
        let foreign = ForeignRecord::new(changes).ok_or(ForeignError::Form)?;
        let index = self.region_index(region).map_err(|_| ForeignError::Region)?;
        let merged = self.buffers.ranges.merged();
        if merged
            .iter()
            .any(|range| self.segment(range.region) == foreign.segment)
        {
            return Err(ForeignError::Declared);
        }
        Ok(self.commit_merged(Some((foreign, index)), durability)?)
    }

    fn segment(&self, index: u32) -> u32 {
        self.buffers.regions.list[index as usize].segment.index
    }

    /// Logs the merged ranges, with a foreign record that changes the region at `place`.
    fn commit_merged(
        &mut self,
        foreign: Option<(ForeignRecord<'_>, u32)>,
        durability: Durability,
    ) -> Result<CommitReceipt, RvmCommitError> {
        let TransactionBuffers {
            regions,
            ranges,
            layout,
            preamble,
            always,
            ..
        } = &mut self.buffers;
        let merged = ranges.merged();
        if merged.is_empty() && foreign.is_none() && !*always {
            add(&self.shared.counters.empty_commits, 1);
            self.settle_stores();
            self.finish(TransactionOutcome::Committed);
            return Ok(CommitReceipt::default());
        }
        let record = foreign.as_ref().map(|(foreign, _)| foreign);
        let bytes = layout.arrange(merged, regions, preamble.len(), record);
        let max = self.shared.payload_max;
        let length = usize::try_from(bytes).ok().filter(|bytes| *bytes <= max);
        let length = length.ok_or(RvmCommitError::TooLarge { bytes, max })?;

        // A record with a preamble for other readers is logged on its own.
        let alone = foreign.is_some() || *always || !preamble.is_empty();
        let lazy = durability == Durability::Lazy && !alone;
        let ticket = self
            .shared
            .with_room(|| self.append(length, lazy, foreign.as_ref()))?;
        let (declared, declared_bytes) = self.buffers.ranges.totals();
        let lengths = self.buffers.ranges.merged().iter().map(|range| range.length);
        self.shared.counters.commit(declared, declared_bytes, lengths);
        self.settle_stores();
        self.finish(TransactionOutcome::Committed);
        match ticket {
            Some(ticket) => self.settle(ticket, durability),
            None => {
                add(&self.shared.counters.lazy_commits, 1);
                add(&self.shared.counters.spooled_commits, 1);
                Ok(CommitReceipt::default())
            }
        }
    }

    fn settle(&self, ticket: CommitTicket, durability: Durability) -> Result<CommitReceipt, RvmCommitError> {
        let counters = &self.shared.counters;
        let kind = match durability {
            Durability::Lazy => &counters.lazy_commits,
            _ => &counters.flush_commits,
        };
        match self.shared.log.wait(ticket, durability) {
            Ok(votes) => {
                add(kind, 1);
                Ok(CommitReceipt {
                    ticket: Some(ticket),
                    votes,
                })
            }
            Err(cause) => {
                add(&counters.unknown_commits, 1);
                Err(RvmCommitError::Unknown {
                    lsn: ticket.lsn,
                    cause,
                })
            }
        }
    }

    /// Appends the record to the log, or its ranges to the spool, which gives no ticket.
    ///
    /// The regions are locked, so that no value changes while it is copied. Lock order: regions, spool, log.
    fn append(
        &self,
        length: usize,
        lazy: bool,
        foreign: Option<&(ForeignRecord<'_>, u32)>,
    ) -> Result<Option<CommitTicket>, AppendError> {
        let regions = &self.buffers.regions;
        let mut changed = ExclusiveRegion::NONE;
        changed.position =
            foreign.map(|(_, index)| regions.position(regions.list[*index as usize].address()));
        with_locked(regions, 0, None, &mut changed, &mut |held, changed| {
            let record = foreign.map(|(foreign, _)| foreign);
            let Some(ticket) = self.append_locked(held, length, lazy, record)? else {
                return Ok(None);
            };
            if let (Some((foreign, index)), Some(memory)) = (foreign, &mut changed.memory) {
                regions.list[*index as usize].store(memory, &foreign.changes);
            }
            Ok(Some(ticket))
        })
    }

    fn append_locked(
        &self,
        held: &CommitLocks<'_>,
        length: usize,
        lazy: bool,
        foreign: Option<&ForeignRecord<'_>>,
    ) -> Result<Option<CommitTicket>, AppendError> {
        let shared = &*self.shared;
        if !shared.spool.is_active() {
            return self.log(held, length, foreign).map(Some);
        }
        let ranges = self.buffers.ranges.merged().iter();
        let counted = ranges.map(|range| counted_bytes(range.length)).sum();
        let mut spool = shared.spool.lock();
        if lazy && spool.admits(counted, &shared.counters) {
            self.spool(held, length, &mut spool);
            return Ok(None);
        }
        if spool.plants(PlantedFault::SpoolAfterFlush) {
            let ticket = self.log(held, length, foreign)?;
            return shared.log_spool(&mut spool).map(|()| Some(ticket));
        }
        shared.log_spool(&mut spool)?;
        if lazy && spool.admits(counted, &shared.counters) {
            self.spool(held, length, &mut spool);
            return Ok(None);
        }
        self.log(held, length, foreign).map(Some)
    }

    /// Appends a record to the log; the values are copied straight from memory to the log's ring.
    fn log(
        &self,
        held: &CommitLocks<'_>,
        length: usize,
        foreign: Option<&ForeignRecord<'_>>,
    ) -> Result<CommitTicket, AppendError> {
        let TransactionBuffers {
            regions,
            ranges,
            layout,
            preamble,
            ..
        } = &self.buffers;
        let merged = ranges.merged();
        let ticket = self.shared.log.append(KIND_COMPACT, length, &mut |payload| {
            layout.write(payload, preamble, merged, foreign, (regions, held));
        })?;
        for mapping in &regions.list {
            mapping.segment.note(ticket.end);
        }
        let counters = &self.shared.counters;
        let theirs = foreign.map_or(0, |foreign| foreign.changes.count());
        add(&counters.ranges_logged, merged.len() as u64 + u64::from(theirs));
        add(&counters.bytes_logged, length as u64);
        self.shared.committed(ticket);
        Ok(ticket)
    }

    /// Copies the values to the spool, which has admitted them.
    fn spool(&self, held: &CommitLocks<'_>, length: usize, spool: &mut SpoolContents) {
        let TransactionBuffers { regions, ranges, .. } = &self.buffers;
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

impl From<NoRoom> for RvmCommitError {
    fn from(refusal: NoRoom) -> RvmCommitError {
        match refusal {
            NoRoom::Full {
                used,
                capacity,
                cause,
            } => RvmCommitError::Full {
                used,
                capacity,
                cause,
            },
            NoRoom::Refused(AppendError::TooLarge { bytes, max }) => RvmCommitError::TooLarge {
                bytes: bytes as u64,
                max,
            },
            NoRoom::Refused(error) => RvmCommitError::Refused(error),
        }
    }
}
