//! Connections: two lanes of frames, each in order and whole until it breaks. Then a tail is lost; frames
//! left on the way up arrive late, perhaps after those of the next connection.

use netram_proto::id::Epoch;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Frame, FrameKind, RefusalReason};

use super::lenders::frame;
use super::{Event, World};
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

impl World {
    pub(super) fn dial(&mut self, arena: usize, life: u64, lender: usize) {
        let Some(owner) = self.arenas[arena].as_mut().filter(|arena| arena.life == life) else {
            return;
        };
        let epoch = owner.directory_mut().next_session(lender);
        owner.conns[lender] = Some(self.conns.len());
        let conn = self.conns.len();
        self.conns.push(DepositConnection {
            arena,
            life,
            lender,
            epoch,
            open: true,
            since: self.now,
            broken: false,
            boot: self.machines[lender].boot,
            delayed_until: Time(0),
            lanes: LanePair::default(),
        });
        let delay = Nanos(self.latency().0 * 2);
        self.at(delay, Event::Connected { conn });
    }

    pub(super) fn on_connected(&mut self, conn: usize) {
        let DepositConnection {
            arena,
            lender,
            epoch,
            open,
            ..
        } = self.conns[conn];
        let reachable = self.machines[lender].up && self.blocked[arena][lender] <= self.now;
        let Some(owner) = self.arenas[arena].as_ref().filter(|_| open) else {
            return;
        };
        if !reachable || self.machines[lender].leaving {
            return self.on_closed(conn);
        }
        self.conns[conn].boot = self.machines[lender].boot;
        let mut packet = frame(FrameKind::Deposit, epoch, owner.writer())
            .encode(16)
            .to_vec();
        packet.extend_from_slice(&owner.id.0.to_le_bytes());
        self.send(conn, FrameDirection::Up, packet);
    }

    pub(super) fn has_room(&self, conn: usize) -> bool {
        self.conns[conn].lanes.packets_up() < LANE_FRAMES_MAX
    }

    pub(super) fn send(&mut self, conn: usize, way: FrameDirection, packet: Vec<u8>) {
        if self.conns[conn].broken {
            return;
        }
        let at = self.now + self.latency();
        let at = self.conns[conn].lanes.push(way, packet, at);
        self.queue.push(at, Event::Frame { conn, way });
    }

    pub(super) fn on_frame(&mut self, conn: usize, way: FrameDirection) {
        let DepositConnection {
            arena,
            lender,
            open,
            delayed_until: late_until,
            ..
        } = self.conns[conn];
        let mut wait = self.blocked[arena][lender];
        if way == FrameDirection::Up {
            wait = wait.max(self.machines[lender].paused_until);
        }
        if !open {
            wait = wait.max(late_until);
        }
        if wait > self.now {
            return self.queue.push(wait, Event::Frame { conn, way });
        }
        let Some(packet) = self.conns[conn].lanes.pop(way) else {
            return;
        };
        match way {
            FrameDirection::Up => self.deliver_to_lender(conn, &packet),
            FrameDirection::Down if open => self.deliver_to_owner(conn, &packet),
            FrameDirection::Down => (),
        }
    }

    fn deliver_to_lender(&mut self, conn: usize, packet: &[u8]) {
        let DepositConnection {
            lender,
            boot,
            life,
            epoch,
            open,
            ..
        } = self.conns[conn];
        let machine = &mut self.machines[lender];
        if !machine.up || machine.boot != boot {
            return self.break_conn(conn);
        }
        let Ok(frame) = Frame::parse(packet) else {
            unreachable!("owners send frames")
        };
        if !open {
            self.coverage.hit("far: frames of a dead connection delivered");
        }
        let id = super::owner::deposit_of(life);
        if frame.header.kind == FrameKind::Resize {
            self.check_released_slots(conn, &frame);
        }
        let machine = &mut self.machines[lender];
        let answer = if frame.header.kind == FrameKind::Deposit {
            let new = self.rng.draw();
            Some(machine.open(&frame, id, new, self.now, self.planted))
        } else {
            machine.handle(&frame, id, &mut self.rng)
        };
        if !open {
            // The lender has seen the end of the connection with its last frame.
            machine.leave(id, epoch, self.now);
        }
        if machine.slots_used() > machine.room && self.profile.within_budget {
            self.fail(format!("lender {lender} has lent more than it has"));
        }
        match answer {
            Some(answer) if open => self.send(conn, FrameDirection::Down, answer),
            Some(_) => (),
            None => self.break_conn(conn),
        }
    }

    fn deliver_to_owner(&mut self, conn: usize, packet: &[u8]) {
        let DepositConnection { arena, lender, .. } = self.conns[conn];
        let Ok(frame) = Frame::parse(packet) else {
            return self.break_conn(conn);
        };
        if self.on_lender_frame(arena, lender, &frame).is_err() {
            let told = RefusalReason::from_byte(frame.header.flags);
            self.tell(|| {
                format!(
                    "owner {arena} closes its link to {lender}: {:?} {told:?}",
                    frame.header.kind
                )
            });
            self.break_conn(conn);
        }
        self.settle(arena);
    }

    /// Breaks a connection: some frames on the way still arrive, the rest are lost. Its owner learns of it
    /// later.
    pub(super) fn break_conn(&mut self, conn: usize) {
        if self.conns[conn].open && !self.conns[conn].broken {
            let delay = self.latency();
            self.conns[conn].broken = true;
            self.conns[conn].lanes.cut(&mut self.rng);
            self.at(delay, Event::Closed { conn });
        }
    }

    /// Whether an owner has yet to notice that one of its connections has broken.
    pub(super) fn has_unnoticed(&self) -> bool {
        self.conns.iter().any(|conn| conn.open && conn.broken)
    }

    pub(super) fn break_conns_to(&mut self, lender: usize) {
        for conn in 0..self.conns.len() {
            if self.conns[conn].lender == lender {
                self.break_conn(conn);
            }
        }
    }

    /// Closes a connection for its owner, which closes it, knows that it is closed, or is dead.
    pub(super) fn on_closed(&mut self, conn: usize) {
        let DepositConnection {
            arena,
            lender,
            life,
            epoch,
            open,
            ..
        } = self.conns[conn];
        if !open {
            return;
        }
        (self.conns[conn].open, self.conns[conn].broken) = (false, true);
        self.conns[conn].lanes.cut(&mut self.rng);
        let late = Nanos::from_ms(self.rng.pick(&[0, 1, 50, 300, 700]));
        self.conns[conn].delayed_until = self.now + late;
        if self.conns[conn].lanes.packets_up() == 0 {
            self.machines[lender].leave(super::owner::deposit_of(life), epoch, self.now);
        }
        let now = self.now;
        if let Some(owner) = self.arenas[arena].as_mut().filter(|owner| owner.life == life) {
            owner.conns[lender] = None;
            if owner.directory().is_linked(lender) {
                owner.linked_until[lender] = now;
            }
            owner.directory_mut().on_unlinked(lender, now);
            let ms = self.rng.pick(&[0, 20, 300]);
            self.at(Nanos::from_ms(ms + 1), Event::Dial { arena, life, lender });
            self.settle(arena);
        }
    }
}
