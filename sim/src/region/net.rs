//! Connections to lenders: two lanes of frames, each in order and whole until it breaks; then a tail is lost.
//! Frames that arrive for a connection's owner are passed on by `delivery`.

use netram_proto::id::JournalId;
use netram_proto::time::{Nanos, Time};

use super::kernel::{Event, RegionKernel};
use super::lenders::RegionLenders;
use crate::event::FrameDirection;
use crate::lane_pair::LanePair;
use crate::lender::PacketOutcome;

/// Maximum number of frames in flight on one lane.
const LANE_FRAMES_MAX: usize = 12;

/// Owner of a connection's client end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionOwner {
    /// The journal of a process.
    Process { slot: usize, life: u64 },
    /// A query that fences and reads members, or tells them to forget.
    Query(usize),
}

/// One connection of an owner to a lender.
#[derive(Clone, Debug)]
struct RegionConnection {
    owner: ConnectionOwner,
    /// Index under which its owner knows the lender.
    index: usize,
    host: usize,
    lender: usize,
    journal: JournalId,
    open: bool,
    boot: u32,
    lanes: LanePair,
}

/// The network between hosts and lenders. The last host is the server.
pub(super) struct RegionNetwork {
    conns: Vec<RegionConnection>,
    /// `[host][lender]`: frames are blocked until this time.
    blocked: Vec<Vec<Time>>,
}

impl RegionNetwork {
    pub(super) fn new(hosts: usize, lenders: usize) -> RegionNetwork {
        RegionNetwork {
            conns: Vec::new(),
            blocked: vec![vec![Time(0); lenders]; hosts],
        }
    }

    /// Begins to connect a host to a lender, which the owner knows by `index`, for a journal.
    pub(super) fn connect(
        &mut self,
        kernel: &mut RegionKernel,
        (owner, index): (ConnectionOwner, usize),
        (host, lender): (usize, usize),
        journal: JournalId,
    ) -> usize {
        let conn = self.conns.len();
        self.conns.push(RegionConnection {
            owner,
            index,
            host,
            lender,
            journal,
            open: true,
            boot: 0,
            lanes: LanePair::default(),
        });
        let delay = Nanos(kernel.latency().0 + kernel.latency().0);
        kernel.at(delay, Event::Connected { conn });
        conn
    }

    /// Handles the end of connecting: whether it succeeded. `None`: the owner has given it up.
    pub(super) fn connected(
        &mut self,
        kernel: &RegionKernel,
        lenders: &RegionLenders,
        conn: usize,
    ) -> Option<bool> {
        let conn = &mut self.conns[conn];
        if !conn.open {
            return None;
        }
        let lender = &lenders[conn.lender];
        if lender.up && self.blocked[conn.host][conn.lender] <= kernel.now() {
            conn.boot = lender.boot;
        } else {
            conn.open = false;
        }
        Some(conn.open)
    }

    pub(super) fn is_open(&self, conn: usize) -> bool {
        self.conns[conn].open
    }

    pub(super) fn host_of(&self, conn: usize) -> usize {
        self.conns[conn].host
    }

    /// The owner, and the index by which it knows the lender.
    pub(super) fn owner_of(&self, conn: usize) -> (ConnectionOwner, usize) {
        let RegionConnection { owner, index, .. } = self.conns[conn];
        (owner, index)
    }

    pub(super) fn has_room(&self, conn: usize) -> bool {
        self.conns[conn].lanes.packets_up() < LANE_FRAMES_MAX
    }

    pub(super) fn send(
        &mut self,
        kernel: &mut RegionKernel,
        conn: usize,
        way: FrameDirection,
        packet: Vec<u8>,
    ) {
        let at = kernel.now() + kernel.latency();
        let at = self.conns[conn].lanes.push(way, packet, at);
        kernel.push(at, Event::Frame { conn, way });
    }

    /// Handles the arrival of a lane's next frame, unless its receiver stands still or cannot be reached.
    /// Lenders answer at once. Returns a frame for the connection's owner.
    pub(super) fn arrive(
        &mut self,
        kernel: &mut RegionKernel,
        lenders: &mut RegionLenders,
        (conn, way): (usize, FrameDirection),
        owner_paused_until: Time,
    ) -> Option<Vec<u8>> {
        let RegionConnection {
            host,
            lender,
            open,
            boot,
            journal,
            ..
        } = self.conns[conn];
        let paused = match way {
            FrameDirection::Up => lenders[lender].paused_until,
            FrameDirection::Down => owner_paused_until,
        };
        let wait = paused.max(self.blocked[host][lender]);
        if wait > kernel.now() {
            kernel.push(wait, Event::Frame { conn, way });
            return None;
        }
        let packet = self.conns[conn].lanes.pop(way)?;
        match way {
            FrameDirection::Up if !lenders[lender].up || lenders[lender].boot != boot => {
                self.break_conn(kernel, conn);
            }
            FrameDirection::Up => {
                let outcome = lenders[lender].on_packet(conn, &packet, journal, kernel.planted());
                self.answer(kernel, conn, outcome);
            }
            FrameDirection::Down if open => return Some(packet),
            FrameDirection::Down => (),
        }
        None
    }

    fn answer(&mut self, kernel: &mut RegionKernel, conn: usize, outcome: PacketOutcome) {
        match outcome {
            PacketOutcome::Reply(reply) if self.conns[conn].open => {
                self.send(kernel, conn, FrameDirection::Down, reply)
            }
            PacketOutcome::Reply(_) | PacketOutcome::Nothing => (),
            PacketOutcome::Ended => self.break_conn(kernel, conn),
            PacketOutcome::Died => unreachable!("no lender of this world dies in an append"),
        }
    }

    /// Breaks a connection: some frames on the way still arrive, the rest are lost. Its owner learns of it
    /// later.
    pub(super) fn break_conn(&mut self, kernel: &mut RegionKernel, conn: usize) {
        if self.conns[conn].open {
            self.conns[conn].lanes.cut(&mut kernel.rng);
            let delay = kernel.latency();
            kernel.at(delay, Event::Closed { conn });
        }
    }

    /// Closes a connection because its owner closes it or is dead. Frames on the way up may still arrive.
    pub(super) fn close(&mut self, kernel: &mut RegionKernel, lenders: &mut RegionLenders, conn: usize) {
        let (number, conn) = (conn, &mut self.conns[conn]);
        conn.open = false;
        conn.lanes.cut(&mut kernel.rng);
        if conn.lanes.packets_up() == 0 {
            lenders[conn.lender].forget(number, conn.journal);
        }
    }

    /// Breaks all connections to a lender.
    pub(super) fn break_conns_to(&mut self, kernel: &mut RegionKernel, lender: usize) {
        for conn in self.open_conns() {
            if self.conns[conn].lender == lender {
                self.break_conn(kernel, conn);
            }
        }
    }

    /// Connections that are up.
    pub(super) fn open_conns(&self) -> Vec<usize> {
        (0..self.conns.len())
            .filter(|conn| self.conns[*conn].open)
            .collect()
    }

    /// Blocks frames between a host and a lender until a time.
    pub(super) fn block(&mut self, host: usize, lender: usize, until: Time) {
        self.blocked[host][lender] = until;
    }

    /// Ends all partitions.
    pub(super) fn heal(&mut self) {
        for host in &mut self.blocked {
            host.fill(Time(0));
        }
    }
}
