//! A node's process: it carries out its machine's actions, and receives from its link.

use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::time::{Nanos, Time};
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::{JoinRequest, OrphanJournalId, PeerEndpoint, RecordOutcome};
use netram_shared_machine::node::{
    NodeAction, NodeConfig, NodeEnd, NodePhase, PinnedOverflow, RegionNode, WaitOutcome,
};
use netram_shared_machine::server::{LinkEnd, SessionId};
use netram_shared_machine::{LockId, LockMode, NodeId, RecordNumber, Stamp, ToServer};

use super::bytes::{self, LOCKS, PayloadBytes, WORDS};
use super::journal::NodeRecords;
use super::{RegionRule, World, WorldBug};

/// A place where processes run one after another.
#[derive(Default)]
pub(crate) struct MachineSlot {
    pub(crate) process: Option<NodeProcess>,
    asleep_until: Time,
    /// Journal left by an earlier process.
    pub(crate) orphan: Option<(NodeId, JournalId)>,
    /// Records whose outcome is not known yet.
    pub(crate) unknown: Vec<(NodeId, RecordNumber)>,
}

impl MachineSlot {
    pub(crate) fn awake(&mut self, now: Time) -> Option<&mut NodeProcess> {
        self.process.as_mut().filter(|_| self.asleep_until <= now)
    }

    pub(crate) fn sleep(&mut self, until: Time) {
        self.asleep_until = until;
    }

    pub(crate) fn wake(&mut self) {
        self.asleep_until = Time(0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxnPhase {
    Waiting,
    Ready,
    Committing(RecordNumber),
    Failed,
}

#[derive(Clone, Debug)]
pub(crate) struct ProgramTxn {
    pub(crate) id: TxnId,
    /// Locks still wanted, in order.
    pub(crate) wants: Vec<(LockId, LockMode)>,
    pub(crate) phase: TxnPhase,
}

pub(crate) struct NodeProcess {
    pub(crate) node: RegionNode<PayloadBytes>,
    pub(crate) journal: JournalId,
    pub(crate) session: Option<SessionId>,
    /// Whether its link broke and it has not noticed yet.
    pub(crate) unlinked_late: bool,
    pub(crate) region: Vec<u64>,
    /// Last record under each lock, from which the lock's version follows.
    pub(crate) last: Vec<Option<Stamp>>,
    pub(crate) txns: Vec<ProgramTxn>,
    /// View of a pinned reader when it began or accepted.
    pub(crate) pinned: Option<Vec<u64>>,
    pub(crate) offered: bool,
    pub(crate) told_few: bool,
    /// Number of views of its journal so far.
    pub(crate) views: u64,
}

impl World {
    /// Starts a process that joins.
    pub(crate) fn start_process(&mut self, slot: usize) {
        let id = JournalId(u128::from(self.dice.next()) << 8 | slot as u128);
        self.journals.insert(id, NodeRecords::default());
        let join = JoinRequest {
            region: None,
            name: format!("process {slot}"),
            view: View::first(id),
            key: Vec::new(),
            begins: NodeRecords::end(0),
            lazy: self.dice.percent(25),
            link: 0,
        };
        let full = if self.dice.percent(50) {
            PinnedOverflow::Expire
        } else {
            PinnedOverflow::FallBehind
        };
        let config = NodeConfig {
            join,
            pinned_bytes_max: 300,
            full,
        };
        let mut node = RegionNode::new(config);
        node.set_reach(PeerEndpoint::default());
        let process = NodeProcess {
            node,
            journal: id,
            session: None,
            unlinked_late: false,
            region: vec![0; WORDS],
            last: vec![None; LOCKS as usize],
            txns: Vec::new(),
            pinned: None,
            offered: false,
            told_few: false,
            views: 1,
        };
        self.slots[slot].process = Some(process);
    }

    /// Kills the process; its journal stays.
    pub(crate) fn kill_process(&mut self, slot: usize) {
        let Some(process) = self.slots[slot].process.take() else {
            return;
        };
        self.slots[slot].wake();
        let how = match self.dice.percent(50) {
            true => LinkEnd::HungUp,
            false => LinkEnd::Broken,
        };
        if let Some(session) = process.session {
            self.break_link(session, how);
        }
        self.reap(slot, &process);
    }

    fn reap(&mut self, slot: usize, process: &NodeProcess) {
        let Some(node) = process.node.id() else {
            return;
        };
        self.slots[slot].orphan = Some((node, process.journal));
        for txn in &process.txns {
            if let TxnPhase::Committing(number) = txn.phase {
                self.slots[slot].unknown.push((node, number));
            }
        }
    }

    pub(crate) fn sleep_process(&mut self, slot: usize, time: Nanos) {
        let until = self.now + time;
        self.slots[slot].sleep(until);
    }

    pub(super) fn run_slot(&mut self, slot: usize) {
        let now = self.now;
        if !self.quiescing {
            self.draw_faults(slot);
        }
        if self.slots[slot].process.is_none() {
            if self.dice.percent(5) {
                self.start_process(slot);
            }
            return;
        }
        self.acknowledge(slot);
        if !self.quiescing
            && self.dice.below(10_000) < self.fault_rates.members_lost
            && self.slots[slot].awake(now).is_some()
        {
            self.change_view(slot);
        }
        let Some(process) = self.slots[slot].awake(now) else {
            return;
        };
        if process.unlinked_late {
            process.unlinked_late = false;
            process.node.on_unlinked();
        }
        if process.session.is_none() && self.dice.percent(20) && !self.host().is_down() {
            let session = self.connect(slot);
            if let Some(process) = &mut self.slots[slot].process {
                process.session = Some(session);
                process.node.on_linked();
            }
        }
        self.run_actions(slot);
        self.deliver_down(slot);
        if let Some(process) = self.slots[slot].awake(now) {
            process.node.on_tick(now);
        }
        self.run_actions(slot);
        if self.slots[slot].process.is_some() {
            self.run_program(slot);
        }
    }

    fn draw_faults(&mut self, slot: usize) {
        let danger = self.dice.below(10_000);
        let dangers = self.fault_rates;
        if danger < dangers.process_dies {
            self.kill_process(slot);
        }
        let danger = self.dice.below(10_000);
        if danger < dangers.process_sleeps {
            let time = Nanos::from_ms(20 + self.dice.below(250));
            self.sleep_process(slot, time);
        }
        let danger = self.dice.below(10_000);
        let process = self.slots[slot].process.as_ref();
        if let Some(session) = process.and_then(|process| process.session)
            && danger < dangers.link_breaks
        {
            self.break_link(session, LinkEnd::Broken);
        }
        let danger = self.dice.below(10_000);
        let id = self.slots[slot].process.as_ref().map(|process| process.journal);
        if let Some(journal) = id.and_then(|id| self.journals.get_mut(&id))
            && danger < dangers.members_lost
        {
            match self.dice.below(3) {
                0 => journal.unreachable = !journal.unreachable,
                _ => journal.few = !journal.few,
            }
        }
    }

    /// Changes the members of its journal.
    fn change_view(&mut self, slot: usize) {
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        process.views += 1;
        let view = View {
            version: process.views,
            ..View::first(process.journal)
        };
        process.node.on_view(view);
        self.run_actions(slot);
    }

    /// Lets the members acknowledge the journal's records, whether its process is awake or not.
    pub(super) fn acknowledge(&mut self, slot: usize) {
        let moves = self.dice.percent(60);
        let Some(process) = &self.slots[slot].process else {
            return;
        };
        let Some(journal) = self.journals.get_mut(&process.journal) else {
            return;
        };
        let takes = moves && !journal.sealed && !journal.unreachable && !journal.few && !journal.slow;
        if takes && journal.acked < journal.records.len() {
            journal.acked += 1;
        }
        let (acked, few, now) = (RecordNumber(journal.acked as u64), journal.few, self.now);
        let Some(process) = self.slots[slot].awake(now) else {
            return;
        };
        if process.told_few != few {
            process.told_few = few;
            process.node.on_members(now, few);
        }
        process.on_acked(now, acked);
        self.run_actions(slot);
    }

    fn deliver_down(&mut self, slot: usize) {
        for _ in 0..3 {
            let now = self.now;
            let Some(process) = self.slots[slot].awake(now) else {
                return;
            };
            let Some(session) = process.session else {
                return;
            };
            let Some(pipe) = self.links.get_mut(&session) else {
                return;
            };
            match pipe.down.pop_front_if(|(at, _)| *at <= now) {
                Some((_, message)) => process.node.handle(now, message),
                None if pipe.closed && pipe.down.is_empty() => {
                    self.break_link(session, LinkEnd::Broken);
                    return;
                }
                None => return,
            }
            self.run_actions(slot);
        }
    }

    pub(super) fn run_actions(&mut self, slot: usize) {
        let mut reversed = Vec::new();
        while let Some(process) = &mut self.slots[slot].process {
            let Some(deed) = process.node.poll() else {
                break;
            };
            match deed {
                NodeAction::Apply {
                    node,
                    number,
                    payload,
                } if self.planted == WorldBug::WaitingReversed => {
                    reversed.push((node, number, payload));
                }
                deed => self.run_action(slot, deed),
            }
        }
        for (node, number, payload) in reversed.into_iter().rev() {
            self.run_action(
                slot,
                NodeAction::Apply {
                    node,
                    number,
                    payload,
                },
            );
        }
    }

    fn run_action(&mut self, slot: usize, deed: NodeAction<PayloadBytes>) {
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        match deed {
            NodeAction::Send(message) => self.send_up(slot, message),
            NodeAction::Open(joined) => {
                process.region = vec![0; WORDS];
                process.last = vec![None; LOCKS as usize];
                self.history.known.insert(joined.node, process.journal);
            }
            NodeAction::Page { offset, bytes } => bytes::put_page(&mut process.region, offset, &bytes),
            NodeAction::Whole => (),
            NodeAction::Apply { payload, .. } => {
                if process.pinned.is_some() {
                    self.check_pinned(slot);
                }
                self.apply(slot, &payload);
            }
            NodeAction::Durable { number, end, view } => {
                self.check_view(slot, view);
                let Some(process) = &mut self.slots[slot].process else {
                    return;
                };
                assert_eq!(end, NodeRecords::end(number.0 as usize));
                let id = process.journal;
                if let Some(journal) = self.journals.get_mut(&id) {
                    journal.acked = journal.acked.max(number.0 as usize);
                    journal.kept = journal.kept.max(number.0 as usize);
                }
                process.on_acked(self.now, number);
            }
            NodeAction::WaitEnded(waited) => self.on_wait_outcome(slot, waited),
            NodeAction::Expired => process.pinned = None,
            NodeAction::Outcome { node, number, fate } => self.on_outcome(slot, node, number, fate),
            NodeAction::OrphanWanted { node, from } => self.on_wanted(slot, node, from),
            NodeAction::Rejoin => {
                self.history.rejoined += 1;
                process.pinned = None;
                process.fail_open(self.now);
            }
            NodeAction::Peer(straight) => self.on_peer_action(slot, straight),
            NodeAction::Ended(over) => self.on_node_end(slot, over),
        }
    }

    fn send_up(&mut self, slot: usize, message: ToServer<PayloadBytes>) {
        let at = self.delay();
        let mut sent = Vec::new();
        message.head(&mut sent);
        sent.extend_from_slice(message.payload().map_or(&[], |payload| payload));
        let message = ToServer::decode(&sent).expect("what a node says is a message");
        let session = self.slots[slot]
            .process
            .as_ref()
            .and_then(|process| process.session);
        if let Some(pipe) = session.and_then(|session| self.links.get_mut(&session)) {
            let after = pipe.up.back().map_or(at, |(before, _)| at.max(*before));
            pipe.up.push_back((after, message.map(PayloadBytes::from)));
        }
    }

    fn on_wait_outcome(&mut self, slot: usize, waited: WaitOutcome) {
        let now = self.now;
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let (id, held) = match waited {
            WaitOutcome::Acquired(id) => (id, true),
            WaitOutcome::Died(id, _) | WaitOutcome::TimedOut(id, _) | WaitOutcome::Lost(id) => (id, false),
        };
        let Some(txn) = process.txns.iter_mut().find(|txn| txn.id == id) else {
            return;
        };
        match held {
            true => {
                txn.phase = TxnPhase::Ready;
                self.check_locks_held(slot, id);
            }
            false => {
                txn.phase = TxnPhase::Failed;
                process.end_failed(now);
            }
        }
    }

    fn on_outcome(&mut self, slot: usize, node: NodeId, number: RecordNumber, fate: RecordOutcome) {
        self.check_outcome(node, number, fate);
        if fate != RecordOutcome::Open {
            self.slots[slot].unknown.retain(|asked| *asked != (node, number));
        }
    }

    fn on_wanted(&mut self, slot: usize, node: NodeId, from: Option<RecordNumber>) {
        let Some((left, id)) = self.slots[slot].orphan.filter(|(left, _)| *left == node) else {
            return;
        };
        let Some(from) = from else {
            self.slots[slot].orphan = None;
            return;
        };
        let journal = self.journals.get(&id);
        let (records, kept) = journal
            .map(|journal| (journal.records.clone(), journal.kept))
            .unwrap_or_default();
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        for (index, payload) in records.into_iter().enumerate().skip(kept) {
            let number = RecordNumber(index as u64 + 1);
            if number >= from {
                process.node.send_orphan_record(left, number, payload);
            }
        }
    }

    fn on_node_end(&mut self, slot: usize, over: NodeEnd) {
        if over == NodeEnd::Diverged {
            self.fail(
                RegionRule::Survives,
                &format!("slot {slot}: it has a record that does not count"),
            );
        }
        if let NodeEnd::Violation(misled) = over {
            self.fail(RegionRule::Applied, &format!("slot {slot}: {misled}"));
        }
        let Some(process) = self.slots[slot].process.take() else {
            return;
        };
        if let Some(session) = process.session {
            self.break_link(session, LinkEnd::Broken);
        }
        if over == NodeEnd::Left {
            let open = process
                .txns
                .iter()
                .any(|txn| matches!(txn.phase, TxnPhase::Committing(_)));
            assert!(!open, "who leaves has nothing on its way");
        } else {
            self.reap(slot, &process);
        }
    }

    /// Reads an earlier process's journal and offers it.
    pub(super) fn offer_orphan(&mut self, slot: usize) {
        let Some((node, id)) = self.slots[slot].orphan else {
            return;
        };
        let Some(journal) = self.journals.get_mut(&id) else {
            return;
        };
        journal.sealed = true;
        let last = RecordNumber(journal.records.len() as u64);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        process.offered = true;
        process
            .node
            .offer_orphan(OrphanJournalId { node, journal: id }, last);
    }
}

impl NodeProcess {
    fn on_acked(&mut self, now: Time, acked: RecordNumber) {
        let appended = self.txns.iter().filter_map(|txn| match txn.phase {
            TxnPhase::Committing(number) if number <= acked => Some((txn.id, number)),
            _ => None,
        });
        let done: Vec<(TxnId, RecordNumber)> = appended.collect();
        let Some(last) = done.iter().map(|(_, number)| *number).max() else {
            return;
        };
        self.node.on_acked(now, last);
        for (id, number) in done {
            self.node.end(now, id, Some(number));
            self.txns.retain(|txn| txn.id != id);
        }
    }

    /// Fails transactions whose record is not on its way to the members.
    fn fail_open(&mut self, now: Time) {
        for txn in &mut self.txns {
            if !matches!(txn.phase, TxnPhase::Committing(_)) {
                txn.phase = TxnPhase::Failed;
            }
        }
        self.end_failed(now);
    }

    pub(crate) fn end_failed(&mut self, now: Time) {
        for txn in self.txns.iter().filter(|txn| txn.phase == TxnPhase::Failed) {
            self.node.end(now, txn.id, None);
        }
        self.txns.retain(|txn| txn.phase != TxnPhase::Failed);
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.node.state() == NodePhase::Whole
    }
}
