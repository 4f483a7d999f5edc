//! Lenders that ask their clients to move away, and when a member obeys.
//!
//! A member that leaves takes a copy of the window with it, and takes part in no later commit. So it leaves
//! only with a view in which another lender has taken its place: *make before break*. Until then it goes on
//! acknowledging. How long the writer waits for a replacement depends on the [`LeaveNotice`].
//!
//! | the lender | the member leaves |
//! |---|---|
//! | lacks memory: it serves on, and wants this window back | when the others are as many as wanted |
//! | drains: it serves until its operator stops it | when the others are as many as wanted, or no other configured lender can ever take its place |
//! | stops: its session ends in a moment, whether the writer obeys or not | when the others are as many as wanted, or no lender is on its way to take its place |
//!
//! *A drain waits for lenders that are away.* With two members wanted of three lenders, one of which is being
//! restarted, a second drained lender would leave one copy behind, perhaps for the hour that the restart
//! takes. It stays, its operator does not hear *safe to stop*, and the second restart waits for the first. Of
//! two members that drain at once, one counts as the other's replacement, so at most one leaves.
//!
//! *A drain does not wait for what cannot happen.* If every other lender is a member already, as with two
//! lenders and two members, waiting would keep the operator from ever stopping anything. The member leaves.
//! If the rest is then below the minimum or the rule, the disk acknowledges, as the settings promise. With
//! one lender only, its member leaves, and the disk acknowledges until it is back.
//!
//! *Nothing acknowledged loses its copies.* The view without the member is stored only when it satisfies
//! everything acknowledged, or the disk has that ([`JournalWriter::may_store`]). A lender that stops before
//! that is a lost member, and what it holds stays in its memory.

use crate::id::Incarnation;
use crate::planted::PlantedFault;
use crate::time::Time;
use crate::wire::{Flag, FrameHeader, RefusalReason};

use super::lender::{ControlFrame, LenderRole};
use super::{JournalWriter, LenderIndexSet};

/// A lender's wish that its clients move away. It ends with the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LeaveNotice {
    /// The lender's machine lacks memory; the lender serves the window as long as it is needed.
    Reclaims,
    /// The lender takes no new windows, and serves those that it has until its operator stops it.
    Drains,
    /// The lender is about to end its sessions.
    Stops,
}

impl LeaveNotice {
    pub(super) fn of(header: &FrameHeader) -> LeaveNotice {
        match (header.flags & Flag::DRAINS, header.flags & Flag::PARTIAL) {
            (0, _) => LeaveNotice::Stops,
            (_, 0) => LeaveNotice::Drains,
            _ => LeaveNotice::Reclaims,
        }
    }
}

impl JournalWriter {
    /// Handles a lender's wish that its clients move away. A window that counts nowhere yet is given up at
    /// once.
    pub(super) fn on_leave_notice(&mut self, index: usize, notice: LeaveNotice, now: Time) {
        let lender = &mut self.lenders[index];
        lender.leave_notice = lender.leave_notice.max(Some(notice));
        if matches!(lender.role, LenderRole::Joining | LenderRole::CatchingUp(_)) {
            self.turn_away(index);
        }
        self.settle(now);
    }

    /// Frees the window of a lender that is not a member yet.
    pub(super) fn turn_away(&mut self, index: usize) {
        let lender = &mut self.lenders[index];
        lender.dismiss();
        lender.control = lender.is_ready().then_some(ControlFrame::Leave);
    }

    /// The members of `set` that were removed, or whose lenders want them to leave. Those that
    /// claim a newer writer stay (`fence_claims.rs`).
    pub(super) fn asked_to_leave(&self, set: LenderIndexSet) -> LenderIndexSet {
        let asked =
            |&index: &usize| self.lenders[index].leave_notice.is_some() || self.lenders[index].removed;
        let leaving = set.minus(self.claims.members).iter().filter(asked);
        leaving.fold(LenderIndexSet::EMPTY, LenderIndexSet::with)
    }

    /// Whether member `index`, which was asked to leave, waits for a lender to take its place in `target`,
    /// the next view.
    pub(super) fn awaits_replacement(&self, index: usize, target: LenderIndexSet) -> bool {
        let Some(notice) = self.lenders[index].leave_notice else {
            // A removed one waits for as long as it takes: its operator named a number of copies.
            return self.lenders[index].removed;
        };
        // Others make room for the memory that the lender lacks, or wait for it: a copy is worth more.
        let stays = notice == LeaveNotice::Reclaims && !self.planted.is(PlantedFault::ReclaimTakesCopy);
        !self.planted.is(PlantedFault::LeavesUnreplaced)
            && (stays
                || (0..self.lenders.len())
                    .filter(|&other| other != index && !target.has(other))
                    .any(|other| match notice {
                        LeaveNotice::Drains => self.may_come(other, index, target),
                        LeaveNotice::Reclaims | LeaveNotice::Stops => self.is_coming(other),
                    }))
    }

    /// Whether lender `other` may at some time take the place of member `index` beside `target`. An
    /// unreachable lender may, and so may one that is full or drains.
    fn may_come(&self, other: usize, index: usize, target: LenderIndexSet) -> bool {
        let lender = &self.lenders[other];
        if lender.removed || lender.is_vacant() {
            return false;
        }
        let known = lender.link_incarnation != Incarnation(0);
        let is_alias = |member: usize| self.lenders[member].incarnation == lender.link_incarnation;
        let one_memory = known && target.with(index).iter().any(is_alias);
        let barred = lender.refused.is_some_and(|(refusal, _)| {
            matches!(
                refusal.reason,
                RefusalReason::DataOnly | RefusalReason::RegionOnly | RefusalReason::NotOwner
            )
        });
        let fits = !known || self.fits(target, other);
        !one_memory && !barred && fits && !self.claims.members.has(other)
    }

    /// Whether lender `other` is filled for the journal, or is about to be asked to join.
    fn is_coming(&self, other: usize) -> bool {
        let lender = &self.lenders[other];
        let coming = match lender.role {
            LenderRole::Joining | LenderRole::CatchingUp(_) => true,
            LenderRole::Spare => {
                let willing = lender.refused.is_none() && lender.stalled_until.is_none() && !lender.removed;
                let free = lender.control.is_none() && !self.in_use(other);
                willing && free && self.fits(self.view, other) && self.alias_of(other).is_none()
            }
            LenderRole::Member => false,
        };
        coming && lender.is_ready() && lender.leave_notice.is_none()
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::super::tests::{Bench, bound, fence_reply};
    use crate::id::{Epoch, Lsn};
    use crate::journal::{CommitRule, LenderRole};
    use crate::time::Nanos;
    use crate::wire::{Flag, FrameHeader, FrameKind, RefusalReason};

    impl Bench {
        fn withdraw(&mut self, index: usize, flags: u8) {
            let header = FrameHeader {
                flags,
                ..FrameHeader::new(FrameKind::Withdraw)
            };
            self.say(index, header, &[]);
        }

        fn members(&self) -> Vec<usize> {
            self.writer.view().iter().collect()
        }

        fn lose(&mut self, index: usize) {
            self.writer.on_lost(index, self.now);
            self.pass(600);
        }

        /// Lets time pass while lenders answer their pings.
        fn pass(&mut self, ms: u64) {
            for _ in 0..ms / 10 {
                self.wait(Nanos::from_ms(10));
                self.answer_pings();
            }
        }

        /// Has member `index` return with the window that it had.
        fn resume(&mut self, index: usize) {
            let ack = self.ack_header(index, 0, 0);
            let incarnation = ack.sender;
            self.writer.on_connected(index, self.now);
            self.drain(index);
            self.say(index, bound(incarnation), b"there");
            self.drain(index);
            let known = FrameHeader {
                flags: Flag::KNOWN,
                mark: ack.mark,
                ..fence_reply(incarnation)
            };
            self.say(index, known, &Epoch(1).0.to_le_bytes());
        }
    }

    #[test]
    fn a_drained_member_leaves_once_another_is_filled() {
        let mut bench = Bench::with_members(3, 2, CommitRule::All);
        bench.append(100);
        bench.withdraw(0, Flag::DRAINS);
        assert!(!bench.writer.view_pending(), "nothing replaces it yet");
        bench.ack(0, 100, 100);
        bench.ack(1, 100, 100);
        assert_eq!(bench.writer.acked(), Lsn(100), "it acknowledges meanwhile");
        bench.join(2);
        assert!(!bench.writer.view_pending(), "the new window is empty");
        bench.drain(2);
        bench.ack(2, 100, 100);
        bench.store_view();
        assert_eq!(bench.members(), [1, 2]);
        assert_eq!(bench.next(0).map(|frame| frame.kind), Some(FrameKind::Leave));
        assert!(bench.writer.status().lenders[0].draining);
    }

    #[test]
    fn a_drained_member_waits_for_a_lender_that_is_away() {
        let mut bench = Bench::with_members(3, 2, CommitRule::All);
        bench.lose(2);
        bench.withdraw(0, Flag::DRAINS);
        bench.pass(2000);
        // The view of an idle journal may change, and its members not.
        if bench.writer.view_pending() {
            bench.store_view();
        }
        assert_eq!(bench.members(), [0, 1]);
        bench.connect(2, 2);
        bench.join(2);
        bench.store_view();
        assert_eq!(bench.members(), [1, 2]);
    }

    #[test]
    fn a_drained_member_that_nothing_can_replace_leaves_at_once() {
        for lenders in [1, 2] {
            let mut bench = Bench::with_members(lenders, lenders, CommitRule::All);
            bench.withdraw(0, Flag::DRAINS);
            bench.store_view();
            assert_eq!(bench.writer.view().len(), lenders - 1);
        }
        let mut bench = Bench::with_members(2, 2, CommitRule::All);
        bench.withdraw(0, Flag::DRAINS);
        bench.withdraw(1, Flag::DRAINS);
        bench.store_view();
        assert_eq!(
            bench.writer.view().len(),
            1,
            "one of two that drain at once stays"
        );
        assert!(!bench.writer.view_pending());
    }

    #[test]
    fn a_member_whose_lender_lacks_memory_leaves_only_for_another() {
        let reclaims = Flag::DRAINS | Flag::PARTIAL;
        for lenders in [1, 2] {
            let mut bench = Bench::with_members(lenders, lenders, CommitRule::All);
            bench.append(100);
            (0..lenders).for_each(|index| bench.ack(index, 100, 100));
            bench.withdraw(0, reclaims);
            bench.pass(2000);
            assert_eq!(bench.members().len(), lenders, "a copy is worth more");
            assert!(!bench.writer.view_pending());
        }
        let mut bench = Bench::with_members(3, 2, CommitRule::All);
        bench.append(100);
        bench.withdraw(0, reclaims);
        assert!(!bench.writer.view_pending(), "nothing replaces it yet");
        bench.join(2);
        bench.drain(2);
        (0..3).for_each(|index| bench.ack(index, 100, 100));
        bench.store_view();
        assert_eq!(bench.members(), [1, 2]);
        assert!(bench.writer.status().lenders[0].reclaiming);
    }

    #[test]
    fn an_address_of_the_same_memory_is_no_replacement() {
        let mut bench = Bench::empty(2, 1, CommitRule::All);
        bench.connect(0, 5);
        bench.join(0);
        bench.store_view();
        bench.connect(1, 5);
        bench.withdraw(0, Flag::DRAINS);
        bench.store_view();
        assert!(bench.members().is_empty());
    }

    #[test]
    fn a_member_of_a_stopping_lender_waits_only_for_a_lender_that_is_there() {
        let mut bench = Bench::with_members(3, 2, CommitRule::All);
        bench.withdraw(0, 0);
        assert!(!bench.writer.view_pending());
        bench.join(2);
        bench.store_view();
        assert_eq!(bench.members(), [1, 2]);
        let mut bench = Bench::with_members(3, 2, CommitRule::All);
        // Otherwise a view may mark the journal clean.
        bench.append(100);
        (0..2).for_each(|index| bench.ack(index, 100, 100));
        bench.lose(2);
        bench.withdraw(0, Flag::DRAINS);
        assert!(!bench.writer.view_pending());
        bench.withdraw(0, 0);
        bench.store_view();
        assert_eq!(bench.members(), [1]);
    }

    /// The writer waited for a lender that had refused, and asked no other.
    #[test]
    fn a_lender_that_takes_no_windows_now_is_passed_over() {
        let mut bench = Bench::with_members(4, 2, CommitRule::All);
        bench.withdraw(0, Flag::DRAINS);
        assert_eq!(bench.next(2).map(|frame| frame.kind), Some(FrameKind::Join));
        let refused = FrameHeader {
            flags: RefusalReason::Stopping as u8,
            ..FrameHeader::new(FrameKind::Refuse)
        };
        bench.say(2, refused, &[]);
        bench.join(3);
        bench.store_view();
        assert_eq!(bench.members(), [1, 3]);
    }

    #[test]
    fn a_lender_that_lends_again_keeps_its_member_and_the_spare_is_let_go() {
        let mut bench = Bench::with_members(3, 2, CommitRule::All);
        bench.withdraw(0, Flag::DRAINS);
        assert_eq!(bench.next(2).map(|frame| frame.kind), Some(FrameKind::Join));
        bench.writer.on_lost(0, bench.now);
        bench.resume(0);
        assert_eq!(bench.next(2).map(|frame| frame.kind), Some(FrameKind::Leave));
        assert_eq!(bench.writer.lenders[2].role, LenderRole::Spare);
        assert_eq!(bench.members(), [0, 1]);
        assert!(!bench.writer.view_pending());
    }
}
