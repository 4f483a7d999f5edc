//! Lenders that share one memory (rule 16).
//!
//! A lender is identified by its memory's incarnation, not by its address. A lender that is reached by two
//! addresses holds one window: a join over one address would empty the window joined over the other, and two
//! "members" would be one copy. So an address is an *alias*, neither member nor spare, if its memory is
//! already in use, or if a lender named before it leads to the same memory.

use crate::id::Incarnation;
use crate::planted::PlantedFault;
use crate::time::Time;

use super::JournalWriter;
use super::lender::{LenderRole, WriterLender};

impl JournalWriter {
    /// The lender whose memory lender `index` also leads to, if `index` is the alias of the two.
    pub(super) fn alias_of(&self, index: usize) -> Option<usize> {
        let lender = &self.lenders[index];
        if !lender.is_ready() || self.uses_memory(index) || self.planted.is(PlantedFault::AliasJoins) {
            return None;
        }
        self.user_of(lender.link_incarnation, index).or_else(|| {
            (0..index).find(|&other| {
                let earlier = &self.lenders[other];
                earlier.is_ready() && !earlier.removed && earlier.link_incarnation == lender.link_incarnation
            })
        })
    }

    /// A lender other than `index` whose window in this memory counts or is about to.
    pub(super) fn user_of(&self, memory: Incarnation, index: usize) -> Option<usize> {
        (0..self.lenders.len()).find(|&other| {
            other != index && self.uses_memory(other) && self.lenders[other].incarnation == memory
        })
    }

    /// Whether a lender with this memory, by any address, recently made no progress.
    pub(super) fn memory_stalls(&self, memory: Incarnation, now: Time) -> bool {
        let stalls = |lender: &WriterLender| {
            lender.link_incarnation == memory && lender.stalled_until.is_some_and(|until| until > now)
        };
        self.lenders.iter().any(stalls)
    }

    /// Whether the window of lender `index` counts or is about to. No other lender may then join in its
    /// memory.
    fn uses_memory(&self, index: usize) -> bool {
        self.lenders[index].role != LenderRole::Spare || self.in_use(index)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::tests::{Bench, bound, fence_reply};
    use crate::id::Incarnation;
    use crate::journal::{CommitRule, DiskWaitReason};
    use crate::time::Nanos;
    use crate::wire::{Flag, FrameHeader, FrameKind};

    /// Both became members: the second join emptied the window of the first, and every commit then waited for
    /// the disk.
    #[test]
    fn one_memory_under_two_addresses_joins_once() {
        let mut bench = Bench::empty(2, 2, CommitRule::All);
        bench.connect(0, 5);
        bench.join(0);
        bench.connect(1, 5);
        bench.store_view();
        bench.wait(Nanos::from_ms(3));
        assert!(
            bench.next(1).is_none_or(|frame| frame.kind == FrameKind::Ping),
            "an alias is asked for nothing"
        );
        assert_eq!(
            bench.writer.status().lenders[1].alias_of.as_deref(),
            Some("unix:/lender-0")
        );
        assert_eq!(bench.writer.view().len(), 1);
    }

    #[test]
    fn of_two_spares_with_one_memory_only_the_first_is_asked_to_join() {
        let mut bench = Bench::empty(3, 0, CommitRule::All);
        (0..3).for_each(|index| bench.connect(index, [4, 5, 5][index]));
        let aliases: Vec<_> = bench
            .writer
            .status()
            .lenders
            .iter()
            .map(|lender| lender.alias_of.is_some())
            .collect();
        assert_eq!(aliases, [false, false, true]);
    }

    /// On links that lose and duplicate frames, a late answer of a lender's earlier incarnation was taken for
    /// the present one's. The lender joined, and the writer waited for acknowledgements that could never come
    /// (simulator seed 50400971).
    #[test]
    fn a_late_answer_of_an_earlier_incarnation_is_ignored() {
        let mut bench = Bench::empty(1, 1, CommitRule::All);
        bench.writer.on_connected(0, bench.now);
        bench.drain(0);
        bench.say(0, bound(6), b"there");
        bench.drain(0);
        bench.say(0, fence_reply(5), &[0; 4]);
        assert!(
            bench.next(0).is_none(),
            "this incarnation has not answered the fence"
        );
        bench.say(0, fence_reply(6), &[0; 4]);
        bench.join(0);
        bench.store_view();
        assert_eq!(bench.writer.lenders[0].incarnation, Incarnation(6));
    }

    /// The new link of a spare reported a window that seemed unused, and the member's window was freed.
    #[test]
    fn a_spares_link_never_empties_a_members_window() {
        let mut bench = Bench::empty(2, 1, CommitRule::All);
        bench.connect(0, 5);
        bench.join(0);
        bench.store_view();
        let generation = bench.writer.lenders[0].generation;
        bench.writer.on_connected(1, bench.now);
        bench.drain(1);
        bench.say(1, bound(5), b"there");
        bench.drain(1);
        let fenced = FrameHeader {
            flags: Flag::KNOWN,
            mark: generation,
            ..fence_reply(5)
        };
        bench.say(1, fenced, &1u32.to_le_bytes());
        assert_ne!(bench.next(1).map(|frame| frame.kind), Some(FrameKind::Leave));
    }

    /// Another lender came to a member's address. It joined with the power domain of its predecessor, and a
    /// view with only this machine's own domain counted (simulator seed 1279).
    #[test]
    fn a_lender_that_takes_over_an_address_has_its_own_domain() {
        let mut bench = Bench::empty(1, 1, CommitRule::All);
        bench.writer.config.one_domain = false;
        bench.connect(0, 5);
        bench.join(0);
        bench.store_view();
        assert_eq!(bench.writer.blocked(), None);
        bench.writer.on_lost(0, bench.now);
        bench.connect_from(0, 6, b"here");
        bench.store_view();
        bench.drain(0);
        bench.wait(Nanos::from_ms(1));
        bench.ack(0, 0, 0);
        bench.store_view();
        assert_eq!(bench.writer.view().len(), 1);
        assert_eq!(bench.writer.blocked(), Some(DiskWaitReason::OneDomain));
    }

    /// A lender that moved is asked to join at its new address only once the view without its old address is
    /// durable.
    #[test]
    fn a_moved_member_joins_again_once_its_old_address_has_left_the_view() {
        let mut bench = Bench::empty(2, 1, CommitRule::All);
        bench.connect(0, 5);
        bench.join(0);
        bench.store_view();
        bench.writer.on_lost(0, bench.now);
        bench.connect(1, 5);
        assert!(bench.next(1).is_none(), "its window still counts");
        bench.wait(Nanos::from_ms(501));
        assert!(bench.next(1).is_none_or(|frame| frame.kind == FrameKind::Ping));
        bench.store_view();
        bench.wait(Nanos::from_ms(1));
        assert_eq!(bench.next(1).map(|frame| frame.kind), Some(FrameKind::Join));
    }
}
