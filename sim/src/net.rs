//! The network: connections between clients' processes and lenders, two lanes of frames each.
//!
//! A stream keeps order and loses only a tail, when it breaks; a datagram link loses, doubles and delays each
//! frame by itself. Frames of a dead process may still arrive, much later. Arrivals are returned to the
//! caller, who passes them on.

use netram_proto::multicast::fragment_append;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Frame, FrameHeader, FrameKind};

use crate::event::{FrameDirection, FrameInFlight, WorldEvent};
use crate::hostile;
use crate::kernel::SimKernel;
use crate::lender::{PacketOutcome, packet_of};
use crate::lenders::Lenders;
use crate::profile::LinkKind;
use crate::slots::ProcessSlots;

/// Maximum number of frames in flight on one lane.
const LANE_FRAMES_MAX: u32 = 12;

const WITHDRAW: u8 = FrameKind::Withdraw as u8;

/// One direction of a connection.
#[derive(Clone, Copy, Debug)]
struct FrameLane {
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
struct SimConnection {
    process: usize,
    host: usize,
    slot: usize,
    lender: usize,
    /// Whether no lender is at the address.
    unreachable: bool,
    /// Whether the client's end is open.
    open: bool,
    /// Boot of the lender's process that accepted it.
    boot: u32,
    up: FrameLane,
    down: FrameLane,
    /// Arrival time of the newest datagram, where datagrams keep their order.
    last_datagram: Time,
}

/// Receiver of a frame that has arrived.
#[derive(Debug)]
pub(crate) enum FrameArrival {
    /// A lender, over a connection whose client may be gone.
    Lender { lender: usize, packet: Vec<u8> },
    /// A process's machine, in one of its slots.
    Process {
        process: usize,
        slot: usize,
        packet: Vec<u8>,
    },
}

/// The end of a process's attempt to connect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectOutcome {
    pub(crate) process: usize,
    pub(crate) slot: usize,
    pub(crate) connected: bool,
}

/// All connections, and the partitions between hosts and lenders.
pub(crate) struct Network {
    conns: Vec<SimConnection>,
    slots: ProcessSlots,
    /// `[host][lender]`: frames up and down are blocked until these times.
    blocked: Vec<Vec<(Time, Time)>>,
}

impl Network {
    pub(crate) fn new() -> Network {
        Network {
            conns: Vec::new(),
            slots: ProcessSlots::default(),
            blocked: Vec::new(),
        }
    }

    /// Adds a host that can speak to `lenders` lenders.
    pub(crate) fn add_host(&mut self, lenders: usize) {
        self.blocked.push(vec![(Time(0), Time(0)); lenders]);
    }

    /// The slots of processes.
    pub(crate) fn slots(&self) -> &ProcessSlots {
        &self.slots
    }

    /// The slots of processes.
    pub(crate) fn slots_mut(&mut self) -> &mut ProcessSlots {
        &mut self.slots
    }

    /// The process at the client's end of a connection.
    pub(crate) fn process_of(&self, conn: usize) -> usize {
        self.conns[conn].process
    }

    /// Whether the client's end is open.
    pub(crate) fn is_open(&self, conn: usize) -> bool {
        self.conns[conn].open
    }

    /// A process on `host` begins to connect to the lender at the address of a slot.
    pub(crate) fn connect(
        &mut self,
        kernel: &mut SimKernel,
        lenders: &Lenders,
        (process, host): (usize, usize),
        slot: usize,
    ) {
        let conn = self.conns.len();
        let lender = lenders.at_address(self.slots.address(process, slot));
        self.conns.push(SimConnection {
            process,
            host,
            slot,
            lender: lender.unwrap_or_default(),
            unreachable: lender.is_none(),
            open: true,
            boot: 0,
            up: FrameLane::new(),
            down: FrameLane::new(),
            last_datagram: Time(0),
        });
        self.slots.put(process, slot, conn);
        let delay = Nanos(kernel.link_latency().0 + kernel.link_latency().0);
        kernel.at(delay, WorldEvent::Connected { conn });
    }

    /// Ends the attempt to connect. `None`: the process has given it up.
    pub(crate) fn connected(
        &mut self,
        kernel: &mut SimKernel,
        lenders: &mut Lenders,
        conn: usize,
    ) -> Option<ConnectOutcome> {
        let SimConnection {
            process,
            slot,
            lender,
            open,
            unreachable,
            ..
        } = self.conns[conn];
        if !open {
            return None;
        }
        let connected = !unreachable
            && lenders[lender].up
            && self.blocked_until(conn, FrameDirection::Up) <= kernel.now()
            && self.blocked_until(conn, FrameDirection::Down) <= kernel.now();
        if connected {
            self.conns[conn].boot = lenders[lender].boot;
            kernel.hit("links made");
        } else {
            kernel.hit("links refused");
            self.close_here(kernel, lenders, conn);
        }
        Some(ConnectOutcome {
            process,
            slot,
            connected,
        })
    }

    /// Whether a frame may be handed to the connection.
    pub(crate) fn has_room(&self, conn: usize) -> bool {
        self.conns[conn].up.in_flight < LANE_FRAMES_MAX
    }

    pub(crate) fn send(&mut self, kernel: &mut SimKernel, conn: usize, way: FrameDirection, packet: Vec<u8>) {
        let latency = self.latency_of(kernel, conn);
        let now = kernel.now();
        if kernel.is_stream() {
            let lane = self.lane(conn, way);
            let number = lane.sent;
            lane.sent += 1;
            lane.in_flight += 1;
            lane.last = Time(lane.last.0.max(now.0 + latency.0) + 1);
            let at = lane.last;
            kernel.push(
                at,
                WorldEvent::Frame(FrameInFlight {
                    conn,
                    way,
                    number,
                    packet,
                }),
            );
            return;
        }
        let lane = self.lane(conn, way);
        let number = lane.sent;
        lane.sent += 1;
        // The first frame binds the session. It belongs to the handshake, which a datagram link repeats until
        // it succeeds.
        let first = number == 0;
        let permille = if first { 0 } else { kernel.profile.loss_permille };
        if kernel.rng.chance(permille) {
            kernel.hit("frames lost");
            return;
        }
        let copies = 1 + u32::from(kernel.rng.chance(permille));
        kernel.add("frames doubled", u64::from(copies - 1));
        for _ in 0..copies {
            let mut delay = kernel.link_latency();
            if kernel.rng.chance(permille) {
                kernel.hit("frames late");
                let times = kernel.rng.between(2, 200);
                // One in four is delayed long enough for its lender to be given up and found again.
                let stuck = if kernel.rng.chance(250) {
                    kernel.rng.below(700_000_000)
                } else {
                    0
                };
                delay = Nanos(delay.0 * times + stuck);
            }
            self.lane(conn, way).in_flight += 1;
            let packet = packet.clone();
            kernel.at(
                delay,
                WorldEvent::Frame(FrameInFlight {
                    conn,
                    way,
                    number,
                    packet,
                }),
            );
        }
    }

    /// Lets a frame arrive. `paused_until` is the time until which the client's process stands still. `None`:
    /// the frame is lost or delayed, or nothing is left that could receive it.
    pub(crate) fn arrive(
        &mut self,
        kernel: &mut SimKernel,
        lenders: &Lenders,
        frame: FrameInFlight,
        paused_until: Time,
    ) -> Option<FrameArrival> {
        let (conn, way, number) = (frame.conn, frame.way, frame.number);
        let SimConnection {
            process,
            slot,
            lender,
            open,
            boot,
            ..
        } = self.conns[conn];
        let until = self.blocked_until(conn, way);
        let paused = match way {
            FrameDirection::Up => lenders[lender].paused_until,
            FrameDirection::Down => paused_until,
        };
        let wait = if kernel.is_stream() || until <= kernel.now() {
            Time(until.0.max(paused.0))
        } else {
            self.lane(conn, way).in_flight -= 1;
            kernel.hit("frames lost in a partition");
            return None;
        };
        if wait > kernel.now() {
            kernel.push(wait, WorldEvent::Frame(frame));
            return None;
        }
        let lane = self.lane(conn, way);
        lane.in_flight -= 1;
        if number >= lane.cut {
            return None;
        }
        lane.arrived = lane.arrived.max(number + 1);
        let packet = frame.packet;
        match way {
            FrameDirection::Up if !lenders[lender].up || lenders[lender].boot != boot => {
                // No process is there, or one that does not know this connection: it is reset.
                self.break_conn(kernel, conn);
                None
            }
            FrameDirection::Up => Some(FrameArrival::Lender { lender, packet }),
            FrameDirection::Down if open => Some(FrameArrival::Process {
                process,
                slot,
                packet,
            }),
            // On datagram links, frames of an earlier connection arrive as well. A withdrawal is excepted: it
            // names no incarnation of the lender, and such links would have to add one.
            FrameDirection::Down if !kernel.is_stream() && packet.first() != Some(&WITHDRAW) => {
                let slot = self.slots.of_lender(lenders, process, lender)?;
                kernel.hit("late answers over an earlier link");
                Some(FrameArrival::Process {
                    process,
                    slot,
                    packet,
                })
            }
            FrameDirection::Down => None,
        }
    }

    /// A process multicasts an append: to every connection of its own that listens, dead ones included.
    pub(crate) fn multicast(
        &mut self,
        kernel: &mut SimKernel,
        lenders: &Lenders,
        (process, channel): (usize, u32),
        header: FrameHeader,
        body: &[u8],
    ) {
        let datagram_bytes = kernel.profile.datagram_bytes;
        let listeners: Vec<usize> = lenders
            .iter()
            .flat_map(|lender| lender.listeners())
            .filter(|&conn| self.conns[conn].process == process)
            .collect();
        for (piece, length) in fragment_append(header, body.len(), datagram_bytes) {
            let from = piece.lsn.since(header.lsn) as usize;
            let packet = packet_of(&piece, &body[from..from + length]);
            kernel.hit("datagrams multicast");
            for &conn in &listeners {
                self.send_datagram(kernel, conn, channel, &packet);
            }
        }
    }

    fn send_datagram(&mut self, kernel: &mut SimKernel, conn: usize, channel: u32, packet: &[u8]) {
        let permille = kernel.profile.loss_permille;
        if kernel.rng.chance(permille) {
            kernel.hit("datagrams lost");
            return;
        }
        let copies = 1 + u32::from(kernel.rng.chance(permille));
        for _ in 0..copies {
            let mut delay = self.latency_of(kernel, conn);
            if kernel.profile.distant.is_some() {
                let heard = (kernel.now() + delay).max(self.conns[conn].last_datagram + Nanos(1));
                self.conns[conn].last_datagram = heard;
                delay = heard.since(kernel.now());
            }
            if kernel.rng.chance(permille) {
                kernel.hit("datagrams late");
                // Some outlive the epoch that sent them.
                let longest = kernel
                    .rng
                    .pick(&[1_000_000, 1_000_000, 50_000_000, 2_000_000_000]);
                delay = Nanos(delay.0 + kernel.rng.below(longest));
            }
            let packet = packet.to_vec();
            kernel.at(
                delay,
                WorldEvent::Datagram {
                    conn,
                    channel,
                    packet,
                },
            );
        }
    }

    /// Delivers a multicast append to one listener, and sends the answer.
    pub(crate) fn on_datagram(
        &mut self,
        kernel: &mut SimKernel,
        lenders: &mut Lenders,
        (conn, channel): (usize, u32),
        packet: Vec<u8>,
    ) {
        let SimConnection {
            lender, open, boot, ..
        } = self.conns[conn];
        if self.blocked_until(conn, FrameDirection::Up) > kernel.now() {
            kernel.hit("datagrams lost in a partition");
            return;
        }
        let wait = lenders[lender].paused_until;
        if wait > kernel.now() {
            kernel.push(
                wait,
                WorldEvent::Datagram {
                    conn,
                    channel,
                    packet,
                },
            );
            return;
        }
        if !lenders[lender].up || lenders[lender].boot != boot {
            return;
        }
        if !open {
            kernel.hit("datagrams heard by a dead connection");
        }
        let (journal, planted) = (kernel.journal(), kernel.planted());
        trace_packet(kernel, lender, &packet, "hears");
        kernel.mark(10, conn as u64);
        let outcome = lenders[lender].on_datagram(conn, channel.into(), &packet, journal, planted);
        self.send_answer(kernel, conn, outcome);
    }

    /// Sends a lender's answer to what arrived over a connection.
    pub(crate) fn send_answer(&mut self, kernel: &mut SimKernel, conn: usize, outcome: PacketOutcome) {
        let SimConnection { lender, open, .. } = self.conns[conn];
        match outcome {
            PacketOutcome::Nothing => (),
            PacketOutcome::Reply(reply) => {
                let reply = hostile::perhaps_lie(kernel, lender, reply);
                trace_packet(kernel, lender, &reply, "answers");
                if reply.first() == Some(&(FrameKind::Missing as u8)) {
                    kernel.hit("holes told");
                }
                let more = hostile::perhaps_say_more(kernel, lender, &reply).filter(|_| open);
                let packets = open.then_some(reply).into_iter().chain(more);
                packets.for_each(|packet| self.send(kernel, conn, FrameDirection::Down, packet));
            }
            PacketOutcome::Ended if kernel.profile.links == LinkKind::Stream => self.break_conn(kernel, conn),
            // A repeated or early frame is no protocol violation where links reorder.
            PacketOutcome::Ended => (),
            PacketOutcome::Died => {
                kernel.hit("lenders that died while handling a frame");
                self.lender_died(kernel, lender);
            }
        }
    }

    /// Handles the death of a lender's process: its connections end, and it is restarted later.
    pub(crate) fn lender_died(&mut self, kernel: &mut SimKernel, lender: usize) {
        kernel.tell(|| format!("lender {lender}'s process dies"));
        self.break_all(kernel, lender);
        let delay = Nanos::from_ms(kernel.rng.pick(&[5, 100, 1000, 4000]));
        kernel.at(delay, WorldEvent::LenderUp { lender });
    }

    /// Breaks a connection: some frames on the way still arrive, the rest are lost. The client learns of it
    /// later.
    pub(crate) fn break_conn(&mut self, kernel: &mut SimKernel, conn: usize) {
        if !self.conns[conn].open {
            return;
        }
        self.cut_lanes(kernel, conn);
        let delay = kernel.link_latency();
        kernel.at(delay, WorldEvent::Closed { conn });
    }

    /// Breaks the open connections to a lender.
    pub(crate) fn break_all(&mut self, kernel: &mut SimKernel, lender: usize) {
        for conn in self.conns_to(lender) {
            self.break_conn(kernel, conn);
        }
    }

    /// Lets a process learn that a connection is broken. Returns the process and its slot, unless it has
    /// closed its end.
    pub(crate) fn closed(
        &mut self,
        kernel: &mut SimKernel,
        lenders: &mut Lenders,
        conn: usize,
    ) -> Option<(usize, usize)> {
        let SimConnection {
            process, slot, open, ..
        } = self.conns[conn];
        if !open {
            return None;
        }
        self.close_here(kernel, lenders, conn);
        Some((process, slot))
    }

    /// Closes the client's end, on purpose or because its process died. Frames on the way up may still
    /// arrive.
    pub(crate) fn close_here(&mut self, kernel: &mut SimKernel, lenders: &mut Lenders, conn: usize) {
        self.cut_lanes(kernel, conn);
        let SimConnection {
            process,
            slot,
            lender,
            ..
        } = self.conns[conn];
        self.conns[conn].open = false;
        self.slots.remove(process, slot, conn);
        if self.conns[conn].up.in_flight == 0 {
            lenders[lender].forget(conn);
        }
    }

    /// Closes all connections of a process.
    pub(crate) fn close_all(&mut self, kernel: &mut SimKernel, lenders: &mut Lenders, process: usize) {
        for conn in self.slots.conns_of(process) {
            self.close_here(kernel, lenders, conn);
        }
    }

    fn cut_lanes(&mut self, kernel: &mut SimKernel, conn: usize) {
        if !kernel.is_stream() {
            // Each frame is delivered or lost by itself.
            return;
        }
        for way in [FrameDirection::Up, FrameDirection::Down] {
            let draw = kernel.rng.draw();
            let lane = self.lane(conn, way);
            let open = lane.sent - lane.arrived;
            lane.cut = lane.cut.min(lane.arrived + draw % (open + 1));
        }
    }

    /// Connections whose client end is open and that lead to `lender`.
    pub(crate) fn conns_to(&self, lender: usize) -> Vec<usize> {
        let open = self.slots.conns();
        open.filter(|&conn| self.conns[conn].lender == lender).collect()
    }

    /// Blocks frames between a host and a lender until a time: upwards, downwards, or both.
    pub(crate) fn block(&mut self, host: usize, lender: usize, until: Time, ways: &[FrameDirection]) {
        let blocked = &mut self.blocked[host][lender];
        for way in ways {
            match way {
                FrameDirection::Up => blocked.0 = until,
                FrameDirection::Down => blocked.1 = until,
            }
        }
    }

    /// Ends all partitions.
    pub(crate) fn unblock(&mut self) {
        for blocked in self.blocked.iter_mut().flatten() {
            *blocked = (Time(0), Time(0));
        }
    }

    fn lane(&mut self, conn: usize, way: FrameDirection) -> &mut FrameLane {
        let conn = &mut self.conns[conn];
        match way {
            FrameDirection::Up => &mut conn.up,
            FrameDirection::Down => &mut conn.down,
        }
    }

    /// Draws the latency of one way between a client and the lender of `conn`.
    fn latency_of(&self, kernel: &mut SimKernel, conn: usize) -> Nanos {
        match kernel.profile.distant {
            Some((lender, (low, high))) if lender == self.conns[conn].lender => {
                Nanos(kernel.rng.between(low * 1000, high * 1000))
            }
            _ => kernel.link_latency(),
        }
    }

    /// Until when frames of a connection do not pass in one direction.
    fn blocked_until(&self, conn: usize, way: FrameDirection) -> Time {
        let SimConnection { host, lender, .. } = self.conns[conn];
        let blocked = &self.blocked[host][lender];
        match way {
            FrameDirection::Up => blocked.0,
            FrameDirection::Down => blocked.1,
        }
    }
}

/// Traces a frame that a lender gets or sends.
pub(crate) fn trace_packet(kernel: &mut SimKernel, lender: usize, packet: &[u8], verb: &str) {
    kernel.tell(|| match Frame::parse(packet) {
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
