//! Promises of a resync on the client's side.

use netram_block_machine::{ReplicaSource, ResyncScope, SourceAction, SourceTiming};
use netram_proto::id::Lsn;
use netram_proto::time::Time;
use netram_proto::wire::{ChainPoint, FrameHeader, FrameKind};

use crate::client::{after_view, greeted, hear};
use crate::{CAPACITY, log};

/// The source's next resync, from its beginning up to the replica's answer that it is ready.
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

/// The source's next action that is not about its log.
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

/// A resync of a whole replica with no block to send ended where the log began anew. The image was ahead of
/// that, so old sectors were put over it while it passed for whole.
#[test]
fn a_resync_without_blocks_ends_where_the_replica_already_was() {
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
            assert_eq!(
                message.header.lsn, ends[20].lsn,
                "everything that it may have had"
            );
        }
        other => panic!("{other:?}"),
    }
}

/// Under a heavy write load the log's head passes what was sent of it before all blocks are sent. All blocks
/// were then sent again, and again.
#[test]
fn a_resync_passed_by_the_logs_head_continues_with_the_newly_dirty_blocks() {
    let ends = log(25).1;
    let mut source = greeted(10, 5, 1, ends[2]);
    let begin = after_view(&mut source);
    assert!(matches!(begin, Some(SourceAction::Begin { .. })));
    begin_resync(&mut source, ends[5]);
    let choose = |max, pass| Some(SourceAction::Choose { max, pass });
    let most = 14;
    assert_eq!(next_of_blocks(&mut source), choose(most, 0));
    source.on_chosen(&[4], Lsn(0));
    // The head passes everything that was sent: the remaining blocks come first.
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
    // Without a complete map: everything.
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

/// The log trimmed records whose blocks were then chosen, sent and unmarked. The replica had not received all
/// of its log, so it put older records over these blocks, never got the newer ones, and called itself whole
/// (seeds 40658192, 40923784, 42241041).
#[test]
fn blocks_dirtied_by_a_gap_are_not_sent_before_the_log_begins_anew() {
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
    // At the same time the log trimmed records that had not been sent.
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

/// Answers to an earlier resync were taken for answers to the new one. One about digests that were never
/// requested ended the connection.
#[test]
fn answers_to_an_earlier_resync_do_not_count_for_the_new_one() {
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
    // The earlier resync was announced too.
    hear_begun(&mut source, ends[5].lsn);
    assert_eq!(next_of_blocks(&mut source), None);
    hear_begun(&mut source, ends[7].lsn);
    assert!(!source.take_disconnect());
    assert!(matches!(
        next_of_blocks(&mut source),
        Some(SourceAction::Digest { first: 0, .. })
    ));
}

/// The connection broke after the replica had become whole and before the set of blocks was cleared. The set
/// stayed dirty for ever, and none of its blocks could be fetched from the replica.
#[test]
fn blocks_still_dirty_at_a_whole_replica_are_resent_by_themselves_but_not_constantly() {
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
    // Damaged on both sides: not tried again at once.
    let mend = SourceTiming::default().repair;
    source.on_dirty(1, Time(5));
    source.on_dirty(1, Time(4) + mend);
    assert_eq!(source.status().resync, None);
    source.on_dirty(1, Time(5) + mend);
    assert!(source.status().resync.is_some());
}
