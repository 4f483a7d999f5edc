//! Fault injection: one fault at a time, at random moments, of the kinds that the world's profile allows.

use netram_proto::journal::{LenderRole, View};
use netram_proto::port::IoError;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{FrameHeader, FrameKind};

use crate::check::{rule01, rule02};
use crate::damage::{damage_log, damage_slot};
use crate::event::FrameDirection;
use crate::event::WorldEvent;
use crate::intruder;
use crate::lender::{LENDER_BYTES, packet_of};
use crate::profile::WorldFault;
use crate::world::World;

/// Errors with which a system may refuse a call and grant it the next time.
const REFUSALS: [IoError; 6] = [
    IoError::EMFILE,
    IoError::ENFILE,
    IoError::ENOMEM,
    IoError::EACCES,
    IoError::EINTR,
    IoError::ENOSPC,
];

impl World {
    pub(crate) fn on_nemesis(&mut self) {
        if self.nemesis.is_stopped() || self.kernel.profile.faults.is_empty() {
            return;
        }
        let action = self.kernel.rng.pick(&self.kernel.profile.faults.clone());
        self.kernel.mark(8, action as u64);
        self.kernel.tell(|| format!("nemesis: {action:?}"));
        self.inject_fault(action);
        self.nemesis.plan(&mut self.kernel);
    }

    fn inject_fault(&mut self, action: WorldFault) {
        if !self.is_within_budget(action) {
            return;
        }
        let lender = self.kernel.rng.index(self.lenders.len());
        let host = self.kernel.rng.index(self.hosts.len());
        let client = self.processes.living(host);
        match action {
            WorldFault::BreakLink => {
                let conns = self.network.conns_to(lender);
                if !conns.is_empty() {
                    let conn = self.kernel.rng.pick(&conns);
                    self.kernel.hit("nemesis: links broken");
                    self.network.break_conn(&mut self.kernel, conn);
                }
            }
            WorldFault::Partition => self.partition(host, lender),
            WorldFault::PauseLender => {
                self.kernel.hit("nemesis: lenders paused");
                self.lenders[lender].paused_until = self.kernel.now() + self.pause();
            }
            WorldFault::PauseClient => {
                if let Some(process) = client {
                    self.kernel.hit("nemesis: clients paused");
                    self.processes[process].paused_until = self.kernel.now() + self.pause();
                }
            }
            WorldFault::KillLender => self.kill_lender(lender),
            WorldFault::LoseLender => self.lose_lender(lender),
            WorldFault::PowerDomain => self.cut_domain(),
            WorldFault::FillLender => {
                self.kernel.hit("nemesis: lenders filled");
                self.lenders[lender].window.limit = 0;
                let delay = Nanos::from_ms(self.kernel.rng.between(100, 3000));
                self.kernel.at(delay, WorldEvent::LenderRoomBack { lender });
            }
            WorldFault::WithdrawLender => self.withdraw(lender),
            WorldFault::CrashClient | WorldFault::CutClient => {
                if let Some(process) = client {
                    self.end(process, action == WorldFault::CutClient);
                }
            }
            WorldFault::CrashMidway => {
                let operations = self.kernel.rng.between(0, 12) as u32;
                self.hosts[host].disk.borrow_mut().crash_after(operations);
            }
            WorldFault::SlowDisk => {
                self.kernel.hit("nemesis: slow disks");
                let times = self.kernel.rng.between(3, 60);
                let until = self.kernel.now() + Nanos::from_ms(self.kernel.rng.between(50, 2000));
                self.kernel.slow_disks(times, until);
            }
            WorldFault::FailSync => {
                self.hosts[host].disk.borrow_mut().fail_next_sync();
            }
            WorldFault::FullDisk => {
                self.hosts[host].disk.borrow_mut().fail_next_write();
            }
            WorldFault::RefuseCalls => {
                let error = self.kernel.rng.pick(&REFUSALS);
                // A few calls, or enough that any code that gives up has given up.
                let calls = self.kernel.rng.pick(&[1, 1, 2, 5, 20]);
                self.hosts[host].disk.borrow_mut().refuse(calls, error);
            }
            WorldFault::Rot | WorldFault::Unreadable | WorldFault::StaleBytes => {
                damage_log(&mut self.kernel, &mut self.hosts[host], client.is_some(), action);
            }
            WorldFault::SlotDamage => damage_slot(&mut self.kernel, &self.hosts[host], client.is_some()),
            WorldFault::MoveLender => self.move_lender(),
            WorldFault::Intrude => {
                intruder::run_intruder(&mut self.kernel, &mut self.lenders, &mut self.network, lender)
            }
        }
    }

    /// Whether the world's budget allows `action` now.
    fn is_within_budget(&mut self, action: WorldFault) -> bool {
        let shrinks = matches!(
            action,
            WorldFault::Partition
                | WorldFault::PauseLender
                | WorldFault::PauseClient
                | WorldFault::KillLender
                | WorldFault::LoseLender
                | WorldFault::PowerDomain
                | WorldFault::WithdrawLender
        );
        if self.kernel.profile.within_budget && shrinks {
            // One at a time: a view that shrinks around a member that is already dead has lost more than one.
            if self.nemesis.is_busy(self.kernel.now()) || !self.all_intact() {
                return false;
            }
            self.nemesis.take_budget(self.kernel.now());
        }
        true
    }

    /// Makes another address lead to a lender: an unused one, or one that led to another lender.
    fn move_lender(&mut self) {
        let count = self.lenders.address_count();
        let (one, other) = (self.kernel.rng.index(count), self.kernel.rng.index(count));
        let Some(moved) = self.lenders.swap_addresses(one, other) else {
            return;
        };
        self.kernel.hit("nemesis: lenders moved");
        self.kernel
            .tell(|| format!("what was at l{one} is at l{other} now, and the other way round"));
        for lender in moved {
            self.network.break_all(&mut self.kernel, lender);
        }
    }

    fn pause(&mut self) -> Nanos {
        Nanos::from_ms(self.kernel.rng.pick(&[20, 200, 700, 3000]))
    }

    fn partition(&mut self, host: usize, lender: usize) {
        self.kernel.hit("nemesis: partitions");
        let until = self.kernel.now() + Nanos::from_ms(self.kernel.rng.pick(&[50, 400, 1500, 5000]));
        let ways: &[FrameDirection] = match self.kernel.rng.below(3) {
            0 => &[FrameDirection::Up],
            1 => &[FrameDirection::Down],
            _ => &[FrameDirection::Up, FrameDirection::Down],
        };
        self.network.block(host, lender, until, ways);
    }

    fn kill_lender(&mut self, lender: usize) {
        if !self.lenders[lender].up {
            return;
        }
        self.kernel.hit("nemesis: lender processes killed");
        if self.kernel.rng.chance(400) {
            self.lenders[lender].crashes_in_append = true;
            return;
        }
        self.lenders[lender].kill();
        self.network.lender_died(&mut self.kernel, lender);
    }

    fn lose_lender(&mut self, lender: usize) {
        if self.kernel.profile.within_budget && !self.can_spare(lender) {
            return;
        }
        self.kernel.hit("nemesis: lender machines lost");
        self.kernel
            .tell(|| format!("lender {lender}'s machine dies with its memory"));
        let conns = self.network.conns_to(lender);
        self.lenders.lose(lender, self.kernel.now());
        // A dead machine sends no farewell. Its clients notice by waiting, or when it is back and resets
        // them.
        let silent = self.kernel.rng.chance(500);
        for conn in conns.into_iter().filter(|_| !silent) {
            self.network.break_conn(&mut self.kernel, conn);
        }
        let delay = Nanos::from_ms(self.kernel.rng.pick(&[5, 300, 2000]));
        self.kernel.at(delay, WorldEvent::LenderUp { lender });
    }

    /// Whether every view that a crash could leave, now or after the next change, survives the loss of
    /// `lender`'s memory.
    fn can_spare(&self, lender: usize) -> bool {
        let settled = (0..self.processes.len()).all(|process| {
            let Some(serving) = self.processes.serving(process) else {
                return true;
            };
            let lenders = serving.writer.status().lenders;
            lenders
                .iter()
                .all(|lender| lender.role == LenderRole::Spare || lender.member)
        });
        let survives = |view: &View| {
            let among = view
                .members
                .iter()
                .any(|member| member.incarnation == self.lenders[lender].incarnation);
            // The view counts as if it were in force: the next one may be, and names the same members until
            // the writer learns.
            !among || rule01::intact(self, view) > view.rule.answers(view.members.len())
        };
        settled
            && self.server.as_ref().is_none_or(|server| survives(&server.view))
            && self.hosts.iter().all(|host| {
                [Some(&host.view), Some(&host.cached_view), host.storing.as_ref()]
                    .into_iter()
                    .flatten()
                    .all(survives)
            })
    }

    /// Whether every member of every view that a crash could leave still has its memory.
    fn all_intact(&self) -> bool {
        let at_server = self.server.as_ref().map(|server| &server.view);
        let whole = |view: &View| rule01::intact(self, view) == view.members.len();
        at_server.is_none_or(whole)
            && self.hosts.iter().all(|host| {
                [Some(&host.view), Some(&host.cached_view), host.storing.as_ref()]
                    .into_iter()
                    .flatten()
                    .all(whole)
            })
    }

    pub(crate) fn start_lender(&mut self, lender: usize) {
        if self.lenders[lender].up {
            return;
        }
        if !self.lenders.start(&self.kernel, lender) {
            // An intruder in the writer's name may declare an LSN stable at which no record begins.
            if !self.lenders.is_untrusted(lender) {
                rule02::fail_unproven_memory(lender);
            }
            self.kernel.hit("intruder: memory forgotten at a restart");
        }
        self.kernel.tell(|| format!("lender {lender} is up"));
    }

    fn cut_domain(&mut self) {
        let domain = format!("d{}", self.kernel.rng.below(3));
        let members: Vec<usize> = (0..self.lenders.len())
            .filter(|&lender| self.lenders[lender].domain == domain)
            .collect();
        if self.kernel.profile.within_budget && members.len() > 1 {
            return;
        }
        self.kernel.hit("nemesis: power domains cut");
        for lender in members {
            self.lose_lender(lender);
        }
        if domain == "d0"
            && let Some(process) = self.processes.living(0)
        {
            self.crash(process, true);
        }
    }

    fn withdraw(&mut self, lender: usize) {
        let packet = packet_of(&FrameHeader::new(FrameKind::Withdraw), &[]);
        self.kernel.hit("nemesis: lenders withdrawn");
        for conn in self.network.conns_to(lender) {
            self.network
                .send(&mut self.kernel, conn, FrameDirection::Down, packet.clone());
        }
        self.lenders[lender].withdrawn = true;
        // Its clients have that long to move away. Then it stops and is restarted with the memory it had.
        let grace = Nanos::from_ms(self.kernel.rng.between(100, 2000));
        self.kernel.at(grace, WorldEvent::LenderStops { lender });
    }

    pub(crate) fn lender_stops(&mut self, lender: usize) {
        if self.lenders[lender].up && self.lenders[lender].withdrawn {
            self.lenders[lender].kill();
            self.network.lender_died(&mut self.kernel, lender);
        }
    }

    /// Ends all faults: the nemesis stops, lenders run, links pass, the disk works.
    pub fn heal(&mut self) {
        self.kernel.tell(|| String::from("everything is healed"));
        self.nemesis.stop();
        self.kernel.slow_disks(1, Time(0));
        self.network.unblock();
        for lender in 0..self.lenders.len() {
            self.lenders[lender].paused_until = Time(0);
            self.lenders[lender].crashes_in_append = false;
            if core::mem::take(&mut self.lenders[lender].withdrawn) {
                // It lends again; its clients learn of that when they reconnect.
                self.network.break_all(&mut self.kernel, lender);
            }
            self.lenders[lender].window.limit = LENDER_BYTES;
            self.start_lender(lender);
        }
        self.processes.resume();
        self.data.heal();
        if let Some(server) = &mut self.server {
            server.heal();
        }
        for host in self.hosts.iter() {
            let mut disk = host.disk.borrow_mut();
            disk.heal();
            disk.make_readable();
        }
        self.kernel.profile.loss_permille = 0;
    }
}
