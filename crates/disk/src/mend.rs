//! Blocks from the other copy: mending what the image lost, and restoring a volume that has nothing yet.
//!
//! What is fetched is at least as new as what the image had when it was asked for, and never newer than the journal's
//! stable end. It may be written under the stages that are not applied yet, for they are put over it; so may the records
//! that a recovery would apply again. It must not be written when the image has got further meanwhile.

use std::sync::atomic::Ordering;

use netram_proto::id::Lsn;
use netram_proto::port::Log;

use crate::apply::Applier;
use crate::disk::Disk;
use crate::error::{ApplyError, DeviceError};
use crate::fetch::{Fetch, FetchError};
use crate::image::{SUM_MISSING, Sparse, matches, sum, sum_at};
use crate::limit::{BAD_BLOCKS_MAX, COPY_SUMS, FETCH_BLOCKS, FETCH_TURNS, READ_BLOCKS};
use crate::stage::{BLOCK, FULL, Layer, copy_sectors};
use crate::stats::add;
use crate::sync::lock;

/// What a part of a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Blocks that were read and compared.
    pub blocks: u64,
    /// Blocks that were damaged or missing and are taken from the data lender now.
    pub mended: u64,
    /// Blocks that are damaged, and that nobody else gave.
    pub bad: Vec<u64>,
    /// Blocks that only the data lender has, and that did not come.
    pub missing: u64,
}

/// How far a restoring volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The block to go on with; as many as the volume has: nothing is missing any more.
    pub next: u64,
    /// Blocks that were copied by this step.
    pub blocks: u64,
}

impl<L: Log, F: Sparse, C: Fetch> Disk<L, F, C> {
    /// Blocks of the other copy, as they are there once it has everything below `at_least`.
    pub(crate) fn fetch(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        if !self.copy.exists() {
            return Err(FetchError::Away);
        }
        let fetched = match self.is_clean(first, into.len() / BLOCK) {
            true => self.copy.fetch(first, at_least, into),
            // The copy has not been sent what was written here.
            false => Err(FetchError::Damaged),
        };
        if fetched.is_err() {
            add(&self.counters.fetch_failures, 1);
        }
        fetched
    }

    fn is_clean(&self, first: u64, count: usize) -> bool {
        let dirty = lock(&self.dirty);
        let Some(map) = &*dirty else { return true };
        (first..first + count as u64).all(|block| map.is_dirty(block) == Ok(false))
    }

    /// Writes a fetched block to the image, if that did not get it meanwhile.
    pub(crate) fn mend(&self, block: u64, at_least: Lsn, bytes: &[u8]) -> Result<(), ApplyError> {
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
        self.write_mended(&mut applier, block, &mut newest)
    }

    /// Writes blocks from `first` on, each only where the image does not have what its checksum says.
    fn write_mended(&self, applier: &mut Applier, first: u64, bytes: &mut [u8]) -> Result<(), ApplyError> {
        for (index, bytes) in bytes.chunks_exact_mut(BLOCK).enumerate() {
            let block = first + index as u64;
            let (mut found, mut stored) = ([0; BLOCK], [0; 4]);
            self.image
                .read_sums(block, &mut stored)
                .map_err(crate::apply::of_image)?;
            self.image
                .read(block, &mut found)
                .map_err(crate::apply::of_image)?;
            let stored = sum_at(&stored, 0);
            if matches(block, &found, stored) {
                continue;
            }
            if applier.is_under_way() {
                // Its stage may have been past this block, and will be forgotten.
                match lock(&self.stages).oldest().map(|stage| stage.layer(block)) {
                    Some(Layer::Held(held)) => copy_sectors(held.mask, &held.bytes, bytes),
                    Some(Layer::Zeros) => bytes.fill(0),
                    Some(Layer::Absent) | None => (),
                }
            }
            applier.put = true;
            let _writing = lock(&self.writing);
            let sum = sum(block, bytes).to_le_bytes();
            self.image
                .write(block, &sum, bytes)
                .map_err(crate::apply::of_image)?;
            let counter = match stored {
                SUM_MISSING => &self.counters.copied,
                _ => &self.counters.mended,
            };
            add(counter, 1);
        }
        Ok(())
    }

    /// Remembers a block that nobody here has.
    pub(crate) fn note_bad(&self, block: u64) {
        let mut bad = lock(&self.bad);
        if bad.len() < BAD_BLOCKS_MAX {
            bad.insert(block);
        }
    }

    /// Blocks that were found damaged since the last call: a data lender tells its writer, who sends them again.
    pub fn take_bad_blocks(&self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.bad)).into_iter().collect()
    }

    /// Compares `count` blocks from `first` on with their checksums, whether stages lie over them or not, and mends those
    /// that the data lender has.
    pub fn scrub(&self, first: u64, count: u64) -> Result<Scrubbed, DeviceError> {
        let behind = first.saturating_add(count).min(self.block_count());
        let mut found = Scrubbed::default();
        let (mut blocks, mut sums) = (vec![0; READ_BLOCKS * BLOCK], [0; READ_BLOCKS * 4]);
        let mut at = first;
        while at < behind {
            let data = self.next_written(at, behind)?;
            let count = (behind - data).min(READ_BLOCKS as u64) as usize;
            let (blocks, sums) = (&mut blocks[..count * BLOCK], &mut sums[..count * 4]);
            self.image.read_sums(data, sums).map_err(DeviceError::Io)?;
            self.image.read(data, blocks).map_err(DeviceError::Io)?;
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
    fn scrub_block(&self, block: u64, found: &mut Scrubbed) -> Result<(), DeviceError> {
        let mut applier = lock(&self.applier);
        let (mut bytes, mut stored) = ([0; BLOCK], [0; 4]);
        self.image
            .read_sums(block, &mut stored)
            .map_err(DeviceError::Io)?;
        self.image.read(block, &mut bytes).map_err(DeviceError::Io)?;
        let stored = sum_at(&stored, 0);
        if matches(block, &bytes, stored) {
            return Ok(());
        }
        match self.fetch(block, self.applied(), &mut bytes) {
            Ok(()) => {
                self.write_mended(&mut applier, block, &mut bytes)?;
                found.mended += 1;
            }
            Err(FetchError::Away) if stored == SUM_MISSING => found.missing += 1,
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

    /// A step of restoring: takes blocks that are missing, from `from` on, from the data lender. When `next` is the volume's
    /// number of blocks, all of it is here, durably, and nobody needs to ask again.
    pub fn copy_step(&self, from: u64) -> Result<Copied, DeviceError> {
        let blocks = self.block_count();
        if !self.missing.load(Ordering::Acquire) {
            return Ok(Copied {
                next: blocks,
                blocks: 0,
            });
        }
        let Some((first, behind)) = self.next_missing(from, blocks)? else {
            if from + (COPY_SUMS as u64) < blocks {
                let next = from + COPY_SUMS as u64;
                return Ok(Copied { next, blocks: 0 });
            }
            self.finish_copying()?;
            return Ok(Copied {
                next: blocks,
                blocks: 0,
            });
        };
        let mut bytes = vec![0; (behind - first) as usize * BLOCK];
        // Without a lock: an answer may take its time.
        let at_least = self.applied();
        self.fetch(first, at_least, &mut bytes)
            .map_err(|error| match error {
                FetchError::Away => DeviceError::Missing { block: first },
                FetchError::Damaged => DeviceError::Corrupt { block: first },
            })?;
        let mut applier = lock(&self.applier);
        if at_least != self.applied() {
            // Overtaken: once more.
            return Ok(Copied {
                next: first,
                blocks: 0,
            });
        }
        self.write_mended(&mut applier, first, &mut bytes)?;
        Ok(Copied {
            next: behind,
            blocks: behind - first,
        })
    }

    /// The first run of missing blocks from `from` on, of those that a step looks at.
    fn next_missing(&self, from: u64, blocks: u64) -> Result<Option<(u64, u64)>, DeviceError> {
        let count = blocks.saturating_sub(from).min(COPY_SUMS as u64) as usize;
        let mut sums = vec![0; count * 4];
        self.image.read_sums(from, &mut sums).map_err(DeviceError::Io)?;
        let missing = |index: &usize| sum_at(&sums, *index) == SUM_MISSING;
        let Some(first) = (0..count).find(missing) else {
            return Ok(None);
        };
        let most = count.min(first + FETCH_BLOCKS);
        let behind = (first..most).find(|index| !missing(index)).unwrap_or(most);
        Ok(Some((from + first as u64, from + behind as u64)))
    }

    fn finish_copying(&self) -> Result<(), DeviceError> {
        let mut applier = lock(&self.applier);
        self.sync_put(&mut applier)?;
        self.change_superblock(|superblock| superblock.missing = false)?;
        self.missing.store(false, Ordering::Release);
        Ok(())
    }

    /// Whether blocks may be only at the data lender.
    pub fn is_restoring(&self) -> bool {
        self.missing.load(Ordering::Acquire)
    }
}
