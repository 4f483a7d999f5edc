//! What visits a world: one fault at a time, at random moments, of the kinds its profile allows.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::journal::{Role, View};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::port::Kind;
use netram_proto::time::{Span, Time};
use netram_proto::wire::{Frame, Link, RecordHeader, finish_record};

use crate::check::rule01;
use crate::check::rule06::DATA_OFFSET;
use crate::disk::SECTOR_BYTES;
use crate::process::lender_at;
use crate::profile::Action;
use crate::world::{Event, World};

/// The nemesis's own state.
pub(crate) struct Nemesis {
    /// The disk is slow until then.
    slow_until: Time,
    slowness: u64,
    /// In a world within budget, until then no further lender is taken away.
    busy_until: Time,
    /// Nothing more happens.
    pub(crate) rests: bool,
    /// When each lender last lost its memory.
    lost_at: Vec<Time>,
}

impl Nemesis {
    pub(crate) fn new() -> Nemesis {
        Nemesis {
            slow_until: Time(0),
            slowness: 1,
            busy_until: Time(0),
            rests: false,
            lost_at: Vec::new(),
        }
    }

    pub(crate) fn disk_slowness(&self, now: Time) -> u64 {
        if now < self.slow_until { self.slowness } else { 1 }
    }
}

impl World {
    pub(crate) fn plan_nemesis(&mut self) {
        let mean = self.profile.every.0;
        let delay = Span(self.rng.between(mean / 10, mean * 2));
        self.at(delay, Event::Nemesis);
    }

    pub(crate) fn on_nemesis(&mut self) {
        if self.nemesis.rests || self.profile.actions.is_empty() {
            return;
        }
        let action = self.rng.pick(&self.profile.actions.clone());
        self.trace.mark(self.now, 8, action as u64);
        self.tell(|| format!("nemesis: {action:?}"));
        self.visit(action);
        self.plan_nemesis();
    }

    fn visit(&mut self, action: Action) {
        let shrinks = matches!(
            action,
            Action::Partition
                | Action::PauseLender
                | Action::PauseClient
                | Action::KillLender
                | Action::LoseLender
                | Action::PowerDomain
                | Action::Withdraw
        );
        if self.profile.within_budget && shrinks {
            // One at a time: a view that shrinks around a member already dead has lost more than one.
            if self.now < self.nemesis.busy_until || !self.all_intact() {
                return;
            }
            self.nemesis.busy_until = self.now + Span::from_ms(6000);
        }
        let lender = self.rng.index(self.lenders.len());
        let host = self.rng.index(self.hosts.len());
        let client = self.living(host);
        match action {
            Action::BreakLink => {
                let conns = self.conns_to(lender);
                if !conns.is_empty() {
                    let conn = self.rng.pick(&conns);
                    self.coverage.hit("nemesis: links broken");
                    self.break_conn(conn);
                }
            }
            Action::Partition => self.partition(host, lender),
            Action::PauseLender => {
                self.coverage.hit("nemesis: lenders paused");
                self.lenders[lender].paused_until = self.now + self.pause();
            }
            Action::PauseClient => {
                if let Some(process) = client {
                    self.coverage.hit("nemesis: clients paused");
                    self.processes[process].paused_until = self.now + self.pause();
                }
            }
            Action::KillLender => self.kill_lender(lender),
            Action::LoseLender => self.lose_lender(lender),
            Action::PowerDomain => self.cut_domain(),
            Action::FillLender => {
                self.coverage.hit("nemesis: lenders filled");
                self.lenders[lender].window.limit = 0;
                let delay = Span::from_ms(self.rng.between(100, 3000));
                self.at(delay, Event::Unfill { lender });
            }
            Action::Withdraw => self.withdraw(lender),
            Action::CrashClient | Action::CutClient => {
                if let Some(process) = client {
                    self.crash(process, action == Action::CutClient);
                }
            }
            Action::LightFuse => {
                let operations = self.rng.between(0, 12) as u32;
                self.hosts[host].disk.borrow_mut().light_fuse(operations);
            }
            Action::SlowDisk => {
                self.coverage.hit("nemesis: slow disks");
                self.nemesis.slowness = self.rng.between(3, 60);
                self.nemesis.slow_until = self.now + Span::from_ms(self.rng.between(50, 2000));
            }
            Action::FailSync => {
                self.hosts[host].disk.borrow_mut().fail_next_sync();
            }
            Action::FullDisk => {
                self.hosts[host].disk.borrow_mut().fail_next_write();
            }
            Action::Rot | Action::Unreadable | Action::StaleBytes => self.damage(host, action),
            Action::SlotDamage => self.damage_slot(host),
        }
    }

    fn pause(&mut self) -> Span {
        Span::from_ms(self.rng.pick(&[20, 200, 700, 3000]))
    }

    fn partition(&mut self, host: usize, lender: usize) {
        self.coverage.hit("nemesis: partitions");
        let until = self.now + Span::from_ms(self.rng.pick(&[50, 400, 1500, 5000]));
        let blocked = &mut self.blocked[host][lender];
        match self.rng.below(3) {
            0 => blocked.0 = until,
            1 => blocked.1 = until,
            _ => *blocked = (until, until),
        }
    }

    fn kill_lender(&mut self, lender: usize) {
        if !self.lenders[lender].up {
            return;
        }
        self.coverage.hit("nemesis: lender processes killed");
        self.tell(|| format!("lender {lender}'s process dies"));
        let conns = self.conns_to(lender);
        self.lenders[lender].kill();
        for conn in conns {
            self.break_conn(conn);
        }
        let delay = Span::from_ms(self.rng.pick(&[5, 100, 1000, 4000]));
        self.at(delay, Event::LenderUp { lender });
    }

    fn lose_lender(&mut self, lender: usize) {
        if self.profile.within_budget && !self.spares(lender) {
            return;
        }
        self.coverage.hit("nemesis: lender machines lost");
        self.tell(|| format!("lender {lender}'s machine dies with its memory"));
        self.nemesis.lost_at.resize(self.lenders.len(), Time(0));
        self.nemesis.lost_at[lender] = self.now;
        let next = self.next_incarnation();
        let conns = self.conns_to(lender);
        self.lenders[lender].lose(next);
        // A dead machine sends no farewell: its clients find out by waiting, or when it is back and resets them.
        let silent = self.rng.chance(500);
        for conn in conns.into_iter().filter(|_| !silent) {
            self.break_conn(conn);
        }
        let delay = Span::from_ms(self.rng.pick(&[5, 300, 2000]));
        self.at(delay, Event::LenderUp { lender });
    }

    /// Whether every view that a crash could leave, now or after the next change, survives the loss of `lender`'s memory.
    fn spares(&self, lender: usize) -> bool {
        let settled = (0..self.processes.len()).all(|process| {
            let Some(serving) = self.serving(process) else {
                return true;
            };
            let lenders = serving.writer.status().lenders;
            lenders
                .iter()
                .all(|lender| lender.role == Role::Spare || lender.member)
        });
        let survives = |view: &View| {
            let among = view.members.iter().any(|member| {
                lender_at(&member.address) == lender && member.incarnation == self.lenders[lender].incarnation
            });
            // As if it counted: the view that follows may, and names the same members until the writer learns.
            !among || rule01::intact(self, view) > view.rule.answers(view.members.len())
        };
        settled
            && self.hosts.iter().all(|host| {
                [Some(&host.view), Some(&host.cached_view), host.storing.as_ref()]
                    .into_iter()
                    .flatten()
                    .all(survives)
            })
    }

    /// Whether every member of every view that a crash could leave still has its memory.
    fn all_intact(&self) -> bool {
        self.hosts.iter().all(|host| {
            [Some(&host.view), Some(&host.cached_view), host.storing.as_ref()]
                .into_iter()
                .flatten()
                .all(|view| rule01::intact(self, view) == view.members.len())
        })
    }

    pub(crate) fn lost_since(&self, lender: usize, _process: usize) -> bool {
        let lost_at = self.nemesis.lost_at.get(lender).copied().unwrap_or(Time(0));
        self.now.since(lost_at) < Span::from_ms(5000) && lost_at > Time(0)
    }

    pub(crate) fn start_lender(&mut self, lender: usize) {
        if self.lenders[lender].up {
            return;
        }
        let (journal, planted) = (self.journal, self.planted);
        let next = self.next_incarnation();
        if !self.lenders[lender].start(journal, next, planted) {
            self.coverage
                .hit("lenders restarted with memory that did not check");
        }
        self.tell(|| format!("lender {lender} is up"));
    }

    fn cut_domain(&mut self) {
        let domain = format!("d{}", self.rng.below(3));
        let members: Vec<usize> = (0..self.lenders.len())
            .filter(|&lender| self.lenders[lender].domain == domain)
            .collect();
        if self.profile.within_budget && members.len() > 1 {
            return;
        }
        self.coverage.hit("nemesis: power domains cut");
        for lender in members {
            self.lose_lender(lender);
        }
        if domain == "d0"
            && let Some(process) = self.living(0)
        {
            self.crash(process, true);
        }
    }

    fn withdraw(&mut self, lender: usize) {
        let header = netram_proto::wire::Header::new(netram_proto::wire::FrameKind::Withdraw);
        let packet = crate::lender::packet_of(&header, &[]);
        debug_assert!(Frame::parse(&packet).is_ok());
        self.coverage.hit("nemesis: lenders withdrawn");
        for conn in self.conns_to(lender) {
            self.send(conn, crate::net::Way::Down, packet.clone());
        }
    }

    /// Damages a host's log at rest, while nobody has it open. Below what some intact record or the superblock proves to
    /// have been durable, recovery must notice; at or above the end, it must not care.
    fn damage(&mut self, host: usize, action: Action) {
        if self.living(host).is_some() {
            return;
        }
        let (head, durable, tail) = {
            let history = &self.hosts[host].history;
            (history.head, history.durable, history.tail())
        };
        if action == Action::StaleBytes {
            self.leave_stale_bytes(host, tail);
            return;
        }
        if durable <= head {
            return;
        }
        let at = head.plus(self.rng.below(durable.since(head)));
        let capacity = self.profile.capacity;
        let offset = DATA_OFFSET + (at.0 % capacity) as usize;
        let start = Lsn(at.0 / SECTOR_BYTES as u64 * SECTOR_BYTES as u64);
        let file = self.hosts[host].log_file;
        match action {
            Action::Unreadable => {
                self.coverage.hit("nemesis: sectors made unreadable");
                self.hosts[host].disk.borrow_mut().make_unreadable(file, offset);
                self.hosts[host].damaged = true;
            }
            _ if self.proven(host, start.plus(SECTOR_BYTES as u64)) => {
                self.coverage.hit("nemesis: sectors rotten");
                self.hosts[host].disk.borrow_mut().rot(file, offset);
                self.hosts[host].damaged = true;
                let history = &mut self.hosts[host].history;
                history.durable = history.durable.min(start.max(head));
            }
            _ => (),
        }
    }

    /// Damages one of two slots at rest. Never while a store was cut off or failed: then the other slot may be the older
    /// value, and nothing can tell (`docs/journal.md`).
    fn damage_slot(&mut self, host: usize) {
        let view_file = self.rng.chance(700);
        let slot = self.rng.index(2) * SLOT_BYTES;
        let rots = self.rng.chance(500);
        let at = &self.hosts[host];
        let file = if view_file { at.view_file } else { at.log_file };
        {
            let disk = at.disk.borrow();
            let slots = &disk.durable(file)[..2 * SLOT_BYTES];
            let settled = slots[..SLOT_BYTES] == slots[SLOT_BYTES..]
                && disk.cached(file)[..2 * SLOT_BYTES] == *slots
                && disk.is_readable(file, 0..2 * SLOT_BYTES);
            if self.living(host).is_some() || !settled {
                return;
            }
        }
        let mut disk = at.disk.borrow_mut();
        if rots {
            disk.rot(file, slot);
        } else {
            disk.make_unreadable(file, slot);
        }
        drop(disk);
        self.coverage.hit("nemesis: slots damaged");
    }

    /// Whether something on the platter beyond `end` proves that everything below `end` had been durable.
    fn proven(&self, host: usize, end: Lsn) -> bool {
        let host = &self.hosts[host];
        let disk = host.disk.borrow();
        let platter = crate::disk::Platter(disk.durable(host.log_file));
        let Ok((_, _, superblock)) = netram_proto::journal::LogFile::open(platter) else {
            return false;
        };
        superblock.stable >= end || host.view.base >= end
    }

    /// Behind the end of a log that is wholly on the disk lie bytes that look like what would come next: a record of long
    /// ago, or one of a history that ended otherwise.
    fn leave_stale_bytes(&mut self, host: usize, tail: Lsn) {
        let history = &self.hosts[host].history;
        let capacity = self.profile.capacity;
        let settled = history.acked == tail && history.durable == tail;
        if !settled || tail.0 < 512 || capacity.saturating_sub(tail.since(history.head)) < 2048 {
            return;
        }
        let bytes = if self.rng.chance(500) {
            self.other_history(tail)
        } else {
            let from = Lsn(self.rng.below(tail.0 / 8) * 8);
            let history = &self.hosts[host].history;
            let start = history
                .ends_between(from, tail)
                .first()
                .map_or(Lsn(0), |link| link.lsn);
            history.bytes(start, Lsn((start.0 + 1024).min(tail.0))).to_vec()
        };
        let offset = DATA_OFFSET + (tail.0 % capacity) as usize;
        let length = bytes.len().min(DATA_OFFSET + capacity as usize - offset);
        self.coverage.hit("nemesis: stale bytes behind the end");
        let file = self.hosts[host].log_file;
        self.hosts[host]
            .disk
            .borrow_mut()
            .plant(file, offset, &bytes[..length]);
    }

    /// A record of this journal, whole and for this place, whose predecessor is not the one that stands here: what a
    /// reign leaves on the disk when the record before it was torn.
    fn other_history(&mut self, at: Lsn) -> Vec<u8> {
        let link = Link {
            lsn: at,
            chain: self.rng.next() as u32,
        };
        let header = RecordHeader::new(link, Epoch(1), Lsn(0), Kind(16), false, 24);
        let mut record = vec![7; header.length];
        header.write(&mut record);
        finish_record(&mut record, self.journal.into());
        record
    }

    /// Everything is well from here on: the nemesis rests, lenders run, links pass, the disk is sound.
    pub fn heal(&mut self) {
        self.tell(|| String::from("everything is healed"));
        self.nemesis.rests = true;
        self.nemesis.slow_until = Time(0);
        for blocked in self.blocked.iter_mut().flatten() {
            *blocked = (Time(0), Time(0));
        }
        for lender in 0..self.lenders.len() {
            self.lenders[lender].paused_until = Time(0);
            self.lenders[lender].window.limit = crate::lender::LENT_BYTES;
            self.start_lender(lender);
        }
        for process in &mut self.processes {
            process.paused_until = Time(0);
        }
        for host in &self.hosts {
            let mut disk = host.disk.borrow_mut();
            disk.heal();
            disk.mend();
        }
        self.profile.loss_permille = 0;
    }
}
