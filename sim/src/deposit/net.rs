//! Connections: two lanes of frames, each in order and whole until it breaks. Then a tail is lost; frames
//! left on the way up arrive late, perhaps after those of the next connection.

use std::ops::Index;

use netram_proto::id::Epoch;
use netram_proto::time::{Nanos, Time};

use super::kernel::{DepositKernel, Event};
use super::lenders::DepositLender;
use super::owner::deposit_of;
use crate::event::FrameDirection;
use crate::lane_pair::LanePair;

/// Maximum number of frames in flight on one lane.
const LANE_FRAMES_MAX: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct DepositConnection {
    pub(super) arena: usize,
    pub(super) life: u64,
    pub(super) lender: usize,
    pub(super) epoch: Epoch,
    pub(super) open: bool,
    /// Time at which its owner began it.
    pub(super) since: Time,
    /// The connection takes no more frames. Its owner may not know yet.
    pub(super) broken: bool,
    pub(super) boot: u32,
    /// After the break, frames left on the way arrive no sooner.
    delayed_until: Time,
    lanes: LanePair,
}

/// The network between owners and lenders.
pub(super) struct DepositNetwork {
    conns: Vec<DepositConnection>,
    /// `[arena][lender]`: frames between the two are blocked until this time.
    blocked: Vec<Vec<Time>>,
}

impl DepositNetwork {
    pub(super) fn new(arenas: usize, lenders: usize) -> DepositNetwork {
        DepositNetwork {
            conns: Vec::new(),
            blocked: vec![vec![Time(0); lenders]; arenas],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.conns.len()
    }

    /// Begins to connect an owner to a lender whose process is `boot`.
    pub(super) fn connect(
        &mut self,
        kernel: &mut DepositKernel,
        (arena, life): (usize, u64),
        (lender, boot): (usize, u32),
        epoch: Epoch,
    ) -> usize {
        let conn = self.conns.len();
        self.conns.push(DepositConnection {
            arena,
            life,
            lender,
            epoch,
            open: true,
            since: kernel.now(),
            broken: false,
            boot,
            delayed_until: Time(0),
            lanes: LanePair::default(),
        });
        let delay = Nanos(kernel.latency().0 * 2);
        kernel.at(delay, Event::Connected { conn });
        conn
    }

    /// Records that a connection leads to a lender's process `boot`.
    pub(super) fn on_connected(&mut self, conn: usize, boot: u32) {
        self.conns[conn].boot = boot;
    }

    pub(super) fn has_room(&self, conn: usize) -> bool {
        self.conns[conn].lanes.packets_up() < LANE_FRAMES_MAX
    }

    pub(super) fn send(
        &mut self,
        kernel: &mut DepositKernel,
        conn: usize,
        way: FrameDirection,
        packet: Vec<u8>,
    ) {
        if self.conns[conn].broken {
            return;
        }
        let at = kernel.now() + kernel.latency();
        let at = self.conns[conn].lanes.push(way, packet, at);
        kernel.push(at, Event::Frame { conn, way });
    }

    /// Takes a lane's next frame, which arrives, unless its receiver stands still or cannot be reached.
    pub(super) fn arrive(
        &mut self,
        kernel: &mut DepositKernel,
        lenders: &[DepositLender],
        conn: usize,
        way: FrameDirection,
    ) -> Option<Vec<u8>> {
        let connection = &mut self.conns[conn];
        let mut wait = self.blocked[connection.arena][connection.lender];
        if way == FrameDirection::Up {
            wait = wait.max(lenders[connection.lender].paused_until);
        }
        if !connection.open {
            wait = wait.max(connection.delayed_until);
        }
        if wait > kernel.now() {
            kernel.push(wait, Event::Frame { conn, way });
            return None;
        }
        connection.lanes.pop(way)
    }

    /// Breaks a connection: some frames on the way still arrive, the rest are lost. Its owner learns of it
    /// later.
    pub(super) fn break_conn(&mut self, kernel: &mut DepositKernel, conn: usize) {
        if self.conns[conn].open && !self.conns[conn].broken {
            let delay = kernel.latency();
            self.conns[conn].broken = true;
            self.conns[conn].lanes.cut(&mut kernel.rng);
            kernel.at(delay, Event::Closed { conn });
        }
    }

    /// Breaks all connections to a lender.
    pub(super) fn break_conns_to(&mut self, kernel: &mut DepositKernel, lender: usize) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].lender == lender {
                self.break_conn(kernel, conn);
            }
        }
    }

    /// Closes a connection that is open.
    pub(super) fn close(&mut self, kernel: &mut DepositKernel, lenders: &mut [DepositLender], conn: usize) {
        let connection = &mut self.conns[conn];
        (connection.open, connection.broken) = (false, true);
        connection.lanes.cut(&mut kernel.rng);
        let late = Nanos::from_ms(kernel.rng.pick(&[0, 1, 50, 300, 700]));
        connection.delayed_until = kernel.now() + late;
        if connection.lanes.packets_up() == 0 {
            let id = deposit_of(connection.life);
            lenders[connection.lender].leave(id, connection.epoch, kernel.now());
        }
    }

    /// Connections that are open and fulfil a condition.
    pub(super) fn open_conns(&self, condition: impl Fn(&DepositConnection) -> bool) -> Vec<usize> {
        (0..self.conns.len())
            .filter(|conn| self.conns[*conn].open && condition(&self.conns[*conn]))
            .collect()
    }

    /// Whether an owner has yet to notice that one of its connections has broken.
    pub(super) fn has_unnoticed(&self) -> bool {
        self.conns.iter().any(|conn| conn.open && conn.broken)
    }

    /// Time until which frames between an owner and a lender are blocked.
    pub(super) fn blocked_until(&self, arena: usize, lender: usize) -> Time {
        self.blocked[arena][lender]
    }

    /// Blocks frames between an owner and a lender until a time, or for as long as they already are.
    pub(super) fn block(&mut self, arena: usize, lender: usize, until: Time) {
        let blocked = &mut self.blocked[arena][lender];
        *blocked = (*blocked).max(until);
    }

    /// Whether every owner reaches a lender.
    pub(super) fn reaches(&self, lender: usize, now: Time) -> bool {
        self.blocked.iter().all(|row| row[lender] <= now)
    }

    /// Ends all partitions.
    pub(super) fn heal(&mut self) {
        for row in &mut self.blocked {
            row.fill(Time(0));
        }
    }
}

impl Index<usize> for DepositNetwork {
    type Output = DepositConnection;

    fn index(&self, conn: usize) -> &DepositConnection {
        &self.conns[conn]
    }
}
