//! Rest: nothing goes wrong any more, everything ends, and then all must be equal.

use std::collections::BTreeMap;

use netram_proto::id::JournalId;
use netram_proto::time::{Span, Time};
use netram_shared_machine::message::Fate;
use netram_shared_machine::server::Standing;
use netram_shared_machine::{Merge, NodeId, Number, Queued};

use super::bytes::{self, P, WORDS};
use super::check::Rule;
use super::{Event, World};

/// Everything must have ended after so long.
const PATIENCE: Span = Span::from_ms(12_000);
const LOOK: Span = Span::from_ms(40);

impl World {
    pub(super) fn rest(&mut self) {
        self.calm();
        let until = self.now + PATIENCE;
        while self.now < until {
            self.run_for(LOOK);
            if self.is_at_rest() {
                return self.check_at_rest();
            }
        }
        if let Some(wasted) = self.wasted().filter(|_| self.unrest().is_empty()) {
            self.fail(Rule::Forgotten, &wasted);
        }
        let why = self.unrest();
        self.fail(Rule::Ends, &format!("no rest: {why}"));
    }

    fn calm(&mut self) {
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
            self.at(Span(1), Event::MachineUp { machine });
        }
        self.at(Span(1), Event::ServerUp);
    }

    /// Why it is not at rest; empty if it is.
    fn unrest(&self) -> String {
        let Some(server) = self.server.machine() else {
            return "no server".into();
        };
        for (node, standing) in server.standings() {
            if !matches!(standing, Standing::Live | Standing::Gone) {
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
            if !slot.unknown.is_empty() || !slot.left.is_empty() {
                let left: Vec<NodeId> = slot.left.iter().map(|left| left.node).collect();
                return format!(
                    "slot {index} does not know of {:?}, left are {left:?}",
                    slot.unknown
                );
            }
        }
        let standings = server.standings();
        let live = standings.filter(|(_, standing)| *standing == Standing::Live);
        if live.count() != self.slots.len() {
            return "nodes that have no process".into();
        }
        match self.server.is_idle() {
            true => String::new(),
            false => "the server's disk".into(),
        }
    }

    /// A window that nobody needs: all of its node is at the server, and will be for ever.
    fn wasted(&self) -> Option<String> {
        let rows = self.server.disk.table.nodes.iter();
        let gone = rows.filter(|(_, row)| row.standing == Standing::Gone);
        let gone: BTreeMap<JournalId, NodeId> = gone.map(|(node, row)| (row.id, *node)).collect();
        let machines = self.machines.iter().enumerate();
        let mut windows = machines.flat_map(|(at, machine)| machine.windows().map(move |id| (at, id)));
        windows.find_map(|(at, id)| {
            let node = gone.get(&id).filter(|_| !self.untold.contains(&id))?;
            Some(format!("lender {at} has a window of node {node}, which is gone"))
        })
    }

    fn is_at_rest(&mut self) -> bool {
        if !self.unrest().is_empty() || self.wasted().is_some() {
            return false;
        }
        // Lazy nodes are at rest with less.
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

    fn check_at_rest(&mut self) {
        let disk = &self.server.disk;
        if disk.region != self.server.memory() {
            self.fail(Rule::Equal, "the disk's region is not the server's");
        }
        for truth in self.book.journals.values() {
            let its = |node: &NodeId| truth.node == Some(*node);
            let logged: Vec<&P> = disk
                .log
                .iter()
                .filter(|merged| its(&merged.node))
                .map(|merged| &merged.payload)
                .collect();
            let same = logged
                .iter()
                .zip(&truth.records)
                .all(|(one, other)| *one == other);
            let excused = truth.node.is_some_and(|node| self.book.excused.contains(&node));
            if !same || (!excused && (logged.len() as u64) < truth.acked.0) {
                let what = format!("{} acknowledged, {} in the order", truth.acked, logged.len());
                self.fail(Rule::Survives, &what);
            }
        }
        for ((node, number), fate) in &self.book.fates {
            let mut log = disk.log.iter();
            let there = log.any(|merged| (merged.node, merged.number) == (*node, *number));
            if there != (*fate == Fate::Committed) {
                let what = format!("record {number} of node {node} was {fate:?}: {there}");
                self.fail(Rule::Outcome, &what);
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

    /// The journals of all, merged in an order of chance.
    fn check_any_order(&mut self) {
        let mut lanes: BTreeMap<NodeId, Vec<(Number, P)>> = BTreeMap::new();
        for merged in &self.server.disk.log {
            let lane = lanes.entry(merged.node).or_default();
            lane.push((merged.number, merged.payload.clone()));
        }
        let mut merge = Merge::new([], lanes.keys().map(|node| (*node, Number(0))));
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
                    let queued = Queued {
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
            self.fail(Rule::AnyOrder, what);
        }
    }
}
