use alloc::vec;

use super::super::tests::{Bench, bound, fence_reply};
use super::*;
use crate::id::{Epoch, Lsn};
use crate::time::Nanos;
use crate::wire::{ChainPoint, Flag, FrameHeader, FrameKind, RefusalReason};

fn address(index: usize) -> String {
    alloc::format!("unix:/lender-{index}")
}

fn order(lenders: &[usize], rule: CommitRule, wanted: usize, min: usize) -> JournalMembership {
    JournalMembership {
        lenders: lenders.iter().map(|&index| address(index)).collect(),
        rule,
        wanted,
        min,
    }
}

impl Bench {
    fn give(&mut self, lenders: &[usize], rule: CommitRule, wanted: usize, min: usize) {
        let order = order(lenders, rule, wanted, min);
        self.writer
            .on_membership(&order, self.now)
            .expect("a valid order");
    }

    fn team(&self) -> Vec<usize> {
        self.writer.view().iter().collect()
    }

    fn leave_ack(&mut self, index: usize) {
        assert_eq!(self.next(index).map(|frame| frame.kind), Some(FrameKind::Leave));
        self.say(index, FrameHeader::new(FrameKind::LeaveAck), &[]);
    }

    fn on_disk(&mut self, lsn: u64) {
        let end = ChainPoint {
            lsn: Lsn(lsn),
            chain: 1,
        };
        self.writer.on_stable(end, self.now);
    }
}

#[test]
fn an_added_lender_joins_without_a_pause() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.append(100);
    bench.give(&[0, 1], CommitRule::All, 2, 2);
    assert!(!bench.writer.view_pending(), "it is not filled yet");
    assert!(bench.writer.wants_connection(1, bench.now));
    bench.ack(0, 100, 100);
    assert_eq!(bench.writer.acked(), Lsn(100), "the old terms count until then");
    bench.connect(1, 1);
    bench.join(1);
    bench.drain(1);
    bench.ack(1, 100, 100);
    assert!(bench.writer.view_pending() && !bench.writer.status().settled);
    bench.append(200);
    bench.ack(0, 200, 200);
    assert_eq!(bench.writer.acked(), Lsn(100), "both views are demanded");
    bench.ack(1, 200, 200);
    assert_eq!(bench.writer.acked(), Lsn(200));
    bench.store_view();
    assert_eq!(bench.team(), [0, 1]);
    assert!(bench.writer.status().settled);
}

#[test]
fn a_removed_member_leaves_once_another_is_filled_and_is_gone_once_it_was_told() {
    let mut bench = Bench::with_members(3, 2, CommitRule::All);
    bench.append(100);
    bench.give(&[1, 2], CommitRule::All, 2, 1);
    assert!(!bench.writer.view_pending(), "nothing replaces it yet");
    bench.ack(0, 100, 100);
    bench.ack(1, 100, 100);
    assert_eq!(bench.writer.acked(), Lsn(100), "it acknowledges meanwhile");
    assert!(bench.writer.status().lenders[0].removed);
    bench.join(2);
    bench.drain(2);
    bench.ack(2, 100, 100);
    bench.store_view();
    assert_eq!(bench.team(), [1, 2]);
    assert_eq!(bench.writer.status().lenders.len(), 3, "it must still be told");
    bench.leave_ack(0);
    assert_eq!(bench.writer.status().lenders.len(), 2);
    assert!(bench.writer.take_disconnects().has(0));
    assert!(!bench.writer.wants_connection(0, bench.now));
    assert!(!bench.writer.is_meeting(0, bench.now), "a close waits for none");
}

#[test]
fn a_removed_member_stays_as_long_as_nothing_can_replace_it() {
    let mut bench = Bench::with_members(3, 2, CommitRule::Any);
    bench.append(100);
    (0..2).for_each(|index| bench.ack(index, 100, 100));
    bench.writer.on_lost(2, bench.now);
    bench.give(&[1, 2], CommitRule::Any, 2, 1);
    for _ in 0..300 {
        bench.wait(Nanos::from_ms(10));
        bench.answer_pings();
    }
    assert_eq!(bench.team(), [0, 1]);
    assert!(!bench.writer.status().settled);
    bench.give(&[1, 2], CommitRule::Any, 1, 1);
    bench.store_view();
    assert_eq!(bench.team(), [1], "fewer copies are asked for now");
}

#[test]
fn a_removed_lender_that_is_away_is_told_when_it_is_back() {
    let mut bench = Bench::with_members(3, 2, CommitRule::All);
    bench.writer.on_lost(0, bench.now);
    bench.give(&[1, 2], CommitRule::All, 2, 2);
    bench.wait(Nanos::from_ms(501));
    bench.store_view();
    assert_eq!(bench.team(), [1]);
    bench.writer.on_connected(0, bench.now);
    bench.drain(0);
    bench.say(0, bound(0), b"there");
    bench.drain(0);
    let known = FrameHeader {
        flags: Flag::KNOWN,
        mark: 1,
        ..fence_reply(0)
    };
    bench.say(0, known, &Epoch(1).0.to_le_bytes());
    bench.leave_ack(0);
    assert!(bench.writer.status().lenders.iter().all(|lender| !lender.removed));
}

#[test]
fn a_lender_that_is_named_again_stays() {
    let mut bench = Bench::with_members(3, 2, CommitRule::All);
    bench.give(&[1, 2], CommitRule::All, 2, 1);
    assert_eq!(bench.next(2).map(|frame| frame.kind), Some(FrameKind::Join));
    bench.give(&[0, 1, 2], CommitRule::All, 2, 1);
    assert_eq!(bench.next(2).map(|frame| frame.kind), Some(FrameKind::Leave));
    assert_eq!(bench.team(), [0, 1]);
    assert!(!bench.writer.view_pending());
}

#[test]
fn a_laxer_rule_counts_once_its_view_is_durable() {
    let mut bench = Bench::with_members(2, 2, CommitRule::All);
    bench.append(100);
    bench.give(&[0, 1], CommitRule::Any, 2, 1);
    bench.ack(0, 100, 100);
    assert_eq!(bench.writer.acked(), Lsn(0));
    let view = bench.writer.view_to_store().expect("a view with the new rule");
    assert_eq!((view.rule, view.members.len()), (CommitRule::Any, 2));
    bench.append(200);
    bench.ack(0, 200, 200);
    assert_eq!(bench.writer.acked(), Lsn(0), "a crash may leave the old view");
    assert_eq!(bench.writer.rule_acked(), Lsn(0));
    bench.writer.on_view_stored(bench.now);
    assert_eq!(bench.writer.acked(), Lsn(200));
    assert_eq!(bench.writer.status().rule, CommitRule::Any);
}

#[test]
fn a_stricter_rule_is_stored_once_it_holds_what_was_acknowledged() {
    let mut bench = Bench::with_members(2, 2, CommitRule::Any);
    bench.append(100);
    bench.ack(0, 100, 100);
    assert_eq!(bench.writer.acked(), Lsn(100));
    bench.give(&[0, 1], CommitRule::All, 2, 2);
    assert!(bench.writer.view_to_store().is_none(), "only one member has it");
    bench.append(200);
    bench.ack(0, 200, 200);
    assert_eq!(bench.writer.acked(), Lsn(100), "both rules are demanded");
    bench.ack(1, 100, 100);
    bench.store_view();
    assert_eq!(bench.views.last().map(|view| view.rule), Some(CommitRule::All));
    assert_eq!(bench.writer.acked(), Lsn(100));
    bench.ack(1, 200, 200);
    assert_eq!(bench.writer.acked(), Lsn(200));
}

#[test]
fn more_copies_are_demanded_once_there_are_members_for_them() {
    let mut bench = Bench::with_members(3, 2, CommitRule::AtLeast(2));
    bench.append(100);
    bench.give(&[0, 1, 2], CommitRule::AtLeast(3), 3, 3);
    (0..2).for_each(|index| bench.ack(index, 100, 100));
    assert_eq!(bench.writer.acked(), Lsn(100));
    assert!(bench.writer.counting() && !bench.writer.view_pending());
    bench.join(2);
    bench.drain(2);
    bench.ack(2, 100, 100);
    bench.store_view();
    assert_eq!(bench.writer.status().rule, CommitRule::AtLeast(3));
    assert_eq!(bench.team(), [0, 1, 2]);
}

/// With too few members for either terms, the disk acknowledges, as the new settings say.
#[test]
fn new_terms_do_not_wait_for_members_while_the_old_ones_do_not_count_either() {
    let mut bench = Bench::with_members(3, 2, CommitRule::All);
    bench.give(&[0, 1, 2], CommitRule::All, 2, 2);
    bench.store_view();
    bench.give(&[0, 1, 2], CommitRule::All, 3, 3);
    assert!(!bench.writer.view_pending());
    bench.writer.on_lost(1, bench.now);
    bench.writer.on_lost(2, bench.now);
    bench.wait(Nanos::from_ms(501));
    bench.store_view();
    assert_eq!(bench.team(), [0]);
    assert!(!bench.writer.counting());
    let view = bench.views.last().expect("a view");
    assert!(!view.counting);
}

#[test]
fn fewer_members_are_those_that_are_there_in_most_domains() {
    let members = |away: Option<usize>, domains: [&[u8]; 3]| {
        let mut bench = Bench::empty(3, 3, CommitRule::All);
        bench.writer.config.one_domain = false;
        for (index, domain) in domains.into_iter().enumerate() {
            bench.connect_from(index, index as u64 + 1, domain);
            bench.join(index);
        }
        bench.store_view();
        away.into_iter()
            .for_each(|index| bench.writer.on_lost(index, bench.now));
        bench.give(&[0, 1, 2], CommitRule::All, 2, 2);
        bench.store_view();
        bench.team()
    };
    assert_eq!(members(None, [b"a", b"b", b"c"]), [0, 1]);
    assert_eq!(members(None, [b"a", b"a", b"c"]), [0, 2]);
    assert_eq!(members(Some(0), [b"a", b"b", b"c"]), [1, 2]);
    assert_eq!(
        members(Some(2), [b"here", b"here", b"c"]),
        [0, 2],
        "one must be elsewhere"
    );
}

/// A takeover needs as many answers as the view's rule says, so the rule stands still while a member claims
/// that one is under way.
#[test]
fn the_terms_stand_still_while_a_member_claims_a_newer_writer() {
    let mut bench = Bench::with_members(3, 3, CommitRule::AtLeast(2));
    let claim = FrameHeader {
        flags: RefusalReason::Fenced as u8,
        epoch: Epoch(5),
        sender: 0,
        ..FrameHeader::new(FrameKind::Refuse)
    };
    bench.say(0, claim, &[]);
    bench.give(&[0, 1, 2], CommitRule::All, 2, 2);
    bench.append(100);
    (1..3).for_each(|index| bench.ack(index, 100, 100));
    bench.on_disk(100);
    bench.wait(Nanos::from_ms(100));
    assert!(!bench.writer.view_pending());
    assert_eq!((bench.writer.fenced(), bench.team().len()), (None, 3));
}

#[test]
fn impossible_orders_change_nothing() {
    let mut bench = Bench::with_members(2, 2, CommitRule::All);
    let many: Vec<usize> = (0..=LENDERS_MAX).collect();
    let all = CommitRule::All;
    let wrong = [
        (order(&[], all, 0, 1), MembershipError::NoneLeft),
        (order(&[0], all, 0, 1), MembershipError::NoneLeft),
        (order(&many, all, 2, 2), MembershipError::TooManyLenders(17)),
        (
            order(&[0], all, 2, 2),
            MembershipError::TooManyMembers {
                wanted: 2,
                lenders: 1,
            },
        ),
        (order(&[0, 1], all, 1, 2), MembershipError::MinAboveMembers(1)),
        (
            order(&[0, 1], CommitRule::AtLeast(3), 2, 2),
            MembershipError::RuleAboveMembers {
                rule: CommitRule::AtLeast(3),
                wanted: 2,
            },
        ),
        (
            order(&[0, 1, 0], all, 2, 2),
            MembershipError::NamedTwice(address(0)),
        ),
    ];
    let before = bench.writer.membership();
    for (order, refusal) in wrong {
        assert_eq!(bench.writer.on_membership(&order, bench.now), Err(refusal));
        assert_eq!(bench.writer.membership(), before);
    }
    bench.writer.on_disk_failed();
    let ended = bench.writer.on_membership(&before, bench.now);
    assert_eq!(ended, Err(MembershipError::Ended));
}

#[test]
fn places_are_used_again_and_members_keep_theirs() {
    let mut bench = Bench::with_members(2, 2, CommitRule::All);
    let others: Vec<usize> = (2..2 + LENDERS_MAX - 2).collect();
    bench.give(&others, CommitRule::All, 2, 2);
    let more: Vec<usize> = (20..20 + LENDERS_MAX).collect();
    let refused = bench
        .writer
        .on_membership(&order(&more, CommitRule::All, 2, 2), bench.now);
    assert_eq!(refused, Err(MembershipError::PlacesTaken));
    // None of the others was ever reached, so their places are free for others.
    bench.give(&more[2..], CommitRule::All, 2, 2);
    assert_eq!(bench.writer.membership().lenders.len(), LENDERS_MAX - 2);
    assert_eq!(bench.team(), [0, 1]);
    assert_eq!(bench.writer.lender_count(), LENDERS_MAX);
}

/// Until the server has the view, it would read a fenced node's members under the old rule.
#[test]
fn a_nodes_new_rule_counts_once_the_server_has_its_view() {
    let mut bench = Bench::shared(2, 2, CommitRule::All);
    (0..2).for_each(|index| bench.connect(index, index as u64));
    (0..2).for_each(|index| bench.join(index));
    bench.store_view();
    bench.kept(0, 2);
    bench.give(&[0, 1], CommitRule::Any, 2, 1);
    bench.store_view();
    bench.append(100);
    bench.ack(0, 100, 100);
    bench.on_disk(100);
    assert_eq!(bench.writer.acked(), Lsn(0), "the server does not have the view");
    bench.kept(0, 3);
    assert_eq!(bench.writer.acked(), Lsn(100));
}

/// A takeover or an unlucky peer may send anything at any time; a free place takes nothing.
#[test]
fn a_free_place_takes_no_frames() {
    let mut bench = Bench::with_members(3, 1, CommitRule::All);
    bench.give(&[0, 1], CommitRule::All, 1, 1);
    assert!(bench.writer.take_disconnects().has(2));
    for kind in [
        FrameKind::Ack,
        FrameKind::Pong,
        FrameKind::Bound,
        FrameKind::Fenced,
    ] {
        bench.say(2, FrameHeader::new(kind), &[]);
    }
    bench.say(2, FrameHeader::new(FrameKind::Withdraw), &[]);
    bench.wait(Nanos::from_ms(2000));
    assert!(bench.next(2).is_none());
    let lenders: Vec<_> = bench
        .writer
        .status()
        .lenders
        .iter()
        .map(|lender| lender.index)
        .collect();
    assert_eq!(lenders, vec![0, 1]);
}
