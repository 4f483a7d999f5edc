//! Connections: two lanes of frames between a client's process and a lender.
//!
//! A stream keeps order and loses only a tail, when it breaks; a datagram link loses, doubles and delays each
//! frame by itself. Frames of a dead process may still arrive, much later.

use netram_proto::multicast::fragment_append;
use netram_proto::time::{Nanos, Time};

use netram_proto::wire::{Frame, FrameHeader, FrameKind};

use crate::check::rule16;
use crate::event::{FrameDirection, WorldEvent};
use crate::lender::{PacketOutcome, packet_of};
use crate::profile::LinkKind;
use crate::world::World;

/// Maximum number of frames in flight on one lane.
const LANE_FRAMES_MAX: u32 = 12;

const WITHDRAW: u8 = FrameKind::Withdraw as u8;

/// One direction of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameLane {
    last: Time,
    sent: u64,
    arrived: u64,
    in_flight: u32,
    /// Number of the first frame that never arrives.
    cut: u64,
}

impl FrameLane {
    fn new() -> FrameLane {
        FrameLane {
            last: Time(0),
            sent: 0,
            arrived: 0,
            in_flight: 0,
            cut: u64::MAX,
        }
    }
}

/// A connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimConnection {
    pub(crate) process: usize,
    pub(crate) slot: usize,
    pub(crate) lender: usize,
    /// Whether no lender is at the address.
    unreachable: bool,
    /// Whether the client's end is open.
    pub(crate) open: bool,
    /// Boot of the lender's process that accepted it.
    boot: u32,
    up: FrameLane,
    down: FrameLane,
    /// Arrival time of the newest datagram, where datagrams keep their order.
    last_datagram: Time,
}

impl World {
    /// A process begins to connect to the lender at an address.
    pub(crate) fn connect(&mut self, process: usize, slot: usize, address: usize) {
        let conn = self.conns.len();
        let lender = self.address_lenders[address];
        self.conns.push(SimConnection {
            process,
            slot,
            lender: lender.unwrap_or_default(),
            unreachable: lender.is_none(),
            open: true,
            boot: 0,
            up: FrameLane::new(),
            down: FrameLane::new(),
            last_datagram: Time(0),
        });
        self.processes[process].conns[slot] = Some(conn);
        let delay = Nanos(self.kernel.link_latency().0 + self.kernel.link_latency().0);
        self.kernel.at(delay, WorldEvent::Connected { conn });
    }

    pub(crate) fn on_connected(&mut self, conn: usize) {
        let SimConnection {
            process,
            slot,
            lender,
            open,
            unreachable: nowhere,
            ..
        } = self.conns[conn];
        if !open {
            return;
        }
        let reachable = !nowhere
            && self.lenders[lender].up
            && self.blocked(process, lender, FrameDirection::Up) <= self.kernel.now()
            && self.blocked(process, lender, FrameDirection::Down) <= self.kernel.now();
        if reachable {
            self.conns[conn].boot = self.lenders[lender].boot;
            self.kernel.hit("links made");
            self.link_up(process, slot);
        } else {
            self.kernel.hit("links refused");
            self.close_here(conn);
            self.link_lost(process, slot);
        }
    }

    /// Whether a frame may be handed to the connection.
    pub(crate) fn has_room(&self, conn: usize) -> bool {
        self.conns[conn].up.in_flight < LANE_FRAMES_MAX
    }

    pub(crate) fn send(&mut self, conn: usize, way: FrameDirection, packet: Vec<u8>) {
        let latency = self.latency_of(conn);
        let now = self.kernel.now();
        if self.kernel.profile.links == LinkKind::Stream {
            let lane = self.lane(conn, way);
            let number = lane.sent;
            lane.sent += 1;
            lane.in_flight += 1;
            lane.last = Time(lane.last.0.max(now.0 + latency.0) + 1);
            let at = lane.last;
            self.kernel.push(
                at,
                WorldEvent::Frame {
                    conn,
                    way,
                    number,
                    packet,
                },
            );
            return;
        }
        let lane = self.lane(conn, way);
        let number = lane.sent;
        lane.sent += 1;
        // The first frame binds the session. It belongs to the handshake, which a datagram link repeats until
        // it succeeds.
        let first = number == 0;
        let permille = if first {
            0
        } else {
            self.kernel.profile.loss_permille
        };
        if self.kernel.rng.chance(permille) {
            self.kernel.hit("frames lost");
            return;
        }
        let copies = 1 + u32::from(self.kernel.rng.chance(permille));
        self.kernel.add("frames doubled", u64::from(copies - 1));
        for _ in 0..copies {
            let mut delay = self.kernel.link_latency();
            if self.kernel.rng.chance(permille) {
                self.kernel.hit("frames late");
                let times = self.kernel.rng.between(2, 200);
                // One in four is delayed long enough for its lender to be given up and found again.
                let stuck = if self.kernel.rng.chance(250) {
                    self.kernel.rng.below(700_000_000)
                } else {
                    0
                };
                delay = Nanos(delay.0 * times + stuck);
            }
            self.lane(conn, way).in_flight += 1;
            let packet = packet.clone();
            self.kernel.at(
                delay,
                WorldEvent::Frame {
                    conn,
                    way,
                    number,
                    packet,
                },
            );
        }
    }

    pub(crate) fn on_packet(&mut self, conn: usize, way: FrameDirection, number: u64, packet: Vec<u8>) {
        let SimConnection {
            process,
            slot,
            lender,
            open,
            boot,
            ..
        } = self.conns[conn];
        let until = self.blocked(process, lender, way);
        let paused = match way {
            FrameDirection::Up => self.lenders[lender].paused_until,
            FrameDirection::Down => self.processes[process].paused_until,
        };
        let wait = if self.kernel.profile.links == LinkKind::Stream || until <= self.kernel.now() {
            Time(until.0.max(paused.0))
        } else {
            self.lane(conn, way).in_flight -= 1;
            self.kernel.hit("frames lost in a partition");
            return;
        };
        if wait > self.kernel.now() {
            self.kernel.push(
                wait,
                WorldEvent::Frame {
                    conn,
                    way,
                    number,
                    packet,
                },
            );
            return;
        }
        let lane = self.lane(conn, way);
        lane.in_flight -= 1;
        if number >= lane.cut {
            return;
        }
        lane.arrived = lane.arrived.max(number + 1);
        match way {
            FrameDirection::Up if !self.lenders[lender].up || self.lenders[lender].boot != boot => {
                // No process is there, or one that does not know this connection: it is reset.
                self.break_conn(conn);
            }
            FrameDirection::Up => self.deliver_to_lender(conn, lender, open, &packet),
            FrameDirection::Down if open => self.process_gets(process, slot, &packet),
            // On datagram links, frames of an earlier connection arrive as well. A withdrawal is excepted: it
            // names no incarnation of the lender, and such links would have to add one.
            FrameDirection::Down
                if self.kernel.profile.links == LinkKind::Datagram && packet.first() != Some(&WITHDRAW) =>
            {
                if let Some(slot) = self.slot_of(process, lender) {
                    self.kernel.hit("late answers over an earlier link");
                    self.process_gets(process, slot, &packet);
                }
            }
            FrameDirection::Down => (),
        }
    }

    /// A process multicasts an append: to every connection of its own that listens, dead ones included.
    pub(crate) fn multicast(&mut self, process: usize, channel: u32, header: FrameHeader, body: &[u8]) {
        let datagram_bytes = self.kernel.profile.datagram_bytes;
        let listeners: Vec<usize> = self
            .lenders
            .iter()
            .flat_map(|lender| lender.listeners())
            .filter(|&conn| self.conns[conn].process == process)
            .collect();
        for (piece, length) in fragment_append(header, body.len(), datagram_bytes) {
            let from = piece.lsn.since(header.lsn) as usize;
            let packet = packet_of(&piece, &body[from..from + length]);
            self.kernel.hit("datagrams multicast");
            for &conn in &listeners {
                self.send_datagram(conn, channel, &packet);
            }
        }
    }

    fn send_datagram(&mut self, conn: usize, channel: u32, packet: &[u8]) {
        let permille = self.kernel.profile.loss_permille;
        if self.kernel.rng.chance(permille) {
            self.kernel.hit("datagrams lost");
            return;
        }
        let copies = 1 + u32::from(self.kernel.rng.chance(permille));
        for _ in 0..copies {
            let mut delay = self.latency_of(conn);
            if self.kernel.profile.distant.is_some() {
                let heard = (self.kernel.now() + delay).max(self.conns[conn].last_datagram + Nanos(1));
                self.conns[conn].last_datagram = heard;
                delay = heard.since(self.kernel.now());
            }
            if self.kernel.rng.chance(permille) {
                self.kernel.hit("datagrams late");
                // Some outlive the epoch that sent them.
                let longest = self
                    .kernel
                    .rng
                    .pick(&[1_000_000, 1_000_000, 50_000_000, 2_000_000_000]);
                delay = Nanos(delay.0 + self.kernel.rng.below(longest));
            }
            let packet = packet.to_vec();
            self.kernel.at(
                delay,
                WorldEvent::Datagram {
                    conn,
                    channel,
                    packet,
                },
            );
        }
    }

    pub(crate) fn on_datagram(&mut self, conn: usize, channel: u32, packet: Vec<u8>) {
        let SimConnection {
            process,
            lender,
            open,
            boot,
            ..
        } = self.conns[conn];
        if self.blocked(process, lender, FrameDirection::Up) > self.kernel.now() {
            self.kernel.hit("datagrams lost in a partition");
            return;
        }
        let wait = self.lenders[lender].paused_until;
        if wait > self.kernel.now() {
            self.kernel.push(
                wait,
                WorldEvent::Datagram {
                    conn,
                    channel,
                    packet,
                },
            );
            return;
        }
        if !self.lenders[lender].up || self.lenders[lender].boot != boot {
            return;
        }
        if !open {
            self.kernel.hit("datagrams heard by a dead connection");
        }
        let (journal, planted) = (self.kernel.journal(), self.kernel.planted());
        self.trace_packet(lender, &packet, "hears");
        self.kernel.mark(10, conn as u64);
        let outcome = self.lenders[lender].on_datagram(conn, channel.into(), &packet, journal, planted);
        self.send_answer(conn, lender, open, outcome);
    }

    fn deliver_to_lender(&mut self, conn: usize, lender: usize, open: bool, packet: &[u8]) {
        if !open {
            self.kernel.hit("frames of a dead connection delivered");
        }
        let (journal, planted) = (self.kernel.journal(), self.kernel.planted());
        self.trace_packet(lender, packet, "gets");
        self.kernel.mark(2, packet.first().copied().unwrap_or(0).into());
        let before = self.lenders[lender].state();
        let outcome = self.lenders[lender].on_packet(conn, packet, journal, planted);
        rule16::not_emptied(self, &self.lenders[lender], &before);
        if let Some(made_up) = self.perhaps_make_up(lender, packet)
            && open
        {
            return self.send(conn, FrameDirection::Down, made_up);
        }
        self.send_answer(conn, lender, open, outcome);
    }

    fn send_answer(&mut self, conn: usize, lender: usize, open: bool, outcome: PacketOutcome) {
        match outcome {
            PacketOutcome::Nothing => (),
            PacketOutcome::Reply(reply) => {
                let reply = self.perhaps_lie(lender, reply);
                self.trace_packet(lender, &reply, "answers");
                if reply.first() == Some(&(FrameKind::Missing as u8)) {
                    self.kernel.hit("holes told");
                }
                if open {
                    self.send(conn, FrameDirection::Down, reply);
                }
            }
            PacketOutcome::Ended if self.kernel.profile.links == LinkKind::Stream => self.break_conn(conn),
            // A repeated or early frame is no protocol violation where links reorder.
            PacketOutcome::Ended => (),
            PacketOutcome::Died => {
                self.kernel.hit("lenders that died while handling a frame");
                self.lender_died(lender);
            }
        }
    }

    fn trace_packet(&mut self, lender: usize, packet: &[u8], verb: &str) {
        self.kernel.tell(|| match Frame::parse(packet) {
            Ok(Frame { header, body }) => format!(
                "lender {lender} {verb} {:?} lsn {} epoch {} mark {:x} stable {} flags {} who {:x} body {}",
                header.kind,
                header.lsn,
                header.epoch,
                header.mark,
                header.stable,
                header.flags,
                header.sender,
                body.len()
            ),
            Err(error) => format!("lender {lender} {verb} {error}"),
        });
    }

    /// Breaks a connection: some frames on the way still arrive, the rest are lost. The client learns of it
    /// later.
    pub(crate) fn break_conn(&mut self, conn: usize) {
        if !self.conns[conn].open {
            return;
        }
        self.cut_lanes(conn);
        let delay = self.kernel.link_latency();
        self.kernel.at(delay, WorldEvent::Closed { conn });
    }

    pub(crate) fn on_closed(&mut self, conn: usize) {
        let SimConnection {
            process, slot, open, ..
        } = self.conns[conn];
        if open {
            self.close_here(conn);
            self.link_lost(process, slot);
        }
    }

    /// Closes the client's end, on purpose or because its process died. Frames on the way up may still
    /// arrive.
    pub(crate) fn close_here(&mut self, conn: usize) {
        self.cut_lanes(conn);
        let SimConnection {
            process,
            slot,
            lender,
            ..
        } = self.conns[conn];
        self.conns[conn].open = false;
        if self.processes[process].conns[slot] == Some(conn) {
            self.processes[process].conns[slot] = None;
        }
        if self.conns[conn].up.in_flight == 0 {
            self.lenders[lender].forget(conn);
        }
    }

    fn cut_lanes(&mut self, conn: usize) {
        if self.kernel.profile.links == LinkKind::Datagram {
            // Each frame is delivered or lost by itself.
            return;
        }
        for way in [FrameDirection::Up, FrameDirection::Down] {
            let draw = self.kernel.rng.draw();
            let lane = self.lane(conn, way);
            let open = lane.sent - lane.arrived;
            lane.cut = lane.cut.min(lane.arrived + draw % (open + 1));
        }
    }

    /// Connections whose client end is open and that lead to `lender`.
    pub(crate) fn conns_to(&self, lender: usize) -> Vec<usize> {
        let open = self
            .processes
            .iter()
            .flat_map(|process| process.conns.iter().flatten());
        open.copied()
            .filter(|&conn| self.conns[conn].lender == lender)
            .collect()
    }

    fn lane(&mut self, conn: usize, way: FrameDirection) -> &mut FrameLane {
        let conn = &mut self.conns[conn];
        match way {
            FrameDirection::Up => &mut conn.up,
            FrameDirection::Down => &mut conn.down,
        }
    }

    /// Draws the latency of one way between a client and the lender of `conn`.
    fn latency_of(&mut self, conn: usize) -> Nanos {
        match self.kernel.profile.distant {
            Some((lender, (low, high))) if lender == self.conns[conn].lender => {
                Nanos(self.kernel.rng.between(low * 1000, high * 1000))
            }
            _ => self.kernel.link_latency(),
        }
    }

    /// Until when frames between a process's host and a lender do not pass.
    fn blocked(&self, process: usize, lender: usize, way: FrameDirection) -> Time {
        let host = self.processes[process].host;
        let blocked = &self.blocked[host][lender];
        match way {
            FrameDirection::Up => blocked.0,
            FrameDirection::Down => blocked.1,
        }
    }
}
