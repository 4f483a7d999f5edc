//! A data lender: what its clients send it, and what its replica makes of that.

use netram_block_machine::message::{self, Follow};
use netram_block_machine::{
    BLOCK_BYTES, Condition, Deed, Description, Following, Identity, Message, Replica, Standing,
};
use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::limit::{FRAME_BODY_BYTES_MAX, LOG_BYTES_MIN};
use netram_proto::wire::{Flag, Frame, FrameKind, Header, Link};

use crate::frames::{packet, record};
use crate::input::Input;
use crate::journal::a_view;

const JOURNAL: JournalId = JournalId(0xF00D);
const IDENTITY: Identity = Identity {
    volume: 77,
    journal: JOURNAL,
};
const CAPACITY: u64 = LOG_BYTES_MIN;
/// Bytes of the volume.
const VOLUME: u64 = 16 * BLOCK_BYTES as u64;

/// The bodies of data sessions, both ways: what is read is written again as it was.
pub fn bodies(bytes: &[u8]) {
    let Ok(frame) = Frame::parse(bytes) else {
        standing(bytes);
        return;
    };
    let (header, body) = (&frame.header, frame.body);
    if let Ok(follow) = Follow::decode(body) {
        let message = follow.message(header.epoch, WriterId(header.who));
        assert_eq!(message.body, body, "a `Follow` has one form");
    }
    if let Some(following) = Following::decode(&frame) {
        let _ = (following.fork(&a_view()), following.has_blocks_of(&a_view()));
    }
    if let Ok(description) = Description::decode(&frame) {
        assert!(description.head.lsn <= description.end.lsn);
        let again = Message::replica(&description);
        let read = Description::decode(&again.frame()).expect("what was read can be sent");
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

fn standing(bytes: &[u8]) {
    if let Ok(standing) = Standing::decode(bytes) {
        assert_eq!(Standing::decode(&standing.encode()), Ok(standing));
    }
}

fn follow() -> Follow {
    Follow {
        identity: IDENTITY,
        bytes: VOLUME,
        capacity: CAPACITY,
        key: vec![4; 32],
    }
}

fn a_standing() -> Standing {
    Standing {
        condition: Condition::Following,
        closed: Some(Lsn(64)),
        ..Standing::new(IDENTITY)
    }
}

pub(crate) fn bodies_seeds() -> Vec<Vec<u8>> {
    let description = Description {
        follow: follow(),
        condition: Condition::Inconsistent { since: Some(Lsn(8)) },
        closed: Some(Lsn(64)),
        contact: 1_700_000_000,
        heard_ms: Some(5),
        head: Link::default(),
        end: Link {
            lsn: Lsn(640),
            chain: 9,
        },
        view: a_view(),
    };
    let packet = |message: Message| packet(&message.header, &message.body);
    let blocks = Message {
        header: Header::new(FrameKind::Blocks),
        body: message::encode_blocks([(3, &[7; BLOCK_BYTES][..])].into_iter()),
    };
    vec![
        packet(follow().message(Epoch(3), WriterId(9))),
        packet(Message::replica(&description)),
        packet(Message::bad(&[1, 2, 3])),
        packet(Message::keep_view(&a_view(), VOLUME, true)),
        packet(blocks),
        a_standing().encode().to_vec(),
    ]
}

/// A replica in a session that says anything: what it has its driver do is in bounds, and what it calls flushed is what was written.
pub fn session(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let view = View {
        epoch: Epoch(3),
        writer: WriterId(9),
        ..View::first(JOURNAL)
    };
    let standing = match input.u8() & 1 {
        0 => Standing::new(IDENTITY),
        _ => a_standing(),
    };
    let mut bench = Bench {
        replica: Replica::new(standing, view, CAPACITY, Lsn(0), Link::default()),
        end: Link::default(),
        wrote: Link::default(),
    };
    for _ in 0..64 {
        if input.is_over() {
            break;
        }
        bench.step(&mut input);
    }
}

struct Bench {
    replica: Replica,
    /// What a writer's next record follows.
    end: Link,
    /// Where the log ends that the driver wrote.
    wrote: Link,
}

impl Bench {
    fn step(&mut self, input: &mut Input<'_>) {
        let which = input.u8();
        let mut header = Header {
            epoch: Epoch(3),
            who: 9,
            lsn: self.end.lsn,
            ..Header::new(FrameKind::Records)
        };
        let mut body = Vec::new();
        match which % 12 {
            0 => {
                let message = follow().message(Epoch(3 + input.small() % 3), WriterId(9));
                (header, body) = (message.header, message.body);
                let deed = self.replica.follow(&Frame { header, body: &body });
                return self.carry_out(deed);
            }
            1 => {
                let view = View {
                    version: input.small().into(),
                    epoch: Epoch(3),
                    writer: WriterId(9),
                    base: Lsn(input.near(self.end.lsn.0)),
                    ..View::first(JOURNAL)
                };
                let message = Message::keep_view(&view, VOLUME, input.u8() & 1 != 0);
                (header, body) = (message.header, message.body);
            }
            2..=4 => {
                body = record(
                    JOURNAL,
                    self.end,
                    3,
                    self.end.lsn,
                    &vec![which; usize::from(input.u8()) * 16],
                );
                self.end.lsn = self.end.lsn.plus(body.len() as u64);
                self.end.chain = u32::from_le_bytes([body[4], body[5], body[6], body[7]]);
                body.truncate(FRAME_BODY_BYTES_MAX);
            }
            5 => {
                header.kind = FrameKind::Resync;
                header.lsn = Lsn(input.near(self.end.lsn.0));
                (header.mark, header.flags) = (input.small(), input.u8() & Flag::WHOLE);
                self.end = Link {
                    lsn: header.lsn,
                    chain: header.mark,
                };
            }
            6 => header.kind = FrameKind::Resynced,
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
                    FrameKind::KeepView,
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
        // A log's numbers end far beyond what any volume writes.
        if self.end.lsn > Lsn(1 << 61) {
            self.end = self.wrote;
        }
        let deed = self.replica.handle(&Frame { header, body: &body });
        self.carry_out(deed);
        self.settle(input);
    }

    fn carry_out(&mut self, deed: Deed<'_>) {
        match deed {
            Deed::Write { at, bytes } => {
                assert_eq!(at, self.wrote.lsn, "the log is written on where it ends");
                assert!(bytes.len() as u64 <= CAPACITY, "what is written fits the log");
                let end = self.replica.unflushed().expect("it is to be synced").end;
                assert_eq!(end.lsn, at.plus(bytes.len() as u64));
                self.wrote = end;
            }
            Deed::Store(standing) => drop(self.replica.on_stored(standing)),
            Deed::KeepView { view, .. } => {
                assert_eq!(view.journal, JOURNAL);
                drop(self.replica.on_view_kept());
            }
            Deed::Restart { start, .. } => {
                drop(self.replica.on_restarted());
                (self.wrote, self.end) = (start, start);
            }
            Deed::ReadLog { bytes, from, .. } => {
                assert!(bytes <= FRAME_BODY_BYTES_MAX);
                assert!(from.plus(bytes as u64) <= self.replica.flushed().lsn);
            }
            Deed::Put { blocks, .. } => assert!(message::blocks(blocks).is_some()),
            Deed::Compare { digests, asked, .. } => {
                let message = Replica::differ(&asked, digests.iter().map(|_| true));
                assert!(message.body.len() <= FRAME_BODY_BYTES_MAX);
            }
            Deed::Refuse(_) => {
                self.replica.on_session_ended();
                self.end = self.wrote;
            }
            Deed::Nothing | Deed::Answer(_) | Deed::PutHoles { .. } | Deed::Describe => (),
        }
    }

    fn settle(&mut self, input: &mut Input<'_>) {
        let act = input.u8();
        if act & 1 != 0
            && let Some(unflushed) = self.replica.unflushed()
        {
            assert_eq!(unflushed.end, self.wrote, "what is to be synced was written");
            self.replica.on_flushed(unflushed.end);
        }
        if act & 2 != 0
            && let Some(standing) = self.replica.unsettled()
        {
            assert_eq!(standing.condition, Condition::Following);
            drop(self.replica.on_stored(standing));
        }
        if act & 4 != 0 {
            let flushed = self.replica.flushed().lsn;
            self.replica.on_applied(flushed, flushed);
        }
        while let Some((_, _, count)) = self.replica.next_fetch() {
            assert!(count > 0);
        }
        if let Some(news) = self.replica.news() {
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
