//! The writer's side of keeping a data lender's copy: what it has, what it must be sent, block by block.
//!
//! The data lender follows the journal. When the journal no longer reaches back to where it is, blocks are
//! sent instead: those of the dirty map, or all. In both cases the journal's records follow from
//! [`ResyncBegun::from`] on; blocks may be newer than that, for the records behind them come again. The copy
//! is consistent when it has followed to where the journal ended after the last block had been read.
//!
//! Blocks go behind the journal's disk, as records do: a write that this side may still lose is not sent.
//! Otherwise a resync that broke off would leave it at the copy, from where a block that is missing here
//! brings it back.

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

/// How the data lender's copy stands, as far as this side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// It has everything below, flushed, as it said last.
    pub flushed: Lsn,
    /// Bytes of journal that are in the image and kept for it.
    pub retained_bytes: u64,
    /// Blocks that it has to be sent because the journal no longer has their records.
    pub dirty_blocks: u64,
    /// See [`Disk::dirty_from`].
    pub dirty_from: Option<Lsn>,
}

/// A resync that began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncBegun {
    /// The copy's journal begins anew here, the head of this one.
    pub from: Lsn,
    /// Blocks that are to be looked at.
    pub blocks: u64,
    /// They are all there are.
    pub all: bool,
}

/// Blocks to be sent, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResyncRun {
    /// The first.
    pub first: u64,
    /// The one behind the last.
    pub end: u64,
    /// They are zeros, and take no space.
    pub hole: bool,
}

/// How the map gives the runs of one of its planes.
type NextRun<F> = fn(&DirtyMap<F>, u64, u64) -> Result<Option<(u64, u64)>, IoError>;

impl<L: RecordLog, F: SparseFile, C: BlockFetch> Disk<L, F, C> {
    /// The data lender's copy is whole, and has everything below `flushed` on its disk. To be told as that
    /// moves; not during a resync, for a copy that is not whole keeps nothing safe. Costs a store, and a
    /// lock; when blocks were marked that the copy has got by records, a few syncs.
    ///
    /// How many blocks are dirty all the same, so that only a resync brings them: those of one whose end was
    /// lost, or that one of the two lost. None while this side is being restored, which takes no resync.
    pub fn replica_flushed(&self, flushed: Lsn) -> u64 {
        if !self.has_replica {
            return 0;
        }
        self.flushed.store(flushed.0, Ordering::Release);
        let mut dirty = lock(&self.dirty);
        let Some(map) = &mut *dirty else { return 0 };
        // Marks that stay are sent for nothing, and the next call tries again.
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

    /// From where on the dirty map has every change up to the journal's head: a copy that was whole when its
    /// journal ended there, or later, needs the map's blocks and the journal. `None`: no copy does with that.
    /// Falls back to the head whenever the journal is trimmed of what the copy has.
    pub fn dirty_from(&self) -> Option<Lsn> {
        let dirty = lock(&self.dirty);
        let map = dirty.as_ref().filter(|map| !map.is_whole())?;
        Some(map.complete_from(self.log.state().head))
    }

    /// A resync begins, of a copy that was whole when its journal ended at `whole_at`; `None`: nothing is
    /// known of it, and every block is dirty. So it is when the map turns out to be incomplete for that copy:
    /// what [`Disk::dirty_from`] said may be over. Blocks that become dirty meanwhile stay so when it ends.
    /// Beginning again takes them in, and goes on with what is still dirty.
    pub fn begin_resync(&self, whole_at: Option<Lsn>) -> Result<ResyncBegun, DiskResyncError> {
        // Nothing is trimmed meanwhile.
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

    /// The journal gave up records while a resync was under way that its copy did not get, which has
    /// everything below `whole_at`: the copy's journal is to begin anew where this one does now. What was
    /// sent need not be sent again but for the blocks of those records ([`Disk::next_dirtied`]), about as
    /// many as the answer says. `None`: the map does not have them all.
    pub fn continue_resync(&self, whole_at: Lsn) -> Result<Option<ResyncBegun>, DiskResyncError> {
        // Nothing else is trimmed meanwhile.
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

    /// The next run of blocks from `from` on that the resync began with: at most `most` that are data, or
    /// more that are a hole. `None`: that was the last.
    pub fn next_resync(&self, from: u64, most: u64) -> Result<Option<ResyncRun>, DeviceError> {
        self.next_to_send(from, most, DirtyMap::next_sending)
    }

    /// The next blocks from `from` on, at most `most`, that became dirty since the resync under way last sent
    /// them, or began. They are to be sent now: what makes them dirty again is not in it.
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
            // What is missing was never written here: the copy has it, whatever a torn page of the map says.
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

    /// The first run of blocks from `first` up to `behind` that are not missing.
    fn first_here(&self, first: u64, behind: u64) -> Result<(u64, u64), DeviceError> {
        let mut sums = vec![0; (behind - first) as usize * 4];
        self.image.read_sums(first, &mut sums).map_err(DeviceError::Io)?;
        let missing = |at: &u64| sum_at(&sums, (at - first) as usize) == SUM_MISSING;
        let begin = (first..behind).find(|at| !missing(at)).unwrap_or(behind);
        let end = (begin..behind).find(missing).unwrap_or(behind);
        Ok((begin, end))
    }

    /// The blocks from `first` on, up to `behind`, that are data as the first is, or holes.
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

    /// The newest bytes of whole blocks from `first` on, as this side has them: nothing is fetched, so that a
    /// resync does not wait for itself. Returns when the journal's disk has them, so that no crash takes them
    /// from this side. What is damaged or missing is `Corrupt`.
    pub fn read_own(&self, first: u64, into: &mut [u8]) -> Result<(), DeviceError> {
        SectorSpan::check_request(first.saturating_mul(BLOCK_BYTES), into.len(), self.bytes())?;
        assert!(into.len().is_multiple_of(BLOCK), "blocks are whole");
        let mut at = first;
        for part in into.chunks_mut(READ_BLOCKS * BLOCK) {
            self.read_blocks(at, part, crate::stage::FULL, false)?;
            at += READ_BLOCKS as u64;
        }
        self.settle(first, first + (into.len() / BLOCK) as u64)
    }

    /// Waits until the journal's disk has what was read of the blocks from `first` up to `behind`. What has
    /// left the stages since is in the image, so the disk has it.
    fn settle(&self, first: u64, behind: u64) -> Result<(), DeviceError> {
        let newest = lock(&self.stages).newest_end(first, behind);
        match newest.filter(|end| *end > self.log.state().stable) {
            Some(end) => self.wait_for(end, Durability::Disk),
            None => Ok(()),
        }
    }

    /// The copy is consistent: what the resync began with is no longer dirty. Durable on return.
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

    /// The data lender lost these blocks: the next resync sends them. Durable on return.
    pub fn mark_dirty(&self, blocks: &[u64]) -> Result<(), DiskResyncError> {
        let mut dirty = lock(&self.dirty);
        let map = dirty.as_mut().ok_or(DiskResyncError::NoMap)?;
        let mut runs = Vec::new();
        for block in blocks.iter().copied().filter(|block| *block < self.block_count()) {
            // What is missing here too is lost, and must not look as if this side had it.
            if self.stored_sum(block)? != SUM_MISSING {
                runs.push((block, block + 1));
            }
        }
        Ok(of_dirty(map.mark_lost(&mut runs))?)
    }
}

/// Bytes of a block's digest.
pub const DIGEST_BYTES: usize = 16;

/// What two copies of a block are compared by before it is sent; zeros for a block of zeros, and for no
/// other. Not against malice: whoever keeps the copy is trusted with it.
///
/// Unlike a CRC it is not linear: that two blocks differ by little does not make their digests alike. About
/// 600 ns.
pub fn digest(block: &[u8]) -> [u8; DIGEST_BYTES] {
    assert_eq!(block.len(), BLOCK, "blocks are whole");
    let mut digest = [0; DIGEST_BYTES];
    if block.iter().all(|byte| *byte == 0) {
        return digest;
    }
    let (front, back) = digest.split_at_mut(8);
    front.copy_from_slice(&(mix(block, MULTIPLIERS[0]).max(1)).to_le_bytes());
    back.copy_from_slice(&mix(block, MULTIPLIERS[1]).to_le_bytes());
    digest
}

/// Odd, with about as many ones as zeros.
const MULTIPLIERS: [u64; 4] = [
    0x9e37_79b9_7f4a_7c15,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0xd6e8_feb8_6659_fd93,
];

/// 64 bits of a block: four lanes of folded products.
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

/// Both halves of a product in one word.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn digests_of_blocks_that_differ_by_little_differ_by_much() {
        let mut blocks = vec![vec![0; 4096]];
        for bit in 0..4096 * 8 {
            let mut block = vec![0; 4096];
            block[bit / 8] ^= 1 << (bit % 8);
            blocks.push(block);
        }
        // Sectors that changed places.
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
