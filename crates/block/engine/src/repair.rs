//! Blocks from the other copy: mending what the image lost, and restoring a volume that has nothing yet.
//!
//! What is fetched is at least as new as what the image had when it was asked for, and never newer than the
//! journal's stable end. It may be written under the stages that are not applied yet, for they are put over
//! it; so may the records that a recovery would apply again. It must not be written when the image has got
//! further meanwhile.

use std::sync::atomic::Ordering;

use netram_proto::id::Lsn;
use netram_proto::port::{IoError, RecordLog};

use crate::apply::{StageApplier, of_image};
use crate::disk::Disk;
use crate::error::{ApplyError, DeviceError, FileKind};
use crate::fetch::{BlockFetch, FetchError};
use crate::image::{SUM_MISSING, SparseFile, damaged_sum, matches, sum, sum_at};
use crate::limit::{BAD_BLOCKS_MAX, COPY_BLOCKS, COPY_SUMS, FETCH_BLOCKS, FETCH_TURNS, READ_BLOCKS};
use crate::stage::{BLOCK, BlockBytes, FULL, StageLayer, copy_sectors};
use crate::stats::add;
use crate::sync::lock;

/// What a part of a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStep {
    /// Blocks that were read and compared.
    pub blocks: u64,
    /// Blocks that were damaged or missing and are taken from the data lender now.
    pub repaired: u64,
    /// Blocks that are damaged, and that nobody else gave.
    pub bad: Vec<u64>,
    /// Blocks that only the data lender has, and that did not come.
    pub missing: u64,
}

/// How far a restoring volume is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyStep {
    /// The block to go on with; as many as the volume has: nothing is missing any more, unless it is
    /// restoring still.
    pub next: u64,
    /// Blocks that were copied by this step.
    pub blocks: u64,
    /// Blocks that are damaged at the data lender: they stay unreadable until they are written.
    pub lost: Vec<u64>,
}

/// What a step of restoring has of the data lender.
#[derive(Default)]
struct FetchedBlocks {
    blocks: Vec<(u64, BlockBytes)>,
    /// Those that are damaged there.
    lost: Vec<u64>,
    /// What lies below was asked for.
    next: u64,
}

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// Blocks of the other copy, as they are there once it has everything below `at_least`.
    pub(crate) fn fetch(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        match self.is_clean(first) {
            true => self.ask(first, at_least, into),
            // The copy has not been sent what was written here.
            false => {
                add(&self.counters.fetch_failures, 1);
                Err(FetchError::Damaged)
            }
        }
    }

    /// Blocks that are missing. Nothing was ever applied to them here, whatever a torn page of the map says:
    /// any state of the copy will do since the volume was restored from it, and however much of the journal
    /// it lacks.
    fn fetch_missing(&self, first: u64, into: &mut [u8]) -> Result<(), FetchError> {
        self.ask(first, self.missing_from, into)
    }

    fn ask(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        if !self.copy.exists() {
            return Err(FetchError::Unreachable);
        }
        let fetched = self.copy.fetch(first, at_least, into);
        if fetched.is_err() {
            add(&self.counters.fetch_failures, 1);
        }
        fetched
    }

    /// Takes a block for a reader from the other copy. The image is mended if it had the block once; one that
    /// is missing comes with the restoring, for it takes a sync.
    pub(crate) fn read_copy(
        &self,
        block: u64,
        into: &mut [u8],
        at_least: Lsn,
        stored: u32,
    ) -> Result<(), DeviceError> {
        if stored == SUM_MISSING {
            return self.fetch_missing(block, into).map_err(|error| match error {
                FetchError::Unreachable => DeviceError::Missing { block },
                FetchError::Damaged => DeviceError::Corrupt { block },
            });
        }
        if self.fetch(block, at_least, into).is_err() {
            add(&self.counters.corrupt_reads, 1);
            self.note_bad(block);
            return Err(DeviceError::Corrupt { block });
        }
        // The reader has what he wants, whether it can be written or not.
        let _ = self.repair(block, at_least, into);
        Ok(())
    }

    fn is_clean(&self, block: u64) -> bool {
        let dirty = lock(&self.dirty);
        dirty.as_ref().is_none_or(|map| map.is_dirty(block) == Ok(false))
    }

    /// Writes a fetched block to the image, if that did not get it meanwhile.
    fn repair(&self, block: u64, at_least: Lsn, bytes: &[u8]) -> Result<(), ApplyError> {
        let mut applier = lock(&self.applier);
        let mut turn = 0;
        let (mut newest, mut fetched) = (bytes.to_vec(), at_least);
        while fetched != self.applied() {
            // The image got further: what was fetched may be older than what it is to have.
            turn += 1;
            fetched = self.applied();
            if turn > FETCH_TURNS || self.fetch(block, fetched, &mut newest).is_err() {
                return Ok(());
            }
        }
        self.write_repaired(&mut applier, block, &mut newest)
    }

    /// Writes a block that the image lost, durably: a stage may then merge it like any other.
    fn write_repaired(
        &self,
        applier: &mut StageApplier,
        block: u64,
        bytes: &mut [u8],
    ) -> Result<(), ApplyError> {
        if self.look_at(block)?.is_none() {
            return Ok(());
        }
        if applier.is_under_way() {
            // Its stage may have been past this block, and will be forgotten.
            match lock(&self.stages).oldest().map(|stage| stage.layer(block)) {
                Some(StageLayer::Sectors(held)) => copy_sectors(held.mask, &held.bytes, bytes),
                Some(StageLayer::Zeros) => bytes.fill(0),
                Some(StageLayer::Absent) | None => (),
            }
        }
        {
            let _writing = lock(&self.writing);
            let sum = sum(block, bytes).to_le_bytes();
            self.image.write(block, &sum, bytes).map_err(of_image)?;
        }
        add(&self.counters.mended, 1);
        self.sync_files(applier)
    }

    /// The block's checksum if it does not match what the image has.
    pub(crate) fn look_at(&self, block: u64) -> Result<Option<u32>, ApplyError> {
        let (mut bytes, mut stored) = ([0; BLOCK], [0; 4]);
        let read = self.image.read_with_sums(block, &mut stored, &mut bytes);
        read.map_err(of_image)?;
        let stored = sum_at(&stored, 0);
        Ok((!matches(block, &bytes, stored)).then_some(stored))
    }

    /// Fetches those of `blocks` that are missing into the image. Their checksums follow once the blocks are
    /// on the disk, so a crash finds a block missing, or sound. Durable on return. How many there were.
    pub(crate) fn bring(
        &self,
        applier: &mut StageApplier,
        blocks: impl Iterator<Item = u64>,
    ) -> Result<u64, ApplyError> {
        let mut brought = Vec::new();
        for block in blocks {
            if self.look_at(block)? != Some(SUM_MISSING) {
                continue;
            }
            let mut bytes = [0; BLOCK];
            match self.fetch_missing(block, &mut bytes) {
                Ok(()) => {
                    self.image.write_blocks(block, &bytes).map_err(of_image)?;
                    brought.push((block, sum(block, &bytes)));
                }
                Err(FetchError::Unreachable) => return Err(ApplyError::Missing { block }),
                Err(FetchError::Damaged) => brought.push(self.mark_lost(block)),
            }
        }
        self.name_brought(applier, &brought)?;
        Ok(brought.len() as u64)
    }

    /// A block that is lost on both sides stays unreadable until it is written. Its number, and the checksum
    /// that says so.
    fn mark_lost(&self, block: u64) -> (u64, u32) {
        self.note_bad(block);
        add(&self.counters.lost_blocks, 1);
        (block, damaged_sum(sum(block, &[0; BLOCK])))
    }

    /// Writes the checksums of blocks that were missing and have been written. Durable on return: what comes
    /// after this may change at the data lender what it has of them.
    fn name_brought(&self, applier: &mut StageApplier, brought: &[(u64, u32)]) -> Result<(), ApplyError> {
        if brought.is_empty() {
            return Ok(());
        }
        if let Err(cause) = self.image.sync_blocks() {
            let error = of_image(cause);
            applier.begin_again(error);
            return Err(error);
        }
        let named = self.write_sums(brought.iter().copied());
        if let Err(cause) = named.and_then(|()| self.image.sync_sums()) {
            let file = FileKind::Sums;
            let error = ApplyError::File { file, cause };
            applier.begin_again(error);
            // The system tells of a failed sync once. They are missing, as the disk may have it, and come
            // again.
            if self
                .write_sums(brought.iter().map(|(block, _)| (*block, SUM_MISSING)))
                .is_err()
            {
                applier.unnamed = Some(error);
            }
            return Err(error);
        }
        add(&self.counters.copied, brought.len() as u64);
        Ok(())
    }

    fn write_sums(&self, mut sums: impl Iterator<Item = (u64, u32)>) -> Result<(), IoError> {
        let _writing = lock(&self.writing);
        sums.try_for_each(|(block, sum)| self.image.write_sum(block, sum))
    }

    /// Remembers a block that nobody here has.
    pub(crate) fn note_bad(&self, block: u64) {
        let mut bad = lock(&self.bad);
        if bad.len() < BAD_BLOCKS_MAX {
            bad.insert(block);
        }
    }

    /// Blocks that were found damaged since the last call: a data lender tells its writer, who sends them
    /// again.
    pub fn take_bad_blocks(&self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.bad)).into_iter().collect()
    }

    /// Compares `count` blocks from `first` on with their checksums, whether stages lie over them or not, and
    /// mends those that the data lender has.
    pub fn scrub(&self, first: u64, count: u64) -> Result<ScrubStep, DeviceError> {
        let behind = first.saturating_add(count).min(self.block_count());
        let mut found = ScrubStep::default();
        let (mut blocks, mut sums) = (vec![0; READ_BLOCKS * BLOCK], [0; READ_BLOCKS * 4]);
        let mut at = first;
        while at < behind {
            let data = self.next_written(at, behind)?;
            let count = (behind - data).min(READ_BLOCKS as u64) as usize;
            let (blocks, sums) = (&mut blocks[..count * BLOCK], &mut sums[..count * 4]);
            let read = self.image.read_with_sums(data, sums, blocks);
            read.map_err(DeviceError::Io)?;
            found.blocks += count as u64;
            for (index, bytes) in blocks.chunks_exact(BLOCK).enumerate() {
                let block = data + index as u64;
                if !matches(block, bytes, sum_at(sums, index)) {
                    self.scrub_block(block, &mut found)?;
                }
            }
            at = data + count as u64;
        }
        Ok(found)
    }

    /// The first block from `first` on that has a checksum or bytes.
    fn next_written(&self, first: u64, behind: u64) -> Result<u64, DeviceError> {
        let data = self.image.next_data(first, behind).map_err(DeviceError::Io)?;
        let mut sums = vec![0; COPY_SUMS * 4];
        let mut at = first;
        // Where the image has a hole, a checksum may still say that there should be none.
        while at < data {
            let count = (data - at).min(COPY_SUMS as u64) as usize;
            let sums = &mut sums[..count * 4];
            self.image.read_sums(at, sums).map_err(DeviceError::Io)?;
            if let Some(index) = (0..count).find(|index| sum_at(sums, *index) != 0) {
                return Ok(at + index as u64);
            }
            at += count as u64;
        }
        Ok(data)
    }

    /// Looks again at a block that did not match, with the applier still, and mends it.
    fn scrub_block(&self, block: u64, found: &mut ScrubStep) -> Result<(), DeviceError> {
        let mut applier = lock(&self.applier);
        match self.look_at(block)? {
            None => return Ok(()),
            Some(SUM_MISSING) => {
                match self.bring(&mut applier, std::iter::once(block)) {
                    Ok(_) if self.look_at(block)?.is_some() => found.bad.push(block),
                    Ok(_) => found.repaired += 1,
                    Err(ApplyError::Missing { .. }) => found.missing += 1,
                    Err(error) => return Err(error.into()),
                }
                return Ok(());
            }
            Some(_) => (),
        }
        let mut bytes = [0; BLOCK];
        match self.fetch(block, self.applied(), &mut bytes) {
            Ok(()) => {
                self.write_repaired(&mut applier, block, &mut bytes)?;
                found.repaired += 1;
            }
            // A stage that has all of it is about to write it anew.
            Err(_) if self.is_to_be_written(block) => (),
            Err(_) => {
                self.note_bad(block);
                found.bad.push(block);
            }
        }
        Ok(())
    }

    fn is_to_be_written(&self, block: u64) -> bool {
        let overlay = lock(&self.stages).overlay(block, FULL);
        overlay.mask == FULL
    }

    /// A step of restoring: takes blocks that are missing, from `from` on, from the data lender. When `next`
    /// is the volume's number of blocks, all of it is here, durably, and nobody needs to ask again; unless a
    /// step left some out, and [`Disk::is_restoring`] says so: then once more from the first.
    pub fn copy_step(&self, from: u64) -> Result<CopyStep, DeviceError> {
        let blocks = self.block_count();
        if !self.missing.load(Ordering::Acquire) {
            return Ok(CopyStep {
                next: blocks,
                blocks: 0,
                lost: Vec::new(),
            });
        }
        let looked_at = blocks.min(from.saturating_add(COPY_SUMS as u64));
        // Without a lock: answers may take their time.
        let fetched = self.fetch_runs(from, looked_at)?;
        let next = fetched.next;
        let mut applier = lock(&self.applier);
        let mut brought = Vec::with_capacity(fetched.blocks.len());
        for (block, bytes) in &fetched.blocks {
            if self.look_at(*block)? == Some(SUM_MISSING) {
                self.image
                    .write_blocks(*block, &bytes[..])
                    .map_err(DeviceError::Io)?;
                brought.push((*block, sum(*block, &bytes[..])));
            }
        }
        let copied = brought.len() as u64;
        let mut lost = Vec::new();
        for block in fetched.lost {
            // It may have been written meanwhile.
            if self.look_at(block)? == Some(SUM_MISSING) {
                brought.push(self.mark_lost(block));
                lost.push(block);
            }
        }
        self.name_brought(&mut applier, &brought)?;
        if next >= blocks {
            self.finish_copying(&mut applier)?;
        }
        Ok(CopyStep {
            next,
            blocks: copied,
            lost,
        })
    }

    /// Missing blocks from `from` up to `behind`, about [`COPY_BLOCKS`] of them. What has come is kept when
    /// the data lender goes.
    fn fetch_runs(&self, from: u64, behind: u64) -> Result<FetchedBlocks, DeviceError> {
        let mut fetched = FetchedBlocks {
            next: from,
            ..FetchedBlocks::default()
        };
        let mut buffer = vec![0; FETCH_BLOCKS * BLOCK];
        // Below this blocks are asked for one by one: one of the run is damaged, and the others are to come.
        let mut singly = from;
        while fetched.blocks.len() + fetched.lost.len() < COPY_BLOCKS {
            let Some((first, end)) = self.next_missing(fetched.next, behind)? else {
                fetched.next = behind;
                break;
            };
            let end = if first < singly { first + 1 } else { end };
            let bytes = &mut buffer[..(end - first) as usize * BLOCK];
            match self.fetch_missing(first, bytes) {
                Ok(()) => {
                    let blocks = bytes.as_chunks::<BLOCK>().0;
                    let blocks = blocks.iter().map(|block| BlockBytes::new(*block));
                    fetched.blocks.extend((first..end).zip(blocks));
                }
                Err(FetchError::Damaged) if end - first > 1 => {
                    singly = end;
                    continue;
                }
                Err(FetchError::Damaged) => fetched.lost.push(first),
                Err(FetchError::Unreachable) if fetched.next == from => {
                    return Err(DeviceError::Missing { block: first });
                }
                Err(FetchError::Unreachable) => break,
            }
            fetched.next = end;
        }
        Ok(fetched)
    }

    /// The first run of missing blocks from `from` up to `behind`, of those that a step looks at.
    fn next_missing(&self, from: u64, behind: u64) -> Result<Option<(u64, u64)>, DeviceError> {
        let count = behind.saturating_sub(from).min(COPY_SUMS as u64) as usize;
        let mut sums = vec![0; count * 4];
        self.image.read_sums(from, &mut sums).map_err(DeviceError::Io)?;
        let missing = |index: &usize| sum_at(&sums, *index) == SUM_MISSING;
        let Some(first) = (0..count).find(missing) else {
            return Ok(None);
        };
        let most = count.min(first + FETCH_BLOCKS);
        let end = (first..most).find(|index| !missing(index)).unwrap_or(most);
        Ok(Some((from + first as u64, from + end as u64)))
    }

    /// Nothing is missing any more; unless something is, that the steps left out.
    fn finish_copying(&self, applier: &mut StageApplier) -> Result<(), DeviceError> {
        if let Some(error) = applier.unnamed {
            return Err(error.into());
        }
        let blocks = self.block_count();
        let mut from = 0;
        while from < blocks {
            if self.next_missing(from, blocks)?.is_some() {
                return Ok(());
            }
            from += COPY_SUMS as u64;
        }
        self.sync_files(applier)?;
        self.change_superblock(|superblock| superblock.missing = None)?;
        self.missing.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether blocks may be only at the data lender.
    pub fn is_restoring(&self) -> bool {
        self.missing.load(Ordering::Acquire)
    }
}
