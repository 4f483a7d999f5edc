//! What goes wrong: every now and then one of the actions that visit this region.

use netram_proto::planted::Fault;
use netram_proto::time::Span;
use netram_shared_machine::NodeId;
use netram_shared_machine::server::Session;

use super::nature::Action;
use super::process::Process;
use super::{Event, World};

impl World {
    pub(super) fn plan_nemesis(&mut self) {
        if self.nature.actions.is_empty() {
            return;
        }
        let us = self.rng.below(2 * self.nature.every.0 / 1000);
        self.at(Span::from_us(us), Event::Nemesis);
    }

    pub(super) fn on_nemesis(&mut self) {
        if self.calm_since.is_some() {
            return;
        }
        let at = self.rng.index(self.nature.actions.len());
        let action = self.nature.actions[at];
        self.trace.mark(self.now, 22, action as u64);
        self.strike(action);
        self.plan_nemesis();
    }

    fn strike(&mut self, action: Action) {
        let slot = self.rng.index(self.slots.len());
        let machine = self.rng.index(self.machines.len());
        let ms = self.rng.pick(&[5, 40, 150, 500]);
        let until = self.now + Span::from_ms(ms);
        match action {
            Action::BreakLink => {
                let sessions: Vec<Session> = self.pipes.keys().copied().collect();
                if !sessions.is_empty() {
                    let session = sessions[self.rng.index(sessions.len())];
                    self.break_pipe(session);
                    self.coverage.hit("region: links broken");
                }
            }
            Action::SilenceLink => self.silence_link(),
            Action::BreakConn => {
                let conns = self.open_conns();
                if !conns.is_empty() {
                    let conn = conns[self.rng.index(conns.len())];
                    self.break_conn(conn);
                }
            }
            Action::Partition => {
                let host = self.rng.index(self.slots.len() + 1);
                self.blocked[host][machine] = until;
                self.coverage.hit("region: partitions from lenders");
            }
            Action::CutOff => {
                self.slots[slot].cut_off_until = until;
                self.coverage.hit("region: nodes cut off from the server");
            }
            Action::Sleep => self.sleep(slot, Span::from_ms(ms)),
            Action::ServerSleeps => {
                self.server.paused_until = until;
                self.coverage.hit("region: servers that stood still");
            }
            Action::Kill => self.kill_process(slot, false),
            Action::PowerCut => {
                self.kill_process(slot, true);
                self.coverage.hit("region: nodes whose machine lost power");
            }
            Action::KillServer => self.kill_server(),
            Action::KillLender => self.kill_machine(machine, false),
            Action::LoseLender => {
                if self.nature.beyond || self.can_spare(machine) {
                    self.kill_machine(machine, true);
                }
            }
            Action::LenderSleeps => self.machines[machine].paused_until = until,
            Action::SlowDisk => self.server.slow_until = until,
        }
    }

    /// The server begins to read the journal of a node that it holds to be dead. One that lives and has a transaction open
    /// commits it just then: between the answers of its members, and between their seals.
    pub(super) fn provoke_last_words(&mut self, node: NodeId) {
        if self.calm_since.is_some() || !self.rng.chance(self.nature.last_words_permille) {
            return;
        }
        let lives = |process: &&Process| process.node.id() == Some(node);
        let found = (0..self.slots.len()).find_map(|slot| {
            let process = self.slots[slot].process.as_ref().filter(lives)?;
            Some((slot, process.life))
        });
        let Some((slot, life)) = found else {
            return;
        };
        for _ in 0..2 {
            let us = self.rng.below(6 * self.nature.latency_us.1);
            self.at(Span::from_us(us), Event::LastWord { slot, life });
        }
    }

    pub(super) fn on_last_word(&mut self, slot: usize, life: u64) {
        if self.calm_since.is_some() || self.slots[slot].alive(life).is_none() {
            return;
        }
        self.slots[slot].paused_until = self.slots[slot].paused_until.min(self.now);
        if self.commit_open(slot) {
            self.coverage
                .hit("region: commits while the node's journal was read");
        }
        self.settle(slot);
    }

    /// A node stands still, and wakes to everything that has waited: its process was stopped, or its machine slept.
    pub(super) fn sleep(&mut self, slot: usize, span: Span) {
        self.slots[slot].paused_until = self.now + span;
        if self.planted.is(Fault::SleepStopsClock) {
            self.slots[slot].behind.0 += span.0;
        }
        if let Some(process) = &mut self.slots[slot].process {
            process.slept = true;
        }
        self.tell(|| format!("slot {slot} sleeps for {} ms", span.ms()));
    }
}
