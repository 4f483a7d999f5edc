//! Brings the oldest closed stage into the image, in bounded steps.
//!
//! Order: the stage's records are on the journal's disk; zeros and blocks are written; image and sums are synced; only
//! then is the journal trimmed and the stage forgotten. Whatever fails or crashes before the trim, the journal has all of
//! it, and it is all written again before the next sync, so a failed sync is never believed either.
//!
//! Only what is *stable* is applied: a record that is merely acknowledged may be lost with its members, and the image
//! must not have it without the ones before.
//!
//! A block of which only some sectors were written is merged over its base. The whole block then takes the part's place
//! in the stage, before the image is touched: from there on neither readers nor another attempt look below it.

use std::sync::{Arc, Mutex};

use netram_proto::id::Lsn;
use netram_proto::port::{Durability, IoError, Log, Ticket};

use crate::error::{ApplyError, FileKind};
use crate::image::{Image, Sparse, matches, spoilt, sum, sum_at};
use crate::limit::{STEP_BLOCKS, STEP_ZERO_BLOCKS};
use crate::stage::{BLOCK, Bytes, FULL, Held, Stage, copy_sectors};
use crate::stages::Stages;
use crate::stats::{Counters, add};
use crate::sync::lock;

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Nothing: no stage is closed.
    Idle,
    /// Part of a stage.
    Working,
    /// The image has everything up to here, and the journal begins here.
    Applied(Lsn),
}

/// What a step works on.
pub(crate) struct World<'w, L, F> {
    pub(crate) log: &'w L,
    pub(crate) image: &'w Image<F>,
    pub(crate) stages: &'w Mutex<Stages>,
    /// Held while blocks and their checksums are being written, and so differ.
    pub(crate) writing: &'w Mutex<()>,
    pub(crate) counters: &'w Counters,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Begin,
    Zeros { from: u64 },
    Blocks { from: u64 },
    SyncBlocks,
    SyncSums,
    Trim,
}

/// The state of the stage being applied. Keeps its buffers from stage to stage.
#[derive(Debug)]
pub(crate) struct Applier {
    phase: Phase,
    /// Recovery: a base may be torn. Only those of the stage under way at the crash can be, but the journal does not say
    /// which it was, so every base that does not match is taken as found (docs/disk.md, "Crash").
    pub(crate) replaying: bool,
    batch: Vec<(u64, Held)>,
    blocks: Vec<u8>,
    sums: Vec<u8>,
}

impl Applier {
    pub(crate) fn new() -> Applier {
        Applier {
            phase: Phase::Begin,
            replaying: false,
            batch: Vec::with_capacity(STEP_BLOCKS),
            blocks: Vec::new(),
            sums: Vec::new(),
        }
    }

    /// Whatever was written of the stage under way may not be on the disk: it is written again.
    pub(crate) fn begin_again(&mut self) {
        self.phase = Phase::Begin;
    }

    /// Does a bounded piece of work. After an error the stage begins again.
    pub(crate) fn step<L: Log, F: Sparse>(
        &mut self,
        world: &World<'_, L, F>,
    ) -> Result<Progress, ApplyError> {
        let stepped = match self.phase {
            Phase::Begin => self.begin(world),
            Phase::Zeros { from } => self.zeros(world, from),
            Phase::Blocks { from } => self.write(world, from),
            Phase::SyncBlocks => {
                let synced = world.image.sync_blocks();
                self.to(Phase::SyncSums, synced, FileKind::Image)
            }
            Phase::SyncSums => {
                let synced = world.image.sync_sums();
                self.to(Phase::Trim, synced, FileKind::Sums)
            }
            Phase::Trim => self.trim(world),
        };
        if stepped.is_err() {
            self.begin_again();
            add(&world.counters.failures, 1);
        }
        stepped
    }

    fn to(&mut self, next: Phase, done: Result<(), IoError>, file: FileKind) -> Result<Progress, ApplyError> {
        done.map_err(|cause| ApplyError::File { file, cause })?;
        self.phase = next;
        Ok(Progress::Working)
    }

    fn begin<L: Log, F: Sparse>(&mut self, world: &World<'_, L, F>) -> Result<Progress, ApplyError> {
        let Some(end) = lock(world.stages).oldest().map(Stage::end) else {
            return Ok(Progress::Idle);
        };
        if world.log.state().stable < end {
            let ticket = Ticket { lsn: end, end };
            world
                .log
                .wait(ticket, Durability::Disk)
                .map_err(ApplyError::Wait)?;
        }
        self.phase = Phase::Zeros { from: 0 };
        Ok(Progress::Working)
    }

    fn zeros<L, F: Sparse>(&mut self, world: &World<'_, L, F>, from: u64) -> Result<Progress, ApplyError> {
        let next = lock(world.stages)
            .oldest()
            .and_then(|stage| stage.next_zeros(from));
        let Some((first, behind)) = next else {
            self.phase = Phase::Blocks { from: 0 };
            return Ok(Progress::Working);
        };
        let behind = behind.min(first + STEP_ZERO_BLOCKS);
        let _writing = lock(world.writing);
        let punched = world.image.punch(first, behind);
        add(&world.counters.holes, behind - first);
        self.to(Phase::Zeros { from: behind }, punched, FileKind::Image)
    }

    fn write<L, F: Sparse>(&mut self, world: &World<'_, L, F>, from: u64) -> Result<Progress, ApplyError> {
        let mut batch = std::mem::take(&mut self.batch);
        if let Some(stage) = lock(world.stages).oldest() {
            stage.next_blocks(from, STEP_BLOCKS, &mut batch);
        }
        let written = self.write_batch(world, &batch);
        let next = match batch.last() {
            Some((last, _)) => Phase::Blocks { from: last + 1 },
            None => Phase::SyncBlocks,
        };
        batch.clear();
        self.batch = batch;
        self.to(next, written, FileKind::Image)
    }

    fn write_batch<L, F: Sparse>(
        &mut self,
        world: &World<'_, L, F>,
        batch: &[(u64, Held)],
    ) -> Result<(), IoError> {
        self.blocks.clear();
        self.sums.clear();
        for (block, held) in batch {
            let sum = match held.mask {
                FULL => {
                    self.blocks.extend_from_slice(&held.bytes[..]);
                    sum(*block, &held.bytes[..])
                }
                _ => self.merge(world, *block, held)?,
            };
            self.sums.extend_from_slice(&sum.to_le_bytes());
        }
        let _writing = lock(world.writing);
        let mut at = 0;
        for run in batch.chunk_by(|a, b| a.0 + 1 == b.0) {
            let (sums, blocks) = (at * 4..(at + run.len()) * 4, at * BLOCK..(at + run.len()) * BLOCK);
            world
                .image
                .write(run[0].0, &self.sums[sums], &self.blocks[blocks])?;
            at += run.len();
        }
        add(&world.counters.blocks, batch.len() as u64);
        Ok(())
    }

    /// Adds a block to those to be written, of which only a part is held. Returns its checksum.
    fn merge<L, F: Sparse>(
        &mut self,
        world: &World<'_, L, F>,
        block: u64,
        held: &Held,
    ) -> Result<u32, IoError> {
        let (mut base, mut stored) = ([0; BLOCK], [0; 4]);
        world.image.read(block, &mut base)?;
        world.image.read_sums(block, &mut stored)?;
        add(&world.counters.bases, 1);
        let stored = sum_at(&stored, 0);
        let sound = matches(block, &base, stored);
        let base_sum = sum(block, &base);
        copy_sectors(held.mask, &held.bytes, &mut base);
        let merged_sum = sum(block, &base);
        self.blocks.extend_from_slice(&base);
        if !sound && stored != merged_sum {
            let known_bad = stored == spoilt(base_sum) || stored == spoilt(merged_sum);
            if !self.replaying || known_bad {
                // The sectors that were not written are lost. The block stays unreadable, rather than to pass them on.
                add(&world.counters.corrupt_bases, 1);
                return Ok(spoilt(merged_sum));
            }
            add(&world.counters.unverified_bases, 1);
        }
        let whole: Bytes = Arc::new(base);
        if let Some(stage) = lock(world.stages).oldest_mut() {
            stage.complete(block, whole);
        }
        Ok(merged_sum)
    }

    fn trim<L: Log, F>(&mut self, world: &World<'_, L, F>) -> Result<Progress, ApplyError> {
        let end = lock(world.stages).oldest().map(Stage::end);
        let end = end.expect("only an applied stage is forgotten, here");
        world.log.trim(end).map_err(ApplyError::Log)?;
        let mut stage = lock(world.stages).applied();
        while lock(world.stages).give_back(&mut stage) {}
        add(&world.counters.stages, 1);
        self.phase = Phase::Begin;
        Ok(Progress::Applied(end))
    }
}
