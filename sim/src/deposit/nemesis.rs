//! Fault injection into a world of deposits.

use netram_proto::time::Nanos;
use netram_proto::wire::{FrameHeader, FrameKind};

use super::profile::DepositFault;
use super::spill::SpillFault;
use super::{Event, LEASE, World};
use crate::event::FrameDirection;

impl World {
    pub(super) fn plan_nemesis(&mut self) {
        if !self.profile.faults.is_empty() {
            let us = self.rng.below(2 * self.profile.fault_interval.0 / 1000);
            self.at(Nanos::from_us(us + 1), Event::Nemesis);
        }
    }

    pub(super) fn on_nemesis(&mut self) {
        if self.faults_over {
            return;
        }
        let at = self.rng.index(self.profile.faults.len());
        let action = self.profile.faults[at];
        self.trace.mark(self.now, 31, action as u64);
        self.inject_fault(action);
        self.plan_nemesis();
    }

    fn inject_fault(&mut self, action: DepositFault) {
        // Within budget one fault comes at a time: bytes may be lost while one copy remains, which must stand
        // until the loss is noticed.
        if self.profile.within_budget && self.has_unnoticed() {
            return;
        }
        // Without lenders, faults that need one are not drawn.
        let lender = match self.machines.len() {
            0 => 0,
            count => self.rng.index(count),
        };
        let arena = self.rng.index(self.arenas.len());
        match action {
            DepositFault::Break => {
                let open: Vec<usize> = (0..self.conns.len())
                    .filter(|conn| self.conns[*conn].open)
                    .collect();
                if !open.is_empty() {
                    let conn = open[self.rng.index(open.len())];
                    self.tell(|| format!("connection {conn} breaks"));
                    self.break_conn(conn);
                    self.coverage.hit("far: connections broken");
                }
            }
            DepositFault::Partition => self.partition(arena, lender),
            DepositFault::Pause => {
                // The longest pause is too long to wait for. The lease may end during it if the link breaks
                // too.
                let ms = self.rng.pick(&[5, 100, 1000, 3500]);
                if ms >= 2000 && self.profile.within_budget {
                    return;
                }
                let until = &mut self.machines[lender].paused_until;
                *until = (*until).max(self.now + Nanos::from_ms(ms));
                self.coverage.hit("far: lenders that stood still");
            }
            DepositFault::Kill => self.kill(lender),
            DepositFault::WithdrawLender => self.withdraw(lender),
            DepositFault::PressLender => {
                let ms = self.rng.pick(&[50, 1000, 4000]);
                self.press(lender, Nanos::from_ms(ms));
            }
            DepositFault::ResizeLender => {
                let most = u64::from(self.profile.room[lender]);
                self.machines[lender].room = self.rng.between(0, most) as u32;
                self.coverage.hit("far: lenders with less room");
            }
            DepositFault::KillOwner => self.kill_owner(arena),
            DepositFault::DiskFails => self.inject_disk_fault(arena, SpillFault::WriteError),
            DepositFault::DiskTears => self.inject_disk_fault(arena, SpillFault::TornWrite),
            DepositFault::DiskLoses => self.inject_disk_fault(arena, SpillFault::ReadError),
            DepositFault::DiskStalls => {
                let ms = self.rng.pick(&[20, 1000, 3000, 7000]);
                self.stall_disk(arena, Nanos::from_ms(ms));
            }
            DepositFault::DiskRoom => self.fill_disk(arena),
        }
    }

    /// Blocks frames between an owner and a lender for a while.
    fn partition(&mut self, arena: usize, lender: usize) {
        let ms = self.rng.pick(&[20, 300, 2500, 3500, LEASE.ms() + 500]);
        // A lender that is away for longer than the lease counts as dead.
        if ms >= 2000 && self.profile.within_budget && !self.can_spare(lender) {
            return;
        }
        self.tell(|| format!("owner {arena} and lender {lender} do not reach each other for {ms} ms"));
        let until = &mut self.blocked[arena][lender];
        *until = (*until).max(self.now + Nanos::from_ms(ms));
        self.coverage.hit("far: partitions");
        let conns = (0..self.conns.len()).filter(|conn| {
            let conn = &self.conns[*conn];
            conn.open && (conn.arena, conn.lender) == (arena, lender)
        });
        // The machines notice sooner or later.
        for conn in conns.collect::<Vec<_>>() {
            if self.rng.chance(700) {
                self.break_conn(conn);
            }
        }
    }

    /// Whether every page of the lender has another copy, and no other lender is about to go.
    fn can_spare(&self, lender: usize) -> bool {
        let others = (0..self.machines.len()).filter(|other| *other != lender);
        let sound = others.clone().all(|other| {
            let machine = &self.machines[other];
            machine.up && !machine.leaving && self.blocked.iter().all(|row| row[other] <= self.now)
        });
        let placed = self.arenas.iter().flatten().all(|arena| {
            let status = arena.directory().status();
            let linked = status
                .lenders
                .iter()
                .enumerate()
                .all(|(at, one)| at == lender || one.linked);
            let file = status.spill.as_ref().is_none_or(|file| file.linked);
            status.short == 0 && linked && file
        });
        sound && placed && self.disks_are_sound()
    }

    fn kill(&mut self, lender: usize) {
        if self.profile.within_budget && !self.can_spare(lender) {
            return;
        }
        if self.profile.within_budget {
            self.cancel_disk_faults();
        }
        self.tell(|| format!("lender {lender} dies"));
        self.machines[lender].die();
        self.break_conns_to(lender);
        self.coverage.hit("far: lenders that died");
        let ms = self.rng.pick(&[1, 200, 3000]);
        self.at(Nanos::from_ms(ms), Event::MachineUp { machine: lender });
    }

    /// Lets a lender announce its withdrawal. It stops a while later, or its operator cancels that.
    fn withdraw(&mut self, lender: usize) {
        if !self.machines[lender].up || self.machines[lender].leaving {
            return;
        }
        let others = (0..self.machines.len()).filter(|other| *other != lender);
        let nowhere = self.profile.spill == 0 && { others }.all(|other| self.machines[other].leaving);
        if nowhere || (self.profile.within_budget && !self.can_spare(lender)) {
            return;
        }
        self.tell(|| format!("lender {lender} is about to stop"));
        self.machines[lender].leaving = true;
        self.coverage.hit("far: lenders that were about to stop");
        let ms = self.rng.pick(&[50, 1000, 3000]);
        self.at(Nanos::from_ms(ms), Event::Stop { machine: lender });
        let packet = FrameHeader::new(FrameKind::Withdraw).encode(0).to_vec();
        for conn in 0..self.conns.len() {
            if self.conns[conn].open && self.conns[conn].lender == lender {
                self.send(conn, FrameDirection::Down, packet.clone());
            }
        }
    }

    pub(super) fn on_stop(&mut self, lender: usize) {
        if self.faults_over || !self.machines[lender].leaving {
            return;
        }
        let empty = self.machines[lender].slots_used() == 0;
        self.coverage.hit(if empty {
            "far: lenders that were left in time"
        } else {
            "far: lenders that were not left in time"
        });
        self.machines[lender].leaving = false;
        if empty || !self.profile.within_budget {
            self.kill(lender);
        }
        self.break_conns_to(lender);
    }

    fn kill_owner(&mut self, arena: usize) {
        let Some(owner) = self.arenas[arena].take() else {
            return;
        };
        self.tell(|| format!("owner {arena} dies"));
        self.coverage.hit("far: owners that died");
        for conn in owner.conns.into_iter().flatten() {
            self.on_closed(conn);
        }
        let ms = self.rng.pick(&[1, 500, 3000]);
        self.at(Nanos::from_ms(ms), Event::ArenaUp { arena });
    }
}
