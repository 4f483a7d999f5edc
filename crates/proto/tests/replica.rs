//! A source and a replica, by their promises, with hands for what their drivers do. Whole histories are the simulator's.

use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::port::Kind;
use netram_proto::replica::message::Follow;
use netram_proto::replica::{
    Condition, Deed, Description, Identity, Message, Replica, Scope, Source, SourceConfig, SourceTiming,
    Standing, Todo, Trouble,
};
use netram_proto::time::{Span, Time};
use netram_proto::wire::{Flag, Frame, FrameKind, Header, Link, RecordHeader, Refusal, finish_record};

const IDENTITY: Identity = Identity {
    volume: 3,
    journal: JournalId(7),
};
const CAPACITY: u64 = 1 << 16;
const BYTES: u64 = 16 * 4096;
const WRITER: WriterId = WriterId(5);

fn view(epoch: u32, version: u64) -> View {
    View {
        epoch: Epoch(epoch),
        version,
        writer: WRITER,
        ..View::first(IDENTITY.journal)
    }
}

/// A log of records of 48 bytes, and where each ends.
fn log(records: usize) -> (Vec<u8>, Vec<Link>) {
    let (mut bytes, mut ends) = (Vec::new(), vec![Link::default()]);
    for number in 0..records {
        let link = ends[number];
        let header = RecordHeader::new(link, Epoch(1), Lsn(0), Kind(32), false, 8);
        let mut record = vec![number as u8; header.length];
        header.write(&mut record);
        let chain = finish_record(&mut record, IDENTITY.journal.into());
        bytes.extend_from_slice(&record);
        ends.push(Link {
            lsn: header.next(),
            chain,
        });
    }
    (bytes, ends)
}

fn replica(condition: Condition) -> Replica {
    let standing = Standing {
        condition,
        ..Standing::new(IDENTITY)
    };
    Replica::new(
        standing,
        View::first(IDENTITY.journal),
        CAPACITY,
        Lsn(0),
        Link::default(),
    )
}

fn follow(epoch: u32, writer: WriterId) -> Message {
    let follow = Follow {
        identity: IDENTITY,
        bytes: BYTES,
        capacity: CAPACITY,
        key: vec![9; 32],
    };
    follow.message(Epoch(epoch), writer)
}

fn records(lsn: u64, body: &[u8]) -> Message {
    Message {
        header: Header {
            lsn: Lsn(lsn),
            epoch: Epoch(1),
            who: WRITER.0,
            ..Header::new(FrameKind::Records)
        },
        body: body.to_vec(),
    }
}

/// Lets the replica have a frame, for as long as the test runs.
fn handle(replica: &mut Replica, message: Message) -> Deed<'static> {
    let message: &'static Message = Box::leak(Box::new(message));
    replica.handle(&message.frame())
}

fn refusal(deed: &Deed<'_>) -> Option<Refusal> {
    match deed {
        Deed::Refuse(message) => Refusal::from_byte(message.header.flags),
        _ => None,
    }
}

/// A replica that follows the first reign, with its view kept.
fn following() -> Replica {
    let mut replica = replica(Condition::Following);
    assert!(matches!(
        replica.follow(&follow(1, WRITER).frame()),
        Deed::Answer(_)
    ));
    keep(&mut replica, &view(1, 2), false);
    replica
}

fn keep(replica: &mut Replica, view: &View, closed: bool) {
    let deed = handle(replica, Message::keep_view(view, BYTES, closed));
    assert!(matches!(deed, Deed::KeepView { .. }), "{deed:?}");
    assert!(replica.on_view_kept().is_some());
}

#[test]
fn records_are_taken_whole_in_any_pieces_and_flushed_when_synced() {
    let (bytes, ends) = log(6);
    for piece in [1, 7, 40, 48, 100, bytes.len()] {
        let mut replica = following();
        let mut written = Vec::new();
        for (index, part) in bytes.chunks(piece).enumerate() {
            match handle(&mut replica, records((index * piece) as u64, part)) {
                Deed::Write { at, bytes } => {
                    assert_eq!(at.0, written.len() as u64);
                    assert!(bytes.len().is_multiple_of(48), "whole records only");
                    written.extend(bytes);
                }
                deed => assert_eq!(deed, Deed::Nothing),
            }
        }
        assert_eq!(written, bytes);
        assert_eq!(
            replica.news().map(|news| news.header.lsn),
            Some(Lsn(0)),
            "nothing is synced"
        );
        let unflushed = replica.unflushed().expect("something to sync");
        assert_eq!(unflushed.end, ends[6]);
        replica.on_flushed(unflushed.end);
        assert_eq!(replica.news().map(|news| news.header.lsn), Some(ends[6].lsn));
        assert_eq!(replica.news(), None, "it is said once");
    }
}

#[test]
fn records_of_another_history_or_beyond_a_gap_or_the_room_are_refused() {
    let (bytes, _) = log(3);
    let mut replica = following();
    let mut bad = bytes.clone();
    bad[20] ^= 1;
    let deed = handle(&mut replica, records(0, &bad));
    assert_eq!(refusal(&deed), Some(Refusal::Diverged));
    let mut replica = following();
    let deed = handle(&mut replica, records(48, &bytes[48..]));
    assert_eq!(refusal(&deed), Some(Refusal::OutOfWindow));
    let mut replica = following();
    let mut last = Deed::Nothing;
    let (bytes, _) = log(CAPACITY as usize / 48 + 1);
    for (index, part) in bytes.chunks(4800).enumerate() {
        last = handle(&mut replica, records(index as u64 * 4800, part));
    }
    assert_eq!(refusal(&last), Some(Refusal::Overrun));
    assert_eq!(
        refusal(&handle(&mut replica, records(u64::MAX - 7, &[0; 8]))),
        Some(Refusal::OutOfWindow)
    );
}

#[test]
fn what_came_in_part_is_forgotten_with_the_session() {
    let (bytes, ends) = log(2);
    let mut replica = following();
    handle(&mut replica, records(0, &bytes[..60]));
    replica.on_session_ended();
    let Deed::Answer(answer) = replica.follow(&follow(1, WRITER).frame()) else {
        panic!("not followed")
    };
    replica.on_flushed(replica.unflushed().map_or(ends[0], |unflushed| unflushed.end));
    assert_eq!(answer.header.lsn, Lsn(0), "not synced when it was asked");
    keep(&mut replica, &view(1, 2), false);
    let deed = handle(&mut replica, records(48, &bytes[48..]));
    assert!(matches!(deed, Deed::Write { at: Lsn(48), .. }), "{deed:?}");
}

#[test]
fn a_replica_obeys_the_reign_of_the_view_that_it_keeps() {
    let mut replica = following();
    assert!(matches!(
        replica.follow(&follow(3, WRITER).frame()),
        Deed::Answer(_)
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
            refusal(&deed) == Some(Refusal::Fenced),
            fenced,
            "epoch {epoch} of {writer}"
        );
    }
    // The reign that follows has not had its view kept: nothing else is taken from it, nor from the one before.
    replica.follow(&follow(4, WRITER).frame());
    let mut header = records(0, &log(1).0);
    assert_eq!(refusal(&replica.handle(&header.frame())), Some(Refusal::Fenced));
    header.header.epoch = Epoch(4);
    assert_eq!(
        refusal(&replica.handle(&header.frame())),
        Some(Refusal::NotSealed)
    );
    assert_eq!(
        replica.view().epoch,
        Epoch(3),
        "a claim is a view, never an epoch alone"
    );
}

#[test]
fn a_replica_that_was_taken_over_follows_nobody() {
    let mut replica = replica(Condition::TakenOver);
    let deed = replica.follow(&follow(9, WRITER).frame());
    assert_eq!(refusal(&deed), Some(Refusal::Fenced));
}

#[test]
fn a_closed_volume_is_believed_when_all_of_it_is_there_and_forgotten_when_it_is_followed_again() {
    let (bytes, ends) = log(1);
    let mut replica = following();
    let closed = View {
        base: ends[1].lsn,
        ..view(1, 3)
    };
    let early = handle(&mut replica, Message::keep_view(&closed, BYTES, true));
    assert_eq!(refusal(&early), Some(Refusal::Malformed), "it lacks the record");
    handle(&mut replica, records(0, &bytes));
    replica.on_flushed(ends[1]);
    keep(&mut replica, &closed, true);
    assert_eq!(replica.standing().closed, Some(ends[1].lsn));
    let Deed::Store(standing) = replica.follow(&follow(2, WRITER).frame()) else {
        panic!("it is open again, durably, before anything is answered")
    };
    assert_eq!(standing.closed, None);
    assert_eq!(replica.on_stored(standing).header.kind, FrameKind::Following);
}

/// A copy whose log began further back than it was whole had older records applied again when its resync broke off, and
/// passed for one that was right where it had been whole.
#[test]
fn a_broken_resync_leaves_a_replica_that_is_right_where_its_log_began_or_before() {
    let (bytes, ends) = log(4);
    for (start, since) in [(ends[1], ends[1].lsn), (ends[4], ends[3].lsn)] {
        let mut replica = following();
        handle(&mut replica, records(0, &bytes[..3 * 48]));
        replica.on_flushed(ends[3]);
        let resync = Message::bare(Header {
            lsn: start.lsn,
            mark: start.chain,
            epoch: Epoch(1),
            who: WRITER.0,
            ..Header::new(FrameKind::Resync)
        });
        assert!(matches!(handle(&mut replica, resync), Deed::Restart { .. }));
        assert!(replica.on_restarted().is_some());
        let since = Some(since);
        assert_eq!(replica.standing().condition, Condition::Inconsistent { since });
        assert_eq!(replica.flushed(), start);
    }
}

/// Blocks may show what the log does not have yet: only with it they make a volume.
#[test]
fn a_replica_is_whole_once_its_log_has_reached_what_its_blocks_may_show() {
    let (bytes, ends) = log(2);
    let mut replica = following();
    let of_reign = |kind, lsn| {
        Message::bare(Header {
            lsn,
            epoch: Epoch(1),
            who: WRITER.0,
            ..Header::new(kind)
        })
    };
    handle(&mut replica, of_reign(FrameKind::Resync, Lsn(0)));
    replica.on_restarted();
    assert_eq!(
        handle(&mut replica, of_reign(FrameKind::Resynced, ends[2].lsn)),
        Deed::Nothing
    );
    handle(&mut replica, records(0, &bytes));
    assert_eq!(replica.unsettled(), None, "written and not synced");
    replica.on_flushed(ends[2]);
    let standing = replica.unsettled().expect("it is whole");
    assert_eq!(replica.on_stored(standing).header.flags, 1);
    assert_eq!(replica.unsettled(), None);
}

#[test]
fn a_description_comes_back_as_it_was() {
    let description = Description {
        follow: Follow {
            identity: IDENTITY,
            bytes: BYTES,
            capacity: CAPACITY,
            key: vec![9; 32],
        },
        condition: Condition::Following,
        closed: Some(Lsn(96)),
        contact: 5,
        head: Link::default(),
        end: log(2).1[2],
        view: view(3, 4),
    };
    let message = Message::replica(&description);
    assert_eq!(Description::decode(&message.frame()), Ok(description));
    for cut in 0..message.body.len() {
        let frame = Frame {
            header: message.header,
            body: &message.body[..cut],
        };
        assert!(Description::decode(&frame).is_err(), "cut at {cut}");
    }
}

/// A source whose log has `records` on the disk, greeted by a replica of this condition whose log ends at `flushed`.
fn greeted(records: usize, head: usize, condition: u8, flushed: Link) -> Source {
    let ends = log(records).1;
    let config = SourceConfig {
        identity: IDENTITY,
        key: Vec::new(),
        capacity: CAPACITY,
        window_bytes: 1 << 16,
        timing: SourceTiming::default(),
    };
    let mut source = Source::new(config, view(1, 2), BYTES, ends[head].lsn, ends[records].lsn);
    assert!(source.wants_connection(Time(0)));
    source.on_connected(Time(0));
    assert!(
        matches!(source.next(Time(0)), Some(Todo::Send(message)) if message.header.kind == FrameKind::Follow)
    );
    let header = Header {
        flags: condition,
        lsn: flushed.lsn,
        mark: flushed.chain,
        stable: Lsn(CAPACITY),
        ..Header::new(FrameKind::Following)
    };
    hear(&mut source, header, &u64::MAX.to_le_bytes());
    source
}

fn hear(source: &mut Source, header: Header, body: &[u8]) {
    source.on_frame(&Frame { header, body }, Time(0));
}

/// What a source does next once its view was sent, and kept.
fn after_view(source: &mut Source) -> Option<Todo> {
    let sent = source.next(Time(0));
    assert!(matches!(sent, Some(Todo::Send(message)) if message.header.kind == FrameKind::KeepView));
    let kept = Header {
        lsn: Lsn(2),
        ..Header::new(FrameKind::Kept)
    };
    hear(source, kept, &[]);
    source.next(Time(0))
}

#[test]
fn a_source_goes_on_where_the_replica_is() {
    let ends = log(5).1;
    let mut source = greeted(5, 1, 1, ends[2]);
    match after_view(&mut source) {
        Some(Todo::Ship { from, bytes, .. }) => assert_eq!((from, bytes), (ends[2].lsn, 3 * 48)),
        other => panic!("{other:?}"),
    }
    assert_eq!(source.kept(Time(0)).map(|kept| kept.version), Some(2));
    let flushed = Header {
        lsn: ends[5].lsn,
        stable: Lsn(CAPACITY),
        ..Header::new(FrameKind::Flushed)
    };
    hear(&mut source, flushed, &[0; 8]);
    assert_eq!(source.kept(Time(0)).map(|kept| kept.lsn), Some(ends[5].lsn));
    assert_eq!(source.trimmable(), Some(ends[5].lsn));
}

#[test]
fn what_the_log_no_longer_has_is_sent_as_blocks() {
    let ends = log(5).1;
    let cases = [
        (0, ends[0], Scope::Data, None),
        (1, ends[1], Scope::Dirty, Some(ends[1].lsn)),
        (2, ends[1], Scope::All, None),
    ];
    for (condition, flushed, scope, since) in cases {
        let mut source = greeted(5, 3, condition, flushed);
        assert_eq!(after_view(&mut source), Some(Todo::Begin { scope, since }));
        assert_eq!(source.kept(Time(0)), None);
        assert_eq!(source.trimmable(), None);
    }
}

#[test]
fn a_replica_that_is_ahead_or_of_another_history_is_left_alone_until_the_operator_says_otherwise() {
    let ends = log(9).1;
    let mut source = greeted(5, 0, 1, ends[9]);
    let (theirs, ours) = (ends[9].lsn, ends[5].lsn);
    assert_eq!(source.status().trouble, Some(Trouble::Ahead { theirs, ours }));
    assert!(source.take_disconnect());
    assert!(!source.wants_connection(Time(0)));
    source.resync(true);
    assert!(source.wants_connection(Time(0)), "the operator's word");

    let mut source = greeted(5, 0, 1, ends[2]);
    after_view(&mut source);
    let diverged = Header {
        flags: Refusal::Diverged as u8,
        lsn: ends[2].lsn,
        ..Header::new(FrameKind::Refuse)
    };
    hear(&mut source, diverged, &[]);
    assert_eq!(source.status().trouble, Some(Trouble::Diverged(ends[2].lsn)));
}

#[test]
fn a_source_that_is_fenced_says_so_and_does_not_come_back() {
    let mut source = greeted(5, 0, 1, log(5).1[2]);
    let fenced = Header {
        flags: Refusal::Fenced as u8,
        epoch: Epoch(9),
        ..Header::new(FrameKind::Refuse)
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
    assert!(source.kept(Time(0)).is_some());
    let detect = SourceTiming::default().detect;
    assert!(source.kept(Time(0) + detect).is_some());
    assert_eq!(source.kept(Time(1) + detect), None);

    let mut source = greeted(5, 1, 1, ends[5]);
    assert_eq!(after_view(&mut source), None);
    assert!(source.kept(Time(0)).is_some());
    source.on_stable(ends[5].lsn.plus(1 << 16));
    assert_eq!(source.kept(Time(0)), None, "more than half a window behind");
}

#[test]
fn a_replica_that_claims_what_was_never_sent_is_not_believed() {
    let ends = log(5).1;
    let mut source = greeted(5, 1, 1, ends[2]);
    after_view(&mut source);
    let lie = Header {
        lsn: ends[5].lsn.plus(48),
        stable: Lsn(CAPACITY),
        ..Header::new(FrameKind::Flushed)
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
    assert_eq!(source.kept(Time(0)).map(|kept| kept.version), Some(2));
    source.on_view(view(1, 3));
    assert_eq!(source.kept(Time(0)).map(|kept| kept.version), Some(2));
    assert!(matches!(source.next(Time(0)), Some(Todo::Send(message)) if message.header.lsn == Lsn(3)));
    let kept = Header {
        lsn: Lsn(3),
        ..Header::new(FrameKind::Kept)
    };
    hear(&mut source, kept, &[]);
    assert_eq!(source.kept(Time(0)).map(|kept| kept.version), Some(3));
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
    assert_eq!(source.next(Time(0)), None, "it waits for the rest to be flushed");
    let flushed = Header {
        lsn: ends[5].lsn,
        stable: Lsn(CAPACITY),
        ..Header::new(FrameKind::Flushed)
    };
    hear(&mut source, flushed, &[0; 8]);
    match source.next(Time(0)) {
        Some(Todo::Send(message)) => assert_eq!(message.header.flags, Flag::CLOSED),
        other => panic!("{other:?}"),
    }
    assert!(!source.is_closed());
    let kept = Header {
        lsn: Lsn(3),
        ..Header::new(FrameKind::Kept)
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
    assert!(source.wants_connection(Time(1) + timing.give_up + Span(timing.retry.0 * 2)));
}

/// A replica that was whole at 9000 was begun anew at 1000, took some records that it had had already, and lost its client. It
/// passed for one that was right as of 9000, and blocks that only the other records had changed were not sent again.
#[test]
fn a_resync_takes_a_replica_back_to_where_its_log_begins() {
    for (whole_at, start, since) in [(9000, 1000, 1000), (1000, 9000, 1000)] {
        let condition = Condition::Inconsistent {
            since: Some(Lsn(whole_at)),
        };
        let mut replica = replica(condition);
        assert!(matches!(
            replica.follow(&follow(1, WRITER).frame()),
            Deed::Answer(_)
        ));
        keep(&mut replica, &view(1, 2), false);
        let resync = Message::bare(Header {
            lsn: Lsn(start),
            epoch: Epoch(1),
            who: WRITER.0,
            ..Header::new(FrameKind::Resync)
        });
        let Deed::Restart { standing, .. } = handle(&mut replica, resync) else {
            panic!("a resync begins the log anew");
        };
        let since = Some(Lsn(since));
        assert_eq!(standing.condition, Condition::Inconsistent { since });
    }
}
