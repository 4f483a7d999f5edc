//! Allocator for staging frames. It scans forward from the last allocation and has twice as many frames as
//! can be in use. Frames allocated together therefore stay contiguous, and one system call moves or empties a
//! whole batch.

use alloc::collections::BTreeSet;

use super::StagingFrame;

#[derive(Clone, Debug)]
pub(super) struct StagingAllocator {
    free: BTreeSet<StagingFrame>,
    /// Start of the next search.
    next: StagingFrame,
}

impl StagingAllocator {
    /// An allocator of which at most `taken_max` frames are in use at a time.
    pub(super) fn new(taken_max: u32) -> StagingAllocator {
        StagingAllocator {
            free: (0..Self::count(taken_max)).map(StagingFrame).collect(),
            next: StagingFrame(0),
        }
    }

    /// Number of frames.
    pub(super) fn count(taken_max: u32) -> u32 {
        2 * taken_max
    }

    /// Takes the next free frame.
    pub(super) fn take(&mut self) -> Option<StagingFrame> {
        let behind = self.free.range(self.next..).next();
        let berth = *behind.or_else(|| self.free.first())?;
        self.free.remove(&berth);
        self.next = StagingFrame(berth.0 + 1);
        Some(berth)
    }

    /// Returns the frame taken last, unused.
    pub(super) fn undo_take(&mut self, berth: StagingFrame) {
        self.give_back(berth);
        self.next = berth;
    }

    pub(super) fn give_back(&mut self, berth: StagingFrame) {
        self.free.insert(berth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;

    #[test]
    fn frames_taken_together_stay_contiguous() {
        let mut berths = StagingAllocator::new(100);
        let mut hidden: VecDeque<StagingFrame> = VecDeque::new();
        let (mut runs, mut batches) = (0, 0);
        for round in 0..1000_usize {
            let mut batch: Vec<StagingFrame> = (0..10).map_while(|_| berths.take()).collect();
            assert_eq!(batch.len(), 10);
            runs += batch.chunk_by(|one, next| one.0 + 1 == next.0).count();
            batches += 1;
            // One page of each batch is activated at once, so its frame is free before its neighbours.
            berths.give_back(batch.remove(round * 7 % 10));
            hidden.extend(batch);
            while hidden.len() > 80 {
                hidden.drain(..9).for_each(|berth| berths.give_back(berth));
            }
        }
        assert!(runs <= batches + batches / 10, "{runs} runs in {batches} batches");
    }

    #[test]
    fn a_frame_is_given_out_once_and_an_unused_one_is_next() {
        let mut berths = StagingAllocator::new(2);
        assert_eq!(berths.take(), Some(StagingFrame(0)));
        berths.undo_take(StagingFrame(0));
        let all: Vec<StagingFrame> = core::iter::from_fn(|| berths.take()).collect();
        assert_eq!(
            all,
            [StagingFrame(0), StagingFrame(1), StagingFrame(2), StagingFrame(3)]
        );
        berths.give_back(StagingFrame(2));
        assert_eq!((berths.take(), berths.take()), (Some(StagingFrame(2)), None));
    }
}
