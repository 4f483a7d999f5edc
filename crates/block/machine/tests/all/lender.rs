//! Promises of the data lender's side.

use netram_block_machine::message::FollowRequest;
use netram_block_machine::{
    Replica, ReplicaAction, ReplicaCondition, ReplicaDescription, ReplicaHeader, ReplicaMessage,
};
use netram_proto::id::{Epoch, Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::wire::{ChainPoint, Flag, Frame, FrameHeader, FrameKind, RefusalReason};

use crate::{BYTES, CAPACITY, IDENTITY, WRITER, log, view};

fn replica(condition: ReplicaCondition) -> Replica {
    let standing = ReplicaHeader {
        condition,
        ..ReplicaHeader::new(IDENTITY)
    };
    Replica::new(
        standing,
        View::first(IDENTITY.journal),
        CAPACITY,
        Lsn(0),
        ChainPoint::default(),
    )
}

fn follow(epoch: u32, writer: WriterId) -> ReplicaMessage {
    let follow = FollowRequest {
        identity: IDENTITY,
        bytes: BYTES,
        capacity: CAPACITY,
        key: vec![9; 32],
        wrapped_key: Vec::new(),
    };
    follow.message(Epoch(epoch), writer)
}

fn records(lsn: u64, body: &[u8]) -> ReplicaMessage {
    ReplicaMessage {
        header: FrameHeader {
            lsn: Lsn(lsn),
            epoch: Epoch(1),
            sender: WRITER.0,
            ..FrameHeader::new(FrameKind::Records)
        },
        body: body.to_vec(),
    }
}

/// Hands the replica a frame that lives as long as the test runs.
fn handle(replica: &mut Replica, message: ReplicaMessage) -> ReplicaAction<'static> {
    let message: &'static ReplicaMessage = Box::leak(Box::new(message));
    replica.handle(&message.frame())
}

fn refusal(deed: &ReplicaAction<'_>) -> Option<RefusalReason> {
    match deed {
        ReplicaAction::Refuse(message) => RefusalReason::from_byte(message.header.flags),
        _ => None,
    }
}

/// A replica that follows the first epoch and has stored its view.
fn following() -> Replica {
    let mut replica = replica(ReplicaCondition::Following);
    assert!(matches!(
        replica.follow(&follow(1, WRITER).frame()),
        ReplicaAction::Answer(_)
    ));
    keep(&mut replica, &view(1, 2), false);
    replica
}

fn keep(replica: &mut Replica, view: &View, closed: bool) {
    let deed = handle(replica, ReplicaMessage::keep_view(view, BYTES, closed));
    assert!(matches!(deed, ReplicaAction::KeepView { .. }), "{deed:?}");
    assert!(replica.on_view_stored().is_some());
}

#[test]
fn records_arriving_in_pieces_are_written_whole_and_count_as_flushed_when_synced() {
    let (bytes, ends) = log(6);
    for piece in [1, 7, 40, 48, 100, bytes.len()] {
        let mut replica = following();
        let mut written = Vec::new();
        for (index, part) in bytes.chunks(piece).enumerate() {
            match handle(&mut replica, records((index * piece) as u64, part)) {
                ReplicaAction::Write { at, bytes } => {
                    assert_eq!(at.0, written.len() as u64);
                    assert!(bytes.len().is_multiple_of(48), "whole records only");
                    written.extend(bytes);
                }
                deed => assert_eq!(deed, ReplicaAction::Nothing),
            }
        }
        assert_eq!(written, bytes);
        assert_eq!(
            replica.progress_report().map(|news| news.header.lsn),
            Some(Lsn(0)),
            "nothing is synced"
        );
        let unflushed = replica.unflushed().expect("something to sync");
        assert_eq!(unflushed.end, ends[6]);
        replica.on_flushed(unflushed.end);
        assert_eq!(
            replica.progress_report().map(|news| news.header.lsn),
            Some(ends[6].lsn)
        );
        assert_eq!(replica.progress_report(), None, "progress is reported once");
    }
}

#[test]
fn records_of_another_history_or_beyond_a_gap_or_the_room_are_refused() {
    let (bytes, _) = log(3);
    let mut replica = following();
    let mut bad = bytes.clone();
    bad[20] ^= 1;
    let deed = handle(&mut replica, records(0, &bad));
    assert_eq!(refusal(&deed), Some(RefusalReason::Diverged));
    let mut replica = following();
    let deed = handle(&mut replica, records(48, &bytes[48..]));
    assert_eq!(refusal(&deed), Some(RefusalReason::OutOfWindow));
    let mut replica = following();
    let mut last = ReplicaAction::Nothing;
    let (bytes, _) = log(CAPACITY as usize / 48 + 1);
    for (index, part) in bytes.chunks(4800).enumerate() {
        last = handle(&mut replica, records(index as u64 * 4800, part));
    }
    assert_eq!(refusal(&last), Some(RefusalReason::Overrun));
    assert_eq!(
        refusal(&handle(&mut replica, records(u64::MAX - 7, &[0; 8]))),
        Some(RefusalReason::OutOfWindow)
    );
}

#[test]
fn a_record_received_in_part_is_forgotten_with_the_session() {
    let (bytes, ends) = log(2);
    let mut replica = following();
    handle(&mut replica, records(0, &bytes[..60]));
    replica.on_session_ended();
    let ReplicaAction::Answer(answer) = replica.follow(&follow(1, WRITER).frame()) else {
        panic!("not followed")
    };
    replica.on_flushed(replica.unflushed().map_or(ends[0], |unflushed| unflushed.end));
    assert_eq!(answer.header.lsn, Lsn(0), "not synced when it was asked");
    keep(&mut replica, &view(1, 2), false);
    let deed = handle(&mut replica, records(48, &bytes[48..]));
    assert!(
        matches!(deed, ReplicaAction::Write { at: Lsn(48), .. }),
        "{deed:?}"
    );
}

#[test]
fn a_replica_obeys_only_the_writer_of_the_view_that_it_stores() {
    let mut replica = following();
    assert!(matches!(
        replica.follow(&follow(3, WRITER).frame()),
        ReplicaAction::Answer(_)
    ));
    keep(&mut replica, &view(3, 5), false);
    for (epoch, writer, fenced) in [
        (2, WRITER, true),
        (3, WriterId(6), true),
        (3, WRITER, false),
        (4, WriterId(6), false),
    ] {
        let mut copy = replica.clone();
        let deed = copy.follow(&follow(epoch, writer).frame());
        assert_eq!(
            refusal(&deed) == Some(RefusalReason::Fenced),
            fenced,
            "epoch {epoch} of {writer}"
        );
    }
    // The new writer's view has not been stored yet, so nothing else is accepted, neither from it nor from
    // the writer before.
    replica.follow(&follow(4, WRITER).frame());
    let mut header = records(0, &log(1).0);
    assert_eq!(
        refusal(&replica.handle(&header.frame())),
        Some(RefusalReason::Fenced)
    );
    header.header.epoch = Epoch(4);
    assert_eq!(
        refusal(&replica.handle(&header.frame())),
        Some(RefusalReason::NotFenced)
    );
    assert_eq!(
        replica.view().epoch,
        Epoch(3),
        "a claim is a view, never an epoch alone"
    );
}

#[test]
fn a_replica_that_was_taken_over_follows_no_client() {
    let mut replica = replica(ReplicaCondition::TakenOver);
    let deed = replica.follow(&follow(9, WRITER).frame());
    assert_eq!(refusal(&deed), Some(RefusalReason::Fenced));
}

#[test]
fn a_volume_counts_as_closed_only_with_its_whole_log_and_until_it_is_followed_again() {
    let (bytes, ends) = log(1);
    let mut replica = following();
    let closed = View {
        base: ends[1].lsn,
        ..view(1, 3)
    };
    let early = handle(&mut replica, ReplicaMessage::keep_view(&closed, BYTES, true));
    assert_eq!(
        refusal(&early),
        Some(RefusalReason::Malformed),
        "it lacks the record"
    );
    handle(&mut replica, records(0, &bytes));
    replica.on_flushed(ends[1]);
    keep(&mut replica, &closed, true);
    assert_eq!(replica.replica_header().closed, Some(ends[1].lsn));
    // A client that restores the volume does not open it. Otherwise a restore that broke off here left a
    // replica that proved nothing.
    let mut claim = follow(2, WRITER);
    claim.header.flags = Flag::CLOSED;
    let claimed = replica.follow(&claim.frame());
    assert!(matches!(claimed, ReplicaAction::Answer(_)), "{claimed:?}");
    assert_eq!(replica.replica_header().closed, Some(ends[1].lsn));
    let ReplicaAction::Store(standing) = replica.follow(&follow(2, WRITER).frame()) else {
        panic!("it is open again, durably, before anything is answered")
    };
    assert_eq!(standing.closed, None);
    assert_eq!(replica.on_stored(standing).header.kind, FrameKind::Following);
}

/// A replica's log began before the LSN at which it was last whole, and its resync broke off. Older records
/// were applied again, yet it passed for correct as of the later LSN.
#[test]
fn an_interrupted_resync_leaves_a_replica_correct_only_as_of_its_logs_start() {
    let (bytes, ends) = log(4);
    for (start, since) in [(ends[1], ends[1].lsn), (ends[4], ends[3].lsn)] {
        let mut replica = following();
        handle(&mut replica, records(0, &bytes[..3 * 48]));
        replica.on_flushed(ends[3]);
        let resync = ReplicaMessage::bare(FrameHeader {
            lsn: start.lsn,
            mark: start.chain,
            epoch: Epoch(1),
            sender: WRITER.0,
            ..FrameHeader::new(FrameKind::Resync)
        });
        assert!(matches!(
            handle(&mut replica, resync),
            ReplicaAction::Restart { .. }
        ));
        assert!(replica.on_restarted().is_some());
        let since = Some(since);
        assert_eq!(
            replica.replica_header().condition,
            ReplicaCondition::Inconsistent { since }
        );
        assert_eq!(replica.flushed(), start);
    }
}

/// Blocks may show records that the log does not have yet; only together they are a consistent volume.
#[test]
fn a_replica_is_whole_only_once_its_log_has_every_record_that_its_blocks_may_show() {
    let (bytes, ends) = log(2);
    let mut replica = following();
    let of_reign = |kind, lsn| {
        ReplicaMessage::bare(FrameHeader {
            lsn,
            epoch: Epoch(1),
            sender: WRITER.0,
            ..FrameHeader::new(kind)
        })
    };
    handle(&mut replica, of_reign(FrameKind::Resync, Lsn(0)));
    replica.on_restarted();
    assert_eq!(
        handle(&mut replica, of_reign(FrameKind::ResyncEnd, ends[2].lsn)),
        ReplicaAction::Nothing
    );
    handle(&mut replica, records(0, &bytes));
    assert_eq!(replica.pending_header(), None, "written and not synced");
    replica.on_flushed(ends[2]);
    let standing = replica.pending_header().expect("it is whole");
    assert_eq!(replica.on_stored(standing).header.flags, 1);
    assert_eq!(replica.pending_header(), None);
}

/// A data lender keeps both keys of a `Follow`, and sends on only the wrapped one.
#[test]
fn a_follow_with_or_without_a_wrapped_key_decodes_to_what_was_encoded() {
    for (key, wrapped_key) in [(32, 61), (32, 0), (0, 0), (0, 61)] {
        let follow = FollowRequest {
            identity: IDENTITY,
            bytes: BYTES,
            capacity: CAPACITY,
            key: vec![9; key],
            wrapped_key: vec![8; wrapped_key],
        };
        let message = follow.message(Epoch(1), WriterId(2));
        assert_eq!(FollowRequest::decode(&message.frame()), Ok(follow));
        // A wrapped key longer than all keys together.
        let mut lies = message.clone();
        lies.header.mark = 200;
        assert!(FollowRequest::decode(&lies.frame()).is_err());
    }
}

#[test]
fn a_description_decodes_to_what_was_encoded() {
    let description = ReplicaDescription {
        follow: FollowRequest {
            identity: IDENTITY,
            bytes: BYTES,
            capacity: CAPACITY,
            key: Vec::new(),
            wrapped_key: vec![9; 61],
        },
        condition: ReplicaCondition::Following,
        closed: Some(Lsn(96)),
        contact: 5,
        heard_ms: Some(1200),
        head: ChainPoint::default(),
        end: log(2).1[2],
        view: view(3, 4),
    };
    let message = ReplicaMessage::replica(&description);
    assert_eq!(ReplicaDescription::decode(&message.frame()), Ok(description));
    for cut in 0..message.body.len() {
        let frame = Frame {
            header: message.header,
            body: &message.body[..cut],
        };
        assert!(ReplicaDescription::decode(&frame).is_err(), "cut at {cut}");
    }
}

/// A client that fetched much while the replica's log lagged was disconnected, and so the replica lagged even
/// more.
#[test]
fn fetches_that_pile_up_are_answered_with_later() {
    let mut replica = following();
    let fetch = |mark: u32, at_least| ReplicaMessage::fetch(mark, 3, 2, Lsn(at_least));
    let later = |deed: &ReplicaAction<'_>| match deed {
        ReplicaAction::Answer(message) => (message.header.flags, message.header.mark),
        other => panic!("{other:?}"),
    };
    for mark in 1..=16 {
        assert_eq!(handle(&mut replica, fetch(mark, 48)), ReplicaAction::Nothing);
    }
    for mark in 17..40 {
        let deed = handle(&mut replica, fetch(mark, 48));
        assert_eq!(later(&deed), (Flag::LATER, mark - 16), "the oldest");
    }
    assert_eq!(replica.next_fetch(), None);
    handle(&mut replica, records(0, &log(1).0));
    replica.on_flushed(log(1).1[1]);
    let answered = std::iter::from_fn(|| replica.next_fetch()).map(|(asked, ..)| asked.mark);
    assert!(answered.eq(24..40));
}

/// A block that a replica could not show yet was taken for lost, so a block written in part stayed damaged
/// for good.
#[test]
fn a_replica_that_is_not_whole_yet_answers_later() {
    for condition in [
        ReplicaCondition::New,
        ReplicaCondition::Inconsistent { since: None },
    ] {
        let mut replica = replica(condition);
        replica.follow(&follow(1, WRITER).frame());
        match handle(&mut replica, ReplicaMessage::fetch(1, 0, 1, Lsn(0))) {
            ReplicaAction::Answer(message) => assert_eq!(message.header.flags, Flag::LATER),
            other => panic!("{other:?}"),
        }
    }
}

/// A replica that was whole at 9000 began anew at 1000, received some records again and lost its client. It
/// passed for correct as of 9000, so blocks that only the missing records had changed were not sent again.
#[test]
fn a_resync_takes_a_replica_back_to_its_logs_start() {
    for (whole_at, start, since) in [(9000, 1000, 1000), (1000, 9000, 1000)] {
        let condition = ReplicaCondition::Inconsistent {
            since: Some(Lsn(whole_at)),
        };
        let mut replica = replica(condition);
        assert!(matches!(
            replica.follow(&follow(1, WRITER).frame()),
            ReplicaAction::Answer(_)
        ));
        keep(&mut replica, &view(1, 2), false);
        let resync = ReplicaMessage::bare(FrameHeader {
            lsn: Lsn(start),
            epoch: Epoch(1),
            sender: WRITER.0,
            ..FrameHeader::new(FrameKind::Resync)
        });
        let ReplicaAction::Restart { standing, .. } = handle(&mut replica, resync) else {
            panic!("a resync begins the log anew");
        };
        let since = Some(Lsn(since));
        assert_eq!(standing.condition, ReplicaCondition::Inconsistent { since });
    }
}
