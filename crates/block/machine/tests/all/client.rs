//! What the client's side promises.

use netram_block_machine::{
    ReplicaSource, ReplicaTrouble, ResyncScope, SourceAction, SourceConfig, SourceTiming,
};
use netram_proto::id::{Epoch, Lsn};
use netram_proto::journal::View;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ChainPoint, Flag, Frame, FrameHeader, FrameKind, RefusalReason};

use crate::{BYTES, CAPACITY, IDENTITY, WRITER, log, view};

/// A source whose log has `records` on the disk, greeted by a replica of this condition whose log ends at
/// `flushed`.
fn greeted(records: usize, head: usize, condition: u8, flushed: ChainPoint) -> ReplicaSource {
    let ends = log(records).1;
    let mut source = source(view(1, 2), ends[head].lsn, ends[records].lsn);
    meet(&mut source, condition, u64::MAX, flushed, Epoch(1));
    source
}

fn source(view: View, head: Lsn, stable: Lsn) -> ReplicaSource {
    let config = SourceConfig {
        identity: IDENTITY,
        key: Vec::new(),
        capacity: CAPACITY,
        window_bytes: 1 << 16,
        timing: SourceTiming::default(),
    };
    ReplicaSource::new(config, view, BYTES, head, stable)
}

/// The source meets a replica that keeps a view of the reign `epoch`.
fn meet(source: &mut ReplicaSource, condition: u8, since: u64, flushed: ChainPoint, epoch: Epoch) {
    assert!(source.wants_connection(Time(0)));
    source.on_connected(Time(0));
    assert!(
        matches!(source.next_action(Time(0)), Some(SourceAction::Send(message)) if message.header.kind == FrameKind::Follow)
    );
    let header = FrameHeader {
        flags: condition,
        lsn: flushed.lsn,
        epoch,
        sender: WRITER.0,
        mark: flushed.chain,
        stable: Lsn(CAPACITY),
        ..FrameHeader::new(FrameKind::Following)
    };
    hear(source, header, &since.to_le_bytes());
}

/// The view of the third reign. The second began where loss had been accepted, below where the first had
/// been.
fn view_after_loss(second_began: Lsn, third_began: Lsn) -> View {
    let mut view = view(3, 9);
    for (epoch, base) in [(1, Lsn(0)), (2, second_began), (3, third_began)] {
        view.epochs.begin(Epoch(epoch), WRITER, base);
    }
    view
}

/// A client opened at 4 with loss accepted and wrote on past 6, where its replica was. With its log's head
/// behind that, too, the replica was sent what was dirty, became whole, and had what only the lost records
/// had written.
#[test]
fn a_replica_of_a_history_that_was_given_up_is_left_alone_however_long_the_new_one_is() {
    let ends = log(20).1;
    let lost = || view_after_loss(ends[4].lsn, ends[15].lsn);
    for head in [0, 5, 10] {
        let mut source = source(lost(), ends[head].lsn, ends[20].lsn);
        meet(&mut source, 1, u64::MAX, ends[6], Epoch(1));
        let diverged = Some(ReplicaTrouble::Diverged(ends[4].lsn));
        assert_eq!(source.status().trouble, diverged);
        assert!(source.take_disconnect());
        source.resync(false);
        meet(&mut source, 1, u64::MAX, ends[6], Epoch(1));
        assert_eq!(source.status().trouble, diverged, "a resync is not enough");
        source.resync(true);
        meet(&mut source, 1, u64::MAX, ends[6], Epoch(1));
        let (scope, since) = (ResyncScope::All, Some(ends[6].lsn));
        assert_eq!(
            source.next_action(Time(0)),
            Some(SourceAction::Begin { scope, since }),
            "no view first: a session that broke off would leave a replica that seems to be ours"
        );
        assert!(
            source.status().foreign,
            "none of its blocks may be taken meanwhile"
        );
        source.on_begun(ends[10], 16, true);
        match source.next_action(Time(0)) {
            Some(SourceAction::Send(message)) => assert_eq!(message.header.flags, Flag::FULL),
            other => panic!("{other:?}"),
        }
        let begun = FrameHeader {
            flags: 2,
            lsn: ends[10].lsn,
            stable: Lsn(CAPACITY),
            ..FrameHeader::new(FrameKind::Following)
        };
        hear(&mut source, begun, &u64::MAX.to_le_bytes());
        assert!(!source.status().foreign);
        let sent = source.next_action(Time(0));
        assert!(
            matches!(sent, Some(SourceAction::Send(message)) if message.header.kind == FrameKind::StoreView)
        );
    }
    // The same places, and nothing of the first reign was lost.
    let mut source = source(
        view_after_loss(ends[6].lsn, ends[15].lsn),
        ends[10].lsn,
        ends[20].lsn,
    );
    meet(&mut source, 1, u64::MAX, ends[6], Epoch(1));
    let (scope, since) = (ResyncScope::Dirty, Some(ends[6].lsn));
    assert_eq!(
        after_view(&mut source),
        Some(SourceAction::Begin { scope, since })
    );
}

/// What a broken resync sent belongs to a history that was given up: the dirty map has no more of it than of
/// any other.
#[test]
fn a_broken_resync_of_a_history_that_was_given_up_begins_with_everything() {
    let ends = log(20).1;
    for (lost_at, scope) in [(4, ResyncScope::All), (6, ResyncScope::Dirty)] {
        let view = view_after_loss(ends[lost_at].lsn, ends[15].lsn);
        let mut source = source(view, ends[10].lsn, ends[20].lsn);
        meet(&mut source, 2, ends[2].lsn.0, ends[6], Epoch(1));
        let next = match scope {
            ResyncScope::Dirty => after_view(&mut source),
            _ => source.next_action(Time(0)),
        };
        let since = Some(ends[2].lsn);
        assert_eq!(next, Some(SourceAction::Begin { scope, since }));
    }
}

/// `netram disk resync` without `--whole` overwrote a replica that had more than the volume.
#[test]
fn only_the_word_for_all_of_it_overwrites_a_replica_that_is_ahead() {
    let ends = log(9).1;
    let mut source = greeted(5, 0, 1, ends[9]);
    source.resync(false);
    meet(&mut source, 1, u64::MAX, ends[9], Epoch(1));
    let (theirs, ours) = (ends[9].lsn, ends[5].lsn);
    assert_eq!(
        source.status().trouble,
        Some(ReplicaTrouble::Ahead { theirs, ours })
    );
    assert!(source.take_disconnect());
    source.resync(true);
    meet(&mut source, 1, u64::MAX, ends[9], Epoch(1));
    assert_eq!(source.status().trouble, None);
    let scope = ResyncScope::All;
    assert!(
        matches!(after_view(&mut source), Some(SourceAction::Begin { scope: begun, .. }) if begun == scope)
    );
}

fn hear(source: &mut ReplicaSource, header: FrameHeader, body: &[u8]) {
    source.on_frame(&Frame { header, body }, Time(0));
}

/// What a source does next once its view was sent, and kept.
fn after_view(source: &mut ReplicaSource) -> Option<SourceAction> {
    let sent = source.next_action(Time(0));
    assert!(matches!(sent, Some(SourceAction::Send(message)) if message.header.kind == FrameKind::StoreView));
    let kept = FrameHeader {
        lsn: Lsn(2),
        ..FrameHeader::new(FrameKind::ViewStored)
    };
    hear(source, kept, &[]);
    source.next_action(Time(0))
}

#[test]
fn a_source_goes_on_where_the_replica_is() {
    let ends = log(5).1;
    let mut source = greeted(5, 1, 1, ends[2]);
    match after_view(&mut source) {
        Some(SourceAction::Ship { from, bytes, .. }) => assert_eq!((from, bytes), (ends[2].lsn, 3 * 48)),
        other => panic!("{other:?}"),
    }
    assert_eq!(source.ack(Time(0)).map(|kept| kept.version), Some(2));
    let flushed = FrameHeader {
        lsn: ends[5].lsn,
        stable: Lsn(CAPACITY),
        ..FrameHeader::new(FrameKind::Flushed)
    };
    hear(&mut source, flushed, &[0; 8]);
    assert_eq!(source.ack(Time(0)).map(|kept| kept.lsn), Some(ends[5].lsn));
    assert_eq!(source.trimmable(), Some(ends[5].lsn));
}

/// The log is trimmed between the decision to send from it and the reading. It was taken for sent, so that a
/// head within it was no gap: the replica refused what came behind.
#[test]
fn what_was_trimmed_before_it_was_read_is_sent_as_blocks() {
    let ends = log(5).1;
    let mut source = greeted(5, 1, 1, ends[2]);
    let from = match after_view(&mut source) {
        Some(SourceAction::Ship { from, .. }) => from,
        other => panic!("{other:?}"),
    };
    source.on_trimmed(from, ends[4].lsn);
    let (scope, since) = (ResyncScope::Dirty, Some(ends[2].lsn));
    assert_eq!(
        source.next_action(Time(0)),
        Some(SourceAction::Begin { scope, since })
    );
}

#[test]
fn what_the_log_no_longer_has_is_sent_as_blocks() {
    let ends = log(5).1;
    let cases = [
        (0, ends[0], ResyncScope::Data, None),
        (1, ends[1], ResyncScope::Dirty, Some(ends[1].lsn)),
        (2, ends[1], ResyncScope::All, None),
    ];
    for (condition, flushed, scope, since) in cases {
        let mut source = greeted(5, 3, condition, flushed);
        assert_eq!(
            after_view(&mut source),
            Some(SourceAction::Begin { scope, since })
        );
        assert_eq!(source.ack(Time(0)), None);
        assert_eq!(source.trimmable(), None);
    }
}

#[test]
fn a_replica_that_is_ahead_or_of_another_history_is_left_alone_until_the_operator_says_otherwise() {
    let ends = log(9).1;
    let mut source = greeted(5, 0, 1, ends[9]);
    let (theirs, ours) = (ends[9].lsn, ends[5].lsn);
    assert_eq!(
        source.status().trouble,
        Some(ReplicaTrouble::Ahead { theirs, ours })
    );
    assert!(source.take_disconnect());
    assert!(!source.wants_connection(Time(0)));
    source.resync(true);
    assert!(source.wants_connection(Time(0)), "the operator's word");

    let mut source = greeted(5, 0, 1, ends[2]);
    after_view(&mut source);
    let diverged = FrameHeader {
        flags: RefusalReason::Diverged as u8,
        lsn: ends[2].lsn,
        ..FrameHeader::new(FrameKind::Refuse)
    };
    hear(&mut source, diverged, &[]);
    assert_eq!(
        source.status().trouble,
        Some(ReplicaTrouble::Diverged(ends[2].lsn))
    );
}

#[test]
fn a_source_that_is_fenced_says_so_and_does_not_come_back() {
    let mut source = greeted(5, 0, 1, log(5).1[2]);
    let fenced = FrameHeader {
        flags: RefusalReason::Fenced as u8,
        epoch: Epoch(9),
        ..FrameHeader::new(FrameKind::Refuse)
    };
    hear(&mut source, fenced, &[]);
    assert_eq!(source.fenced(), Some(Epoch(9)));
    assert!(!source.wants_connection(Time(u64::MAX)));
}

/// A replica that is slow or stands still must not hold a view up.
#[test]
fn a_data_lender_that_owes_an_answer_or_stops_growing_is_out_of_service() {
    let ends = log(5).1;
    let mut source = greeted(5, 1, 1, ends[2]);
    after_view(&mut source);
    assert!(source.ack(Time(0)).is_some());
    let detect = SourceTiming::default().detect;
    assert!(source.ack(Time(0) + detect).is_some());
    assert_eq!(source.ack(Time(1) + detect), None);

    let mut source = greeted(5, 1, 1, ends[5]);
    assert_eq!(after_view(&mut source), None);
    assert!(source.ack(Time(0)).is_some());
    source.on_stable(ends[5].lsn.plus(1 << 16));
    assert_eq!(source.ack(Time(0)), None, "more than half a window behind");
}

#[test]
fn a_replica_that_claims_what_was_never_sent_is_not_believed() {
    let ends = log(5).1;
    let mut source = greeted(5, 1, 1, ends[2]);
    after_view(&mut source);
    let lie = FrameHeader {
        lsn: ends[5].lsn.plus(48),
        stable: Lsn(CAPACITY),
        ..FrameHeader::new(FrameKind::Flushed)
    };
    hear(&mut source, lie, &[0; 8]);
    assert!(source.take_disconnect());
    assert_eq!(source.trimmable(), None);
}

#[test]
fn a_new_view_is_sent_and_the_service_goes_on_with_the_old_one_until_it_is_kept() {
    let ends = log(5).1;
    let mut source = greeted(5, 1, 1, ends[5]);
    after_view(&mut source);
    assert_eq!(source.ack(Time(0)).map(|kept| kept.version), Some(2));
    source.on_view(view(1, 3));
    assert_eq!(source.ack(Time(0)).map(|kept| kept.version), Some(2));
    assert!(
        matches!(source.next_action(Time(0)), Some(SourceAction::Send(message)) if message.header.lsn == Lsn(3))
    );
    let kept = FrameHeader {
        lsn: Lsn(3),
        ..FrameHeader::new(FrameKind::ViewStored)
    };
    hear(&mut source, kept, &[]);
    assert_eq!(source.ack(Time(0)).map(|kept| kept.version), Some(3));
}

#[test]
fn a_volume_is_called_closed_only_once_the_replica_has_all_of_it() {
    let ends = log(5).1;
    let mut source = greeted(5, 1, 1, ends[2]);
    after_view(&mut source);
    source.on_close(View {
        base: ends[5].lsn,
        ..view(1, 3)
    });
    assert_eq!(
        source.next_action(Time(0)),
        None,
        "it waits for the rest to be flushed"
    );
    let flushed = FrameHeader {
        lsn: ends[5].lsn,
        stable: Lsn(CAPACITY),
        ..FrameHeader::new(FrameKind::Flushed)
    };
    hear(&mut source, flushed, &[0; 8]);
    match source.next_action(Time(0)) {
        Some(SourceAction::Send(message)) => assert_eq!(message.header.flags, Flag::CLOSED),
        other => panic!("{other:?}"),
    }
    assert!(!source.is_closed());
    let kept = FrameHeader {
        lsn: Lsn(3),
        ..FrameHeader::new(FrameKind::ViewStored)
    };
    hear(&mut source, kept, &[]);
    assert!(source.is_closed());
}

#[test]
fn silence_ends_the_connection_in_the_end() {
    let mut source = greeted(5, 1, 1, log(5).1[2]);
    after_view(&mut source);
    let timing = SourceTiming::default();
    source.on_tick(Time(0) + timing.give_up);
    assert!(!source.take_disconnect());
    source.on_tick(Time(1) + timing.give_up);
    assert!(source.take_disconnect());
    assert!(source.wants_connection(Time(1) + timing.give_up + Nanos(timing.retry.0 * 2)));
}

/// The refusal, and then the end of the connection, came before the driver looked whether it was to close it.
/// It closed the next one, in silence: the source waited for an answer there for ever, and the copy was out
/// of service for good.
#[test]
fn a_connection_that_ends_with_a_refusal_is_not_closed_once_more_when_the_next_one_stands() {
    let (_, ends) = log(3);
    let mut source = greeted(3, 0, 1, ends[1]);
    let refused = FrameHeader {
        flags: RefusalReason::DiskFailed as u8,
        lsn: Lsn(28),
        ..FrameHeader::new(FrameKind::Refuse)
    };
    hear(&mut source, refused, &[]);
    source.on_lost(Time(1));
    assert_eq!(source.status().trouble, Some(ReplicaTrouble::DiskFailed(28)));
    let later = Time(60_000_000_000);
    assert!(source.wants_connection(later));
    source.on_connected(later);
    assert!(!source.take_disconnect());
    assert!(
        matches!(source.next_action(later), Some(SourceAction::Send(_))),
        "it greets"
    );
}

/// The resync that a source does next: its beginning, up to the replica's word that it is ready.
fn begin_resync(source: &mut ReplicaSource, start: ChainPoint) {
    source.on_begun(start, 3, false);
    let announced = source.next_action(Time(0));
    assert!(
        matches!(announced, Some(SourceAction::Send(message)) if message.header.kind == FrameKind::Resync)
    );
    hear_begun(source, start.lsn);
}

fn hear_begun(source: &mut ReplicaSource, start: Lsn) {
    let begun = FrameHeader {
        flags: 2,
        lsn: start,
        stable: start.plus(CAPACITY),
        ..FrameHeader::new(FrameKind::Following)
    };
    hear(source, begun, &start.0.to_le_bytes());
}

/// What a source does next with its log left aside.
fn next_of_blocks(source: &mut ReplicaSource) -> Option<SourceAction> {
    loop {
        match source.next_action(Time(0)) {
            Some(SourceAction::Ship { .. }) => (),
            other => return other,
        }
    }
}

fn numbers_of(sent: &[netram_block_machine::ReplicaMessage]) -> Vec<u32> {
    sent.iter().map(|message| message.header.mark).collect()
}

/// A resync of a whole replica with nothing to send ended where the log began anew: the image was ahead of
/// that, and had old sectors put over it while it passed for whole.
#[test]
fn a_resync_that_sends_nothing_ends_where_the_replica_already_was() {
    let ends = log(20).1;
    let mut source = greeted(20, 2, 1, ends[15]);
    assert!(!matches!(
        after_view(&mut source),
        Some(SourceAction::Begin { .. })
    ));
    source.resync(false);
    let since = Some(ends[15].lsn);
    let scope = ResyncScope::Dirty;
    assert_eq!(
        next_of_blocks(&mut source),
        Some(SourceAction::Begin { scope, since })
    );
    source.on_begun(ends[2], 0, false);
    let announced = next_of_blocks(&mut source);
    assert!(
        matches!(announced, Some(SourceAction::Send(message)) if message.header.kind == FrameKind::Resync)
    );
    hear_begun(&mut source, ends[2].lsn);
    assert!(matches!(
        next_of_blocks(&mut source),
        Some(SourceAction::Choose { .. })
    ));
    source.on_chosen(&[], Lsn(0));
    match next_of_blocks(&mut source) {
        Some(SourceAction::Send(message)) => {
            assert_eq!(message.header.kind, FrameKind::ResyncEnd);
            assert_eq!(message.header.lsn, ends[20].lsn, "all that it may have had");
        }
        other => panic!("{other:?}"),
    }
}

/// Where much is written the log's head passes what was sent of it before all blocks are sent. All of them
/// were sent again then, and again.
#[test]
fn a_resync_that_the_log_leaves_behind_goes_on_with_what_became_dirty_since() {
    let ends = log(25).1;
    let mut source = greeted(10, 5, 1, ends[2]);
    let begin = after_view(&mut source);
    assert!(matches!(begin, Some(SourceAction::Begin { .. })));
    begin_resync(&mut source, ends[5]);
    let choose = |max, pass| Some(SourceAction::Choose { max, pass });
    let most = 14;
    assert_eq!(next_of_blocks(&mut source), choose(most, 0));
    source.on_chosen(&[4], Lsn(0));
    // The head passes everything that was sent: what is left of the blocks comes first.
    source.on_stable(ends[20].lsn);
    source.on_head(ends[15].lsn);
    assert_eq!(next_of_blocks(&mut source), Some(SourceAction::Read(vec![4])));
    let sent = source.on_read(&[(4, None)], ends[20].lsn, Time(0));
    assert_eq!(numbers_of(&sent), [1]);
    assert_eq!(next_of_blocks(&mut source), choose(most, 0));
    source.on_chosen(&[], Lsn(0));
    assert_eq!(next_of_blocks(&mut source), None, "an answer is owed");
    let stored = FrameHeader {
        mark: 1,
        ..FrameHeader::new(FrameKind::Stored)
    };
    hear(&mut source, stored, &[]);
    let since = ends[5].lsn;
    assert_eq!(next_of_blocks(&mut source), Some(SourceAction::Move { since }));
    source.on_moved(Some((ends[16], 2)));
    match source.next_action(Time(0)) {
        Some(SourceAction::Send(message)) => {
            assert_eq!(
                (message.header.kind, message.header.lsn),
                (FrameKind::Resync, ends[16].lsn)
            );
            assert_eq!(message.header.flags, 0, "it builds on what the replica has");
        }
        other => panic!("{other:?}"),
    }
    hear_begun(&mut source, ends[16].lsn);
    assert_eq!(next_of_blocks(&mut source), choose(most, 1));
    source.on_chosen(&[], Lsn(0));
    match next_of_blocks(&mut source) {
        Some(SourceAction::Send(message)) => {
            assert_eq!(message.header.kind, FrameKind::ResyncEnd);
            assert_eq!(message.header.lsn, ends[20].lsn, "as far as blocks were read");
        }
        other => panic!("{other:?}"),
    }
    // And without a map that has all of it: everything.
    source.on_stable(ends[25].lsn);
    source.on_head(ends[24].lsn);
    assert!(matches!(
        next_of_blocks(&mut source),
        Some(SourceAction::Move { .. })
    ));
    source.on_moved(None);
    let since = Some(ends[16].lsn);
    let scope = ResyncScope::All;
    assert_eq!(
        next_of_blocks(&mut source),
        Some(SourceAction::Begin { scope, since })
    );
}

/// What the log gave up was chosen as it became dirty, sent, and marked no more; the replica, which had not
/// taken in all of its log, put older records over it, and called itself whole: those behind them it never
/// got (seeds 40658192, 40923784, 42241041).
#[test]
fn what_became_dirty_by_a_gap_is_not_sent_before_the_log_begins_anew() {
    let ends = log(30).1;
    let mut source = greeted(10, 5, 1, ends[2]);
    assert!(matches!(
        after_view(&mut source),
        Some(SourceAction::Begin { .. })
    ));
    begin_resync(&mut source, ends[5]);
    let choose = |pass| Some(SourceAction::Choose { max: 14, pass });
    assert_eq!(next_of_blocks(&mut source), choose(0));
    source.on_stable(ends[20].lsn);
    source.on_chosen(&[], ends[15].lsn);
    assert!(matches!(
        next_of_blocks(&mut source),
        Some(SourceAction::Move { .. })
    ));
    let move_to = |source: &mut ReplicaSource, start: ChainPoint| {
        source.on_moved(Some((start, 2)));
        assert!(matches!(source.next_action(Time(0)), Some(SourceAction::Send(_))));
        hear_begun(source, start.lsn);
    };
    move_to(&mut source, ends[16]);
    assert_eq!(next_of_blocks(&mut source), choose(1));
    source.on_chosen(&[6], Lsn(0));
    assert_eq!(next_of_blocks(&mut source), Some(SourceAction::Read(vec![6])));
    assert_eq!(
        source.on_read(&[(6, None)], ends[20].lsn, Time(0)).len(),
        1,
        "the log was not left behind"
    );
    assert_eq!(next_of_blocks(&mut source), choose(1));
    // In the same moment the log gave up what was not sent of it.
    source.on_stable(ends[30].lsn);
    source.on_chosen(&[7, 8], ends[25].lsn);
    assert_eq!(next_of_blocks(&mut source), None, "an answer is owed");
    let stored = FrameHeader {
        mark: 1,
        ..FrameHeader::new(FrameKind::Stored)
    };
    hear(&mut source, stored, &[]);
    assert!(matches!(
        next_of_blocks(&mut source),
        Some(SourceAction::Move { .. })
    ));
    move_to(&mut source, ends[26]);
    assert_eq!(next_of_blocks(&mut source), Some(SourceAction::Read(vec![7, 8])));
}

/// Answers to a resync before were taken for the new one's: one of digests that were not asked for ended the
/// connection.
#[test]
fn answers_to_a_resync_before_are_not_taken_for_the_new_ones() {
    let ends = log(20).1;
    let mut source = greeted(10, 5, 2, ends[2]);
    after_view(&mut source);
    begin_resync(&mut source, ends[5]);
    assert!(matches!(
        next_of_blocks(&mut source),
        Some(SourceAction::Digest { first: 0, .. })
    ));
    let sent = source
        .on_digested(0, &[[1; 16]; 9], ends[10].lsn, Time(0))
        .unwrap();
    assert_eq!(sent.header.mark, 1);
    source.resync(true);
    source.on_begun(ends[7], 16, true);
    let announced = source.next_action(Time(0));
    assert!(
        matches!(announced, Some(SourceAction::Send(message)) if message.header.kind == FrameKind::Resync)
    );
    let differ = FrameHeader {
        mark: 1,
        ..FrameHeader::new(FrameKind::DigestReply)
    };
    hear(&mut source, differ, &[0xff, 1]);
    // The one before was announced, too.
    hear_begun(&mut source, ends[5].lsn);
    assert_eq!(next_of_blocks(&mut source), None);
    hear_begun(&mut source, ends[7].lsn);
    assert!(!source.take_disconnect());
    assert!(matches!(
        next_of_blocks(&mut source),
        Some(SourceAction::Digest { first: 0, .. })
    ));
}

/// A connection that broke between the replica's word that it is whole and the end of the set left the set
/// dirty for ever, and none of its blocks could be taken from the replica.
#[test]
fn what_is_dirty_although_the_replica_is_whole_is_sent_by_itself_and_not_all_the_time() {
    let ends = log(5).1;
    let mut source = greeted(5, 1, 1, ends[5]);
    assert_eq!(after_view(&mut source), None);
    source.on_dirty(0, Time(0));
    assert_eq!(source.next_action(Time(0)), None);
    source.on_dirty(3, Time(0));
    let (scope, since) = (ResyncScope::Dirty, Some(ends[5].lsn));
    assert_eq!(
        source.next_action(Time(0)),
        Some(SourceAction::Begin { scope, since })
    );
    begin_resync(&mut source, ends[1]);
    assert!(matches!(
        next_of_blocks(&mut source),
        Some(SourceAction::Choose { .. })
    ));
    source.on_chosen(&[], Lsn(0));
    assert!(matches!(next_of_blocks(&mut source), Some(SourceAction::Send(_))));
    let whole = FrameHeader {
        flags: 1,
        lsn: ends[5].lsn,
        stable: Lsn(CAPACITY),
        ..FrameHeader::new(FrameKind::Following)
    };
    hear(&mut source, whole, &u64::MAX.to_le_bytes());
    let flushed = FrameHeader {
        lsn: ends[5].lsn,
        stable: Lsn(CAPACITY),
        ..FrameHeader::new(FrameKind::Flushed)
    };
    hear(&mut source, flushed, &[0; 8]);
    assert_eq!(next_of_blocks(&mut source), Some(SourceAction::Clear));
    source.on_cleared();
    // Lost on both sides: not at once again.
    let mend = SourceTiming::default().repair;
    source.on_dirty(1, Time(5));
    source.on_dirty(1, Time(4) + mend);
    assert_eq!(source.status().resync, None);
    source.on_dirty(1, Time(5) + mend);
    assert!(source.status().resync.is_some());
}
