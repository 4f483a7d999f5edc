//! A writer and real members over a channel that loses, duplicates and reorders datagrams.

use std::collections::VecDeque;

use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::journal::{
    CommitRule, FrameBody, JournalWriter, MulticastTiming, OutgoingFrame, Voter, WriterConfig, WriterTimings,
};
use netram_proto::limit::{REASSEMBLY_BYTES_MAX, RECORD_HEADER_BYTES};
use netram_proto::member::{Member, MemberReply, copy_out};
use netram_proto::multicast::{Reassembly, ReassemblyVerdict, fragment_append};
use netram_proto::port::RecordKind;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{
    ChainPoint, Flag, Frame, FrameHeader, FrameKind, RecordHeader, RefusalReason, finish_record,
};

use crate::window::WindowBuffer;

pub(super) const JOURNAL: JournalId = JournalId(7);
pub(super) const DATAGRAM_BYTES: usize = 600;

pub(super) struct TestRng(u64);

impl TestRng {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    pub(super) fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }
}

/// A frame in flight.
pub(super) type FramePacket = (FrameHeader, Vec<u8>);

pub(super) struct ListeningLender {
    pub(super) member: Member,
    pub(super) window: WindowBuffer,
    pub(super) reassembly: Reassembly,
    pub(super) incarnation: u64,
    /// The number of the channel that its connection listens to.
    pub(super) channel: u32,
    pub(super) connected: bool,
    pub(super) up: VecDeque<FramePacket>,
    pub(super) down: VecDeque<FramePacket>,
    /// Datagrams in flight, with the channel whose key encrypts them.
    pub(super) in_flight: Vec<(u32, FramePacket)>,
    pub(super) serves_group: bool,
    /// The highest LSN up to which it ever held everything.
    pub(super) held_max: Lsn,
    /// Bytes of the log sent over its own link.
    pub(super) link_bytes: u64,
    /// Whether it is busy with other work most of the time.
    pub(super) slow: bool,
}

pub(super) struct MulticastBench {
    pub(super) rng: TestRng,
    pub(super) writer: JournalWriter,
    pub(super) now: Time,
    pub(super) lenders: Vec<ListeningLender>,
    pub(super) log: Vec<u8>,
    pub(super) end: ChainPoint,
    pub(super) ends: Vec<ChainPoint>,
    pub(super) window: u64,
    pub(super) rule: CommitRule,
    pub(super) loss_permille: u64,
    /// Maximum duration of one step of time.
    pub(super) step_us: u64,
    /// Bytes of the log sent over members' own links while all of them listen.
    pub(super) unicast: u64,
    pub(super) datagrams: u64,
    pub(super) missing: u64,
}

impl MulticastBench {
    pub(super) fn new(seed: u64, lenders: usize, window: u64, rule: CommitRule) -> MulticastBench {
        let config = WriterConfig {
            lenders: (0..lenders).map(|index| format!("unix:/l{index}")).collect(),
            rule,
            wanted: lenders,
            min: 1,
            domain: "here".to_owned(),
            one_domain: true,
            window_bytes: window,
            timing: WriterTimings::default(),
            cast: Some(MulticastTiming::default()),
            voter: Voter::Disk,
        };
        let writer = JournalWriter::new(JOURNAL, Epoch(1), WriterId(9), 1, ChainPoint::default(), config);
        let lender = |index: usize| ListeningLender {
            member: Member::new(JOURNAL, Incarnation(index as u64 + 1)),
            window: WindowBuffer::default(),
            reassembly: Reassembly::default(),
            incarnation: index as u64 + 1,
            channel: 0,
            connected: false,
            up: VecDeque::new(),
            down: VecDeque::new(),
            in_flight: Vec::new(),
            serves_group: true,
            held_max: Lsn(0),
            link_bytes: 0,
            slow: false,
        };
        MulticastBench {
            rng: TestRng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            writer,
            now: Time(1_000_000_000),
            lenders: (0..lenders).map(lender).collect(),
            log: Vec::new(),
            end: ChainPoint::default(),
            ends: Vec::new(),
            window,
            rule,
            loss_permille: 0,
            step_us: 300,
            unicast: 0,
            datagrams: 0,
            missing: 0,
        }
    }

    pub(super) fn append(&mut self, payload: usize) -> bool {
        let header = RecordHeader::new(
            self.end,
            Epoch(1),
            self.writer.stable(),
            RecordKind(16),
            false,
            payload,
        );
        if header.next().since(self.writer.stable()) > self.window {
            return false;
        }
        let mut record = vec![0; header.length];
        header.write(&mut record);
        for byte in &mut record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload] {
            *byte = self.rng.below(256) as u8;
        }
        let chain = finish_record(&mut record, JOURNAL.into());
        self.log.extend_from_slice(&record);
        self.end = ChainPoint {
            lsn: header.next(),
            chain,
        };
        self.ends.push(self.end);
        self.writer.on_append(self.end.lsn);
        true
    }

    /// Does what the driver does after every event.
    pub(super) fn pump(&mut self) {
        for index in self.writer.take_disconnects().iter() {
            self.cut_off(index, false);
        }
        for index in 0..self.lenders.len() {
            if self.writer.wants_connection(index, self.now) {
                let lender = &mut self.lenders[index];
                lender.connected = true;
                lender.channel = 0;
                lender.up.clear();
                lender.down.clear();
                self.writer.on_connected(index, self.now);
            }
        }
        while self.writer.view_to_store().is_some() {
            self.writer.on_view_stored(self.now);
        }
        let all_listen = self.writer.listeners() == self.lenders.len();
        while let Some(outgoing) = self.writer.next_multicast(self.now) {
            self.multicast(&outgoing);
        }
        for index in 0..self.lenders.len() {
            while let Some(outgoing) = self.writer.next_frame(index, self.now) {
                let packet = self.packet(&outgoing);
                if packet.0.kind == FrameKind::Append {
                    self.unicast += if all_listen { packet.1.len() as u64 } else { 0 };
                    self.lenders[index].link_bytes += packet.1.len() as u64;
                }
                self.lenders[index].up.push_back(packet);
            }
        }
        self.check();
    }

    pub(super) fn packet(&self, outgoing: &OutgoingFrame) -> FramePacket {
        let body = match outgoing.body {
            FrameBody::Inline(bytes, length) => bytes[..length].to_vec(),
            FrameBody::Window(bytes) => bytes.to_le_bytes().to_vec(),
            FrameBody::Channel(number) => number.to_le_bytes().to_vec(),
            FrameBody::Log { from, bytes } => self.log_bytes(from, bytes),
        };
        (outgoing.header, body)
    }

    /// Reads bytes of the ring, which holds no more than the window.
    pub(super) fn log_bytes(&self, from: Lsn, bytes: usize) -> Vec<u8> {
        assert!(
            self.end.lsn.since(from) <= self.window,
            "the ring has been reused"
        );
        self.log[from.0 as usize..][..bytes].to_vec()
    }

    pub(super) fn multicast(&mut self, outgoing: &OutgoingFrame) {
        let FrameBody::Log { from, bytes } = outgoing.body else {
            panic!("only bytes of the log are multicast")
        };
        assert_eq!(outgoing.header.lsn, from);
        let channel = self.writer.channel();
        for (header, length) in fragment_append(outgoing.header, bytes, DATAGRAM_BYTES) {
            let body = self.log_bytes(header.lsn, length);
            self.datagrams += 1;
            for lender in &mut self.lenders {
                if self.rng.chance(self.loss_permille) {
                    continue;
                }
                let copies = 1 + usize::from(self.rng.chance(self.loss_permille));
                for _ in 0..copies {
                    lender.in_flight.push((channel, (header, body.clone())));
                }
            }
        }
    }

    /// Breaks the link, and with `forget` also loses the lender's memory.
    pub(super) fn cut_off(&mut self, index: usize, forget: bool) {
        let lender = &mut self.lenders[index];
        lender.connected = false;
        lender.up.clear();
        lender.down.clear();
        if forget {
            lender.incarnation += 100;
            lender.member = Member::new(JOURNAL, Incarnation(lender.incarnation));
            lender.window = WindowBuffer::default();
            lender.channel = 0;
        }
    }

    pub(super) fn lender_gets(&mut self, index: usize, (header, body): FramePacket) {
        let lender = &mut self.lenders[index];
        let frame = Frame { header, body: &body };
        let who = lender.incarnation;
        let answer = |kind, lsn| FrameHeader {
            lsn,
            sender: who,
            ..FrameHeader::new(kind)
        };
        match header.kind {
            FrameKind::Bind => lender
                .down
                .push_back((answer(FrameKind::Bound, Lsn(0)), b"there".to_vec())),
            FrameKind::Invite if lender.serves_group => {
                lender.channel = header.lsn.0 as u32;
                lender.reassembly.clear();
                lender
                    .down
                    .push_back((answer(FrameKind::Listening, header.lsn), Vec::new()));
            }
            FrameKind::Invite => {
                let mut header = answer(FrameKind::Refuse, Lsn(0));
                header.flags = RefusalReason::NoGroup as u8;
                lender.down.push_back((header, Vec::new()));
            }
            FrameKind::Append if lender.channel != 0 => self.deliver_appends(index, &frame),
            kind => {
                if matches!(kind, FrameKind::Join | FrameKind::Fence) {
                    lender.reassembly.clear();
                }
                lender.handle(&frame);
            }
        }
    }

    /// Passes an append through reassembly, however it arrived, as the shipped lender does.
    pub(super) fn deliver_appends(&mut self, index: usize, frame: &Frame<'_>) {
        let lender = &mut self.lenders[index];
        match lender.reassembly.handle(frame, lender.member.state().received) {
            ReassemblyVerdict::Deliver => {
                lender.handle(frame);
                while let Some(piece) = lender.reassembly.next(lender.member.state().received) {
                    lender.handle(&piece.frame());
                }
            }
            ReassemblyVerdict::Buffered(Some(range)) => {
                self.missing += 1;
                let header = lender.member.missing(range);
                lender.reply(header, Vec::new());
            }
            ReassemblyVerdict::Buffered(None) | ReassemblyVerdict::Duplicate | ReassemblyVerdict::Full => (),
        }
        assert!(lender.reassembly.bytes() <= REASSEMBLY_BYTES_MAX);
    }

    pub(super) fn datagram_arrives(&mut self, index: usize) {
        let count = self.lenders[index].in_flight.len() as u64;
        if count == 0 {
            return;
        }
        // Mostly in order: the oldest first.
        let at = if self.rng.chance(self.loss_permille) {
            self.rng.below(count.min(20)) as usize
        } else {
            0
        };
        let (channel, (header, body)) = self.lenders[index].in_flight.remove(at);
        // A lender without the key cannot decrypt the datagram.
        if channel == self.lenders[index].channel {
            let frame = Frame { header, body: &body };
            self.lenders[index].reassembly.on_datagram();
            self.deliver_appends(index, &frame);
        }
    }

    pub(super) fn step(&mut self) {
        let index = self.rng.below(self.lenders.len() as u64) as usize;
        if self.lenders[index].slow && !self.rng.chance(100) {
            self.now = self.now + Nanos::from_us(20);
            return;
        }
        match self.rng.below(20) {
            0..=7 => self.datagram_arrives(index),
            8..=12 => {
                if let Some(packet) = self.lenders[index].up.pop_front() {
                    self.lender_gets(index, packet);
                }
            }
            13..=17 => {
                if let Some((header, body)) = self.lenders[index].down.pop_front() {
                    let frame = Frame { header, body: &body };
                    self.writer.on_frame(index, &frame, self.now);
                }
            }
            18 => {
                self.now = self.now + Nanos::from_us(self.rng.below(self.step_us));
            }
            _ => self.writer.on_tick(self.now),
        }
        self.pump();
    }

    pub(super) fn sync(&mut self) {
        let count = self.ends.len() as u64;
        if count > 0 {
            let upto = self.rng.below(count) as usize;
            let end = self.ends[upto];
            self.ends.drain(..=upto);
            self.writer.on_stable(end, self.now);
        }
    }

    /// Checks rule 1: everything acknowledged was at some time held by as many members as the rule demands.
    /// (A member may have lost its memory since.)
    pub(super) fn check(&self) {
        let (acked, stable) = (self.writer.acked(), self.writer.stable());
        if acked <= stable {
            return;
        }
        let holders = self.lenders.iter().filter(|lender| lender.held_max >= acked);
        let copies = if self.rule == CommitRule::All {
            self.writer.view().len()
        } else {
            1
        };
        assert!(holders.count() >= copies.max(1), "acknowledged {acked} too early");
    }

    /// Checks rule 2: held bytes equal the log.
    pub(super) fn check_windows(&self) {
        for lender in &self.lenders {
            let state = lender.member.state();
            if !state.joined {
                continue;
            }
            let mut bytes = vec![0; state.held.since(state.trim) as usize];
            copy_out(&lender.window, state.trim, &mut bytes);
            assert_eq!(bytes, &self.log[state.trim.0 as usize..state.held.0 as usize]);
        }
    }

    pub(super) fn run_until(&mut self, what: &str, mut done: impl FnMut(&MulticastBench) -> bool) {
        for _ in 0..400_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!(
            "{what}: acked {} of {}, {} listen; {:?}",
            self.writer.acked(),
            self.end.lsn,
            self.writer.listeners(),
            self.lenders
                .iter()
                .map(|lender| *lender.member.state())
                .collect::<Vec<_>>()
        );
    }

    pub(super) fn all_listen(&mut self) {
        let count = self.lenders.len();
        self.run_until("all listen", |bench| {
            bench.writer.view().len() == count && bench.writer.listeners() == count
        });
    }

    pub(super) fn all_hold(&mut self) {
        self.run_until("all hold", |bench| {
            let held = |lender: &ListeningLender| lender.member.state().held == bench.end.lsn;
            bench.lenders.iter().all(held) && bench.writer.acked() == bench.end.lsn
        });
        self.check_windows();
    }
}

impl ListeningLender {
    pub(super) fn handle(&mut self, frame: &Frame<'_>) {
        let reply = self.member.handle(frame, &mut self.window);
        self.held_max = self.held_max.max(self.member.state().held);
        match reply {
            MemberReply::Frame(header, body, length) => {
                assert_eq!(
                    header.flags & Flag::GAP,
                    0,
                    "appends reach the member in order, however they came"
                );
                self.reply(header, body[..length].to_vec());
            }
            MemberReply::Data(..) => panic!("the writer sends no reads"),
        }
    }

    pub(super) fn reply(&mut self, mut header: FrameHeader, body: Vec<u8>) {
        if matches!(header.kind, FrameKind::Ack | FrameKind::Pong) && self.reassembly.take_heard() {
            header.flags |= Flag::HEARD;
        }
        if self.connected {
            self.down.push_back((header, body));
        }
    }
}
