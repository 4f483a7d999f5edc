//! Applies the oldest closed stage to the image, in bounded steps.
//!
//! The order is: the journal's disk has the stage's records; the superblock stores how far the stage goes;
//! zeros and blocks are written; image and sums are synced. Only then is the stage dropped, and the journal
//! trimmed as far as the data lender allows. If a step fails or the machine crashes before the sync, the
//! journal has every record and all of them are written again. So a failed sync is never trusted.
//!
//! Only *stable* records are applied. A record that is merely acknowledged may be lost with its members, and
//! the image must not have it without the records before it.
//!
//! A block of which only some sectors were written is merged with its base. The whole block then replaces the
//! part in the stage before the image is changed, so that readers and later attempts no longer use the base.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use netram_proto::id::Lsn;
use netram_proto::port::{CommitTicket, Durability, IoError, RecordLog};

use crate::disk::Disk;
use crate::error::{ApplyError, FileKind};
use crate::fetch::BlockFetch;
use crate::image::{SUM_BYTES, SparseFile, damaged_sum, matches, sum, sum_at};
use crate::limit::{STEP_BLOCKS, STEP_ZERO_BLOCKS};
use crate::retained::RetainedStages;
use crate::stage::{BLOCK, FULL, StagedBlock, WriteStage, copy_sectors};
use crate::stats::add;
use crate::sync::lock;

/// Result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyProgress {
    /// No stage is closed.
    Idle,
    /// A part of a stage was applied.
    Working,
    /// The image has every record below this LSN, flushed.
    Applied(Lsn),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Begin,
    /// Fetching missing blocks of which the stage has a part.
    Bring {
        from: u64,
    },
    Zeros {
        from: u64,
    },
    Blocks {
        from: u64,
    },
    SyncBlocks,
    SyncSums,
    End,
}

/// State of the stage being applied. Keeps its buffers from stage to stage.
#[derive(Debug)]
pub(crate) struct StageApplier {
    phase: Phase,
    /// LSN below which a crash may have torn the blocks that were being written (docs/design/volumes.md,
    /// "Crash").
    pub(crate) torn_below: Lsn,
    /// Stages that are applied but still in the journal.
    pub(crate) retained: RetainedStages,
    /// Whether blocks were put into the image outside the stages and not synced since.
    pub(crate) put: bool,
    /// Error of a sync that should have made such blocks durable.
    pub(crate) put_lost: Option<ApplyError>,
    /// Set if the disk may still have blocks marked missing that count as present here. Cleared only by
    /// reopening the volume.
    pub(crate) unnamed: Option<ApplyError>,
    batch: Vec<(u64, StagedBlock)>,
    sums: Vec<u8>,
}

impl StageApplier {
    pub(crate) fn new() -> StageApplier {
        StageApplier {
            phase: Phase::Begin,
            torn_below: Lsn(0),
            retained: RetainedStages::default(),
            put: false,
            put_lost: None,
            unnamed: None,
            batch: Vec::with_capacity(STEP_BLOCKS),
            sums: Vec::new(),
        }
    }

    /// Starts the current stage over, because nothing written of it is known to be on the disk. The same is
    /// true for blocks put outside the stages, which the next sync of theirs reports.
    pub(crate) fn begin_again(&mut self, cause: ApplyError) {
        self.phase = Phase::Begin;
        if self.put {
            self.put_lost = Some(cause);
        }
    }

    /// The stages were replaced.
    pub(crate) fn restart(&mut self) {
        self.phase = Phase::Begin;
        self.retained = RetainedStages::default();
        self.torn_below = Lsn(0);
    }

    /// Whether the oldest stage's records are stable and some of it may be in the image.
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(self.phase, Phase::Begin | Phase::Bring { .. })
    }

    /// Does a bounded piece of work. After an error the stage starts over.
    pub(crate) fn step<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &mut self,
        disk: &Disk<L, F, C>,
    ) -> Result<ApplyProgress, ApplyError> {
        let stepped = disk
            .trim_retained(&mut self.retained)
            .and_then(|()| match self.phase {
                Phase::Begin => self.begin(disk),
                Phase::Bring { from } => self.bring(disk, from),
                Phase::Zeros { from } => self.zeros(disk, from),
                Phase::Blocks { from } => self.write(disk, from),
                Phase::SyncBlocks => {
                    let synced = disk.image.sync_blocks();
                    self.to(Phase::SyncSums, synced, FileKind::Image)
                }
                Phase::SyncSums => {
                    let synced = disk.image.sync_sums();
                    self.to(Phase::End, synced, FileKind::Sums)
                }
                Phase::End => self.end(disk),
            });
        if let Err(error) = stepped {
            self.begin_again(error);
            add(&disk.counters.failures, 1);
        }
        stepped
    }

    fn to(
        &mut self,
        next: Phase,
        done: Result<(), IoError>,
        file: FileKind,
    ) -> Result<ApplyProgress, ApplyError> {
        done.map_err(|cause| ApplyError::File { file, cause })?;
        self.phase = next;
        Ok(ApplyProgress::Working)
    }

    fn begin<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &mut self,
        disk: &Disk<L, F, C>,
    ) -> Result<ApplyProgress, ApplyError> {
        let Some(end) = lock(&disk.stages).oldest().map(WriteStage::end) else {
            return Ok(ApplyProgress::Idle);
        };
        if disk.log.state().stable < end {
            let ticket = CommitTicket { lsn: end, end };
            disk.log
                .wait(ticket, Durability::Disk)
                .map_err(ApplyError::Wait)?;
        }
        if disk.missing.load(Ordering::Acquire) {
            self.phase = Phase::Bring { from: 0 };
            return Ok(ApplyProgress::Working);
        }
        self.store_extent(disk)
    }

    /// Stores durably how far the stage goes, before any of it is in the image.
    fn store_extent<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &mut self,
        disk: &Disk<L, F, C>,
    ) -> Result<ApplyProgress, ApplyError> {
        let place = lock(&disk.stages)
            .oldest()
            .map(|stage| (stage.start(), stage.end()));
        if let Some((start, end)) = place {
            disk.store_position(start, end)?;
        }
        self.phase = Phase::Zeros { from: 0 };
        Ok(ApplyProgress::Working)
    }

    /// Fetches missing bases into the image, so that a block of this stage that a crash tears has a base.
    fn bring<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &mut self,
        disk: &Disk<L, F, C>,
        from: u64,
    ) -> Result<ApplyProgress, ApplyError> {
        let mut batch = std::mem::take(&mut self.batch);
        if let Some(stage) = lock(&disk.stages).oldest() {
            stage.next_blocks(from, STEP_BLOCKS, &mut batch);
        }
        let last = batch.last().map(|(block, _)| *block);
        let parts = batch.iter().filter(|(_, held)| held.mask != FULL);
        let brought = disk.bring(self, parts.map(|(block, _)| *block));
        batch.clear();
        self.batch = batch;
        brought?;
        match last {
            Some(last) => {
                self.phase = Phase::Bring { from: last + 1 };
                Ok(ApplyProgress::Working)
            }
            None => self.store_extent(disk),
        }
    }

    fn zeros<L, F: SparseFile, C>(
        &mut self,
        disk: &Disk<L, F, C>,
        from: u64,
    ) -> Result<ApplyProgress, ApplyError> {
        let next = lock(&disk.stages)
            .oldest()
            .and_then(|stage| stage.next_zeros(from));
        let Some((first, behind)) = next else {
            self.phase = Phase::Blocks { from: 0 };
            return Ok(ApplyProgress::Working);
        };
        let behind = behind.min(first + STEP_ZERO_BLOCKS);
        let _writing = lock(&disk.writing);
        let punched = disk.image.punch(first, behind);
        add(&disk.counters.holes, behind - first);
        self.to(Phase::Zeros { from: behind }, punched, FileKind::Image)
    }

    fn write<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &mut self,
        disk: &Disk<L, F, C>,
        from: u64,
    ) -> Result<ApplyProgress, ApplyError> {
        let mut batch = std::mem::take(&mut self.batch);
        if let Some(stage) = lock(&disk.stages).oldest() {
            stage.next_blocks(from, STEP_BLOCKS, &mut batch);
        }
        let written = self.write_batch(disk, &mut batch);
        let next = match batch.last() {
            Some((last, _)) => Phase::Blocks { from: last + 1 },
            None => Phase::SyncBlocks,
        };
        batch.clear();
        self.batch = batch;
        written?;
        self.phase = next;
        Ok(ApplyProgress::Working)
    }

    fn write_batch<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &mut self,
        disk: &Disk<L, F, C>,
        batch: &mut [(u64, StagedBlock)],
    ) -> Result<(), ApplyError> {
        self.sums.clear();
        for (block, held) in &mut *batch {
            let sum = match held.mask {
                FULL => sum(*block, &held.bytes[..]),
                _ => self.merge(disk, *block, held)?,
            };
            self.sums.extend_from_slice(&sum.to_le_bytes());
        }
        let _writing = lock(&disk.writing);
        let mut at = 0;
        for run in batch.chunk_by(|a, b| a.0 + 1 == b.0) {
            let sums = &self.sums[at * SUM_BYTES..(at + run.len()) * SUM_BYTES];
            let mut blocks: [&[u8]; STEP_BLOCKS] = [&[]; STEP_BLOCKS];
            for (place, (_, held)) in blocks.iter_mut().zip(run) {
                *place = &held.bytes[..];
            }
            disk.image
                .write_pieces(run[0].0, sums, &blocks[..run.len()])
                .map_err(of_image)?;
            at += run.len();
        }
        add(&disk.counters.blocks, batch.len() as u64);
        Ok(())
    }

    /// Completes `held`, which is a part of a block, and returns the block's checksum.
    fn merge<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &self,
        disk: &Disk<L, F, C>,
        block: u64,
        held: &mut StagedBlock,
    ) -> Result<u32, ApplyError> {
        let (mut base, mut stored) = ([0; BLOCK], [0; 4]);
        let read = disk.image.read(block, &mut base);
        if read == Err(IoError::EIO) {
            // The stage waits, since the next attempt may be able to read it. If this is a copy, its client
            // now sends the whole block.
            disk.note_bad(block);
        }
        read.map_err(of_image)?;
        disk.image.read_sums(block, &mut stored).map_err(of_image)?;
        add(&disk.counters.bases, 1);
        let stored = sum_at(&stored, 0);
        let sound = matches(block, &base, stored);
        let base_sum = sum(block, &base);
        copy_sectors(held.mask, &held.bytes, &mut base);
        if !sound && stored != sum(block, &base) {
            let bad = BadBase {
                block,
                base_sum,
                stored,
            };
            if let Some(spoilt) = self.replace(disk, bad, held, &mut base)? {
                // The stage keeps the part that it has: the rest of the block is lost.
                *held = StagedBlock {
                    mask: FULL,
                    bytes: Arc::new(base),
                };
                return Ok(spoilt);
            }
        }
        lock(&disk.stages).complete(block, held, &base);
        Ok(sum(block, &base))
    }

    /// The base does not match its checksum: it was torn or damaged. Puts `held` over the data lender's
    /// block. If that cannot be had, returns the checksum that marks the block as damaged, unless a crash may
    /// explain the mismatch.
    fn replace<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &self,
        disk: &Disk<L, F, C>,
        bad: BadBase,
        held: &StagedBlock,
        merged: &mut [u8; BLOCK],
    ) -> Result<Option<u32>, ApplyError> {
        let BadBase {
            block,
            base_sum,
            stored,
        } = bad;
        let mut copy = [0; BLOCK];
        if disk.fetch(block, disk.applied(), &mut copy).is_ok() {
            copy_sectors(held.mask, &held.bytes, &mut copy);
            *merged = copy;
            add(&disk.counters.mended, 1);
            return Ok(None);
        }
        disk.note_bad(block);
        let merged_sum = sum(block, &merged[..]);
        let known_bad = stored == damaged_sum(base_sum) || stored == damaged_sum(merged_sum);
        if self.may_be_torn(disk) && !known_bad {
            add(&disk.counters.unverified_bases, 1);
            return Ok(None);
        }
        // The sectors that were not written are lost. The block stays unreadable, so that no wrong bytes are
        // returned.
        add(&disk.counters.corrupt_bases, 1);
        Ok(Some(damaged_sum(merged_sum)))
    }

    /// Whether a crash may have torn the blocks under the oldest stage.
    fn may_be_torn<L, F, C>(&self, disk: &Disk<L, F, C>) -> bool {
        let oldest = lock(&disk.stages).oldest().map(WriteStage::start);
        oldest.is_some_and(|start| start < self.torn_below)
    }

    /// Ends the stage, which is in the image and flushed.
    fn end<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &mut self,
        disk: &Disk<L, F, C>,
    ) -> Result<ApplyProgress, ApplyError> {
        let end = lock(&disk.stages).oldest().map(WriteStage::end);
        let end = end.expect("the stage that was applied is still the oldest");
        // Set before the stage is dropped: a reader that finds a record in no stage then finds it below this
        // LSN.
        disk.set_applied(end);
        self.retained.applied(end);
        self.phase = Phase::Begin;
        let mut stage = lock(&disk.stages).applied();
        while lock(&disk.stages).give_back(&mut stage) {}
        add(&disk.counters.stages, 1);
        disk.trim_retained(&mut self.retained)?;
        if disk.log.state().head < end {
            // The next opening replays from here instead of from the journal's head.
            disk.store_position(end, end)?;
        }
        Ok(ApplyProgress::Applied(end))
    }
}

/// A block of the image that does not match its checksum.
struct BadBase {
    block: u64,
    base_sum: u32,
    stored: u32,
}

pub(crate) fn of_image(cause: IoError) -> ApplyError {
    let file = FileKind::Image;
    ApplyError::File { file, cause }
}
