//! Quiescence: no more faults happen, all work ends, and then all copies must be equal.

use std::collections::BTreeMap;

use netram_proto::id::JournalId;
use netram_proto::time::{Nanos, Time};
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::server::NodeState;
use netram_shared_machine::{MergeQueue, NodeId, QueuedRecord, RecordNumber};

use super::bytes::{self, PayloadBytes, WORDS};
use super::check::RegionRule;
use super::{Event, World};

/// Longest time until everything has ended.
const QUIESCE_MAX: Nanos = Nanos::from_ms(12_000);
const POLL_INTERVAL: Nanos = Nanos::from_ms(40);

impl World {
    pub(super) fn quiesce(&mut self) {
        self.stop_faults();
        let until = self.now + QUIESCE_MAX;
        while self.now < until {
            self.run_for(POLL_INTERVAL);
            if self.is_quiescent() {
                return self.check_quiescent();
            }
        }
        if let Some(wasted) = self.wasted_window().filter(|_| self.busy_reason().is_empty()) {
            self.fail(RegionRule::Forgotten, &wasted);
        }
        let why = self.busy_reason();
        self.fail(RegionRule::Ends, &format!("no rest: {why}"));
    }

    fn stop_faults(&mut self) {
        self.tell(|| String::from("everything is healed"));
        self.calm_since = Some(self.now);
        for host in &mut self.blocked {
            host.fill(Time(0));
        }
        for machine in &mut self.machines {
            machine.paused_until = Time(0);
        }
        for slot in &mut self.slots {
            slot.paused_until = Time(0);
            slot.cut_off_until = Time(0);
        }
        self.server.paused_until = Time(0);
        self.server.slow_until = Time(0);
        for machine in 0..self.machines.len() {
            self.at(Nanos(1), Event::MachineUp { machine });
        }
        self.at(Nanos(1), Event::ServerUp);
    }

    /// Reason why the region is not at rest; empty if it is.
    fn busy_reason(&self) -> String {
        let Some(server) = self.server.machine() else {
            return "no server".into();
        };
        for (node, standing) in server.node_states() {
            if !matches!(standing, NodeState::Live | NodeState::Gone) {
                return format!("node {node} is {standing:?}, missing {:?}", server.missing());
            }
        }
        for (index, slot) in self.slots.iter().enumerate() {
            let Some(process) = &slot.process else {
                return format!("slot {index} has no process");
            };
            if !process.is_whole() || !process.txns.is_empty() || process.pinned.is_some() {
                let (state, txns) = (process.node.state(), &process.txns);
                return format!("slot {index} is {state:?}, with {txns:?}");
            }
            if !slot.unknown_outcomes.is_empty() || !slot.orphans.is_empty() {
                let left: Vec<NodeId> = slot.orphans.iter().map(|left| left.node).collect();
                return format!(
                    "slot {index} does not know of {:?}, left are {left:?}",
                    slot.unknown_outcomes
                );
            }
        }
        let standings = server.node_states();
        let live = standings.filter(|(_, standing)| *standing == NodeState::Live);
        if live.count() != self.slots.len() {
            return "nodes that have no process".into();
        }
        match self.server.is_idle() {
            true => String::new(),
            false => "the server's disk".into(),
        }
    }

    /// A window that no process needs: the server has all of its node's journal, for good.
    fn wasted_window(&self) -> Option<String> {
        let rows = self.server.disk.table.nodes.iter();
        let gone = rows.filter(|(_, row)| row.state == NodeState::Gone);
        let gone: BTreeMap<JournalId, NodeId> = gone.map(|(node, row)| (row.id, *node)).collect();
        let machines = self.machines.iter().enumerate();
        let mut windows = machines.flat_map(|(at, machine)| machine.windows().map(move |id| (at, id)));
        windows.find_map(|(at, id)| {
            let node = gone.get(&id).filter(|_| !self.pending_forgets.contains(&id))?;
            Some(format!("lender {at} has a window of node {node}, which is gone"))
        })
    }

    fn is_quiescent(&mut self) -> bool {
        if !self.busy_reason().is_empty() || self.wasted_window().is_some() {
            return false;
        }
        // Lazy nodes may rest with less.
        for slot in 0..self.slots.len() {
            if let Some(process) = &mut self.slots[slot].process {
                process.node.pull();
            }
            self.settle(slot);
        }
        let memory = self.server.memory();
        let mut processes = self.slots.iter().filter_map(|slot| slot.process.as_ref());
        processes.all(|process| process.region == memory)
    }

    fn check_quiescent(&mut self) {
        let disk = &self.server.disk;
        if disk.region != self.server.memory() {
            self.fail(RegionRule::Equal, "the disk's region is not the server's");
        }
        for truth in self.history.journals.values() {
            let its = |node: &NodeId| truth.node == Some(*node);
            let logged: Vec<&PayloadBytes> = disk
                .log
                .iter()
                .filter(|merged| its(&merged.node))
                .map(|merged| &merged.payload)
                .collect();
            let same = logged
                .iter()
                .zip(&truth.records)
                .all(|(one, other)| *one == other);
            let excused = truth
                .node
                .is_some_and(|node| self.history.excused.contains(&node));
            if !same || (!excused && (logged.len() as u64) < truth.acked.0) {
                let what = format!("{} acknowledged, {} in the order", truth.acked, logged.len());
                self.fail(RegionRule::Survives, &what);
            }
        }
        for ((node, number), fate) in &self.history.outcomes {
            let mut log = disk.log.iter();
            let there = log.any(|merged| (merged.node, merged.number) == (*node, *number));
            if there != (*fate == RecordOutcome::Committed) {
                let what = format!("record {number} of node {node} was {fate:?}: {there}");
                self.fail(RegionRule::Outcome, &what);
            }
        }
        self.check_any_order();
        for machine in &self.machines {
            let (forgotten, haunted) = machine.forgotten();
            let coverage = &mut self.coverage;
            coverage.add(
                "region: journals that were over, and forgotten by a lender",
                forgotten as u64,
            );
            coverage.add(
                "region: old writers that came to lenders which had forgotten them",
                haunted as u64,
            );
        }
        self.coverage.hit("region: worlds at rest");
    }

    /// Merges all journals in a random order that the stamps allow, and compares.
    fn check_any_order(&mut self) {
        let mut lanes: BTreeMap<NodeId, Vec<(RecordNumber, PayloadBytes)>> = BTreeMap::new();
        for merged in &self.server.disk.log {
            let lane = lanes.entry(merged.node).or_default();
            lane.push((merged.number, merged.payload.clone()));
        }
        let mut merge = MergeQueue::new([], lanes.keys().map(|node| (*node, RecordNumber(0))));
        let (mut region, mut done) = (vec![0; WORDS], 0);
        let mut left: Vec<_> = lanes
            .into_iter()
            .map(|(node, lane)| (node, lane.into_iter()))
            .collect();
        while !left.is_empty() {
            let at = self.rng.index(left.len());
            let (node, lane) = &mut left[at];
            match lane.next() {
                None => drop(left.swap_remove(at)),
                Some((number, payload)) => {
                    let queued = QueuedRecord {
                        number,
                        stamp: bytes::stamp(&payload),
                        ticket: payload,
                    };
                    merge.push(*node, queued).expect("what was merged once");
                }
            }
            while let Some(entry) = merge.pop().expect("what was merged once") {
                bytes::apply(&entry.record.ticket, &mut region);
                done += 1;
            }
        }
        if region != self.server.disk.region || done != self.server.disk.log.len() {
            let what = "the same journals, merged again, are another region";
            self.fail(RegionRule::AnyOrder, what);
        }
    }
}
