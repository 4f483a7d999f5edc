use super::super::tests::Bench;
use super::*;
use crate::journal::CommitRule;

/// A writer of one member that was once asked to listen and is served over its own link. It was sent 100
/// bytes and has received 40.
fn bench() -> Bench {
    let mut bench = Bench::with_members(1, 1, CommitRule::All);
    bench.writer.config.cast = Some(MulticastTiming::default());
    let now = bench.now;
    let lender = &mut bench.writer.lenders[0];
    lender.ever_listened = true;
    lender.deaf_until = Some(now + DEAF_SPAN);
    bench.append(100);
    bench.ack(0, 40, 40);
    bench
}

/// The report of a gap was ignored, because only listeners had missing ranges filled. The member waited
/// until it was given up.
#[test]
fn a_gap_on_a_deaf_members_link_is_sent_again() {
    let mut bench = bench();
    assert_eq!(bench.next(0), None);
    let missing = FrameHeader {
        kind: FrameKind::Missing,
        ..bench.ack_header(0, 40, 100)
    };
    bench.say(0, missing, &[]);
    assert_eq!(bench.next(0).map(|frame| frame.lsn), Some(Lsn(40)));
    assert_eq!(bench.next(0), None, "once");
}

#[test]
fn a_silent_deaf_member_is_resent_what_it_lacks_before_it_is_given_up() {
    let mut bench = bench();
    let wait = STALL_SPAN;
    assert!(wait < bench.writer.config.timing.detect);
    bench.wait(Nanos(wait.0 - 1));
    assert_eq!(bench.next(0).map(|frame| frame.kind), None);
    bench.wait(Nanos(1));
    assert_eq!(bench.next(0).map(|frame| frame.lsn), Some(Lsn(40)));
}

/// A writer of two members that listen.
fn listeners() -> Bench {
    let mut bench = Bench::with_members(2, 2, CommitRule::Any);
    bench.writer.config.cast = Some(MulticastTiming::default());
    bench.wait(Nanos(1));
    for index in 0..2 {
        let invite = bench.next(index).expect("an invitation");
        assert_eq!(invite.kind, FrameKind::Invite);
        bench.say(
            index,
            FrameHeader {
                lsn: invite.lsn,
                ..FrameHeader::new(FrameKind::Listening)
            },
            &[],
        );
    }
    assert_eq!(bench.writer.listeners(), 2);
    bench
}

/// Multicasts appends up to `end`. The first member answers at once, the second after `span`, with these
/// flags.
fn commit(bench: &mut Bench, end: u64, span: Nanos, flags: u8) {
    bench.writer.on_append(Lsn(end));
    let cast = bench.writer.next_multicast(bench.now).expect("a frame for all");
    assert_eq!(cast.header.lsn.0 + 100, end, "each append is multicast once");
    let near = FrameHeader {
        flags: Flag::HEARD,
        ..bench.ack_header(0, end, end)
    };
    bench.say(0, near, &[]);
    for _ in 0..16 {
        bench.wait(Nanos(span.0 / 16));
        bench.drain(0);
        bench.drain(1);
    }
    let far = FrameHeader {
        flags,
        ..bench.ack_header(1, end, end)
    };
    bench.say(1, far, &[]);
}

/// Everything was sent twice, and after eight times the listener was served over its own link although it
/// heard.
#[test]
fn a_listener_slower_than_the_timer_is_not_deaf() {
    let mut bench = listeners();
    for round in 1..=100 {
        // Suddenly ten times slower, and later fast again.
        let ms = [3, 30, 5][round / 34];
        commit(&mut bench, 100 * round as u64, Nanos::from_ms(ms), Flag::HEARD);
    }
    assert_eq!(bench.writer.listeners(), 2);
    let stats = bench.writer.multicast_stats();
    assert_eq!((stats.bytes, stats.deaf_listeners), (10_000, 0));
    assert!(stats.linked_bytes <= 600, "{stats:?}");
}

#[test]
fn a_listener_that_advances_only_by_its_link_is_served_by_it() {
    let mut bench = listeners();
    for round in 1..=u64::from(DEAF_AFTER) {
        assert_eq!(bench.writer.listeners(), 2);
        commit(&mut bench, 100 * round, Nanos::from_ms(30), 0);
    }
    assert_eq!(bench.writer.listeners(), 1);
    assert_eq!(bench.writer.multicast_stats().deaf_listeners, 1);
}

#[test]
fn the_timer_does_not_resend_bytes_already_handed_to_a_link() {
    let mut bench = listeners();
    bench.writer.on_append(Lsn(100));
    bench.writer.next_multicast(bench.now).expect("a frame for all");
    bench.wait(Nanos::from_ms(100));
    assert_eq!(bench.next(1).map(|frame| frame.lsn), Some(Lsn(0)));
    for _ in 0..4 {
        bench.wait(Nanos::from_ms(90));
        assert_eq!(
            bench.next(1).filter(|frame| frame.kind == FrameKind::Append),
            None
        );
    }
}
