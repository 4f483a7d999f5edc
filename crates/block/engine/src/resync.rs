//! The writer's side of a data lender's copy: what the copy has, and which blocks it must be sent.
//!
//! The data lender follows the journal. If the journal no longer reaches back far enough, blocks are sent
//! instead: those in the dirty map, or all. In both cases the journal's records from [`ResyncBegun::from`]
//! follow. Blocks may be newer than that LSN, because the records behind it come again. The copy is
//! consistent once it has followed to the journal's end as of the last block read.
//!
//! A block is sent only after the journal's disk has its records: a write that this side may still lose is
//! not sent. Otherwise an interrupted resync would leave such a write at the copy, and a block missing here
//! would bring it back.

use std::sync::atomic::Ordering;

use netram_proto::id::Lsn;
use netram_proto::port::{Durability, IoError, RecordLog};

use crate::device::{BLOCK_BYTES, SectorSpan};
use crate::dirty::DirtyMap;
use crate::disk::Disk;
use crate::error::{ApplyError, DeviceError, DiskResyncError, FileKind};
use crate::fetch::BlockFetch;
use crate::image::{SUM_MISSING, SparseFile, sum_at};
use crate::limit::{EXTENT_BLOCKS, READ_BLOCKS};
use crate::stage::BLOCK;
use crate::sync::lock;
use crate::trim::of_dirty;

/// Status of the data lender's copy, as far as this side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// LSN below which the copy has every record, flushed, as last reported.
    pub flushed: Lsn,
    /// Bytes of journal that are in the image and kept for the copy.
    pub retained_bytes: u64,
    /// Number of blocks that the copy must be sent because the journal no longer has their records.
    pub dirty_blocks: u64,
    /// See [`Disk::dirty_from`].
    pub dirty_from: Option<Lsn>,
}

/// A resync that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncBegun {
    /// Where the copy's journal begins anew; the head of this one.
    pub from: Lsn,
    /// Number of blocks to examine.
    pub blocks: u64,
    /// Whether these are all blocks of the volume.
    pub all: bool,
}

/// A run of blocks to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncRun {
    /// Number of the first block.
    pub first: u64,
    /// Number of the block behind the last.
    pub end: u64,
    /// Whether they are zeros without disk space.
    pub hole: bool,
}

/// Method of the map that returns the runs of one of its planes.
type NextRun<F> = fn(&DirtyMap<F>, u64, u64) -> Result<Option<(u64, u64)>, IoError>;

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// The data lender's copy is whole and has everything below `flushed` on its disk. Call this whenever
    /// `flushed` advances, but not during a resync: a copy that is not whole protects nothing. Costs an
    /// atomic store and a lock, plus a few syncs if marks can be cleared.
    ///
    /// Returns the number of blocks that only a resync will bring, because the end of one was lost or one
    /// side lost the blocks. Zero while this side is being restored, when no resync is possible.
    pub fn replica_flushed(&self, flushed: Lsn) -> u64 {
        if !self.has_replica {
            return 0;
        }
        self.flushed.store(flushed.0, Ordering::Release);
        let mut dirty = lock(&self.dirty);
        let Some(map) = &mut *dirty else { return 0 };
        // If clearing the marks fails, they cause needless sends, and the next call tries again.
        let _ = map.on_copy_flushed(flushed);
        match self.missing.load(Ordering::Acquire) {
            true => 0,
            false => map.left(flushed, self.block_count()),
        }
    }

    pub(crate) fn replica_status(&self) -> Option<ReplicaStatus> {
        let head = self.log.state().head;
        let dirty = lock(&self.dirty);
        dirty.as_ref().map(|map| ReplicaStatus {
            flushed: Lsn(self.flushed.load(Ordering::Acquire)),
            retained_bytes: self.applied().0.saturating_sub(head.0),
            dirty_blocks: map.count(self.block_count()),
            dirty_from: (!map.is_whole()).then(|| map.complete_from(head)),
        })
    }

    pub(crate) fn block_count(&self) -> u64 {
        self.bytes() / BLOCK_BYTES
    }

    /// LSN from which on the dirty map has every change up to the journal's head. A copy that was whole when
    /// its journal ended there, or later, needs only the map's blocks and the journal. `None`: every copy
    /// needs all blocks. Moves up to the head whenever the journal is trimmed of records that the copy has.
    pub fn dirty_from(&self) -> Option<Lsn> {
        let dirty = lock(&self.dirty);
        let map = dirty.as_ref().filter(|map| !map.is_whole())?;
        Some(map.complete_from(self.log.state().head))
    }

    /// Begins a resync of a copy that was whole when its journal ended at `whole_at`. `None`: the copy's
    /// state is unknown, so every block is dirty. The same holds if the map is incomplete for that copy,
    /// since [`Disk::dirty_from`] may have moved. Blocks that become dirty during the resync stay dirty when
    /// it ends. Beginning again adds them, and continues with those that are still dirty.
    ///
    /// # Errors
    ///
    /// [`DiskResyncError`] without a dirty map, during a restore, or if a file failed.
    pub fn begin_resync(&self, whole_at: Option<Lsn>) -> Result<ResyncBegun, DiskResyncError> {
        // The applier's lock prevents trimming.
        let _applier = lock(&self.applier);
        let mut dirty = lock(&self.dirty);
        let map = dirty.as_mut().ok_or(DiskResyncError::NoMap)?;
        let head = self.log.state().head;
        let known = |at: Lsn| !map.is_whole() && map.complete_from(head) <= at;
        let all = !whole_at.is_some_and(known);
        if all && self.missing.load(Ordering::Acquire) {
            return Err(DiskResyncError::Restoring);
        }
        of_dirty(map.begin(all, head))?;
        self.flushed.store(head.0, Ordering::Release);
        Ok(ResyncBegun {
            from: head,
            blocks: map.count(self.block_count()),
            all,
        })
    }

    /// During the current resync the journal lost records that the copy, which has everything below
    /// `whole_at`, did not get. The copy's journal must begin anew at the present head. Blocks already sent
    /// stay valid except those of the lost records ([`Disk::next_dirtied`]), whose approximate number is
    /// returned. `None`: the map is incomplete.
    ///
    /// # Errors
    ///
    /// [`DiskResyncError`] without a dirty map, or if a file or the journal failed.
    pub fn continue_resync(&self, whole_at: Lsn) -> Result<Option<ResyncBegun>, DiskResyncError> {
        // The applier's lock prevents any other trimming.
        let mut applier = lock(&self.applier);
        self.give_up_ahead(&mut applier.retained)?;
        let mut dirty = lock(&self.dirty);
        let map = dirty.as_mut().ok_or(DiskResyncError::NoMap)?;
        let from = self.log.state().head;
        let marked = of_dirty(map.go_on(whole_at, from))?;
        Ok(marked.map(|blocks| ResyncBegun {
            from,
            blocks,
            all: false,
        }))
    }

    /// Next run of the resync's blocks from `from`: at most `most` blocks of data, or a hole of any length.
    /// `None`: there are no more.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if the map or the image cannot be read, or the wait for the disk failed.
    pub fn next_resync(&self, from: u64, most: u64) -> Result<Option<ResyncRun>, DeviceError> {
        self.next_to_send(from, most, DirtyMap::next_sending)
    }

    /// Next run, at most `most` blocks from `from`, that became dirty since the current resync last sent them
    /// or began. They must be sent now: later changes are not included.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] if the map or the image fails, or the wait for the disk failed.
    pub fn next_dirtied(&self, from: u64, most: u64) -> Result<Option<ResyncRun>, DeviceError> {
        let Some(mut run) = self.next_to_send(from, most, DirtyMap::next_marked)? else {
            return Ok(None);
        };
        run.end = run.end.min(run.first + most);
        if let Some(map) = &mut *lock(&self.dirty) {
            map.send(run.first, run.end).map_err(DeviceError::Io)?;
        }
        Ok(Some(run))
    }

    fn next_to_send(&self, from: u64, most: u64, next: NextRun<F>) -> Result<Option<ResyncRun>, DeviceError> {
        let mut from = from;
        loop {
            let blocks = self.block_count();
            let next = lock(&self.dirty).as_ref().map(|map| next(map, from, blocks));
            let Some((first, behind)) = next.transpose().map_err(DeviceError::Io)?.flatten() else {
                return Ok(None);
            };
            let behind = behind.min(first + EXTENT_BLOCKS as u64);
            // A missing block was never written here. The copy has it, even if a torn page of the map counts
            // it as dirty.
            let (first, behind) = match self.missing.load(Ordering::Acquire) {
                true => self.first_here(first, behind)?,
                false => (first, behind),
            };
            if first < behind {
                let run = self.run_at(first, behind, most)?;
                if run.hole {
                    self.settle(run.first, run.end)?;
                }
                return Ok(Some(run));
            }
            from = behind;
        }
    }

    /// First run of blocks from `first` up to `behind` that are not missing.
    fn first_here(&self, first: u64, behind: u64) -> Result<(u64, u64), DeviceError> {
        let mut sums = vec![0; (behind - first) as usize * 4];
        self.image.read_sums(first, &mut sums).map_err(DeviceError::Io)?;
        let missing = |at: &u64| sum_at(&sums, (at - first) as usize) == SUM_MISSING;
        let begin = (first..behind).find(|at| !missing(at)).unwrap_or(behind);
        let end = (begin..behind).find(missing).unwrap_or(behind);
        Ok((begin, end))
    }

    /// The run of blocks from `first`, up to `behind`, that are all data or all holes.
    fn run_at(&self, first: u64, behind: u64, most: u64) -> Result<ResyncRun, DeviceError> {
        let mut run = None;
        let mut each = |length: u64, hole: bool| {
            run = Some((length / BLOCK_BYTES, hole));
            false
        };
        self.extents(first * BLOCK_BYTES, (behind - first) * BLOCK_BYTES, &mut each)?;
        let (count, hole) = run.unwrap_or((behind - first, false));
        let count = if hole { count } else { count.min(most) };
        let behind = first + count;
        Ok(ResyncRun {
            first,
            end: behind,
            hole,
        })
    }

    /// Reads the newest bytes of whole blocks from `first` as this side has them. Nothing is fetched, so that
    /// a resync does not wait for itself. Returns only after the journal's disk has the records, so that no
    /// crash can take these bytes from this side.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Corrupt`] for a damaged or missing block, others if the range or a file is bad.
    pub fn read_own(&self, first: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        SectorSpan::check_request(first.saturating_mul(BLOCK_BYTES), into.len(), self.bytes())?;
        assert!(
            into.len().is_multiple_of(BLOCK),
            "the buffer must be whole blocks"
        );
        let mut at = first;
        for part in into.chunks_mut(READ_BLOCKS * BLOCK) {
            self.read_blocks(at, part, crate::stage::FULL, false)?;
            at += READ_BLOCKS as u64;
        }
        self.settle(first, first + (into.len() / BLOCK) as u64)
    }

    /// Waits until the journal's disk has the records read for blocks `first` up to `behind`. Records that
    /// have left the stages are in the image, so the disk has them.
    fn settle(&self, first: u64, behind: u64) -> Result<(), DeviceError> {
        let newest = lock(&self.stages).newest_end(first, behind);
        match newest.filter(|end| *end > self.log.state().stable) {
            Some(end) => self.wait_for(end, Durability::Disk),
            None => Ok(()),
        }
    }

    /// Ends the resync, because the copy is consistent: its blocks are no longer dirty. Durable on return.
    ///
    /// # Errors
    ///
    /// [`DiskResyncError`] without a dirty map, or if it cannot be written.
    pub fn finish_resync(&self) -> Result<(), DiskResyncError> {
        let mut dirty = lock(&self.dirty);
        let map = dirty.as_mut().ok_or(DiskResyncError::NoMap)?;
        Ok(of_dirty(map.finish())?)
    }

    fn stored_sum(&self, block: u64) -> Result<u32, ApplyError> {
        let mut sum = [0; 4];
        let file = FileKind::Sums;
        let read = self.image.read_sums(block, &mut sum);
        read.map_err(|cause| ApplyError::File { file, cause })?;
        Ok(sum_at(&sum, 0))
    }

    /// Marks blocks that the data lender lost, for the next resync. Durable on return.
    ///
    /// # Errors
    ///
    /// [`DiskResyncError`] without a dirty map, or if a file failed.
    pub fn mark_dirty(&self, blocks: &[u64]) -> Result<(), DiskResyncError> {
        let mut dirty = lock(&self.dirty);
        let map = dirty.as_mut().ok_or(DiskResyncError::NoMap)?;
        let mut runs = Vec::new();
        for block in blocks.iter().copied().filter(|block| *block < self.block_count()) {
            // A block that is missing here too is lost, and must not seem to exist on this side.
            if self.stored_sum(block)? != SUM_MISSING {
                runs.push((block, block + 1));
            }
        }
        Ok(of_dirty(map.mark_lost(&mut runs))?)
    }
}

/// Bytes of a block digest.
pub const DIGEST_BYTES: usize = 16;

/// Digest with which two copies of a block are compared before it is sent; all zeros only for a block of
/// zeros. Not safe against malice: the data lender is trusted with the contents.
///
/// Unlike a CRC it is not linear: similar blocks do not have similar digests. About 600 ns.
pub fn digest(block: &[u8]) -> [u8; DIGEST_BYTES] {
    assert_eq!(block.len(), BLOCK, "a digest is of one whole block");
    let mut digest = [0; DIGEST_BYTES];
    if block.iter().all(|byte| *byte == 0) {
        return digest;
    }
    let (front, back) = digest.split_at_mut(8);
    front.copy_from_slice(&(mix(block, MULTIPLIERS[0]).max(1)).to_le_bytes());
    back.copy_from_slice(&mix(block, MULTIPLIERS[1]).to_le_bytes());
    digest
}

/// Odd numbers with about as many ones as zeros.
const MULTIPLIERS: [u64; 4] = [
    0x9e37_79b9_7f4a_7c15,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0xd6e8_feb8_6659_fd93,
];

/// 64 bits of a block's digest, from four lanes of folded products.
fn mix(block: &[u8], seed: u64) -> u64 {
    let mut lanes = MULTIPLIERS.map(|multiplier| multiplier ^ seed.rotate_left(32));
    for chunk in block.as_chunks::<64>().0 {
        let (words, _) = chunk.as_chunks::<8>();
        for (index, lane) in lanes.iter_mut().enumerate() {
            let (a, b) = (
                u64::from_le_bytes(words[2 * index]),
                u64::from_le_bytes(words[2 * index + 1]),
            );
            *lane = fold(a ^ *lane, b ^ seed).wrapping_add(lane.rotate_left(29));
        }
    }
    lanes
        .into_iter()
        .fold(seed, |all, lane| fold(all ^ lane, MULTIPLIERS[3]) ^ lane)
}

/// Xor of both halves of a product.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn similar_blocks_have_very_different_digests() {
        let mut blocks = vec![vec![0; 4096]];
        for bit in 0..4096 * 8 {
            let mut block = vec![0; 4096];
            block[bit / 8] ^= 1 << (bit % 8);
            blocks.push(block);
        }
        // Sectors that were swapped.
        for shift in 1..8 {
            let mut block: Vec<u8> = (0..4096u32).map(|at| (at / 512) as u8 + 1).collect();
            block.rotate_left(shift * 512);
            blocks.push(block);
        }
        let digests: Vec<_> = blocks.iter().map(|block| digest(block)).collect();
        for half in 0..2 {
            let halves: BTreeSet<_> = digests.iter().map(|digest| &digest[half * 8..][..8]).collect();
            assert_eq!(halves.len(), blocks.len());
        }
        assert_eq!(digests[0], [0; DIGEST_BYTES]);
        let ones = |digest: &[u8; DIGEST_BYTES]| digest.iter().map(|byte| byte.count_ones()).sum::<u32>();
        let mean = digests[1..].iter().map(ones).sum::<u32>() as usize / (digests.len() - 1);
        assert!((60..68).contains(&mean), "{mean} of 128 bits");
    }
}
