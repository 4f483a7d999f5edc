//! A writer and real members over a channel that loses, doubles and swaps datagrams, while each member's own link keeps
//! order and now and then breaks. A seed replays a run.

use std::collections::VecDeque;

use netram_proto::cast::{Gather, Taken, cut};
use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::journal::{Body, CastConfig, CommitRule, Outgoing, Timing, Writer, WriterConfig};
use netram_proto::limit::{GATHER_BYTES_MAX, RECORD_HEADER_BYTES};
use netram_proto::member::{Member, NoWindow, Reply, Window, copy_out};
use netram_proto::port::Kind;
use netram_proto::time::{Span, Time};
use netram_proto::wire::{Flag, Frame, FrameKind, Header, Link, RecordHeader, Refusal, finish_record};

const JOURNAL: JournalId = JournalId(7);
const DATAGRAM_BYTES: usize = 600;

struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }
}

#[derive(Default)]
struct Ring(Vec<u8>);

impl Window for Ring {
    fn reserve(&mut self, bytes: u64) -> Result<(), NoWindow> {
        self.0 = vec![0; bytes as usize];
        Ok(())
    }

    fn release(&mut self) {
        self.0 = Vec::new();
    }

    fn capacity(&self) -> u64 {
        self.0.len() as u64
    }

    fn write(&mut self, at: Lsn, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let place = (at.0 as usize + index) % self.0.len();
            self.0[place] = *byte;
        }
    }

    fn piece(&self, at: Lsn, max: usize) -> &[u8] {
        let start = (at.0 % self.0.len() as u64) as usize;
        &self.0[start..self.0.len().min(start + max)]
    }
}

/// A frame as it travels.
type Packet = (Header, Vec<u8>);

struct Lender {
    member: Member,
    window: Ring,
    gather: Gather,
    incarnation: u64,
    /// The channel that its connection listens to.
    channel: u32,
    connected: bool,
    up: VecDeque<Packet>,
    down: VecDeque<Packet>,
    /// Datagrams on their way, with the channel that they are sealed for.
    air: Vec<(u32, Packet)>,
    serves_group: bool,
    /// The most that it ever held.
    reached: Lsn,
}

struct Bench {
    rng: Rng,
    writer: Writer,
    now: Time,
    lenders: Vec<Lender>,
    log: Vec<u8>,
    end: Link,
    ends: Vec<Link>,
    window: u64,
    rule: CommitRule,
    loss_permille: u64,
    /// The most that one step of time takes.
    step_us: u64,
    /// Bytes of the log over members' own links while all of them listen.
    unicast: u64,
    datagrams: u64,
    missing: u64,
}

impl Bench {
    fn new(seed: u64, lenders: usize, window: u64, rule: CommitRule) -> Bench {
        let config = WriterConfig {
            lenders: (0..lenders).map(|index| format!("unix:/l{index}")).collect(),
            rule,
            wanted: lenders,
            min: 1,
            domain: "here".to_owned(),
            one_domain: true,
            window_bytes: window,
            timing: Timing::default(),
            cast: Some(CastConfig::default()),
        };
        let writer = Writer::new(JOURNAL, Epoch(1), WriterId(9), 1, Link::default(), config);
        let lender = |index: usize| Lender {
            member: Member::new(JOURNAL, Incarnation(index as u64 + 1)),
            window: Ring::default(),
            gather: Gather::default(),
            incarnation: index as u64 + 1,
            channel: 0,
            connected: false,
            up: VecDeque::new(),
            down: VecDeque::new(),
            air: Vec::new(),
            serves_group: true,
            reached: Lsn(0),
        };
        Bench {
            rng: Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            writer,
            now: Time(1_000_000_000),
            lenders: (0..lenders).map(lender).collect(),
            log: Vec::new(),
            end: Link::default(),
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

    fn append(&mut self, payload: usize) -> bool {
        let header = RecordHeader::new(self.end, Epoch(1), self.writer.stable(), Kind(16), false, payload);
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
        self.end = Link {
            lsn: header.next(),
            chain,
        };
        self.ends.push(self.end);
        self.writer.on_append(self.end.lsn);
        true
    }

    /// What the driver does after every event.
    fn pump(&mut self) {
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
        while let Some(outgoing) = self.writer.next_cast(self.now) {
            self.multicast(&outgoing);
        }
        for index in 0..self.lenders.len() {
            while let Some(outgoing) = self.writer.next_frame(index, self.now) {
                let packet = self.packet(&outgoing);
                if all_listen && packet.0.kind == FrameKind::Append {
                    self.unicast += packet.1.len() as u64;
                }
                self.lenders[index].up.push_back(packet);
            }
        }
        self.check();
    }

    fn packet(&self, outgoing: &Outgoing) -> Packet {
        let body = match outgoing.body {
            Body::Inline(bytes, length) => bytes[..length].to_vec(),
            Body::Channel(number) => number.to_le_bytes().to_vec(),
            Body::Log { from, bytes } => self.log_bytes(from, bytes),
        };
        (outgoing.header, body)
    }

    /// Bytes of the ring, which holds no more than the window.
    fn log_bytes(&self, from: Lsn, bytes: usize) -> Vec<u8> {
        assert!(
            self.end.lsn.since(from) <= self.window,
            "the ring has been reused"
        );
        self.log[from.0 as usize..][..bytes].to_vec()
    }

    fn multicast(&mut self, outgoing: &Outgoing) {
        let Body::Log { from, bytes } = outgoing.body else {
            panic!("only bytes of the log are multicast")
        };
        assert_eq!(outgoing.header.lsn, from);
        let channel = self.writer.channel();
        for (header, length) in cut(outgoing.header, bytes, DATAGRAM_BYTES) {
            let body = self.log_bytes(header.lsn, length);
            self.datagrams += 1;
            for lender in &mut self.lenders {
                if self.rng.chance(self.loss_permille) {
                    continue;
                }
                let copies = 1 + usize::from(self.rng.chance(self.loss_permille));
                for _ in 0..copies {
                    lender.air.push((channel, (header, body.clone())));
                }
            }
        }
    }

    /// The link breaks, and perhaps the lender's memory is lost with it.
    fn cut_off(&mut self, index: usize, forget: bool) {
        let lender = &mut self.lenders[index];
        lender.connected = false;
        lender.up.clear();
        lender.down.clear();
        if forget {
            lender.incarnation += 100;
            lender.member = Member::new(JOURNAL, Incarnation(lender.incarnation));
            lender.window = Ring::default();
            lender.channel = 0;
        }
    }

    fn lender_gets(&mut self, index: usize, (header, body): Packet) {
        let lender = &mut self.lenders[index];
        let frame = Frame { header, body: &body };
        let who = lender.incarnation;
        let answer = |kind, lsn| Header {
            lsn,
            who,
            ..Header::new(kind)
        };
        match header.kind {
            FrameKind::Bind => lender
                .down
                .push_back((answer(FrameKind::Bound, Lsn(0)), b"there".to_vec())),
            FrameKind::Tune if lender.serves_group => {
                lender.channel = header.lsn.0 as u32;
                lender.gather.clear();
                lender
                    .down
                    .push_back((answer(FrameKind::Tuned, header.lsn), Vec::new()));
            }
            FrameKind::Tune => {
                let mut header = answer(FrameKind::Refuse, Lsn(0));
                header.flags = Refusal::NoGroup as u8;
                lender.down.push_back((header, Vec::new()));
            }
            FrameKind::Append if lender.channel != 0 => self.gathered(index, &frame),
            kind => {
                if matches!(kind, FrameKind::Join | FrameKind::Seal) {
                    lender.gather.clear();
                }
                lender.handle(&frame);
            }
        }
    }

    /// As the shipped lender does it: whatever way an append came, it goes through the machine.
    fn gathered(&mut self, index: usize, frame: &Frame<'_>) {
        let lender = &mut self.lenders[index];
        match lender.gather.handle(frame, lender.member.state().received) {
            Taken::Now => {
                lender.handle(frame);
                while let Some(piece) = lender.gather.next(lender.member.state().received) {
                    lender.handle(&piece.frame());
                }
            }
            Taken::Kept(Some(hole)) => {
                self.missing += 1;
                let header = lender.member.missing(hole);
                lender.say(header, Vec::new());
            }
            Taken::Kept(None) | Taken::Known | Taken::Full => (),
        }
        assert!(lender.gather.bytes() <= GATHER_BYTES_MAX);
    }

    fn datagram_arrives(&mut self, index: usize) {
        let count = self.lenders[index].air.len() as u64;
        if count == 0 {
            return;
        }
        // Mostly in order.
        let at = if self.rng.chance(self.loss_permille) {
            self.rng.below(count.min(20)) as usize
        } else {
            0
        };
        let (channel, (header, body)) = self.lenders[index].air.remove(at);
        // A key that the lender does not have opens nothing.
        if channel == self.lenders[index].channel {
            let frame = Frame { header, body: &body };
            self.gathered(index, &frame);
        }
    }

    fn step(&mut self) {
        let index = self.rng.below(self.lenders.len() as u64) as usize;
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
                self.now = self.now + Span::from_us(self.rng.below(self.step_us));
            }
            _ => self.writer.on_tick(self.now),
        }
        self.pump();
    }

    fn sync(&mut self) {
        let count = self.ends.len() as u64;
        if count > 0 {
            let upto = self.rng.below(count) as usize;
            let end = self.ends[upto];
            self.ends.drain(..=upto);
            self.writer.on_stable(end, self.now);
        }
    }

    /// Rule 1: nothing is acknowledged that as many members as the rule demands did not hold at some time. (A member that
    /// held it may have lost its memory since.)
    fn check(&self) {
        let (acked, stable) = (self.writer.acked(), self.writer.stable());
        if acked <= stable {
            return;
        }
        let holders = self.lenders.iter().filter(|lender| lender.reached >= acked);
        let copies = if self.rule == CommitRule::All {
            self.writer.view().len()
        } else {
            1
        };
        assert!(holders.count() >= copies.max(1), "acknowledged {acked} too early");
    }

    /// Rule 2: what is held is the log.
    fn check_windows(&self) {
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

    fn run_until(&mut self, what: &str, mut done: impl FnMut(&Bench) -> bool) {
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

    fn all_listen(&mut self) {
        let count = self.lenders.len();
        self.run_until("all listen", |bench| {
            bench.writer.view().len() == count && bench.writer.listeners() == count
        });
    }

    fn all_hold(&mut self) {
        self.run_until("all hold", |bench| {
            let held = |lender: &Lender| lender.member.state().held == bench.end.lsn;
            bench.lenders.iter().all(held) && bench.writer.acked() == bench.end.lsn
        });
        self.check_windows();
    }
}

impl Lender {
    fn handle(&mut self, frame: &Frame<'_>) {
        let reply = self.member.handle(frame, &mut self.window);
        self.reached = self.reached.max(self.member.state().held);
        match reply {
            Reply::Frame(header, body, length) => {
                assert_eq!(header.flags & Flag::GAP, 0, "in order, whatever way it came");
                self.say(header, body[..length].to_vec());
            }
            Reply::Data(..) => panic!("nobody reads"),
        }
    }

    fn say(&mut self, header: Header, body: Vec<u8>) {
        if self.connected {
            self.down.push_back((header, body));
        }
    }
}

#[test]
fn without_loss_bytes_go_once_and_by_multicast_alone() {
    for seed in 1..20 {
        let mut bench = Bench::new(seed, 3, 1 << 20, CommitRule::All);
        bench.all_listen();
        bench.unicast = 0;
        // Quick beside the timer: nothing is late.
        bench.step_us = 10;
        for payload in [1, 100, 5000, 100_000, 3] {
            assert!(bench.append(payload));
            bench.all_hold();
        }
        assert_eq!(bench.unicast, 0, "seed {seed}");
        assert_eq!(bench.missing, 0, "seed {seed}");
        let most = DATAGRAM_BYTES - 72;
        let least = bench.end.lsn.0.div_ceil(most as u64);
        assert!(
            bench.datagrams <= least + 10,
            "seed {seed}: {} for {least}",
            bench.datagrams
        );
    }
}

#[test]
fn what_is_lost_doubled_or_swapped_is_sent_again_and_nothing_else() {
    for seed in 1..40 {
        let mut bench = Bench::new(seed, 3, 1 << 20, CommitRule::All);
        bench.all_listen();
        bench.unicast = 0;
        bench.loss_permille = [10, 100, 300][seed as usize % 3];
        for _ in 0..10 {
            let payload = bench.rng.below(30_000) as usize;
            assert!(bench.append(payload));
            for _ in 0..bench.rng.below(200) {
                bench.step();
            }
        }
        bench.all_hold();
        assert!(bench.missing > 0, "seed {seed}");
        if bench.loss_permille == 10 {
            // One in a hundred is lost at each of three, and some go twice because the timer is quick.
            assert!(
                bench.unicast < bench.end.lsn.0,
                "seed {seed}: {} again of {}",
                bench.unicast,
                bench.end.lsn
            );
        }
    }
}

#[test]
fn links_break_memories_are_lost_and_writes_go_on() {
    for seed in 1..60 {
        let rule = [CommitRule::All, CommitRule::Any][seed as usize % 2];
        let lenders = 2 + seed as usize % 3;
        let mut bench = Bench::new(seed, lenders, 64 << 10, rule);
        bench.loss_permille = [0, 20, 200][seed as usize % 3];
        bench.lenders[0].serves_group = seed % 5 != 0;
        for _ in 0..4000 {
            match bench.rng.below(1000) {
                0..60 => {
                    let payload = bench.rng.below(6000) as usize;
                    bench.append(payload);
                }
                60..80 => bench.sync(),
                80..83 => {
                    let index = bench.rng.below(lenders as u64) as usize;
                    if bench.lenders[index].connected {
                        let forget = bench.rng.chance(300);
                        bench.cut_off(index, forget);
                        bench.writer.on_lost(index, bench.now);
                    }
                }
                83 => bench.now = bench.now + Span::from_ms(bench.rng.below(700)),
                84 => bench.writer.on_channel_worn(bench.now),
                _ => (),
            }
            bench.step();
        }
        bench.loss_permille = 0;
        bench.run_until("everybody is back", |bench| bench.writer.view().len() == lenders);
        bench.all_hold();
    }
}

#[test]
fn a_member_that_hears_nothing_is_served_over_its_own_link() {
    for seed in 1..10 {
        let mut bench = Bench::new(seed, 3, 1 << 20, CommitRule::All);
        bench.all_listen();
        for _ in 0..12 {
            assert!(bench.append(60_000));
            bench.lenders[1].air.clear();
            for _ in 0..300 {
                bench.step();
                bench.lenders[1].air.clear();
            }
        }
        bench.run_until("the deaf one has all", |bench| {
            bench.lenders[1].member.state().held == bench.end.lsn
        });
        bench.all_hold();
    }
}

#[test]
fn a_member_whose_closed_connection_heard_on_is_believed() {
    // What would be lost: the old connection hears on, the member holds more than its links were sent, and the writer
    // takes that for a lost memory and drops the member from the view.
    let mut bench = Bench::new(3, 3, 1 << 20, CommitRule::All);
    bench.all_listen();
    bench.append(100);
    bench.all_hold();
    let version = bench.writer.status().version;
    bench.cut_off(0, false);
    bench.writer.on_lost(0, bench.now);
    bench.append(200);
    while let Some(outgoing) = bench.writer.next_cast(bench.now) {
        bench.multicast(&outgoing);
    }
    while !bench.lenders[0].air.is_empty() {
        bench.datagram_arrives(0);
    }
    assert_eq!(bench.lenders[0].member.state().held, bench.end.lsn);
    bench.all_listen();
    bench.all_hold();
    assert_eq!(bench.writer.status().version, version, "nobody left the view");
}

#[test]
fn where_multicast_does_not_get_through_members_are_served_without_it_and_asked_again() {
    let mut bench = Bench::new(5, 2, 1 << 20, CommitRule::All);
    bench.all_listen();
    bench.loss_permille = 1000;
    for _ in 0..40 {
        bench.append(100);
        bench.all_hold();
    }
    assert_eq!(bench.writer.listeners(), 0);
    let before = bench.datagrams;
    bench.append(100);
    bench.all_hold();
    assert_eq!(bench.datagrams, before);
    bench.loss_permille = 0;
    bench.now = bench.now + Span::from_ms(30_000);
    bench.all_listen();
    bench.append(100);
    bench.all_hold();
    assert!(bench.datagrams > before);
}
