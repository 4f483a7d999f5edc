//! Stages that are in the image but kept in the journal for the data lender; decides how far the journal may
//! be trimmed.
//!
//! The journal is trimmed only to ends of stages, which are ends of records by construction. An LSN from the
//! data lender is only compared, never used as a place in the journal.

use std::collections::VecDeque;

use netram_proto::id::Lsn;

use crate::limit::RETAINED_ENDS_MAX;

/// Ends of stages that are in the image and still in the journal.
#[derive(Debug, Default)]
pub(crate) struct RetainedStages {
    /// Oldest first.
    ends: VecDeque<Lsn>,
}

impl RetainedStages {
    /// The image has every record below `end`.
    pub(crate) fn applied(&mut self, end: Lsn) {
        if self.ends.back().is_some_and(|last| *last >= end) {
            return;
        }
        if self.ends.len() == RETAINED_ENDS_MAX {
            // From then on the journal is trimmed in larger pieces.
            let mut keep = false;
            self.ends.retain(|_| {
                keep = !keep;
                !keep
            });
        }
        self.ends.push_back(end);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Takes `target` back: the trim up to it failed and must be tried again.
    pub(crate) fn put_back(&mut self, target: Lsn) {
        self.ends.push_front(target);
    }

    /// LSN below which the data lender has every record too, so that they can be trimmed.
    pub(crate) fn flushed(&mut self, flushed: Lsn) -> Option<Lsn> {
        let mut target = None;
        while let Some(end) = self.ends.pop_front_if(|end| *end <= flushed) {
            target = Some(end);
        }
        target
    }

    /// LSN below which records must be trimmed although the data lender lacks them, so that at most `most`
    /// bytes are kept. The rest of the journal is for records that are not in the image yet.
    pub(crate) fn surplus(&mut self, head: Lsn, tail: Lsn, most: u64) -> Option<Lsn> {
        let mut from = head;
        while tail.since(from) > most {
            match self.ends.pop_front() {
                Some(end) => from = from.max(end),
                None => break,
            }
        }
        (from > head).then_some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(ends: &[u64]) -> RetainedStages {
        let mut held = RetainedStages::default();
        ends.iter().for_each(|end| held.applied(Lsn(*end)));
        held
    }

    #[test]
    fn the_journal_is_trimmed_only_to_stage_ends_that_both_copies_have() {
        let mut held = held(&[100, 200, 300]);
        assert_eq!(held.flushed(Lsn(99)), None);
        assert_eq!(held.flushed(Lsn(299)), Some(Lsn(200)));
        assert_eq!(held.flushed(Lsn(u64::MAX)), Some(Lsn(300)));
        assert!(held.is_empty());
    }

    #[test]
    fn half_of_the_journal_is_kept_for_records_not_in_the_image() {
        let mut held = held(&[100, 200, 300]);
        assert_eq!(held.surplus(Lsn(50), Lsn(550), 500), None, "half is in use");
        assert_eq!(held.surplus(Lsn(50), Lsn(551), 500), Some(Lsn(100)));
        assert_eq!(
            held.surplus(Lsn(100), Lsn(801), 500),
            Some(Lsn(300)),
            "601 are too many"
        );
        assert_eq!(
            held.surplus(Lsn(300), Lsn(1300), 500),
            None,
            "nothing more is in the image"
        );
    }

    /// The operating system refused one trim. It was never retried, and writers waiting for room in the
    /// journal waited for ever (simulator seed 201333).
    #[test]
    fn a_failed_trim_is_tried_again() {
        let mut held = held(&[100, 200, 300]);
        let target = held.flushed(Lsn(300)).unwrap();
        assert!(held.is_empty());
        held.put_back(target);
        assert_eq!(held.flushed(Lsn(300)), Some(target));
        held.applied(Lsn(400));
        let surplus = held.surplus(Lsn(300), Lsn(801), 400).unwrap();
        held.put_back(surplus);
        assert_eq!(held.surplus(Lsn(300), Lsn(801), 400), Some(surplus));
    }

    #[test]
    fn many_small_stages_take_little_memory() {
        let ends: Vec<u64> = (1..=100_000).collect();
        let mut held = held(&ends);
        assert!(held.ends.len() <= RETAINED_ENDS_MAX);
        assert_eq!(held.flushed(Lsn(100_000)), Some(Lsn(100_000)));
    }
}
