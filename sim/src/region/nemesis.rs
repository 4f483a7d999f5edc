//! Fault injection into a region: now and then one of the faults of its profile.

use netram_proto::planted::PlantedFault;
use netram_proto::time::Nanos;
use netram_shared_machine::NodeId;
use netram_shared_machine::server::SessionId;

use super::process::RegionProcess;
use super::profile::RegionFault;
use super::{Event, World};

impl World {
    pub(super) fn plan_nemesis(&mut self) {
        if self.profile.faults.is_empty() {
            return;
        }
        let us = self.rng.below(2 * self.profile.fault_interval.0 / 1000);
        self.at(Nanos::from_us(us), Event::Nemesis);
    }

    pub(super) fn on_nemesis(&mut self) {
        if self.calm_since.is_some() {
            return;
        }
        let at = self.rng.index(self.profile.faults.len());
        let action = self.profile.faults[at];
        self.trace.mark(self.now, 22, action as u64);
        self.inject_fault(action);
        self.plan_nemesis();
    }

    fn inject_fault(&mut self, action: RegionFault) {
        let slot = self.rng.index(self.slots.len());
        let machine = self.rng.index(self.machines.len());
        let ms = self.rng.pick(&[5, 40, 150, 500]);
        let until = self.now + Nanos::from_ms(ms);
        match action {
            RegionFault::BreakLink => {
                let sessions: Vec<SessionId> = self.node_links.keys().copied().collect();
                if !sessions.is_empty() {
                    let session = sessions[self.rng.index(sessions.len())];
                    self.break_node_link(session);
                    self.coverage.hit("region: links broken");
                }
            }
            RegionFault::SilenceLink => self.silence_link(),
            RegionFault::BreakConn => {
                let conns = self.open_conns();
                if !conns.is_empty() {
                    let conn = conns[self.rng.index(conns.len())];
                    self.break_conn(conn);
                }
            }
            RegionFault::Partition => {
                let host = self.rng.index(self.slots.len() + 1);
                self.blocked[host][machine] = until;
                self.coverage.hit("region: partitions from lenders");
            }
            RegionFault::PartitionServer => {
                self.slots[slot].cut_off_until = until;
                self.coverage.hit("region: nodes cut off from the server");
            }
            RegionFault::PauseNode => self.pause_node(slot, Nanos::from_ms(ms)),
            RegionFault::PauseServer => {
                self.server.paused_until = until;
                self.coverage.hit("region: servers that stood still");
            }
            RegionFault::KillNode => self.kill_process(slot, false),
            RegionFault::CutNode => {
                self.kill_process(slot, true);
                self.coverage.hit("region: nodes whose machine lost power");
            }
            RegionFault::KillServer => self.kill_server(),
            RegionFault::KillLender => self.kill_machine(machine, false),
            RegionFault::LoseLender => {
                if self.profile.beyond_budget || self.can_spare(machine) {
                    self.kill_machine(machine, true);
                }
            }
            RegionFault::PauseLender => self.machines[machine].paused_until = until,
            RegionFault::SlowDisk => self.server.slow_until = until,
        }
    }

    /// Lets a node commit an open transaction while the server, which holds it to be dead, reads its journal:
    /// between its members' answers, or between their fences.
    pub(super) fn provoke_late_commit(&mut self, node: NodeId) {
        if self.calm_since.is_some() || !self.rng.chance(self.profile.late_commits_permille) {
            return;
        }
        let lives = |process: &&RegionProcess| process.node.id() == Some(node);
        let found = (0..self.slots.len()).find_map(|slot| {
            let process = self.slots[slot].process.as_ref().filter(lives)?;
            Some((slot, process.life))
        });
        let Some((slot, life)) = found else {
            return;
        };
        for _ in 0..2 {
            let us = self.rng.below(6 * self.profile.latency_us.1);
            self.at(Nanos::from_us(us), Event::LateCommit { slot, life });
        }
    }

    pub(super) fn on_late_commit(&mut self, slot: usize, life: u64) {
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

    /// Lets a node stand still and then handle everything that has waited: its process was stopped, or its
    /// machine slept.
    pub(super) fn pause_node(&mut self, slot: usize, span: Nanos) {
        self.slots[slot].paused_until = self.now + span;
        if self.planted.is(PlantedFault::SleepStopsClock) {
            self.slots[slot].clock_lag.0 += span.0;
        }
        if let Some(process) = &mut self.slots[slot].process {
            process.was_paused = true;
        }
        self.tell(|| format!("slot {slot} sleeps for {} ms", span.ms()));
    }
}
