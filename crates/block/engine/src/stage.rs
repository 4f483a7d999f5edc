//! A stage: a run of writes, merged by sector, that is applied to the image and flushed as one unit.
//!
//! A block holds the newest bytes of the sectors in its mask. Whole blocks of zeros are kept as ranges, so
//! that discarding a whole volume costs one range. A block inside such a range has a full mask: sectors not
//! written since are zeros.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use netram_proto::id::Lsn;

use crate::device::{BLOCK_BYTES, SECTOR_BYTES};
use crate::limit::BLOCK_SECTORS;
use crate::record::VolumeChange;

/// Bytes of a block, as a length.
pub(crate) const BLOCK: usize = BLOCK_BYTES as usize;
const SECTOR: usize = SECTOR_BYTES as usize;
/// Mask of a block that needs no sector from older stages or the image.
pub(crate) const FULL: u8 = u8::MAX;

/// Bytes of a block. Shared with readers while they copy it.
pub(crate) type BlockBytes = Arc<[u8; BLOCK]>;

/// Buffers of ended stages for reuse: in steady state a write allocates none.
#[derive(Debug, Default)]
pub(crate) struct BlockPool {
    free: Vec<BlockBytes>,
    max: usize,
}

impl BlockPool {
    /// Creates a pool that keeps at most `bytes`.
    pub(crate) fn new(bytes: u64) -> BlockPool {
        BlockPool {
            free: Vec::new(),
            max: (bytes / BLOCK_BYTES) as usize,
        }
    }

    pub(crate) fn take(&mut self) -> BlockBytes {
        self.free.pop().unwrap_or_else(|| Arc::new([0; BLOCK]))
    }

    pub(crate) fn give(&mut self, mut bytes: BlockBytes) {
        // A buffer that a reader still copies from is left to that reader.
        if self.free.len() < self.max && Arc::get_mut(&mut bytes).is_some() {
            self.free.push(bytes);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.free.len() as u64 * BLOCK_BYTES
    }
}

/// Newest sectors of a block.
#[derive(Clone, Debug)]
pub(crate) struct StagedBlock {
    pub(crate) mask: u8,
    pub(crate) bytes: BlockBytes,
}

/// Contents of a block in one stage.
#[derive(Debug)]
pub(crate) enum StageLayer<'a> {
    /// The stage has no sector of the block.
    Absent,
    /// The block is zeros.
    Zeros,
    /// The stage has some or all of its sectors.
    Sectors(&'a StagedBlock),
}

/// A run of merged writes.
#[derive(Debug, Default)]
pub(crate) struct WriteStage {
    blocks: BTreeMap<u64, StagedBlock>,
    /// Whole blocks of zeros: first block, and the one behind the last. Ranges neither overlap nor touch.
    zeros: BTreeMap<u64, u64>,
    /// Start of the first record and end of the last one in the journal. Equal while the stage is empty.
    start: Lsn,
    end: Lsn,
}

impl WriteStage {
    /// Creates an empty stage behind the record that ends at `start`.
    pub(crate) fn new(start: Lsn) -> WriteStage {
        WriteStage {
            start,
            end: start,
            ..WriteStage::default()
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    pub(crate) fn start(&self) -> Lsn {
        self.start
    }

    pub(crate) fn end(&self) -> Lsn {
        self.end
    }

    /// Bytes of journal that cannot be reused because of this stage.
    pub(crate) fn logged_bytes(&self) -> u64 {
        self.end.since(self.start)
    }

    /// Bytes of memory of the stage's blocks.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.blocks.len() as u64 * BLOCK_BYTES
    }

    pub(crate) fn block_count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// The journal has no record for a volume up to `end`. An empty stage then begins there.
    pub(crate) fn pass(&mut self, end: Lsn) {
        if self.is_empty() {
            self.start = self.start.max(end);
        }
        self.end = self.end.max(end);
    }

    /// Adds the journal's next record, which ends at `end`.
    pub(crate) fn take(&mut self, end: Lsn, change: &VolumeChange<'_>, pool: &mut BlockPool) {
        assert!(end > self.end, "records are added in the journal's order");
        self.end = end;
        match change {
            VolumeChange::Write { span, data } => {
                self.put(span.offset(), Some(data), data.len() as u64, pool)
            }
            VolumeChange::Zero(span) => self.clear(span.offset(), span.end(), pool),
        }
    }

    /// Adds zeros from `start` to `end`: whole blocks as a range, the sectors around them as bytes.
    fn clear(&mut self, start: u64, end: u64, pool: &mut BlockPool) {
        let first = start.div_ceil(BLOCK_BYTES);
        let behind = end / BLOCK_BYTES;
        if first >= behind {
            return self.put(start, None, end - start, pool);
        }
        self.put(start, None, first * BLOCK_BYTES - start, pool);
        self.put(behind * BLOCK_BYTES, None, end - behind * BLOCK_BYTES, pool);
        for (_, held) in self.blocks.extract_if(first..behind, |_, _| true) {
            pool.give(held.bytes);
        }
        self.add_zeros(first, behind);
    }

    fn add_zeros(&mut self, mut first: u64, mut behind: u64) {
        // Merge with every range that touches, starting from the last one that begins at or before the new
        // end.
        while let Some((&from, &to)) = self.zeros.range(..=behind).next_back() {
            if to < first {
                break;
            }
            self.zeros.remove(&from);
            first = first.min(from);
            behind = behind.max(to);
        }
        self.zeros.insert(first, behind);
    }

    /// Writes `data`, or zeros, at `offset`, block by block.
    fn put(&mut self, offset: u64, data: Option<&[u8]>, length: u64, pool: &mut BlockPool) {
        let mut done = 0;
        while done < length {
            let block = (offset + done) / BLOCK_BYTES;
            let within = ((offset + done) % BLOCK_BYTES) as usize;
            let count = (BLOCK - within).min((length - done) as usize);
            let (held, on_zeros) = match self.blocks.entry(block) {
                Entry::Occupied(entry) => (entry.into_mut(), false),
                Entry::Vacant(entry) => {
                    let on_zeros = has_zeros(&self.zeros, block);
                    let bytes = pool.take();
                    (entry.insert(StagedBlock { mask: 0, bytes }), on_zeros)
                }
            };
            // A reader that still has these bytes keeps them unchanged.
            let bytes = Arc::make_mut(&mut held.bytes);
            if on_zeros {
                bytes.fill(0);
                held.mask = FULL;
            }
            let target = &mut bytes[within..within + count];
            match data {
                Some(data) => target.copy_from_slice(&data[done as usize..][..count]),
                None => target.fill(0),
            }
            held.mask |= mask_of(within, count);
            done += count as u64;
        }
    }

    pub(crate) fn layer(&self, block: u64) -> StageLayer<'_> {
        match self.blocks.get(&block) {
            Some(held) => StageLayer::Sectors(held),
            None if has_zeros(&self.zeros, block) => StageLayer::Zeros,
            None => StageLayer::Absent,
        }
    }

    /// Whether the stage has any sector of the blocks from `first` up to `behind`.
    pub(crate) fn has_any(&self, first: u64, behind: u64) -> bool {
        let zeros = self.next_zeros(first).is_some_and(|(zeros, _)| zeros < behind);
        zeros || self.blocks.range(first..behind).next().is_some()
    }

    /// Collects the next blocks from `from`, at most `count`.
    pub(crate) fn next_blocks(&self, from: u64, count: usize, into: &mut Vec<(u64, StagedBlock)>) {
        into.clear();
        let next = self.blocks.range(from..).take(count);
        into.extend(next.map(|(block, held)| (*block, held.clone())));
    }

    /// Next range of zeros from block `from`: its first block, and the one behind its last.
    pub(crate) fn next_zeros(&self, from: u64) -> Option<(u64, u64)> {
        let before = self.zeros.range(..from).next_back();
        let under_way = before.filter(|(_, behind)| from < **behind);
        let next = under_way.or_else(|| self.zeros.range(from..).next());
        next.map(|(first, behind)| (from.max(*first), *behind))
    }

    /// Sets a block that now has all its sectors, merged with older ones.
    pub(crate) fn complete(&mut self, block: u64, bytes: &BlockBytes) {
        let held = self.blocks.get_mut(&block);
        let held = held.expect("a closed stage loses no block");
        held.mask = FULL;
        held.bytes = Arc::clone(bytes);
    }

    /// Replaces what the stage has of a block, zeros or sectors, with the whole block.
    pub(crate) fn replace(&mut self, block: u64, bytes: &BlockBytes) {
        let held = StagedBlock {
            mask: FULL,
            bytes: Arc::clone(bytes),
        };
        self.blocks.insert(block, held);
    }

    /// Replaces those of the blocks from `first` up to `behind` of which the stage has sectors.
    pub(crate) fn replace_all(&mut self, first: u64, behind: u64, bytes: &BlockBytes) {
        for held in self.blocks.range_mut(first..behind).map(|(_, held)| held) {
            *held = StagedBlock {
                mask: FULL,
                bytes: Arc::clone(bytes),
            };
        }
    }

    /// Sets, for each block from `first` that this stage has, whether it is a hole.
    pub(crate) fn mark_holes(&self, first: u64, holes: &mut [Option<bool>]) {
        let behind = first + holes.len() as u64;
        // Writers wait during this loop, so of the ranges before `first` only the last is examined; no other
        // can reach beyond `first`.
        let before = self.zeros.range(..=first).next_back();
        let begin = before.map_or(first, |(from, _)| *from);
        for (from, to) in self.zeros.range(begin..behind) {
            let (from, to) = ((*from).max(first), (*to).min(behind));
            for block in from..to {
                holes[(block - first) as usize] = Some(true);
            }
        }
        for block in self.blocks.range(first..behind).map(|(block, _)| *block) {
            holes[(block - first) as usize] = Some(false);
        }
    }

    /// Returns the memory of at most `count` blocks to the pool. `false`: no block is left.
    pub(crate) fn give_some(&mut self, count: usize, pool: &mut BlockPool) -> bool {
        for _ in 0..count {
            match self.blocks.pop_first() {
                Some((_, held)) => pool.give(held.bytes),
                None => return false,
            }
        }
        true
    }
}

fn has_zeros(zeros: &BTreeMap<u64, u64>, block: u64) -> bool {
    let before = zeros.range(..=block).next_back();
    before.is_some_and(|(_, behind)| block < *behind)
}

/// Mask of the sectors of `count` bytes from offset `within` a block.
pub(crate) fn mask_of(within: usize, count: usize) -> u8 {
    let (first, sectors) = (within / SECTOR, count / SECTOR);
    assert!(first + sectors <= BLOCK_SECTORS as usize);
    (((1u16 << sectors) - 1) << first) as u8
}

/// Copies the sectors in `mask`.
pub(crate) fn copy_sectors(mask: u8, source: &[u8; BLOCK], target: &mut [u8]) {
    if mask == FULL {
        return target.copy_from_slice(source);
    }
    for sector in (0..BLOCK_SECTORS as usize).filter(|sector| mask & 1 << sector != 0) {
        let range = sector * SECTOR..(sector + 1) * SECTOR;
        target[range.clone()].copy_from_slice(&source[range]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SectorSpan;

    const BYTES: u64 = 64 * BLOCK_BYTES;

    fn write(stage: &mut WriteStage, pool: &mut BlockPool, offset: u64, data: &[u8]) {
        let span = SectorSpan::check(offset, data.len() as u64, BYTES).unwrap();
        let end = stage.end.plus(64 + data.len() as u64);
        stage.take(end, &VolumeChange::Write { span, data }, pool);
    }

    fn zero(stage: &mut WriteStage, pool: &mut BlockPool, offset: u64, length: u64) {
        let span = SectorSpan::check(offset, length, BYTES).unwrap();
        let end = stage.end.plus(64);
        stage.take(end, &VolumeChange::Zero(span), pool);
    }

    fn held(stage: &WriteStage, block: u64) -> &StagedBlock {
        match stage.layer(block) {
            StageLayer::Sectors(held) => held,
            other => panic!("block {block}: {other:?}"),
        }
    }

    #[test]
    fn writes_merge_by_sector_and_the_newest_wins() {
        let (mut stage, mut pool) = (WriteStage::new(Lsn(64)), BlockPool::new(0));
        write(&mut stage, &mut pool, 512, &[1; 1024]);
        write(&mut stage, &mut pool, 1024, &[2; 512]);
        let block = held(&stage, 0);
        assert_eq!(block.mask, 0b110);
        assert_eq!((block.bytes[512], block.bytes[1024]), (1, 2));
        write(&mut stage, &mut pool, 3584, &[3; 1024]);
        assert_eq!((held(&stage, 0).mask, held(&stage, 1).mask), (0b1000_0110, 1));
        assert_eq!(stage.memory_bytes(), 2 * BLOCK_BYTES);
        assert_eq!(stage.logged_bytes(), 3 * 64 + 2560);
    }

    #[test]
    fn whole_blocks_of_zeros_become_a_range_and_drop_older_writes() {
        let (mut stage, mut pool) = (WriteStage::new(Lsn(64)), BlockPool::new(BYTES));
        write(&mut stage, &mut pool, 0, &[1; 3 * 4096]);
        zero(&mut stage, &mut pool, 512, 6 * BLOCK_BYTES);
        // A part of the first block, five whole blocks, and one sector of the last.
        assert_eq!(held(&stage, 0).mask, FULL);
        assert_eq!((held(&stage, 0).bytes[511], held(&stage, 0).bytes[512]), (1, 0));
        assert!((1..6).all(|block| matches!(stage.layer(block), StageLayer::Zeros)));
        assert_eq!(held(&stage, 6).mask, 1);
        assert_eq!(
            pool.bytes(),
            2 * BLOCK_BYTES,
            "the buffers of blocks 1 and 2 are back in the pool"
        );

        write(&mut stage, &mut pool, 2 * BLOCK_BYTES + 512, &[9; 512]);
        let block = held(&stage, 2);
        assert_eq!(block.mask, FULL, "all other sectors are zeros");
        assert_eq!((block.bytes[0], block.bytes[512], block.bytes[1024]), (0, 9, 0));
    }

    #[test]
    fn ranges_of_zeros_that_touch_become_one() {
        let (mut stage, mut pool) = (WriteStage::new(Lsn(64)), BlockPool::new(0));
        for (first, count) in [(10, 2), (20, 5), (2, 1), (12, 3), (14, 7)] {
            zero(&mut stage, &mut pool, first * BLOCK_BYTES, count * BLOCK_BYTES);
        }
        assert_eq!(stage.next_zeros(0), Some((2, 3)));
        assert_eq!(stage.next_zeros(3), Some((10, 25)));
        assert_eq!(stage.next_zeros(11), Some((11, 25)));
        assert_eq!(stage.next_zeros(25), None);
        let mut holes = [None; 30];
        write(&mut stage, &mut pool, 11 * BLOCK_BYTES, &[1; 4096]);
        write(&mut stage, &mut pool, 29 * BLOCK_BYTES, &[1; 512]);
        stage.mark_holes(1, &mut holes);
        assert_eq!(holes[..3], [None, Some(true), None]);
        assert_eq!(holes[9..11], [Some(true), Some(false)]);
        assert_eq!((holes[23], holes[24], holes[28]), (Some(true), None, Some(false)));
        // Ranges that begin before, at and behind the requested block, or end right before it.
        for (first, expected) in [(12, 13), (11, 13), (10, 14), (9, 14), (3, 8), (24, 1), (25, 0)] {
            let mut holes = [None; 16];
            stage.mark_holes(first, &mut holes);
            let counted = holes.iter().filter(|hole| **hole == Some(true)).count();
            assert_eq!(counted, expected, "from {first}");
        }
    }

    #[test]
    fn a_reader_keeps_the_bytes_that_it_found() {
        let (mut stage, mut pool) = (WriteStage::new(Lsn(64)), BlockPool::new(BYTES));
        write(&mut stage, &mut pool, 0, &[1; 4096]);
        let found = held(&stage, 0).clone();
        write(&mut stage, &mut pool, 0, &[2; 4096]);
        assert_eq!((found.bytes[0], held(&stage, 0).bytes[0]), (1, 2));
        let newest = held(&stage, 0).clone();
        assert!(!stage.give_some(2, &mut pool), "the stage had only one block");
        assert_eq!(pool.bytes(), 0, "the reader still uses the buffer");
        assert_eq!(newest.bytes[0], 2);
    }
}
