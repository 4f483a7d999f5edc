//! Claims and identities of members. Recovery believes no length, counts memories and not addresses, and
//! accepts a window only of the join in the view.

use netram_proto::id::{Epoch, Incarnation, Lsn, WriterId};
use netram_proto::journal::{JoinId, PeerAnswer, Recovery, RecoveryError, View};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};

use crate::recovery::{bind, connect, fenced, recovery, view};

fn data(recovery: &mut Recovery, index: usize, lsn: u64, bytes: usize) {
    let header = FrameHeader {
        lsn: Lsn(lsn),
        ..FrameHeader::new(FrameKind::Data)
    };
    let body = vec![9; bytes];
    recovery.on_frame(index, &Frame { header, body: &body });
}

fn missing(recovery: &Recovery, now: Time) -> Vec<(String, PeerAnswer)> {
    match recovery.verdict(now) {
        Some(Err(RecoveryError::Missing { missing, .. })) => missing,
        other => panic!("{other:?}"),
    }
}

/// The member was read for as long as it returned bytes: 1.4 GB in five seconds, for a log of 16 MiB.
#[test]
fn a_member_that_claims_more_than_its_window_can_hold_does_not_count() {
    let window = 1 << 20;
    for (trim, held) in [(60, 60 + window + 1), (60, u64::MAX), (60, 59), (u64::MAX, 0)] {
        let view = View {
            window_bytes: window,
            ..view(1, "all")
        };
        let mut recovery = Recovery::new(
            &view,
            Epoch(2),
            WriterId(5),
            Lsn(100),
            Time(0),
            Nanos(10),
            Nanos(100),
        );
        bind(&mut recovery, 0);
        fenced(&mut recovery, 0, 0, Flag::KNOWN, trim, held);
        assert!(recovery.next_frame(0).is_none(), "it is not read");
        assert_eq!(missing(&recovery, Time(1))[0].1, PeerAnswer::Overclaims);
    }
}

#[test]
fn no_bytes_are_taken_beyond_a_members_end_or_without_a_read() {
    let mut recovery = recovery(1, "all");
    bind(&mut recovery, 0);
    fenced(&mut recovery, 0, 0, Flag::KNOWN, 60, 150);
    data(&mut recovery, 0, 100, 20);
    assert_eq!(recovery.bytes_read(), 0, "no read was sent");
    assert_eq!(
        recovery.next_frame(0).expect("a read").header.kind,
        FrameKind::Read
    );
    data(&mut recovery, 0, 100, 20);
    data(&mut recovery, 0, 120, 20);
    assert_eq!(recovery.bytes_read(), 20, "one read, one answer");
    assert_eq!(recovery.next_frame(0).expect("a read").header.lsn, Lsn(120));
    data(&mut recovery, 0, 120, 60_000);
    assert_eq!(recovery.bytes_read(), 50);
    assert_eq!(recovery.verdict(Time(1)), Some(Ok(())));
}

/// Has the address `index` show that it leads to the memory `incarnation`.
fn identified(recovery: &mut Recovery, index: usize, incarnation: u64) {
    connect(recovery, index);
    let ping = recovery
        .next_frame(index)
        .expect("a question that changes nothing");
    assert_eq!(ping.header.kind, FrameKind::Ping);
    let header = FrameHeader {
        flags: RefusalReason::NotFenced as u8,
        sender: incarnation,
        ..FrameHeader::new(FrameKind::Refuse)
    };
    recovery.on_frame(index, &Frame { header, body: b"" });
    // The driver drops the link to a lender that refuses.
    recovery.on_lost(index);
}

/// Only the addresses in the view were asked: a lender that came back at another address had the bytes and
/// was not asked.
#[test]
fn a_member_that_moved_is_found_at_an_address_of_the_settings() {
    let settings = ["unix:/lender-0", "unix:/spare", "unix:/moved"];
    let mut recovery = recovery(1, "all").with_addresses(settings);
    assert_eq!(
        recovery.addresses().count(),
        3,
        "the member's own address is asked once"
    );
    identified(&mut recovery, 1, 77);
    recovery.on_connected(1);
    assert!(
        recovery.next_frame(1).is_none(),
        "a lender that is no member is not fenced"
    );
    identified(&mut recovery, 2, 0);
    bind(&mut recovery, 2);
    fenced(&mut recovery, 2, 0, Flag::KNOWN, 60, 100);
    assert_eq!(recovery.verdict(Time(1)), Some(Ok(())));
    let answers: Vec<_> = recovery.answers().collect();
    assert_eq!(answers, [("unix:/moved", PeerAnswer::Complete)]);
    assert_eq!(recovery.windows().len(), 1);
}

#[test]
fn another_address_of_a_member_that_answers_is_left_alone() {
    let mut recovery = recovery(2, "any").with_addresses(["unix:/alias"]);
    bind(&mut recovery, 0);
    identified(&mut recovery, 2, 0);
    recovery.on_connected(2);
    assert!(recovery.next_frame(2).is_none(), "its memory is being fenced");
    fenced(&mut recovery, 0, 0, Flag::KNOWN, 60, 100);
    assert!(recovery.next_frame(2).is_none());
    assert_eq!(
        missing(&recovery, Time(100)),
        [("unix:/lender-1".to_string(), PeerAnswer::Unreachable)]
    );
}

/// The member's own address came back after its window had been read over another one, and it was read again
/// (seed 10194582).
#[test]
fn a_window_is_read_over_one_address() {
    let mut recovery = recovery(2, "any").with_addresses(["unix:/moved"]);
    identified(&mut recovery, 2, 0);
    bind(&mut recovery, 2);
    fenced(&mut recovery, 2, 0, Flag::KNOWN, 60, 120);
    assert_eq!(
        recovery.next_frame(2).expect("a read").header.kind,
        FrameKind::Read
    );
    data(&mut recovery, 2, 100, 20);
    bind(&mut recovery, 0);
    fenced(&mut recovery, 0, 0, Flag::KNOWN, 60, 120);
    assert!(recovery.next_frame(0).is_none(), "it has been read");
    assert_eq!(recovery.bytes_read(), 20);
    bind(&mut recovery, 1);
    fenced(&mut recovery, 1, 1, Flag::KNOWN, 60, 100);
    assert_eq!(recovery.verdict(Time(1)), Some(Ok(())));
    let windows = recovery.windows();
    assert_eq!(windows.iter().map(|window| window.bytes.len()).max(), Some(20));
}

/// One memory under two addresses answered twice, where both copies had to answer.
#[test]
fn a_memory_that_an_old_view_names_twice_answers_once() {
    let mut twice = view(2, "any");
    twice.members[1].incarnation = Incarnation(0);
    let mut recovery = Recovery::new(
        &twice,
        Epoch(2),
        WriterId(5),
        Lsn(100),
        Time(0),
        Nanos(10),
        Nanos(100),
    );
    for index in 0..2 {
        bind(&mut recovery, index);
        fenced(&mut recovery, index, 0, Flag::KNOWN, 60, 100);
    }
    assert_eq!(
        missing(&recovery, Time(1)),
        [("unix:/lender-1".to_string(), PeerAnswer::Amnesiac)]
    );
}

/// After a second join, a member's window may have been emptied and is not the one that the view counts on.
#[test]
fn a_window_counts_only_as_it_was_joined() {
    let joined = |epoch, generation| JoinId {
        epoch: Epoch(epoch),
        generation,
    };
    for (join, counts) in [(joined(1, 4), true), (joined(1, 5), false), (joined(2, 4), false)] {
        let mut view = view(1, "all");
        view.members[0].join = Some(join);
        let mut recovery = Recovery::new(
            &view,
            Epoch(3),
            WriterId(5),
            Lsn(100),
            Time(0),
            Nanos(10),
            Nanos(100),
        );
        bind(&mut recovery, 0);
        let header = FrameHeader {
            flags: Flag::KNOWN,
            epoch: Epoch(3),
            lsn: Lsn(100),
            stable: Lsn(60),
            mark: 4,
            ..FrameHeader::new(FrameKind::Fenced)
        };
        let body = &1u32.to_le_bytes();
        recovery.on_frame(0, &Frame { header, body });
        assert_eq!(recovery.verdict(Time(1)) == Some(Ok(())), counts, "{join:?}");
    }
}

#[test]
fn a_refusal_tells_what_the_answering_members_hold() {
    for (held, text) in [(100, "probably nothing is missing"), (130, "up to LSN 130")] {
        let mut recovery = recovery(2, "any");
        bind(&mut recovery, 0);
        fenced(&mut recovery, 0, 0, Flag::KNOWN, 60, held);
        if recovery.next_frame(0).is_some() {
            data(&mut recovery, 0, 100, 30);
        }
        let refusal = recovery
            .verdict(Time(100))
            .expect("a verdict")
            .expect_err("one is missing");
        assert!(refusal.to_string().contains(text), "{refusal}");
    }
    let refusal = recovery(1, "all")
        .verdict(Time(100))
        .expect("a verdict")
        .expect_err("no member answered");
    assert!(refusal.to_string().contains("No member can tell"), "{refusal}");
}

/// Any one lender could refuse every opening: it played back the fence that the opening had signed.
#[test]
fn a_lender_that_shows_the_openings_own_fence_fences_nobody() {
    for (writer, refuses) in [(5u64, false), (6, true)] {
        let mut recovery = recovery(1, "all");
        bind(&mut recovery, 0);
        let header = FrameHeader {
            flags: RefusalReason::Fenced as u8,
            epoch: Epoch(2),
            ..FrameHeader::new(FrameKind::Refuse)
        };
        let mut body = [1; 72];
        body[..8].copy_from_slice(&writer.to_le_bytes());
        recovery.on_frame(0, &Frame { header, body: &body });
        let refused = matches!(
            recovery.verdict(Time(1000)),
            Some(Err(RecoveryError::Fenced { .. }))
        );
        assert_eq!(refused, refuses, "the fence of writer {writer}");
    }
}
