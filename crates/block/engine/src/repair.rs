//! Repairing and restoring blocks of the image from another copy.
//!
//! A fetched block is at least as new as the image's was when it was requested, and never newer than the
//! journal's stable end. It may be written under stages that are not applied yet, because they go over it, as
//! do records that a recovery would apply again. It must not be written if the image has moved on since the
//! request.

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

/// Result of one part of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubStep {
    /// Number of blocks that were read and compared.
    pub blocks: u64,
    /// Number of damaged or missing blocks that were replaced from the data lender.
    pub repaired: u64,
    /// Numbers of damaged blocks that no copy could supply.
    pub bad: Vec<u64>,
    /// Number of blocks that only the data lender has, and that it did not send.
    pub missing: u64,
}

/// Progress of a volume being restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyStep {
    /// Number of the next block. If it equals the number of blocks, no block is missing, unless
    /// [`Disk::is_restoring`] is still true.
    pub next: u64,
    /// Number of blocks copied by this step.
    pub blocks: u64,
    /// Numbers of blocks that are damaged at the data lender. They stay unreadable until they are
    /// overwritten.
    pub lost: Vec<u64>,
}

/// Blocks that one step of a restore received from the data lender.
#[derive(Default)]
struct FetchedBlocks {
    blocks: Vec<(u64, BlockBytes)>,
    /// Numbers of blocks that are damaged there.
    lost: Vec<u64>,
    /// Every block below this number was requested.
    next: u64,
}

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// Fetches blocks of the other copy, as of a state that has everything below `at_least`.
    pub(crate) fn fetch(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        match self.is_clean(first) {
            true => self.ask(first, at_least, into),
            // The copy has not been sent the newest bytes of this block.
            false => {
                add(&self.counters.fetch_failures, 1);
                Err(FetchError::Damaged)
            }
        }
    }

    /// Fetches missing blocks. No record was ever applied to them here, even if a torn page of the map counts
    /// them as dirty. So any state of the copy since the restore will do.
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

    /// Fetches a block for a reader from the other copy, and repairs the image if it had the block before. A
    /// missing block is left to the restore, because storing it takes a sync.
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
        // The reader has its bytes even if they cannot be written.
        let _ = self.repair(block, at_least, into);
        Ok(())
    }

    fn is_clean(&self, block: u64) -> bool {
        let dirty = lock(&self.dirty);
        dirty.as_ref().is_none_or(|map| map.is_dirty(block) == Ok(false))
    }

    /// Writes a fetched block to the image, unless the image has got it in between.
    fn repair(&self, block: u64, at_least: Lsn, bytes: &[u8]) -> Result<(), ApplyError> {
        let mut applier = lock(&self.applier);
        let mut turn = 0;
        let (mut newest, mut fetched) = (bytes.to_vec(), at_least);
        while fetched != self.applied() {
            // The image has moved on, so the fetched block may be too old.
            turn += 1;
            fetched = self.applied();
            if turn > FETCH_TURNS || self.fetch(block, fetched, &mut newest).is_err() {
                return Ok(());
            }
        }
        self.write_repaired(&mut applier, block, &mut newest)
    }

    /// Writes a block that the image lost, durably, so that a stage can merge it like any other.
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
            // The stage may already have passed this block, and will be dropped.
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

    /// The block's stored checksum if the image does not match it.
    pub(crate) fn look_at(&self, block: u64) -> Result<Option<u32>, ApplyError> {
        let (mut bytes, mut stored) = ([0; BLOCK], [0; 4]);
        let read = self.image.read_with_sums(block, &mut stored, &mut bytes);
        read.map_err(of_image)?;
        let stored = sum_at(&stored, 0);
        Ok((!matches(block, &bytes, stored)).then_some(stored))
    }

    /// Fetches those of `blocks` that are missing into the image. Their checksums are written after the
    /// blocks are durable, so that after a crash a block is either missing or sound. Durable on return.
    /// Returns how many there were.
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

    /// Notes a block that is lost on both sides and stays unreadable until it is overwritten. Returns its
    /// number, and the checksum that marks it as damaged.
    fn mark_lost(&self, block: u64) -> (u64, u32) {
        self.note_bad(block);
        add(&self.counters.lost_blocks, 1);
        (block, damaged_sum(sum(block, &[0; BLOCK])))
    }

    /// Writes the checksums of blocks that were missing and have been written. Durable on return, because the
    /// data lender may change its copy of them afterwards.
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
            // The operating system reports a failed sync only once. The blocks are marked missing again, as
            // the disk may have them, and will be fetched again.
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

    /// Notes a block that is damaged here.
    pub(crate) fn note_bad(&self, block: u64) {
        let mut bad = lock(&self.bad);
        if bad.len() < BAD_BLOCKS_MAX {
            bad.insert(block);
        }
    }

    /// Blocks found damaged since the last call. A data lender reports them to the writer, which sends them
    /// again.
    pub fn take_bad_blocks(&self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.bad)).into_iter().collect()
    }

    /// Compares `count` blocks from `first` with their checksums, whether stages have them or not, and
    /// replaces damaged ones from the data lender.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if a file failed. Damaged blocks are no error.
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

    /// First block from `first` that has a checksum or bytes.
    fn next_written(&self, first: u64, behind: u64) -> Result<u64, DeviceError> {
        let data = self.image.next_data(first, behind).map_err(DeviceError::Io)?;
        let mut sums = vec![0; COPY_SUMS * 4];
        let mut at = first;
        // Where the image has a hole, a checksum may still show that there should be data.
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

    /// Checks a mismatching block again, with the applier stopped, and repairs it.
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
            // A stage that has the whole block is about to overwrite it.
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

    /// One step of a restore: fetches missing blocks from number `from`. Once `next` is the number of blocks,
    /// every block is here and durable. If steps left some out, [`Disk::is_restoring`] is still true, and the
    /// restore must go through all blocks again.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Missing`] if the data lender sent no block at all, others if a file failed.
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
        // Done without a lock, because answers may take long.
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
            // The block may have been written in between.
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

    /// Fetches about [`COPY_BLOCKS`] missing blocks from `from` up to `behind`. Blocks already received are
    /// kept if the data lender becomes unreachable.
    fn fetch_runs(&self, from: u64, behind: u64) -> Result<FetchedBlocks, DeviceError> {
        let mut fetched = FetchedBlocks {
            next: from,
            ..FetchedBlocks::default()
        };
        let mut buffer = vec![0; FETCH_BLOCKS * BLOCK];
        // Blocks below this number are requested one by one, because one of their run is damaged.
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

    /// First run of missing blocks from `from` up to `behind`, within the range of one step.
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

    /// Ends the restore if no block is missing any more.
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

    /// Whether some blocks may be only at the data lender.
    pub fn is_restoring(&self) -> bool {
        self.missing.load(Ordering::Acquire)
    }
}
