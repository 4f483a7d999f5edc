//! Berths that are free. They are given out in turn, and there are twice as many as are ever taken, so that
//! those which are given out together stand together: pages leave in the order in which they were hidden, so
//! all but a few of those that come next are free. What stands together is moved and emptied in one go.

use alloc::collections::BTreeSet;

use super::StagingFrame;

#[derive(Clone, Debug)]
pub(super) struct StagingAllocator {
    free: BTreeSet<StagingFrame>,
    /// The search begins here.
    next: StagingFrame,
}

impl StagingAllocator {
    /// For so many that are taken at once.
    pub(super) fn new(taken_max: u32) -> StagingAllocator {
        StagingAllocator {
            free: (0..Self::count(taken_max)).map(StagingFrame).collect(),
            next: StagingFrame(0),
        }
    }

    /// How many there are.
    pub(super) fn count(taken_max: u32) -> u32 {
        2 * taken_max
    }

    /// The next one that is free.
    pub(super) fn take(&mut self) -> Option<StagingFrame> {
        let behind = self.free.range(self.next..).next();
        let berth = *behind.or_else(|| self.free.first())?;
        self.free.remove(&berth);
        self.next = StagingFrame(berth.0 + 1);
        Some(berth)
    }

    /// The last one that was taken is free after all.
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
    fn what_is_taken_together_stands_together_though_some_come_back_early() {
        let mut berths = StagingAllocator::new(100);
        let mut hidden: VecDeque<StagingFrame> = VecDeque::new();
        let (mut runs, mut batches) = (0, 0);
        for round in 0..1000_usize {
            let mut batch: Vec<StagingFrame> = (0..10).map_while(|_| berths.take()).collect();
            assert_eq!(batch.len(), 10);
            runs += batch.chunk_by(|one, next| one.0 + 1 == next.0).count();
            batches += 1;
            // One of each batch is shown at once, and its berth is free before its neighbours'.
            berths.give_back(batch.remove(round * 7 % 10));
            hidden.extend(batch);
            while hidden.len() > 80 {
                hidden.drain(..9).for_each(|berth| berths.give_back(berth));
            }
        }
        assert!(runs <= batches + batches / 10, "{runs} runs in {batches} batches");
    }

    #[test]
    fn each_is_given_out_once_and_what_was_not_used_is_next() {
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
