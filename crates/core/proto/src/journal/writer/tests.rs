use alloc::vec::Vec;

use super::*;
use crate::id::Incarnation;
use crate::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};

const JOURNAL: JournalId = JournalId(7);
const DETECT: Nanos = Nanos::from_ms(500);

/// A writer, and methods that play its lenders.
pub(super) struct Bench {
    pub(super) writer: JournalWriter,
    pub(super) now: Time,
    pub(super) views: Vec<super::super::View>,
}

/// A lender's answer to `Bind`, with the incarnation `who`.
pub(super) fn bound(who: u64) -> FrameHeader {
    FrameHeader {
        sender: who,
        ..FrameHeader::new(FrameKind::Bound)
    }
}

/// A lender's answer to `Fence`, without a window.
pub(super) fn fence_reply(who: u64) -> FrameHeader {
    FrameHeader {
        epoch: Epoch(1),
        sender: who,
        ..FrameHeader::new(FrameKind::Fenced)
    }
}

impl Bench {
    pub(super) fn empty(lenders: usize, wanted: usize, rule: CommitRule) -> Bench {
        Bench::with_voter(lenders, wanted, rule, Voter::Disk)
    }

    /// A writer of a shared journal, without members.
    pub(super) fn shared(lenders: usize, wanted: usize, rule: CommitRule) -> Bench {
        Bench::with_voter(lenders, wanted, rule, Voter::Server)
    }

    fn with_voter(lenders: usize, wanted: usize, rule: CommitRule, voter: Voter) -> Bench {
        let config = WriterConfig {
            lenders: (0..lenders)
                .map(|index| alloc::format!("unix:/lender-{index}"))
                .collect(),
            rule,
            wanted,
            min: 1,
            domain: String::from("here"),
            one_domain: true,
            window_bytes: 1 << 20,
            timing: WriterTimings::default(),
            cast: None,
            voter,
        };
        let writer = JournalWriter::new(JOURNAL, Epoch(1), WriterId(9), 1, ChainPoint::default(), config);
        Bench {
            writer,
            now: Time(1_000_000_000),
            views: Vec::new(),
        }
    }

    /// A writer whose first `wanted` lenders are members.
    pub(super) fn with_members(lenders: usize, wanted: usize, rule: CommitRule) -> Bench {
        let mut bench = Bench::empty(lenders, wanted, rule);
        for index in 0..lenders {
            bench.connect(index, index as u64);
        }
        for index in 0..wanted {
            bench.join(index);
        }
        bench.store_view();
        assert_eq!(bench.writer.view().len(), wanted);
        bench
    }

    pub(super) fn connect(&mut self, index: usize, incarnation: u64) {
        self.connect_from(index, incarnation, b"there");
    }

    pub(super) fn connect_from(&mut self, index: usize, incarnation: u64, domain: &[u8]) {
        self.writer.on_connected(index, self.now);
        assert_eq!(self.next(index).unwrap().kind, FrameKind::Bind);
        self.say(index, bound(incarnation), domain);
        assert_eq!(self.next(index).unwrap().kind, FrameKind::Fence);
        self.say(index, fence_reply(incarnation), &[0; 4]);
    }

    pub(super) fn join(&mut self, index: usize) {
        let join = self.next(index).expect("an invitation to join");
        assert_eq!(join.kind, FrameKind::Join);
        self.ack(index, join.lsn.0, join.lsn.0);
    }

    pub(super) fn next(&mut self, index: usize) -> Option<FrameHeader> {
        self.writer
            .next_frame(index, self.now)
            .map(|outgoing| outgoing.header)
    }

    pub(super) fn drain(&mut self, index: usize) {
        while self.next(index).is_some() {}
    }

    pub(super) fn say(&mut self, index: usize, header: FrameHeader, body: &[u8]) {
        self.writer.on_frame(index, &Frame { header, body }, self.now);
    }

    pub(super) fn ack(&mut self, index: usize, held: u64, received: u64) {
        let header = self.ack_header(index, held, received);
        self.say(index, header, &[]);
    }

    pub(super) fn ack_header(&self, index: usize, held: u64, received: u64) -> FrameHeader {
        let lender = &self.writer.lenders[index];
        FrameHeader {
            epoch: Epoch(1),
            sender: lender.incarnation.0,
            mark: lender.generation,
            lsn: Lsn(held),
            stable: Lsn(received),
            ..FrameHeader::new(FrameKind::Ack)
        }
    }

    pub(super) fn append(&mut self, tail: u64) {
        self.writer.on_append(Lsn(tail));
        for index in 0..self.writer.lender_count() {
            self.drain(index);
        }
    }

    pub(super) fn store_view(&mut self) {
        let view = self.writer.view_to_store().expect("a view to store");
        self.views.push(view);
        self.writer.on_view_stored(self.now);
    }

    pub(super) fn wait(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            self.now = end.min(self.now + Nanos::from_ms(10));
            self.writer.on_tick(self.now);
        }
    }
}

#[test]
fn the_rule_all_acknowledges_what_every_member_holds() {
    let mut bench = Bench::with_members(2, 2, CommitRule::All);
    bench.append(100);
    bench.ack(0, 100, 100);
    assert_eq!(bench.writer.acked(), Lsn(0));
    bench.ack(1, 60, 100);
    assert_eq!(bench.writer.acked(), Lsn(60));
    bench.ack(1, 100, 100);
    assert_eq!(bench.writer.acked(), Lsn(100));
    let votes = bench.writer.votes(Lsn(100));
    assert_eq!((votes.members, votes.rule, votes.disk), (2, true, false));
}

#[test]
fn the_local_disk_has_a_vote() {
    let mut bench = Bench::with_members(2, 2, CommitRule::All);
    bench.append(100);
    bench.writer.on_stable(
        ChainPoint {
            lsn: Lsn(100),
            chain: 1,
        },
        bench.now,
    );
    assert_eq!(bench.writer.acked(), Lsn(100));
    assert!(!bench.writer.votes(Lsn(100)).rule);
}

#[test]
fn acknowledgements_of_another_incarnation_epoch_or_join_do_not_count() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.append(100);
    let good = bench.ack_header(0, 100, 100);
    bench.say(0, FrameHeader { sender: 77, ..good }, &[]);
    bench.say(
        0,
        FrameHeader {
            epoch: Epoch(2),
            ..good
        },
        &[],
    );
    bench.say(
        0,
        FrameHeader {
            mark: good.mark + 1,
            ..good
        },
        &[],
    );
    assert_eq!(bench.writer.acked(), Lsn(0));
    bench.say(0, good, &[]);
    assert_eq!(bench.writer.acked(), Lsn(100));
}

#[test]
fn a_lender_that_claims_what_was_never_sent_is_given_up() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.append(100);
    bench.ack(0, 5000, 5000);
    assert_eq!(bench.writer.acked(), Lsn(0));
    assert!(bench.writer.take_disconnects().has(0));
}

/// The writer panicked: it accepted a lender's claim of bytes beyond its tail (simulator seed 123).
#[test]
fn a_lender_that_joins_where_nothing_was_sent_is_given_up() {
    let mut bench = Bench::empty(1, 1, CommitRule::All);
    bench.connect(0, 1);
    assert_eq!(bench.next(0).unwrap().kind, FrameKind::Join);
    bench.ack(0, 5000, 5000);
    assert!(bench.writer.take_disconnects().has(0));
    assert!(bench.writer.view_to_store().is_none());
}

/// The writer panicked: the domain did not fit the view (simulator seed 157).
#[test]
fn a_lender_whose_domain_would_not_fit_a_view_is_given_up() {
    let mut bench = Bench::empty(1, 1, CommitRule::All);
    bench.writer.on_connected(0, bench.now);
    assert_eq!(bench.next(0).unwrap().kind, FrameKind::Bind);
    bench.say(0, FrameHeader::new(FrameKind::Bound), &[b'd'; 65]);
    assert!(bench.writer.take_disconnects().has(0));
}

#[test]
fn a_proposed_view_counts_only_when_durable_and_until_then_with_the_old_one() {
    let mut bench = Bench::with_members(3, 2, CommitRule::All);
    bench.append(100);
    bench.ack(0, 100, 100);
    // Member 1 stays silent and is to be replaced by lender 2.
    bench.wait(Nanos(DETECT.0 + 1));
    assert!(bench.writer.take_disconnects().has(1));
    let view = bench
        .writer
        .view_to_store()
        .expect("a view without the silent member");
    assert_eq!(view.members.len(), 1);
    assert_eq!(bench.next(2).unwrap().kind, FrameKind::Join);
    bench.append(200);
    bench.ack(0, 200, 200);
    assert_eq!(bench.writer.acked(), Lsn(0), "the view is not durable yet");
    bench.writer.on_view_stored(bench.now);
    assert_eq!(bench.writer.acked(), Lsn(200), "now it is");
    bench.ack(2, 0, 0);
    bench.append(300);
    bench.ack(0, 300, 300);
    assert_eq!(
        bench.writer.acked(),
        Lsn(300),
        "a lender that is catching up delays no commit"
    );
    bench.ack(2, 200, 200);
    // The lender has caught up to where the log ended when it joined: it is proposed, and from now on both
    // views' rules hold.
    bench.append(400);
    bench.ack(0, 400, 400);
    assert_eq!(bench.writer.acked(), Lsn(300));
    assert!(
        bench.writer.view_to_store().is_none(),
        "it lacks acknowledged bytes"
    );
    bench.ack(2, 400, 400);
    assert_eq!(bench.writer.acked(), Lsn(400));
    let view = bench.writer.view_to_store().expect("a view with the new member");
    assert_eq!(view.members.len(), 2);
}

#[test]
fn a_lender_whose_memory_was_lost_leaves_the_view_before_it_joins_again() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.append(100);
    bench.ack(0, 100, 100);
    bench.writer.on_lost(0, bench.now);
    bench.connect(0, 42);
    assert!(
        bench.next(0).is_none_or(|header| header.kind != FrameKind::Join),
        "its window must not be emptied yet"
    );
    assert!(
        bench.writer.view_to_store().is_none(),
        "what only it had acknowledged is not on the disk yet"
    );
    bench.writer.on_stable(
        ChainPoint {
            lsn: Lsn(100),
            chain: 1,
        },
        bench.now,
    );
    let view = bench.writer.view_to_store().expect("a view without it");
    assert!(view.members.is_empty() && !view.counting);
    bench.writer.on_view_stored(bench.now);
    assert_eq!(bench.next(0).unwrap().kind, FrameKind::Leave);
    bench.say(
        0,
        FrameHeader {
            epoch: Epoch(1),
            sender: 42,
            ..FrameHeader::new(FrameKind::LeaveAck)
        },
        &[],
    );
    bench.wait(Nanos::from_ms(10));
    let join = bench.next(0).unwrap();
    assert_eq!((join.kind, join.lsn), (FrameKind::Join, Lsn(100)));
    // The writer once waited for the lost memory's acknowledgements of this join, which never came: every
    // commit waited for the disk until the link broke.
    let joined = FrameHeader {
        sender: 42,
        ..bench.ack_header(0, 100, 100)
    };
    bench.say(0, joined, &[]);
    let view = bench.writer.view_to_store().expect("a view with its new memory");
    assert_eq!(view.members[0].incarnation, Incarnation(42));
}

#[test]
fn a_lender_process_that_kept_its_memory_resumes_without_a_view_change() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.append(100);
    bench.ack(0, 60, 100);
    let (incarnation, generation) = (
        bench.writer.lenders[0].incarnation,
        bench.writer.lenders[0].generation,
    );
    bench.writer.on_lost(0, bench.now);
    bench.writer.on_connected(0, bench.now);
    bench.drain(0);
    bench.say(0, bound(incarnation.0), b"there");
    bench.drain(0);
    let fenced = FrameHeader {
        flags: Flag::KNOWN,
        epoch: Epoch(1),
        mark: generation,
        lsn: Lsn(60),
        sender: incarnation.0,
        ..FrameHeader::new(FrameKind::Fenced)
    };
    bench.say(0, fenced, &1u32.to_le_bytes());
    assert!(bench.writer.view_to_store().is_none());
    assert_eq!(
        bench.next(0).map(|header| (header.kind, header.lsn)),
        Some((FrameKind::Append, Lsn(60)))
    );
    assert_eq!(incarnation, Incarnation(0));
}

#[test]
fn a_fenced_writer_never_acknowledges_again() {
    let mut bench = Bench::with_members(2, 2, CommitRule::All);
    bench.append(100);
    let fenced = FrameHeader {
        flags: RefusalReason::Fenced as u8,
        epoch: Epoch(2),
        ..FrameHeader::new(FrameKind::Refuse)
    };
    bench.say(0, fenced, &[]);
    bench.ack(1, 100, 100);
    bench.writer.on_stable(
        ChainPoint {
            lsn: Lsn(100),
            chain: 1,
        },
        bench.now,
    );
    assert_eq!(
        (bench.writer.acked(), bench.writer.fenced()),
        (Lsn(0), Some(Epoch(2)))
    );
    assert!(bench.next(1).is_none());
}

#[test]
fn with_fewer_members_than_the_minimum_only_the_disk_acknowledges() {
    let mut bench = Bench::empty(2, 2, CommitRule::All);
    bench.writer.config.min = 2;
    bench.writer.terms.min = 2;
    bench.connect(0, 0);
    bench.join(0);
    bench.store_view();
    assert!(!bench.views[0].counting);
    bench.append(100);
    bench.ack(0, 100, 100);
    assert_eq!(bench.writer.acked(), Lsn(0));
    assert_eq!(
        bench.writer.blocked(),
        Some(DiskWaitReason::TooFewMembers { have: 1, min: 2 })
    );
    bench.writer.on_stable(
        ChainPoint {
            lsn: Lsn(100),
            chain: 1,
        },
        bench.now,
    );
    assert_eq!(bench.writer.acked(), Lsn(100));
}

#[test]
fn a_member_behind_the_disk_is_sent_everything_while_the_ring_has_it() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.writer.on_append(Lsn(100));
    let stable = ChainPoint {
        lsn: Lsn(100),
        chain: 5,
    };
    bench.writer.on_stable(stable, bench.now);
    let append = bench.next(0).unwrap();
    assert_eq!((append.lsn, append.flags, append.stable), (Lsn(0), 0, Lsn(100)));
}

#[test]
fn a_member_a_ring_behind_the_disk_continues_from_the_stable_end() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.writer.on_append(Lsn(100));
    let stable = ChainPoint {
        lsn: Lsn(100),
        chain: 5,
    };
    bench.writer.on_stable(stable, bench.now);
    bench.writer.on_append(Lsn((1 << 20) + 50));
    let append = bench.next(0).unwrap();
    assert_eq!(
        (append.lsn, append.flags, append.mark),
        (Lsn(100), Flag::FRESH, 5)
    );
}

/// The member owed bytes that were never sent again, and was given up as silent on an idle journal (simulator
/// seed 575).
#[test]
fn a_member_a_ring_behind_the_disk_is_told_so_even_with_nothing_to_send() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.writer.on_append(Lsn(1 << 20));
    bench.drain(0);
    bench.writer.on_lost(0, bench.now);
    let tail = ChainPoint {
        lsn: Lsn((1 << 20) + 800),
        chain: 5,
    };
    bench.writer.on_append(tail.lsn);
    bench.writer.on_stable(tail, bench.now);
    let incarnation = bench.writer.lenders[0].incarnation.0;
    bench.writer.on_connected(0, bench.now);
    bench.drain(0);
    bench.say(0, bound(incarnation), b"there");
    bench.drain(0);
    let fenced = FrameHeader {
        epoch: Epoch(1),
        sender: incarnation,
        mark: bench.writer.lenders[0].generation,
        flags: Flag::KNOWN,
        ..FrameHeader::new(FrameKind::Fenced)
    };
    bench.say(0, fenced, &1u32.to_le_bytes());
    let append = bench.writer.next_frame(0, bench.now).unwrap();
    let empty = super::super::FrameBody::Log {
        from: tail.lsn,
        bytes: 0,
    };
    assert_eq!((append.header.flags, append.body), (Flag::FRESH, empty));
    bench.ack(0, tail.lsn.0, tail.lsn.0);
    bench.wait(Nanos(2 * DETECT.0));
    assert!(bench.writer.take_disconnects().is_empty());
}

/// With two appends in flight the member was skipped, and never told again: a commit that waited for the
/// members hung (simulator seed 3024056).
#[test]
fn a_member_a_ring_behind_the_disk_is_told_so_while_appends_are_in_flight() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    for tail in [100, 200] {
        bench.writer.on_append(Lsn(tail));
        assert!(bench.next(0).is_some());
    }
    let tail = ChainPoint {
        lsn: Lsn((1 << 20) + 800),
        chain: 5,
    };
    bench.writer.on_append(tail.lsn);
    bench.writer.on_stable(tail, bench.now);
    let append = bench.next(0).unwrap();
    assert_eq!((append.lsn, append.flags), (tail.lsn, Flag::FRESH));
}

/// Members in one power domain filled the view when the one in another domain left. When it came back there
/// was no place for it, and every commit waited for the disk (simulator seed 3000310).
#[test]
fn a_view_that_lacks_a_second_domain_replaces_a_member_to_get_one() {
    let mut bench = Bench::empty(3, 2, CommitRule::All);
    bench.writer.config.one_domain = false;
    bench.writer.config.domain = String::from("there");
    bench.connect(0, 1);
    bench.connect(1, 2);
    bench.join(0);
    bench.join(1);
    bench.store_view();
    assert!(bench.writer.blocked().is_some());
    bench.connect_from(2, 3, b"elsewhere");
    bench.join(2);
    bench.store_view();
    let view: Vec<usize> = bench.writer.view().iter().collect();
    assert_eq!(view, [0, 2]);
    assert!(bench.writer.blocked().is_none());
}

/// One lost ping looked like a dead lender where frames may be lost (simulator seed 78).
#[test]
fn a_lost_ping_is_sent_again_on_a_link_that_loses_frames() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.writer.config.timing.resend = Some(Nanos::from_ms(50));
    bench.now = bench.now + DETECT;
    assert_eq!(bench.next(0).unwrap().kind, FrameKind::Ping);
    assert!(bench.next(0).is_none());
    bench.now = bench.now + Nanos::from_ms(50);
    assert_eq!(bench.next(0).unwrap().kind, FrameKind::Ping);
}

#[test]
fn small_appends_wait_while_two_are_in_flight_and_then_go_as_one() {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.writer.on_append(Lsn(100));
    assert!(bench.next(0).is_some());
    bench.writer.on_append(Lsn(200));
    assert!(bench.next(0).is_some());
    bench.writer.on_append(Lsn(300));
    bench.writer.on_append(Lsn(400));
    assert!(bench.next(0).is_none());
    bench.ack(0, 100, 100);
    let append = bench.writer.next_frame(0, bench.now).unwrap();
    assert_eq!(
        append.body,
        super::super::FrameBody::Log {
            from: Lsn(200),
            bytes: 200
        }
    );
}

#[test]
fn a_window_that_no_view_names_is_freed_before_the_lender_joins_again() {
    let mut bench = Bench::empty(1, 1, CommitRule::All);
    bench.writer.on_connected(0, bench.now);
    bench.drain(0);
    bench.say(0, bound(3), b"there");
    bench.drain(0);
    let fenced = FrameHeader {
        flags: Flag::KNOWN,
        epoch: Epoch(1),
        mark: 8,
        sender: 3,
        ..FrameHeader::new(FrameKind::Fenced)
    };
    bench.say(0, fenced, &7u32.to_le_bytes());
    let leave = bench.next(0).unwrap();
    assert_eq!((leave.kind, leave.lsn, leave.mark), (FrameKind::Leave, Lsn(7), 8));
    let left = FrameHeader {
        epoch: Epoch(1),
        sender: 3,
        ..FrameHeader::new(FrameKind::LeaveAck)
    };
    bench.say(0, left, &[]);
    assert_eq!(bench.next(0).unwrap().kind, FrameKind::Join);
}

#[test]
fn with_a_failed_disk_a_dead_member_makes_the_commit_impossible() {
    let mut bench = Bench::with_members(2, 2, CommitRule::All);
    bench.append(100);
    bench.ack(0, 100, 100);
    bench.writer.on_disk_failed();
    assert!(
        bench.writer.may_still_be_acked(Lsn(100)),
        "the other member may yet answer"
    );
    bench.wait(Nanos(DETECT.0 + 1));
    assert!(
        !bench.writer.may_still_be_acked(Lsn(100)),
        "no view can replace this one any more"
    );
}
