//! Appends by multicast, and lenders' answers to a writer.

use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::{CommitRule, JournalWriter, Voter, WriterConfig, WriterTimings};
use netram_proto::limit::{FRAME_BODY_BYTES_MAX, REASSEMBLY_BYTES_MAX};
use netram_proto::multicast::{ChannelInvite, DatagramHeader, Reassembly, ReassemblyVerdict, ReplayWindow};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ChainPoint, Frame, FrameHeader, FrameKind};

use crate::input::FuzzInput;

/// A datagram's header, and the invitation to a channel: each must have only one encoding.
pub fn datagram(bytes: &[u8]) {
    if let Some(header) = DatagramHeader::parse(bytes) {
        let encoded = header.encode();
        assert!(bytes.starts_with(&encoded));
    }
    if let Some(tune) = ChannelInvite::parse(bytes) {
        assert_eq!(tune.encode(), bytes);
    }
}

pub(crate) fn datagram_seeds() -> Vec<Vec<u8>> {
    let tune = ChannelInvite {
        group: [239, 1, 2, 3],
        port: 7421,
        channel: u64::MAX,
        key: [7; 32],
    };
    vec![tune.encode().to_vec(), vec![1; 72]]
}

/// Pieces of a log in any order, some repeated and some lost. The output is contiguous, the buffer is
/// bounded, and no number counts twice.
pub fn gather(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let mut gather = Reassembly::default();
    let mut replay = ReplayWindow::default();
    let mut received = Lsn(64);
    let zeros = vec![0; FRAME_BODY_BYTES_MAX];
    for _ in 0..64 {
        if input.is_over() {
            break;
        }
        let which = input.u8();
        let mut header = FrameHeader::new(FrameKind::Append);
        header.lsn = Lsn(input.near(received.0));
        header.flags = if which & 32 != 0 { input.u8() } else { 0 };
        let length = if which & 16 != 0 {
            60_000
        } else {
            usize::from(input.u8()) * 8
        };
        let frame = Frame {
            header,
            body: &zeros[..length],
        };
        match which & 7 {
            0 => gather.clear(),
            1 => gather.begin_window(Epoch(input.small()), input.small()),
            2 => {
                let number = input.near(100);
                if replay.is_new(number) {
                    replay.take(number);
                }
                assert!(!replay.is_new(number), "a number counts once");
            }
            _ => match gather.handle(&frame, received) {
                ReassemblyVerdict::Deliver if header.lsn <= received => {
                    let end = header.lsn.0.saturating_add(length as u64);
                    received = received.max(Lsn(end.min(1 << 62)));
                }
                ReassemblyVerdict::Buffered(Some(hole)) => {
                    assert!(hole.from < hole.to && hole.to == header.lsn)
                }
                _ => (),
            },
        }
        while let Some(piece) = gather.next(received) {
            let frame = piece.frame();
            assert!(frame.header.lsn <= received);
            received = Lsn(frame.header.lsn.0 + frame.body.len() as u64).max(received);
        }
        assert!(gather.bytes() <= REASSEMBLY_BYTES_MAX, "what is kept is bounded");
    }
}

pub(crate) fn gather_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![3, 0, 8, 3, 145, 4, 3, 0, 5, 2, 0, 4, 2, 0, 4],
        vec![19, 240, 0, 100, 19, 240, 0, 50, 3, 0, 200, 1, 0, 0, 1, 1],
    ]
}

/// A writer whose three lenders answer arbitrarily. Every acknowledged record was appended, and the
/// acknowledged LSN only grows.
pub fn writer(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let choice = input.u8();
    let rule = [
        CommitRule::Any,
        CommitRule::AtLeast(2),
        CommitRule::All,
        CommitRule::All,
    ][usize::from(choice & 3)];
    let config = WriterConfig {
        lenders: (0..3).map(|index| format!("unix:/lender-{index}")).collect(),
        rule,
        wanted: 2,
        min: 1,
        domain: "here".into(),
        one_domain: true,
        window_bytes: 1 << 20,
        timing: WriterTimings::default(),
        cast: None,
        voter: Voter::Disk,
    };
    let writer = JournalWriter::new(
        JournalId(7),
        Epoch(1),
        WriterId(9),
        1,
        ChainPoint::default(),
        config,
    );
    let mut bench = WriterBench {
        writer,
        now: Time(1_000_000_000),
        asked: [None; 3],
    };
    for _ in 0..96 {
        if input.is_over() {
            break;
        }
        let before = bench.writer.acked();
        bench.step(&mut input);
        let writer = &bench.writer;
        assert!(before <= writer.acked(), "what is acknowledged stays so");
        assert!(writer.acked() <= writer.tail() && writer.stable() <= writer.tail());
        assert!(writer.view().len() <= 3);
        let _ = (writer.status(), writer.blocked(), writer.votes(writer.tail()));
    }
}

struct WriterBench {
    writer: JournalWriter,
    now: Time,
    /// The last request to each lender.
    asked: [Option<FrameHeader>; 3],
}

impl WriterBench {
    fn step(&mut self, input: &mut FuzzInput<'_>) {
        let which = input.u8();
        let index = usize::from(which >> 4 & 3).min(2);
        match which & 15 {
            0 => self.writer.on_connected(index, self.now),
            1 => self.writer.on_lost(index, self.now),
            2 => self.now = self.now + Nanos::from_ms(u64::from(input.u8()) * 4),
            3 => self.writer.on_tick(self.now),
            4 => {
                let room = Lsn(self.writer.stable().0 + (1 << 20));
                let tail = self.writer.tail().plus(u64::from(input.u8()) * 8 + 40);
                if tail <= room {
                    self.writer.on_append(tail);
                }
            }
            5 => {
                let end = ChainPoint {
                    lsn: self.writer.tail(),
                    chain: 0,
                };
                self.writer.on_stable(end, self.now);
            }
            6 => {
                if self.writer.view_to_store().is_some() {
                    self.writer.on_view_stored(self.now);
                }
            }
            7 => drop(self.writer.take_disconnects()),
            8..=12 => self.answer(index, input),
            _ => {
                let kinds = [
                    FrameKind::Bound,
                    FrameKind::Fenced,
                    FrameKind::Ack,
                    FrameKind::Pong,
                    FrameKind::LeaveAck,
                    FrameKind::Refuse,
                    FrameKind::Withdraw,
                    FrameKind::Missing,
                ];
                let kind = kinds[usize::from(input.u8() & 7)];
                let header = input.header(kind, self.writer.tail().0);
                let body = input.bytes();
                self.writer.on_frame(index, &Frame { header, body }, self.now);
            }
        }
    }

    /// A lender answers correctly, except for one field.
    fn answer(&mut self, index: usize, input: &mut FuzzInput<'_>) {
        if let Some(outgoing) = self.writer.next_frame(index, self.now) {
            self.asked[index] = Some(outgoing.header);
        }
        let Some(asked) = self.asked[index] else {
            return;
        };
        let mut header = FrameHeader {
            epoch: Epoch(1),
            sender: index as u64 + 1,
            mark: 1,
            ..FrameHeader::new(FrameKind::Ack)
        };
        (header.lsn, header.stable) = (self.writer.tail(), self.writer.tail());
        let mut body = Vec::new();
        match asked.kind {
            FrameKind::Bind => header.kind = FrameKind::Bound,
            FrameKind::Fence => {
                header.kind = FrameKind::Fenced;
                body.extend_from_slice(&[0; 4]);
            }
            FrameKind::Join => {
                (header.lsn, header.stable) = (asked.lsn, asked.lsn);
                header.mark = asked.stable.0 as u32;
            }
            FrameKind::Ping => {
                header.kind = FrameKind::Pong;
                body.extend_from_slice(&asked.lsn.0.to_le_bytes());
            }
            FrameKind::Leave => header.kind = FrameKind::LeaveAck,
            _ => (),
        }
        match input.u8() {
            0..=199 => (),
            200..=209 => header.lsn = Lsn(input.near(self.writer.tail().0)),
            210..=219 => header.stable = Lsn(input.near(self.writer.tail().0)),
            220..=229 => header.mark = input.small(),
            230..=239 => header.flags = input.u8(),
            _ => header.epoch = Epoch(input.small()),
        }
        let frame = Frame { header, body: &body };
        self.writer.on_frame(index, &frame, self.now);
    }
}

pub(crate) fn writer_seeds() -> Vec<Vec<u8>> {
    let joins = [0, 8, 0, 8, 0, 8, 0, 16, 24, 0, 24, 0, 24, 0, 6];
    let with = |choice: u8, more: &[u8]| [&[choice], &joins[..], more].concat();
    vec![
        with(0, &[4, 10, 8, 0, 4, 10, 8, 0, 5, 3]),
        with(1, &[4, 200, 8, 0, 24, 0, 2, 200, 3, 6, 1, 3, 6]),
        with(
            2,
            &[4, 10, 8, 205, 150, 24, 225, 4, 13, 2, 0, 100, 1, 0, 100, 1, 0],
        ),
    ]
}
