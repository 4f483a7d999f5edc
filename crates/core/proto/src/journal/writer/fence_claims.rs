//! Lenders that say that a newer writer has fenced them, and when this writer believes it.
//!
//! A claim is not proven, and a lender may lie. It stops this writer only if a takeover can have succeeded:
//!
//! - A fence names an epoch above ours, or ours with another writer. A lender that names a lower one lies,
//!   and so does one that shows the signature of our own.
//! - A lender outside the view is dismissed: a takeover asks members. Its claim counts only if no lender
//!   vouches for this epoch, having accepted it without a claim since, and none is about to answer. So an old
//!   copy of a directory stops whose lenders were away when it was opened.
//! - A claim is its memory's, not its address's: a lender that moved claims for the member that it was, and
//!   no longer vouches at the address that it left.
//! - A takeover needs answers from n - k + 1 of a view's n members, if its rule demands k. While k members
//!   without a claim are left, it has not succeeded, and they hold everything acknowledged from now on. One
//!   of them is then among those that it needs.
//!
//! The last argument holds for one view, and so must hold for the one being stored, too. So a member with a
//! claim stays in the view and is not replaced: a copy of this directory from before the change would ask it
//! and need one member less. For the same reason the terms of the view stand still. It is sent nothing
//! more. A clean view promises a takeover that it needs no member at all; a claim then counts at once.

use crate::id::{Epoch, Incarnation, Lsn};
use crate::owner::plays_back;
use crate::planted::PlantedFault;
use crate::time::{Nanos, Time};
use crate::wire::{Frame, RefusalReason};

use super::lender::LinkPhase;
use super::status::LenderRefusal;
use super::{JournalWriter, LenderIndexSet, ViewTerms};

/// Multiple of `retry` for which a lender outside the view that says it was fenced is not asked again.
const CLAIM_RETRIES: u64 = 4;

/// The claims heard in this epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FenceClaims {
    /// Members, durable or proposed, that made one. They are never asked again.
    pub(super) members: LenderIndexSet,
    /// Lenders that made one since they last accepted our epoch.
    all: LenderIndexSet,
    /// Lenders that have accepted our epoch and made none since.
    vouching: LenderIndexSet,
    /// The highest epoch named.
    seen: Epoch,
}

impl FenceClaims {
    /// Forgets lender `index`, whose place another lender takes.
    pub(super) fn vacate(&mut self, index: usize) {
        for set in [&mut self.members, &mut self.all, &mut self.vouching] {
            *set = set.without(index);
        }
    }
}

impl JournalWriter {
    /// Handles the claim of lender `index` that a newer writer has fenced it.
    pub(super) fn on_fence_claim(&mut self, index: usize, frame: &Frame<'_>, now: Time) {
        let header = &frame.header;
        if self.planted.is(PlantedFault::FenceBelieved) {
            self.fenced = Some(header.epoch);
            return;
        }
        if header.epoch < self.epoch || plays_back(frame, self.epoch, self.writer) {
            return self.misbehaved(index, now);
        }
        let claim = LenderRefusal {
            reason: RefusalReason::Fenced,
            asked: self.epoch.0.into(),
            limit: header.epoch.0.into(),
        };
        let pause = Nanos(self.config.timing.retry.0 * CLAIM_RETRIES);
        self.lenders[index].refused = Some((claim, now + pause));
        self.claims.seen = self.claims.seen.max(header.epoch);
        if self.in_use(index) {
            self.claims.members = self.claims.members.with(index);
        }
        self.claims.all = self.claims.all.with(index);
        self.claims.vouching = self.claims.vouching.without(index);
        self.claim_for_left_addresses(index, Incarnation(header.sender));
        self.drop_link(index, now);
        self.lenders[index].link = LinkPhase::Down(now + pause);
        self.weigh_claims(now);
    }

    /// Counts a claim of lender `index` for the other addresses at which its memory was, unless it answers
    /// there, too.
    fn claim_for_left_addresses(&mut self, index: usize, memory: Incarnation) {
        if self.planted.is(PlantedFault::MovedClaimIgnored) {
            return;
        }
        for other in (0..self.lenders.len()).filter(|&other| other != index) {
            let lender = &self.lenders[other];
            if lender.is_ready() && lender.link_incarnation == memory {
                continue;
            }
            if lender.link_incarnation == memory {
                self.claims.vouching = self.claims.vouching.without(other);
            }
            if lender.incarnation == memory && self.in_use(other) {
                self.claims.members = self.claims.members.with(other);
            }
        }
    }

    /// Notes that lender `index` accepts our epoch.
    pub(super) fn on_epoch_accepted(&mut self, index: usize) {
        self.claims.all = self.claims.all.without(index);
        self.claims.vouching = self.claims.vouching.with(index);
    }

    /// Stops this writer if the claims say that a takeover can have succeeded.
    pub(super) fn weigh_claims(&mut self, now: Time) {
        let claims = self.claims;
        if self.fenced.is_some() || claims.members.is_empty() && claims.all.is_empty() {
            return;
        }
        let stored = self.proposal.filter(|proposal| proposal.stored);
        let by_members = self.is_overcome(self.view, self.terms, self.clean)
            || stored.is_some_and(|next| self.is_overcome(next.set, next.terms, next.clean));
        let by_all = !claims.all.is_empty() && claims.vouching.is_empty() && {
            let may_accept = |index: usize| {
                let is_down = matches!(self.lenders[index].link, LinkPhase::Down(due) if due > now);
                !claims.all.has(index) && !is_down && !self.lenders[index].is_vacant()
            };
            !(0..self.lenders.len()).any(may_accept)
        };
        if (by_members || by_all) && !self.planted.is(PlantedFault::FenceClaimIgnored) {
            self.fenced = Some(claims.seen);
        }
    }

    /// Whether a takeover of the view with members `set` can have succeeded, if the claims are true.
    fn is_overcome(&self, set: LenderIndexSet, terms: ViewTerms, clean: Option<Lsn>) -> bool {
        let trusting = set.minus(self.claims.members);
        let copies = terms.rule.copies(set.len()).max(1);
        trusting != set && (trusting.minus(self.departing).len() < copies || clean.is_some())
    }

    /// The members that may leave with the next view.
    pub(super) fn may_leave(&self) -> LenderIndexSet {
        self.departing.minus(self.claims.members)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Bench, bound};
    use crate::id::{Epoch, Lsn};
    use crate::journal::CommitRule;
    use crate::time::Nanos;
    use crate::wire::{FrameHeader, FrameKind, RefusalReason};

    fn claim(bench: &mut Bench, index: usize, epoch: u32) {
        claim_as(bench, index, index as u64, epoch);
    }

    fn claim_as(bench: &mut Bench, index: usize, memory: u64, epoch: u32) {
        let refusal = FrameHeader {
            flags: RefusalReason::Fenced as u8,
            epoch: Epoch(epoch),
            sender: memory,
            ..FrameHeader::new(FrameKind::Refuse)
        };
        bench.say(index, refusal, &[]);
        bench.wait(Nanos::from_ms(1));
    }

    /// A spare said "fenced by epoch 0", and the writer stopped for good, and again after every restart.
    #[test]
    fn a_spare_stops_no_writer() {
        for epoch in [0, 1, 2, u32::MAX] {
            let mut bench = Bench::with_members(2, 1, CommitRule::All);
            claim(&mut bench, 1, epoch);
            bench.append(100);
            bench.ack(0, 100, 100);
            assert_eq!((bench.writer.fenced(), bench.writer.acked()), (None, Lsn(100)));
            assert!(bench.writer.take_disconnects().has(1), "it is dismissed");
            assert!(!bench.writer.wants_connection(1, bench.now));
        }
    }

    #[test]
    fn a_member_that_names_a_lower_epoch_lies_and_leaves_the_view() {
        let mut bench = Bench::with_members(2, 1, CommitRule::All);
        claim(&mut bench, 0, 0);
        assert_eq!(bench.writer.fenced(), None);
        assert!(bench.writer.take_disconnects().has(0));
    }

    /// The lender played back the fence that the writer had signed, and stopped it for good.
    #[test]
    fn a_member_that_shows_the_writers_own_fence_lies() {
        for (writer, stops) in [(9u64, None), (8, Some(Epoch(1)))] {
            let mut bench = Bench::with_members(2, 2, CommitRule::All);
            let refusal = FrameHeader {
                flags: RefusalReason::Fenced as u8,
                epoch: Epoch(1),
                sender: 1,
                ..FrameHeader::new(FrameKind::Refuse)
            };
            let mut body = [1; 72];
            body[..8].copy_from_slice(&writer.to_le_bytes());
            bench.say(1, refusal, &body);
            assert_eq!(bench.writer.fenced(), stops);
            assert!(bench.writer.take_disconnects().has(1));
        }
    }

    #[test]
    fn a_member_stops_a_writer_whose_rule_needs_it() {
        let mut bench = Bench::with_members(2, 2, CommitRule::All);
        claim(&mut bench, 1, 5);
        assert_eq!(bench.writer.fenced(), Some(Epoch(5)));
    }

    #[test]
    fn one_member_of_two_stops_no_writer_that_needs_any_and_stays_in_the_view() {
        let mut bench = Bench::with_members(3, 2, CommitRule::Any);
        claim(&mut bench, 1, 5);
        for _ in 0..300 {
            bench.append(8);
            let end = bench.writer.tail().0;
            bench.drain(0);
            bench.ack(0, end, end);
            bench.drain(2);
            bench.answer_pings();
            bench.wait(Nanos::from_ms(10));
            assert!(bench.next(1).is_none(), "it is sent nothing more");
            assert!(!bench.writer.wants_connection(1, bench.now));
        }
        assert_eq!(bench.writer.fenced(), None);
        assert_eq!(bench.writer.acked(), bench.writer.tail());
        assert!(bench.writer.view().has(1) && bench.writer.view().len() == 2);
        claim(&mut bench, 0, 6);
        assert_eq!(bench.writer.fenced(), Some(Epoch(6)), "both members say so");
    }

    #[test]
    fn the_loss_of_the_last_member_without_a_claim_stops_the_writer() {
        let mut bench = Bench::with_members(2, 2, CommitRule::Any);
        claim(&mut bench, 1, 5);
        bench.writer.on_lost(0, bench.now);
        bench.wait(Nanos::from_ms(400));
        assert_eq!(bench.writer.fenced(), None, "it may come back");
        bench.wait(Nanos::from_ms(200));
        assert_eq!(bench.writer.fenced(), Some(Epoch(5)));
    }

    /// An old copy of a directory that could not reach its lenders when it was opened.
    #[test]
    fn a_writer_that_no_lender_accepts_stops() {
        let mut bench = Bench::empty(2, 1, CommitRule::All);
        for index in 0..2 {
            assert!(bench.writer.wants_connection(index, bench.now));
            bench.writer.on_connected(index, bench.now);
            bench.drain(index);
            bench.say(index, bound(index as u64), &[]);
            bench.drain(index);
        }
        claim(&mut bench, 0, 3);
        assert_eq!(bench.writer.fenced(), None, "the other has not answered");
        claim(&mut bench, 1, 4);
        assert_eq!(bench.writer.fenced(), Some(Epoch(4)));
    }

    #[test]
    fn the_first_answer_of_a_liar_stops_no_writer_that_another_lender_accepts() {
        let mut bench = Bench::empty(2, 1, CommitRule::All);
        bench.connect(0, 7);
        assert!(bench.writer.wants_connection(1, bench.now));
        bench.writer.on_connected(1, bench.now);
        bench.drain(1);
        bench.say(1, bound(8), &[]);
        bench.drain(1);
        claim(&mut bench, 1, 9);
        bench.join(0);
        bench.append(100);
        bench.store_view();
        bench.ack(0, 100, 100);
        assert_eq!((bench.writer.fenced(), bench.writer.acked()), (None, Lsn(100)));
    }

    /// The only honest lender is restarted, and a liar is left.
    #[test]
    fn a_liar_that_is_alone_for_a_while_stops_no_writer() {
        let mut bench = Bench::with_members(2, 1, CommitRule::All);
        bench.writer.on_lost(0, bench.now);
        bench.wait(Nanos::from_ms(600));
        bench.store_view();
        assert!(bench.writer.view().is_empty());
        claim(&mut bench, 1, 9);
        bench.wait(Nanos::from_ms(3000));
        assert_eq!(bench.writer.fenced(), None);
    }

    /// A lender moved and was fenced. The member at its old address was still believed to follow, and a
    /// writer whose view could not change never stopped (simulator seeds 7014339 and 7017445).
    #[test]
    fn a_member_that_moved_stops_a_writer_from_its_new_address() {
        let mut bench = Bench::empty(2, 1, CommitRule::All);
        bench.connect(1, 7);
        bench.join(1);
        bench.store_view();
        claim_as(&mut bench, 0, 7, 5);
        assert_eq!(bench.writer.fenced(), None, "it answers at its old address");
        bench.writer.on_lost(1, bench.now);
        claim_as(&mut bench, 0, 8, 5);
        assert_eq!(bench.writer.fenced(), None, "another memory is no member");
        claim_as(&mut bench, 0, 7, 5);
        assert_eq!(bench.writer.fenced(), Some(Epoch(5)));
    }

    /// The address that a lender had left vouched for the epoch for ever (simulator seeds 7001367, 7009120
    /// and 7027030).
    #[test]
    fn no_address_vouches_for_a_memory_that_moved() {
        let mut bench = Bench::empty(2, 0, CommitRule::All);
        bench.connect(1, 7);
        bench.writer.on_lost(1, bench.now);
        assert!(bench.writer.wants_connection(1, bench.now));
        bench.writer.on_lost(1, bench.now);
        claim_as(&mut bench, 0, 8, 5);
        assert_eq!(
            bench.writer.fenced(),
            None,
            "the lender that accepted may come back"
        );
        claim_as(&mut bench, 0, 7, 5);
        assert_eq!(bench.writer.fenced(), Some(Epoch(5)));
    }
}
