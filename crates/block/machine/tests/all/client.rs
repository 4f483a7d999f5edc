//! Promises of the client's side.

use netram_block_machine::{
    ReplicaSource, ReplicaTrouble, ResyncScope, SourceAction, SourceConfig, SourceTiming,
};
use netram_proto::id::{Epoch, Lsn};
use netram_proto::journal::View;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ChainPoint, Flag, Frame, FrameHeader, FrameKind, RefusalReason};

use crate::{BYTES, CAPACITY, IDENTITY, WRITER, log, view};

/// A source whose log has `records` on the disk, after a replica of this condition, with its log ending at
/// `flushed`, has answered.
pub(crate) fn greeted(records: usize, head: usize, condition: u8, flushed: ChainPoint) -> ReplicaSource {
    let ends = log(records).1;
    let mut source = source(view(1, 2), ends[head].lsn, ends[records].lsn);
    meet(&mut source, condition, u64::MAX, flushed, Epoch(1));
    source
}

fn source(view: View, head: Lsn, stable: Lsn) -> ReplicaSource {
    let config = SourceConfig {
        identity: IDENTITY,
        key: Vec::new(),
        wrapped_key: Vec::new(),
        capacity: CAPACITY,
        window_bytes: 1 << 16,
        timing: SourceTiming::default(),
    };
    ReplicaSource::new(config, view, BYTES, head, stable)
}

/// The source meets a replica that stores a view of epoch `epoch`.
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

/// The view of the third epoch. The second epoch began after an accepted loss, below the end of the first.
fn view_after_loss(second_began: Lsn, third_began: Lsn) -> View {
    let mut view = view(3, 9);
    for (epoch, base) in [(1, Lsn(0)), (2, second_began), (3, third_began)] {
        view.epochs.begin(Epoch(epoch), WRITER, base);
    }
    view
}

/// A client opened at 4 with an accepted loss and wrote on past 6, where its replica was. After the log's
/// head had passed 6 too, the replica was sent the dirty blocks and declared whole, but kept blocks that only
/// the lost records had written.
#[test]
fn a_replica_of_an_abandoned_history_is_left_alone_however_long_the_new_history_is() {
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
            "no view may come first: if the session broke off, the replica would seem to be ours"
        );
        assert!(
            source.status().foreign,
            "none of its blocks may be used before the resync ends"
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
    // The same LSNs, but no record of the first epoch was lost.
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

/// An interrupted resync sent blocks of a history that was abandoned later. The dirty map does not cover that
/// history.
#[test]
fn an_interrupted_resync_of_an_abandoned_history_starts_over_with_all_blocks() {
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

/// `netram volume resync` without `--whole` overwrote a replica that had more than the volume.
#[test]
fn only_a_whole_resync_overwrites_a_replica_that_is_ahead() {
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

pub(crate) fn hear(source: &mut ReplicaSource, header: FrameHeader, body: &[u8]) {
    source.on_frame(&Frame { header, body }, Time(0));
}

/// The source's next action once its view has been sent and stored.
pub(crate) fn after_view(source: &mut ReplicaSource) -> Option<SourceAction> {
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
fn a_source_continues_where_the_replicas_log_ends() {
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

/// The log was trimmed between the decision to send bytes and their reading. The bytes counted as sent, so a
/// head within them was not seen as a gap, and the replica refused the bytes behind them.
#[test]
fn records_trimmed_before_they_were_read_are_sent_as_blocks() {
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
fn records_that_the_log_no_longer_has_are_sent_as_blocks() {
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
fn a_replica_that_is_ahead_or_of_another_history_is_left_alone_until_the_operator_resyncs() {
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
    assert!(
        source.wants_connection(Time(0)),
        "the operator asked for a resync"
    );

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
fn a_fenced_source_reports_it_and_does_not_reconnect() {
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

/// A replica that is slow or stands still must not delay a view.
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
fn a_replica_that_claims_bytes_never_sent_is_disconnected() {
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
fn a_replica_stays_in_service_with_the_old_view_until_the_new_one_is_stored() {
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
fn a_volume_is_declared_closed_only_once_the_replica_has_all_of_it() {
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
fn a_long_silence_ends_the_connection() {
    let mut source = greeted(5, 1, 1, log(5).1[2]);
    after_view(&mut source);
    let timing = SourceTiming::default();
    source.on_tick(Time(0) + timing.give_up);
    assert!(!source.take_disconnect());
    source.on_tick(Time(1) + timing.give_up);
    assert!(source.take_disconnect());
    assert!(source.wants_connection(Time(1) + timing.give_up + Nanos(timing.retry.0 * 2)));
}

/// The refusal, and then the end of the connection, arrived before the driver asked whether to close it. The
/// driver then closed the next connection silently, so the source waited for an answer for ever and the copy
/// stayed out of service.
#[test]
fn a_refusal_that_ended_one_connection_does_not_close_the_next() {
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
