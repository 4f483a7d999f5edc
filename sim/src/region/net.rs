//! Connections to lenders: two lanes of frames, each in order and whole until it breaks; then a tail is lost.

use netram_proto::id::JournalId;
use netram_proto::time::Nanos;
use netram_proto::wire::Frame;

use super::{Event, World};
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

#[derive(Clone, Debug)]
pub(super) struct RegionConnection {
    owner: ConnectionOwner,
    /// Index under which its owner knows the lender.
    index: usize,
    host: usize,
    machine: usize,
    journal: JournalId,
    open: bool,
    boot: u32,
    lanes: LanePair,
}

impl RegionConnection {
    pub(super) fn host(&self) -> usize {
        self.host
    }
}

impl World {
    pub(super) fn connect(
        &mut self,
        owner: ConnectionOwner,
        index: usize,
        host: usize,
        machine: usize,
        journal: JournalId,
    ) -> usize {
        let conn = self.conns.len();
        self.conns.push(RegionConnection {
            owner,
            index,
            host,
            machine,
            journal,
            open: true,
            boot: 0,
            lanes: LanePair::default(),
        });
        let delay = Nanos(self.latency().0 + self.latency().0);
        self.at(delay, Event::Connected { conn });
        conn
    }

    pub(super) fn on_connected(&mut self, conn: usize) {
        let RegionConnection { host, machine, .. } = self.conns[conn];
        if !self.conns[conn].open {
            return;
        }
        if self.machines[machine].up && self.blocked[host][machine] <= self.now {
            self.conns[conn].boot = self.machines[machine].boot;
            self.owner_linked(conn);
        } else {
            self.conns[conn].open = false;
            self.owner_lost(conn);
        }
    }

    pub(super) fn has_room(&self, conn: usize) -> bool {
        self.conns[conn].lanes.packets_up() < LANE_FRAMES_MAX
    }

    pub(super) fn send_frame(&mut self, conn: usize, way: FrameDirection, packet: Vec<u8>) {
        let at = self.now + self.latency();
        let at = self.conns[conn].lanes.push(way, packet, at);
        self.queue.push(at, Event::Frame { conn, way });
    }

    pub(super) fn on_frame(&mut self, conn: usize, way: FrameDirection) {
        let RegionConnection {
            host,
            machine,
            open,
            boot,
            journal,
            ..
        } = self.conns[conn];
        let paused = match way {
            FrameDirection::Up => self.machines[machine].paused_until,
            FrameDirection::Down => self.paused_until(host),
        };
        let wait = paused.max(self.blocked[host][machine]);
        if wait > self.now {
            return self.queue.push(wait, Event::Frame { conn, way });
        }
        let Some(packet) = self.conns[conn].lanes.pop(way) else {
            return;
        };
        match way {
            FrameDirection::Up if !self.machines[machine].up || self.machines[machine].boot != boot => {
                self.break_conn(conn);
            }
            FrameDirection::Up => {
                let planted = self.planted;
                let outcome = self.machines[machine].on_packet(conn, &packet, journal, planted);
                self.answer(conn, outcome);
            }
            FrameDirection::Down if open => self.deliver_to_owner(conn, &packet),
            FrameDirection::Down => (),
        }
    }

    fn answer(&mut self, conn: usize, outcome: PacketOutcome) {
        match outcome {
            PacketOutcome::Reply(reply) if self.conns[conn].open => {
                self.send_frame(conn, FrameDirection::Down, reply)
            }
            PacketOutcome::Reply(_) | PacketOutcome::Nothing => (),
            PacketOutcome::Ended => self.break_conn(conn),
            PacketOutcome::Died => unreachable!("no lender of this world dies in an append"),
        }
    }

    /// Breaks a connection: some frames on the way still arrive, the rest are lost. Its owner learns of it
    /// later.
    pub(super) fn break_conn(&mut self, conn: usize) {
        if self.conns[conn].open {
            self.conns[conn].lanes.cut(&mut self.rng);
            let delay = self.latency();
            self.at(delay, Event::Closed { conn });
        }
    }

    pub(super) fn on_closed(&mut self, conn: usize) {
        if self.conns[conn].open {
            self.close_conn(conn);
            self.owner_lost(conn);
        }
    }

    /// Closes a connection because its owner closes it or is dead. Frames on the way up may still arrive.
    pub(super) fn close_conn(&mut self, conn: usize) {
        self.conns[conn].open = false;
        self.conns[conn].lanes.cut(&mut self.rng);
        let RegionConnection { machine, journal, .. } = self.conns[conn];
        if self.conns[conn].lanes.packets_up() == 0 {
            self.machines[machine].forget(conn, journal);
        }
    }

    pub(super) fn break_conns_to(&mut self, machine: usize) {
        let open = |conn: &usize| self.conns[*conn].open && self.conns[*conn].machine == machine;
        let conns: Vec<usize> = (0..self.conns.len()).filter(open).collect();
        conns.into_iter().for_each(|conn| self.break_conn(conn));
    }

    /// Connections that are up.
    pub(super) fn open_conns(&self) -> Vec<usize> {
        (0..self.conns.len())
            .filter(|conn| self.conns[*conn].open)
            .collect()
    }

    fn owner_linked(&mut self, conn: usize) {
        let RegionConnection { owner, index, .. } = self.conns[conn];
        match owner {
            ConnectionOwner::Process { slot, life } => self.lender_linked(slot, life, index),
            ConnectionOwner::Query(query) => self.query_linked(query, index),
        }
    }

    fn owner_lost(&mut self, conn: usize) {
        let RegionConnection { owner, index, .. } = self.conns[conn];
        match owner {
            ConnectionOwner::Process { slot, life } => self.lender_lost(slot, life, index),
            ConnectionOwner::Query(query) => self.query_lost(query, index),
        }
    }

    fn deliver_to_owner(&mut self, conn: usize, packet: &[u8]) {
        let RegionConnection { owner, index, .. } = self.conns[conn];
        let Ok(frame) = Frame::parse(packet) else {
            return self.break_conn(conn);
        };
        match owner {
            ConnectionOwner::Process { slot, life } => self.on_lender_frame(slot, life, index, &frame),
            ConnectionOwner::Query(query) => self.on_query_frame(query, index, &frame),
        }
    }
}
