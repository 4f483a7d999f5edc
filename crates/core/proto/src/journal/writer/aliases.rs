//! Which lenders are one memory (rule 16).
//!
//! A lender is its memory's incarnation, not its address. One that is reached by two addresses holds one
//! window: a join by the one would empty what was joined by the other, and two "members" would be one copy.
//! So whoever leads to a memory that is in use already, or that a lender named before it leads to, is an
//! *alias*: neither member nor spare.

use crate::id::Incarnation;
use crate::planted::PlantedFault;
use crate::time::Time;

use super::JournalWriter;
use super::lender::{LenderRole, WriterLender};

impl JournalWriter {
    /// The lender whose memory lender `index` leads to as well, if `index` is the one to stand back.
    pub(super) fn alias_of(&self, index: usize) -> Option<usize> {
        let lender = &self.lenders[index];
        if !lender.is_ready() || self.uses_memory(index) || self.planted.is(PlantedFault::AliasJoins) {
            return None;
        }
        self.user_of(lender.link_incarnation, index).or_else(|| {
            (0..index).find(|&other| {
                let earlier = &self.lenders[other];
                earlier.is_ready() && earlier.link_incarnation == lender.link_incarnation
            })
        })
    }

    /// The lender beside `index` whose window, in this memory, counts or is about to.
    pub(super) fn user_of(&self, memory: Incarnation, index: usize) -> Option<usize> {
        (0..self.lenders.len()).find(|&other| {
            other != index && self.uses_memory(other) && self.lenders[other].incarnation == memory
        })
    }

    /// Whether a lender with this memory, by whatever address, made no progress a moment ago.
    pub(super) fn memory_stalls(&self, memory: Incarnation, now: Time) -> bool {
        let stalls = |lender: &WriterLender| {
            lender.link_incarnation == memory && lender.stalled_until.is_some_and(|until| until > now)
        };
        self.lenders.iter().any(stalls)
    }

    /// Whether the window of lender `index` counts, or is about to: of this journal, nobody else may have one
    /// in its memory.
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

    /// Both became members: the second join emptied the first's window, and every commit went at the disk's
    /// pace for good.
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
            "it is asked for nothing"
        );
        assert_eq!(
            bench.writer.status().lenders[1].alias_of.as_deref(),
            Some("unix:/lender-0")
        );
        assert_eq!(bench.writer.view().len(), 1);
    }

    #[test]
    fn of_two_spares_with_one_memory_the_first_named_is_asked() {
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

    /// Where links lose and double frames, the answer of a lender's life before this one came late, and was
    /// taken for this life's: the lender joined, and its acknowledgements were awaited from the dead for ever
    /// (simulator seed 50400971).
    #[test]
    fn a_late_word_of_a_lenders_life_before_is_passed_over() {
        let mut bench = Bench::empty(1, 1, CommitRule::All);
        bench.writer.on_connected(0, bench.now);
        bench.drain(0);
        bench.say(0, bound(6), b"there");
        bench.drain(0);
        bench.say(0, fence_reply(5), &[0; 4]);
        assert!(
            bench.next(0).is_none(),
            "this life has not said that it is sealed"
        );
        bench.say(0, fence_reply(6), &[0; 4]);
        bench.join(0);
        bench.store_view();
        assert_eq!(bench.writer.lenders[0].incarnation, Incarnation(6));
    }

    /// A spare's link that was made anew saw a window that "nobody will ever ask for", and gave the member's
    /// window back.
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
        let sealed = FrameHeader {
            flags: Flag::KNOWN,
            mark: generation,
            ..fence_reply(5)
        };
        bench.say(1, sealed, &1u32.to_le_bytes());
        assert_ne!(bench.next(1).map(|frame| frame.kind), Some(FrameKind::Leave));
    }

    /// Another lender came to a member's address. It joined with the domain of the one before, and a view of
    /// this machine's own domain alone counted (simulator seed 1279).
    #[test]
    fn whoever_takes_over_an_address_has_its_own_domain() {
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

    /// A lender that moved is asked to join at its new address once the view without its old one is durable,
    /// and not before.
    #[test]
    fn a_member_that_moved_joins_anew_when_its_old_address_has_left_the_view() {
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
