//! A data lender: arbitrary messages from its clients, and the replica that handles them.

use netram_block_machine::message::{self, FollowRequest};
use netram_block_machine::{
    BLOCK_BYTES, FollowReply, Replica, ReplicaAction, ReplicaCondition, ReplicaDescription, ReplicaHeader,
    ReplicaIdentity, ReplicaMessage,
};
use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::limit::{FRAME_BODY_BYTES_MAX, LOG_BYTES_MIN};
use netram_proto::wire::{ChainPoint, Flag, Frame, FrameHeader, FrameKind};

use crate::frames::{packet, record};
use crate::input::FuzzInput;
use crate::journal::a_view;

const JOURNAL: JournalId = JournalId(0xF00D);
const IDENTITY: ReplicaIdentity = ReplicaIdentity {
    volume: 77,
    journal: JOURNAL,
};
const CAPACITY: u64 = LOG_BYTES_MIN;
/// Size of the volume in bytes.
const VOLUME: u64 = 16 * BLOCK_BYTES as u64;

/// Bodies of data sessions in both directions, which must be decoded as they were encoded.
pub fn bodies(bytes: &[u8]) {
    let Ok(frame) = Frame::parse(bytes) else {
        check_header(bytes);
        return;
    };
    let (header, body) = (&frame.header, frame.body);
    if let Ok(follow) = FollowRequest::decode(&frame) {
        let message = follow.message(header.epoch, WriterId(header.sender));
        assert_eq!(message.body, body, "a `Follow` has one form");
        assert_eq!(FollowRequest::decode(&message.frame()), Ok(follow));
    }
    if let Some(following) = FollowReply::decode(&frame) {
        let _ = (following.fork(&a_view()), following.has_blocks_of(&a_view()));
    }
    if let Ok(description) = ReplicaDescription::decode(&frame) {
        assert!(description.head.lsn <= description.end.lsn);
        let again = ReplicaMessage::replica(&description);
        let read = ReplicaDescription::decode(&again.frame()).expect("what was read can be sent");
        assert_eq!(read, description);
        let _ = description.is_of_others(&a_view());
    }
    if let Some(blocks) = message::blocks(body) {
        let blocks: Vec<_> = blocks.collect();
        assert_eq!(message::encode_blocks(blocks.iter().copied()), body);
    }
    if let Some(numbers) = message::numbers(body) {
        assert_eq!(message::encode_numbers(&numbers.collect::<Vec<_>>()), body);
    }
    if let Some(digests) = message::digests(body) {
        assert_eq!(digests.collect::<Vec<_>>().concat(), body);
    }
}

fn check_header(bytes: &[u8]) {
    if let Ok(standing) = ReplicaHeader::decode(bytes) {
        assert_eq!(ReplicaHeader::decode(&standing.encode()), Ok(standing));
    }
}

fn follow() -> FollowRequest {
    FollowRequest {
        identity: IDENTITY,
        bytes: VOLUME,
        capacity: CAPACITY,
        key: vec![4; 32],
        wrapped_key: vec![5; 61],
    }
}

fn sample_header() -> ReplicaHeader {
    ReplicaHeader {
        condition: ReplicaCondition::Following,
        closed: Some(Lsn(64)),
        ..ReplicaHeader::new(IDENTITY)
    }
}

pub(crate) fn bodies_seeds() -> Vec<Vec<u8>> {
    let description = ReplicaDescription {
        follow: follow(),
        condition: ReplicaCondition::Inconsistent { since: Some(Lsn(8)) },
        closed: Some(Lsn(64)),
        contact: 1_700_000_000,
        heard_ms: Some(5),
        head: ChainPoint::default(),
        end: ChainPoint {
            lsn: Lsn(640),
            chain: 9,
        },
        view: a_view(),
    };
    let packet = |message: ReplicaMessage| packet(&message.header, &message.body);
    let blocks = ReplicaMessage {
        header: FrameHeader::new(FrameKind::Blocks),
        body: message::encode_blocks([(3, &[7; BLOCK_BYTES][..])].into_iter()),
    };
    vec![
        packet(follow().message(Epoch(3), WriterId(9))),
        packet(ReplicaMessage::replica(&description)),
        packet(ReplicaMessage::bad(&[1, 2, 3])),
        packet(ReplicaMessage::keep_view(&a_view(), VOLUME, true)),
        packet(blocks),
        sample_header().encode().to_vec(),
    ]
}

/// A replica in a session with arbitrary messages. The driver's actions are in bounds, and only written bytes
/// are reported as flushed.
pub fn session(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let view = View {
        epoch: Epoch(3),
        writer: WriterId(9),
        ..View::first(JOURNAL)
    };
    let standing = match input.u8() & 1 {
        0 => ReplicaHeader::new(IDENTITY),
        _ => sample_header(),
    };
    let mut bench = ReplicaBench {
        replica: Replica::new(standing, view, CAPACITY, Lsn(0), ChainPoint::default()),
        end: ChainPoint::default(),
        wrote: ChainPoint::default(),
    };
    for _ in 0..64 {
        if input.is_over() {
            break;
        }
        bench.step(&mut input);
    }
}

struct ReplicaBench {
    replica: Replica,
    /// Chain point that the next record of a writer follows.
    end: ChainPoint,
    /// End of the log that the driver wrote.
    wrote: ChainPoint,
}

impl ReplicaBench {
    fn step(&mut self, input: &mut FuzzInput<'_>) {
        let which = input.u8();
        let mut header = FrameHeader {
            epoch: Epoch(3),
            sender: 9,
            lsn: self.end.lsn,
            ..FrameHeader::new(FrameKind::Records)
        };
        let mut body = Vec::new();
        match which % 12 {
            0 => {
                let message = follow().message(Epoch(3 + input.small() % 3), WriterId(9));
                (header, body) = (message.header, message.body);
                let action = self.replica.follow(&Frame { header, body: &body });
                return self.run_action(action);
            }
            1 => {
                let view = View {
                    version: input.small().into(),
                    epoch: Epoch(3),
                    writer: WriterId(9),
                    base: Lsn(input.near(self.end.lsn.0)),
                    ..View::first(JOURNAL)
                };
                let message = ReplicaMessage::keep_view(&view, VOLUME, input.u8() & 1 != 0);
                (header, body) = (message.header, message.body);
            }
            2..=4 => body = self.draw_record(which, input),
            5 => {
                header.kind = FrameKind::Resync;
                header.lsn = Lsn(input.near(self.end.lsn.0));
                (header.mark, header.flags) = (input.small(), input.u8() & Flag::FULL);
                self.end = ChainPoint {
                    lsn: header.lsn,
                    chain: header.mark,
                };
            }
            6 => header.kind = FrameKind::ResyncEnd,
            7 => self.replica.on_session_ended(),
            8 => {
                header.kind = FrameKind::Fetch;
                header.lsn = Lsn(input.small().into());
                header.flags = input.u8() & Flag::HOLES;
                body.extend_from_slice(&input.small().to_le_bytes());
            }
            _ => {
                let kinds = [
                    FrameKind::Records,
                    FrameKind::StoreView,
                    FrameKind::Digests,
                    FrameKind::Blocks,
                    FrameKind::Fetch,
                    FrameKind::Read,
                    FrameKind::Ping,
                    FrameKind::Inquire,
                ];
                header = input.header(kinds[usize::from(which >> 5)], self.end.lsn.0);
                body = input.bytes().to_vec();
            }
        }
        // Log positions end far beyond what any volume writes.
        if self.end.lsn > Lsn(1 << 61) {
            self.end = self.wrote;
        }
        let action = self.replica.handle(&Frame { header, body: &body });
        self.run_action(action);
        self.settle(input);
    }

    /// The next record of the log, cut to a frame's length.
    fn draw_record(&mut self, fill: u8, input: &mut FuzzInput<'_>) -> Vec<u8> {
        let payload = vec![fill; usize::from(input.u8()) * 16];
        let mut body = record(JOURNAL, self.end, 3, self.end.lsn, &payload);
        self.end.lsn = self.end.lsn.plus(body.len() as u64);
        self.end.chain = u32::from_le_bytes([body[4], body[5], body[6], body[7]]);
        body.truncate(FRAME_BODY_BYTES_MAX);
        body
    }

    fn run_action(&mut self, action: ReplicaAction<'_>) {
        match action {
            ReplicaAction::Write { at, bytes } => {
                assert_eq!(at, self.wrote.lsn, "the log is written on where it ends");
                assert!(bytes.len() as u64 <= CAPACITY, "what is written fits the log");
                let end = self.replica.unflushed().expect("it is to be synced").end;
                assert_eq!(end.lsn, at.plus(bytes.len() as u64));
                self.wrote = end;
            }
            ReplicaAction::Store(standing) => drop(self.replica.on_stored(standing)),
            ReplicaAction::KeepView { view, .. } => {
                assert_eq!(view.journal, JOURNAL);
                drop(self.replica.on_view_stored());
            }
            ReplicaAction::Restart { start, .. } => {
                drop(self.replica.on_restarted());
                (self.wrote, self.end) = (start, start);
            }
            ReplicaAction::ReadLog { bytes, from, .. } => {
                assert!(bytes <= FRAME_BODY_BYTES_MAX);
                assert!(from.plus(bytes as u64) <= self.replica.flushed().lsn);
            }
            ReplicaAction::Put { blocks, .. } => assert!(message::blocks(blocks).is_some()),
            ReplicaAction::Compare { digests, asked, .. } => {
                let message = Replica::differ(&asked, digests.iter().map(|_| true));
                assert!(message.body.len() <= FRAME_BODY_BYTES_MAX);
            }
            ReplicaAction::Refuse(_) => {
                self.replica.on_session_ended();
                self.end = self.wrote;
            }
            ReplicaAction::Nothing
            | ReplicaAction::Answer(_)
            | ReplicaAction::PutHoles { .. }
            | ReplicaAction::Describe => (),
        }
    }

    fn settle(&mut self, input: &mut FuzzInput<'_>) {
        let act = input.u8();
        if act & 1 != 0
            && let Some(unflushed) = self.replica.unflushed()
        {
            assert_eq!(unflushed.end, self.wrote, "what is to be synced was written");
            self.replica.on_flushed(unflushed.end);
        }
        if act & 2 != 0
            && let Some(standing) = self.replica.pending_header()
        {
            assert_eq!(standing.condition, ReplicaCondition::Following);
            drop(self.replica.on_stored(standing));
        }
        if act & 4 != 0 {
            let flushed = self.replica.flushed().lsn;
            self.replica.on_applied(flushed, flushed);
        }
        while let Some((_, _, count)) = self.replica.next_fetch() {
            assert!(count > 0);
        }
        if let Some(news) = self.replica.progress_report() {
            assert_eq!(news.header.lsn, self.replica.flushed().lsn);
        }
        assert!(self.replica.flushed().lsn <= self.wrote.lsn);
    }
}

pub(crate) fn session_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![1, 0, 3, 1, 4, 0, 0, 2, 5, 1, 3, 9, 1, 8, 1, 0, 2, 1, 4, 40, 5],
        vec![
            0, 0, 3, 5, 0, 0, 8, 0, 1, 5, 0, 0, 1, 2, 20, 1, 6, 3, 8, 0, 0, 1, 0,
        ],
        vec![
            1, 0, 3, 1, 5, 0, 1, 0, 5, 0, 7, 0, 0, 2, 9, 0, 105, 0, 100, 1, 0, 100, 1, 8, 1, 2, 3, 4, 5, 6,
            7, 8,
        ],
    ]
}
