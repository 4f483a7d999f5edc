//! Stages of a volume: one open, and some closed that wait for the image. Decides when a stage ends and when
//! writers wait; knows neither clock nor thread.

use std::collections::VecDeque;
use std::sync::Arc;

use netram_proto::id::Lsn;
use netram_proto::time::{Nanos as TimeSpan, Time};

use crate::record::VolumeChange;
use crate::stage::{BLOCK, BlockBytes, BlockPool, FULL, StageLayer, StagedBlock, WriteStage, copy_sectors};

/// When stages end and how many may exist. Together these bound a volume's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePolicy {
    /// Bytes of journal or of memory at which a stage ends.
    pub bytes: u64,
    /// Age at which a stage ends.
    pub age: TimeSpan,
    /// Maximum number of closed stages that wait for the image. At the maximum, writers wait once the open
    /// stage is full.
    pub closed_max: usize,
}

impl Default for StagePolicy {
    fn default() -> StagePolicy {
        StagePolicy {
            bytes: crate::limit::STAGE_BYTES,
            age: TimeSpan::from_ms(crate::limit::STAGE_AGE_MS),
            closed_max: crate::limit::STAGES_CLOSED_MAX,
        }
    }
}

/// Status of the stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagesStatus {
    /// Bytes of journal in the open stage.
    pub open_bytes: u64,
    /// Number of closed stages that wait for the image, including the one being applied.
    pub closed: usize,
    /// Bytes of journal in the closed stages.
    pub closed_bytes: u64,
    /// Number of blocks in all stages.
    pub blocks: u64,
    /// Bytes of memory of all stages and of the buffers kept for reuse.
    pub memory_bytes: u64,
    /// Highest value of `memory_bytes` so far.
    pub memory_bytes_max: u64,
}

/// Sectors of a block that the stages have.
#[derive(Clone, Debug)]
pub(crate) struct BlockOverlay {
    /// Sectors that the image need not supply.
    pub(crate) mask: u8,
    /// Their bytes; `None`: zeros.
    pub(crate) bytes: Option<BlockBytes>,
}

impl BlockOverlay {
    /// The block is in no stage.
    pub(crate) const NOTHING: BlockOverlay = BlockOverlay { mask: 0, bytes: None };

    const ZEROS: BlockOverlay = BlockOverlay {
        mask: FULL,
        bytes: None,
    };

    /// Copies these sectors over the image's.
    pub(crate) fn cover(&self, block: &mut [u8]) {
        match &self.bytes {
            Some(bytes) => copy_sectors(self.mask, bytes, block),
            None if self.mask == FULL => block.fill(0),
            None => (),
        }
    }
}

#[derive(Debug)]
pub(crate) struct StageQueue {
    policy: StagePolicy,
    open: WriteStage,
    /// When the open stage was first seen with a record.
    opened: Option<Time>,
    /// Whether the open stage has reached its maximum age, even if there is no room to close it yet.
    overdue: bool,
    /// Oldest first.
    closed: VecDeque<WriteStage>,
    pool: BlockPool,
    memory_bytes_max: u64,
}

impl StageQueue {
    /// Creates an empty open stage behind the record that ends at `start`.
    pub(crate) fn new(policy: StagePolicy, start: Lsn) -> StageQueue {
        assert!(policy.closed_max > 0, "at least one closed stage must be allowed");
        StageQueue {
            policy,
            open: WriteStage::new(start),
            opened: None,
            overdue: false,
            closed: VecDeque::new(),
            pool: BlockPool::new(policy.bytes),
            memory_bytes_max: 0,
        }
    }

    /// Creates an empty queue with the same policy, behind the record that ends at `start`.
    pub(crate) fn restarted(&self, start: Lsn) -> StageQueue {
        StageQueue::new(self.policy, start)
    }

    /// Sets the bytes of a block that did not arrive as a record: every stage that has some of it now has all
    /// of it.
    pub(crate) fn replace(&mut self, block: u64, bytes: &[u8; BLOCK]) {
        let mut whole: Option<BlockBytes> = None;
        for stage in self.closed.iter_mut().chain(std::iter::once(&mut self.open)) {
            if !matches!(stage.layer(block), StageLayer::Absent) {
                stage.replace(block, whole.get_or_insert_with(|| Arc::new(*bytes)));
            }
        }
        // A range of zeros that became a block has made the open stage larger.
        self.settle();
    }

    /// Sets blocks from `first` up to `behind` that arrived as a hole, likewise.
    pub(crate) fn replace_by_hole(&mut self, first: u64, behind: u64) {
        let zeros: BlockBytes = Arc::new([0; BLOCK]);
        for stage in self.closed.iter_mut().chain(std::iter::once(&mut self.open)) {
            stage.replace_all(first, behind, &zeros);
        }
    }

    /// The journal has only records of its own up to `end`.
    pub(crate) fn pass(&mut self, end: Lsn) {
        self.open.pass(end);
    }

    /// Whether a record may be added now.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full()
    }

    /// Whether the open stage has reached its maximum size.
    fn is_full(&self) -> bool {
        self.open.logged_bytes().max(self.open.memory_bytes()) >= self.policy.bytes
    }

    /// Adds the journal's next record. Returns whether a stage closed.
    pub(crate) fn take(&mut self, end: Lsn, change: &VolumeChange<'_>) -> bool {
        self.open.take(end, change, &mut self.pool);
        let memory_bytes = self.memory_bytes();
        self.memory_bytes_max = self.memory_bytes_max.max(memory_bytes);
        self.settle()
    }

    /// Updates the age of the open stage at `now`. Returns whether a stage closed.
    pub(crate) fn tick(&mut self, now: Time) -> bool {
        if self.open.is_empty() {
            self.opened = None;
            return false;
        }
        let opened = *self.opened.get_or_insert(now);
        self.overdue |= opened + self.policy.age <= now;
        self.settle()
    }

    /// Ends the open stage as soon as there is room. Returns whether it closed now.
    pub(crate) fn end_open(&mut self) -> bool {
        self.overdue = !self.open.is_empty();
        self.settle()
    }

    /// Closes the open stage if it is due and there is room.
    fn settle(&mut self) -> bool {
        let due = self.is_full() || self.overdue;
        if !due || self.open.is_empty() || self.closed.len() >= self.policy.closed_max {
            return false;
        }
        let next = WriteStage::new(self.open.end());
        self.closed.push_back(std::mem::replace(&mut self.open, next));
        self.opened = None;
        self.overdue = false;
        true
    }

    /// The stage to apply next.
    pub(crate) fn oldest(&self) -> Option<&WriteStage> {
        self.closed.front()
    }

    /// Completes a block of the oldest stage: it is now `whole`, in the stage and in `held`. The memory is
    /// taken from the pool and the old buffer returned to it. If one thread allocated what another frees, the
    /// allocator would keep room for both.
    pub(crate) fn complete(&mut self, block: u64, held: &mut StagedBlock, whole: &[u8; BLOCK]) {
        let mut bytes = self.pool.take();
        *Arc::make_mut(&mut bytes) = *whole;
        if let Some(stage) = self.closed.front_mut() {
            stage.complete(block, &bytes);
        }
        let part = std::mem::replace(held, StagedBlock { mask: FULL, bytes });
        self.pool.give(part.bytes);
    }

    /// Removes the oldest closed stage, which is in the image. Its memory goes back in pieces by
    /// [`StageQueue::give_back`]: freeing thousands of blocks at once would delay readers and writers.
    pub(crate) fn applied(&mut self) -> WriteStage {
        let stage = self.closed.pop_front();
        self.settle();
        stage.expect("only a closed stage is applied")
    }

    /// Returns some of an applied stage's memory to the pool. `false`: none is left.
    pub(crate) fn give_back(&mut self, stage: &mut WriteStage) -> bool {
        stage.give_some(crate::limit::STEP_BLOCKS, &mut self.pool)
    }

    /// Whether every record is in the image.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.closed.is_empty()
    }

    /// End of the newest record added.
    pub(crate) fn end(&self) -> Lsn {
        self.open.end()
    }

    /// Sectors of `block` that stages have, at least those of `needed` that exist.
    pub(crate) fn overlay(&self, block: u64, needed: u8) -> BlockOverlay {
        let mut found = BlockOverlay::NOTHING;
        for stage in std::iter::once(&self.open).chain(self.closed.iter().rev()) {
            let StagedBlock { mask, bytes } = match stage.layer(block) {
                StageLayer::Absent => continue,
                StageLayer::Zeros if found.mask == 0 => return BlockOverlay::ZEROS,
                StageLayer::Zeros => {
                    // Newer sectors lie on zeros, so all other bytes are zeros.
                    let mut merged = Arc::new([0; BLOCK]);
                    found.cover(&mut Arc::make_mut(&mut merged)[..]);
                    return BlockOverlay {
                        mask: FULL,
                        bytes: Some(merged),
                    };
                }
                StageLayer::Sectors(held) => held,
            };
            match &mut found.bytes {
                None => {
                    found.mask = *mask;
                    found.bytes = Some(Arc::clone(bytes));
                }
                Some(newer) => {
                    copy_sectors(mask & !found.mask, bytes, &mut Arc::make_mut(newer)[..]);
                    found.mask |= mask;
                }
            }
            if found.mask & needed == needed {
                return found;
            }
        }
        found
    }

    /// End of the newest stage with any sector of the blocks from `first` up to `behind`.
    pub(crate) fn newest_end(&self, first: u64, behind: u64) -> Option<Lsn> {
        let mut newest_first = std::iter::once(&self.open).chain(self.closed.iter().rev());
        let newest = newest_first.find(|stage| stage.has_any(first, behind));
        newest.map(WriteStage::end)
    }

    /// Sets, for each block from `first` that any stage has, whether it is a hole.
    pub(crate) fn mark_holes(&self, first: u64, holes: &mut [Option<bool>]) {
        let oldest_first = self.closed.iter().chain(std::iter::once(&self.open));
        oldest_first.for_each(|stage| stage.mark_holes(first, holes));
    }

    fn memory_bytes(&self) -> u64 {
        let closed: u64 = self.closed.iter().map(WriteStage::memory_bytes).sum();
        self.open.memory_bytes() + closed + self.pool.bytes()
    }

    pub(crate) fn status(&self) -> StagesStatus {
        StagesStatus {
            open_bytes: self.open.logged_bytes(),
            closed: self.closed.len(),
            closed_bytes: self.closed.iter().map(WriteStage::logged_bytes).sum(),
            blocks: self.open.block_count() + self.closed.iter().map(WriteStage::block_count).sum::<u64>(),
            memory_bytes: self.memory_bytes(),
            memory_bytes_max: self.memory_bytes_max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{BLOCK_BYTES, SectorSpan};

    const POLICY: StagePolicy = StagePolicy {
        bytes: 3 * BLOCK_BYTES,
        age: TimeSpan::from_ms(10),
        closed_max: 2,
    };

    struct Log {
        stages: StageQueue,
        end: Lsn,
    }

    impl Log {
        fn new() -> Log {
            Log {
                stages: StageQueue::new(POLICY, Lsn(64)),
                end: Lsn(64),
            }
        }

        fn write(&mut self, offset: u64, data: &[u8]) -> bool {
            self.end = self.end.plus(data.len() as u64);
            let span = SectorSpan::check(offset, data.len() as u64, 1 << 20).unwrap();
            self.stages.take(self.end, &VolumeChange::Write { span, data })
        }

        fn zero(&mut self, offset: u64, length: u64) -> bool {
            self.end = self.end.plus(16);
            let span = SectorSpan::check(offset, length, 1 << 20).unwrap();
            self.stages.take(self.end, &VolumeChange::Zero(span))
        }

        /// First bytes of the sectors, as a reader sees them over an image of 0xee.
        fn read(&self, block: u64) -> [u8; 8] {
            let mut bytes = [0xee; BLOCK_BYTES as usize];
            self.stages.overlay(block, FULL).cover(&mut bytes);
            std::array::from_fn(|sector| bytes[sector * 512])
        }
    }

    #[test]
    fn a_stage_ends_by_its_bytes_and_writers_wait_when_too_many_are_closed() {
        let mut log = Log::new();
        assert!(!log.write(0, &[1; 8192]));
        assert!(log.write(8192, &[1; 4096]), "three blocks");
        assert!(log.write(0, &[2; 12288]));
        assert!(log.stages.has_room());
        assert!(!log.write(0, &[3; 12288]), "two stages are closed already");
        assert!(!log.stages.has_room());
        log.stages.applied();
        assert!(log.stages.has_room(), "the full stage closed once there was room");
        assert_eq!(log.stages.status().closed, 2);
    }

    #[test]
    fn a_block_rewritten_many_times_ends_its_stage_too() {
        let mut log = Log::new();
        let ended = (0..24).filter(|_| log.write(0, &[1; 512])).count();
        assert_eq!(ended, 1, "the stage ended by its journal bytes");
        assert_eq!(log.stages.status().blocks, 1);
    }

    /// Zeros of one sector cost a few bytes of journal, but a block of memory.
    #[test]
    fn a_stage_ends_by_its_memory_too() {
        let mut log = Log::new();
        let ended: Vec<bool> = (0..4)
            .map(|block| log.zero(block * BLOCK_BYTES + 512, 512))
            .collect();
        assert_eq!(ended, [false, false, true, false]);
        assert_eq!(log.stages.status().closed_bytes, 3 * 16);
        assert_eq!(log.stages.status().memory_bytes, 4 * BLOCK_BYTES);
    }

    #[test]
    fn a_stage_ends_by_its_age_counted_from_its_first_write() {
        let mut log = Log::new();
        let at = |ms: u64| Time(ms * 1_000_000);
        assert!(!log.stages.tick(at(100)), "an empty stage has no age");
        log.write(0, &[1; 512]);
        assert!(!log.stages.tick(at(200)));
        assert!(!log.stages.tick(at(209)));
        assert!(log.stages.tick(at(210)));
        assert!(!log.stages.tick(at(300)));
        log.write(0, &[1; 512]);
        assert!(log.stages.end_open());
        assert!(!log.stages.end_open(), "there is nothing to end");
    }

    /// The applier's thread allocated each merged block while writers had allocated the parts, so the process
    /// grew by both.
    #[test]
    fn a_merged_block_takes_its_memory_from_the_pool_and_returns_the_parts() {
        let mut log = Log::new();
        log.write(0, &[1; 512]);
        log.write(8192, &[2; 512]);
        log.stages.end_open();
        let mut batch = Vec::new();
        let oldest = log.stages.oldest().unwrap();
        oldest.next_blocks(0, 2, &mut batch);
        let parts: Vec<_> = batch.iter().map(|(_, held)| held.bytes.as_ptr()).collect();
        for (block, held) in &mut batch {
            log.stages.complete(*block, held, &[7; BLOCK]);
            assert_eq!((held.mask, held.bytes[4095]), (FULL, 7));
            assert_eq!(
                log.stages.status().memory_bytes,
                3 * BLOCK_BYTES,
                "one block is new"
            );
        }
        assert_eq!(
            batch[1].1.bytes.as_ptr(),
            parts[0],
            "the second block reuses the first part's buffer"
        );
        assert_eq!((log.read(0), log.read(2)), ([7; 8], [7; 8]));
    }

    #[test]
    fn readers_see_the_newest_sectors_of_all_stages() {
        let mut log = Log::new();
        log.write(0, &[1; 4096]);
        log.stages.end_open();
        log.write(512, &[2; 1024]);
        log.stages.end_open();
        log.write(1024, &[3; 512]);
        assert_eq!(log.read(0), [1, 2, 3, 1, 1, 1, 1, 1]);
        log.zero(BLOCK_BYTES, BLOCK_BYTES);
        assert_eq!(log.read(1), [0; 8]);
        assert_eq!(log.read(2), [0xee; 8]);
    }

    #[test]
    fn a_write_over_older_zeros_is_merged_with_zeros() {
        let mut log = Log::new();
        log.zero(0, 2 * BLOCK_BYTES);
        log.stages.end_open();
        log.write(512, &[2; 512]);
        assert_eq!(log.read(0), [0, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(log.read(1), [0; 8]);
    }
}
