//! Brings the oldest closed stage into the image, in bounded steps.
//!
//! Order: the stage's records are on the journal's disk; the superblock says up to where the stage goes;
//! zeros and blocks are written; image and sums are synced; only then is the stage forgotten, and the journal
//! trimmed as far as the data lender allows. Whatever fails or crashes before the sync, the journal has all
//! of it, and it is all written again before the next sync, so a failed sync is never believed either.
//!
//! Only what is *stable* is applied: a record that is merely acknowledged may be lost with its members, and
//! the image must not have it without the ones before.
//!
//! A block of which only some sectors were written is merged over its base. The whole block then takes the
//! part's place in the stage, before the image is touched: from there on neither readers nor another attempt
//! look below it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use netram_proto::id::Lsn;
use netram_proto::port::{CommitTicket, Durability, IoError, RecordLog};

use crate::disk::Disk;
use crate::error::{ApplyError, FileKind};
use crate::fetch::BlockFetch;
use crate::image::{SUM_BYTES, SparseFile, damaged_sum, matches, sum, sum_at};
use crate::limit::{STEP_BLOCKS, STEP_ZERO_BLOCKS};
use crate::retained::RetainedStages as HeldJournal;
use crate::stage::{BLOCK, FULL, StagedBlock, WriteStage, copy_sectors};
use crate::stats::add;
use crate::sync::lock;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyProgress {
    /// Nothing: no stage is closed.
    Idle,
    /// Part of a stage.
    Working,
    /// The image has everything up to here, flushed.
    Applied(Lsn),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Begin,
    /// Fetching what is missing under parts of blocks.
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

/// The state of the stage being applied. Keeps its buffers from stage to stage.
#[derive(Debug)]
pub(crate) struct StageApplier {
    phase: Phase,
    /// Below this place of the journal a crash may have torn what was being written (docs/disk.md, "Crash").
    pub(crate) torn_below: Lsn,
    /// What is applied and still in the journal.
    pub(crate) retained: HeldJournal,
    /// Blocks were put into the image beside the stages, and no sync has ended since.
    pub(crate) put: bool,
    /// A sync that should have carried them failed.
    pub(crate) put_lost: Option<ApplyError>,
    /// The disk may have blocks as missing that count as here, until the volume is opened again.
    pub(crate) unnamed: Option<ApplyError>,
    batch: Vec<(u64, StagedBlock)>,
    sums: Vec<u8>,
}

impl StageApplier {
    pub(crate) fn new() -> StageApplier {
        StageApplier {
            phase: Phase::Begin,
            torn_below: Lsn(0),
            retained: HeldJournal::default(),
            put: false,
            put_lost: None,
            unnamed: None,
            batch: Vec::with_capacity(STEP_BLOCKS),
            sums: Vec::new(),
        }
    }

    /// Whatever was written of the stage under way may not be on the disk: it is written again. So may what
    /// was put there beside it, of which whoever put it is told when he asks for its sync.
    pub(crate) fn begin_again(&mut self, cause: ApplyError) {
        self.phase = Phase::Begin;
        if self.put {
            self.put_lost = Some(cause);
        }
    }

    /// The stages are others now.
    pub(crate) fn restart(&mut self) {
        self.phase = Phase::Begin;
        self.retained = HeldJournal::default();
        self.torn_below = Lsn(0);
    }

    /// Whether the oldest stage's records are stable, and some of it may be in the image.
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(self.phase, Phase::Begin | Phase::Bring { .. })
    }

    /// Does a bounded piece of work. After an error the stage begins again.
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

    /// Says durably how far the stage goes, before any of it is in the image.
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

    /// Brings bases that are missing into the image, so that what a crash can tear of this stage lies on
    /// them.
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

    /// Makes a whole block of `held`, which is a part of one. Returns its checksum.
    fn merge<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &self,
        disk: &Disk<L, F, C>,
        block: u64,
        held: &mut StagedBlock,
    ) -> Result<u32, ApplyError> {
        let (mut base, mut stored) = ([0; BLOCK], [0; 4]);
        let read = disk.image.read(block, &mut base);
        if read == Err(IoError::EIO) {
            // The stage waits, for the next attempt may read it. A copy's client sends all of the block
            // meanwhile.
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
                // The stage keeps what it has: what lies below it is lost.
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

    /// A base that is not what was written: torn or damaged. Puts `held` over what the data lender has of it.
    /// When he has nothing: `Some`, the checksum that says so, unless a crash explains all of it.
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
        // The sectors that were not written are lost. The block stays unreadable, rather than to pass them
        // on.
        add(&disk.counters.corrupt_bases, 1);
        Ok(Some(damaged_sum(merged_sum)))
    }

    /// Whether a crash may have torn what the oldest stage is put over.
    fn may_be_torn<L, F, C>(&self, disk: &Disk<L, F, C>) -> bool {
        let oldest = lock(&disk.stages).oldest().map(WriteStage::start);
        oldest.is_some_and(|start| start < self.torn_below)
    }

    /// The stage is in the image, flushed.
    fn end<L: RecordLog, F: SparseFile, C: BlockFetch>(
        &mut self,
        disk: &Disk<L, F, C>,
    ) -> Result<ApplyProgress, ApplyError> {
        let end = lock(&disk.stages).oldest().map(WriteStage::end);
        let end = end.expect("only an applied stage is forgotten, here");
        // Before the stage is forgotten: who finds a record in no stage finds it below this.
        disk.set_applied(end);
        self.retained.applied(end);
        self.phase = Phase::Begin;
        let mut stage = lock(&disk.stages).applied();
        while lock(&disk.stages).give_back(&mut stage) {}
        add(&disk.counters.stages, 1);
        disk.trim_retained(&mut self.retained)?;
        if disk.log.state().head < end {
            // The next opening begins here, and not where the journal does.
            disk.store_position(end, end)?;
        }
        Ok(ApplyProgress::Applied(end))
    }
}

/// A block of the image that is not what its checksum says.
struct BadBase {
    block: u64,
    base_sum: u32,
    stored: u32,
}

pub(crate) fn of_image(cause: IoError) -> ApplyError {
    let file = FileKind::Image;
    ApplyError::File { file, cause }
}
