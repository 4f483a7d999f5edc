//! A node's machine and the process on it: it performs the actions of the node's machine, and feeds it the
//! journal's reports.

use netram_proto::id::{JournalId, WriterId};
use netram_proto::journal::ServerAck;
use netram_proto::time::{Nanos, Time};
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::{JoinRequest, PeerEndpoint, RecordOutcome};
use netram_shared_machine::node::{
    NodeAction, NodeConfig, NodeEnd, NodePhase, PinnedOverflow, RegionNode, WaitOutcome,
};
use netram_shared_machine::server::SessionId;
use netram_shared_machine::{LockId, LockMode, NodeId, RecordNumber, Stamp};

use super::bytes::{self, LOCKS, PayloadBytes, WORDS};
use super::check::RegionRule;
use super::journal::RegionJournal;
use super::member_query::QueryOwner;
use super::orphans::{NEVER, RegionOrphan};
use super::{Clock, Event, World};
use crate::disk::SimDiskHandle;

/// Interval at which timers are checked.
const TICK: Nanos = Nanos::from_ms(5);

/// A machine on which processes run one after another.
pub(super) struct MachineSlot {
    pub(super) process: Option<RegionProcess>,
    pub(super) disk: SimDiskHandle,
    pub(super) clock: Clock,
    pub(super) paused_until: Time,
    /// Lag of its clock for the times the machine slept; used only with that fault planted.
    pub(super) clock_lag: Nanos,
    /// The machine and the server cannot reach each other until this time.
    pub(super) cut_off_until: Time,
    /// Journals that earlier processes left.
    pub(super) orphans: Vec<RegionOrphan>,
    /// Records whose outcome is not known here yet.
    pub(super) unknown_outcomes: Vec<(NodeId, RecordNumber)>,
}

impl MachineSlot {
    pub(super) fn new(disk: SimDiskHandle, clock: Clock) -> MachineSlot {
        MachineSlot {
            process: None,
            disk,
            clock,
            paused_until: Time(0),
            clock_lag: Nanos(0),
            cut_off_until: Time(0),
            orphans: Vec::new(),
            unknown_outcomes: Vec::new(),
        }
    }

    pub(super) fn alive(&mut self, life: u64) -> Option<&mut RegionProcess> {
        self.process.as_mut().filter(|process| process.life == life)
    }

    pub(super) fn conn(&self, index: usize) -> Option<usize> {
        self.process.as_ref()?.conns[index]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxnPhase {
    Waiting,
    Ready,
    Committing(RecordNumber),
    Failed,
}

#[derive(Clone, Debug)]
pub(super) struct ProgramTxn {
    pub(super) id: TxnId,
    /// Locks that the transaction still wants, the next one last.
    pub(super) wants: Vec<(LockId, LockMode)>,
    pub(super) phase: TxnPhase,
    /// Time until which it waits, by its machine's clock.
    pub(super) deadline: Time,
    /// Whether its wait must succeed.
    pub(super) must_succeed: bool,
}

pub(super) struct RegionProcess {
    pub(super) life: u64,
    pub(super) node: RegionNode<PayloadBytes>,
    pub(super) journal: RegionJournal,
    pub(super) session: Option<SessionId>,
    pub(super) conns: Vec<Option<usize>>,
    pub(super) region: Vec<u64>,
    /// Stamp of the last record under each lock.
    pub(super) last: Vec<Option<Stamp>>,
    pub(super) txns: Vec<ProgramTxn>,
    /// Memory that a pinned reader saw when it began, or accepted since.
    pub(super) pinned: Option<Vec<u64>>,
    /// Whether the process has stood still.
    pub(super) was_paused: bool,
    /// The acknowledged record, as its machine was told.
    acked: RecordNumber,
}

impl RegionProcess {
    pub(super) fn is_whole(&self) -> bool {
        self.node.state() == NodePhase::Whole
    }

    pub(super) fn end_failed(&mut self, now: Time) {
        for txn in self.txns.iter().filter(|txn| txn.phase == TxnPhase::Failed) {
            self.node.end(now, txn.id, None);
        }
        self.txns.retain(|txn| txn.phase != TxnPhase::Failed);
    }

    /// Fails the transactions that are not on their way to the members.
    fn fail_open(&mut self, now: Time) {
        for txn in &mut self.txns {
            if !matches!(txn.phase, TxnPhase::Committing(_)) {
                txn.phase = TxnPhase::Failed;
            }
        }
        self.end_failed(now);
    }

    /// Applies a record to the memory, its own or another node's.
    pub(super) fn change(&mut self, stamp: &Stamp, payload: &PayloadBytes) {
        bytes::apply(payload, &mut self.region);
        for (lock, _) in &stamp.written {
            self.last[lock.0 as usize] = Some(stamp.clone());
        }
    }
}

impl World {
    /// Starts a process that joins with a new journal.
    pub(super) fn start_process(&mut self, slot: usize) {
        if self.slots[slot].process.is_some() {
            return;
        }
        self.lives += 1;
        let life = self.lives;
        let id = JournalId(u128::from(self.rng.draw()));
        let who = WriterId(self.rng.draw());
        let disk = self.slots[slot].disk.clone();
        disk.borrow_mut().revive();
        let journal = RegionJournal::create(&disk, id, who, &self.profile, slot, self.planted);
        let config = NodeConfig {
            join: JoinRequest {
                region: None,
                name: format!("slot {slot}"),
                view: journal.view.clone(),
                key: Vec::new(),
                begins: journal.start,
                lazy: self.rng.chance(300),
                link: 0,
            },
            pinned_bytes_max: self.profile.pinned_bytes_max,
            full: if self.rng.chance(500) {
                PinnedOverflow::Expire
            } else {
                PinnedOverflow::FallBehind
            },
        };
        self.history.begin(id);
        let mut node = RegionNode::new(config);
        node.plant(self.planted);
        if self.profile.hints_permille > 0 {
            node.set_reach(PeerEndpoint::default());
        }
        self.slots[slot].process = Some(RegionProcess {
            life,
            node,
            journal,
            session: None,
            conns: vec![None; self.profile.lenders],
            region: vec![0; WORDS],
            last: vec![None; LOCKS as usize],
            txns: Vec::new(),
            pinned: None,
            was_paused: false,
            acked: RecordNumber(0),
        });
        self.tell(|| format!("slot {slot} starts life {life}"));
        self.at(Nanos(1), Event::Tick { slot, life });
        self.at(Nanos(2), Event::Program { slot, life });
    }

    /// Kills its process; with `power_cut`, its machine.
    pub(super) fn kill_process(&mut self, slot: usize, power_cut: bool) {
        self.slots[slot].paused_until = Time(0);
        if let Some(process) = self.slots[slot].process.take() {
            self.tell(|| format!("slot {slot} dies, node {:?}", process.node.id()));
            let told = !power_cut && self.rng.chance(500);
            self.reap(slot, process, told);
        }
        if power_cut {
            self.slots[slot].disk.borrow_mut().power_cut();
        }
    }

    /// Handles the end of a process. Its journal stays, and the outcome of its transactions is unknown.
    fn reap(&mut self, slot: usize, process: RegionProcess, told: bool) {
        for conn in process.conns.iter().flatten() {
            self.close_conn(*conn);
        }
        let life = process.life;
        self.stop_queries(|whose| whose == QueryOwner::Orphan { slot, life });
        for left in &mut self.slots[slot].orphans {
            left.interrupt();
        }
        if let Some(session) = process.session {
            self.drop_node_link(session, told);
        }
        if let Some(node) = process.node.id() {
            for txn in &process.txns {
                if let TxnPhase::Committing(number) = txn.phase {
                    self.slots[slot].unknown_outcomes.push((node, number));
                }
            }
            self.slots[slot]
                .orphans
                .push(RegionOrphan::from_journal(node, &process.journal));
        } else {
            // The node never heard that it had joined, so it cannot ask whether the server needs the members,
            // and tells them nothing.
            self.pending_forgets.insert(process.journal.id);
        }
        let ms = self.rng.pick(&[1, 20, 100, 400]);
        self.after_ms(ms, Event::SlotUp { slot });
    }

    pub(super) fn on_tick(&mut self, slot: usize, life: u64) {
        let now = self.local(slot);
        let Some(process) = self.slots[slot].alive(life) else {
            return;
        };
        process.node.on_tick(now);
        process.journal.writer.on_tick(now);
        let silent = process.node.is_link_silent();
        if silent {
            self.give_up_link(slot);
        }
        let unlinked = self.slots[slot]
            .process
            .as_ref()
            .is_some_and(|process| process.session.is_none());
        if unlinked && self.rng.chance(300) {
            self.connect_node(slot);
        }
        self.tell_members(slot);
        self.settle(slot);
        self.check_waits(slot);
        self.at(TICK, Event::Tick { slot, life });
    }

    /// Passes the journal's messages for the server to the node's machine.
    fn tell_members(&mut self, slot: usize) {
        let now = self.local(slot);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let (node, journal) = (&mut process.node, &mut process.journal);
        let view_waits = journal.writer.view_for_server().is_some();
        let few = !journal.writer.counting() || view_waits;
        if few != journal.few_members {
            journal.few_members = few;
            node.on_members(now, few);
        }
        if view_waits && journal.view.version > journal.told_view {
            journal.told_view = journal.view.version;
            node.on_view(journal.view.clone());
        }
    }

    /// Begins everything that follows from an event.
    pub(super) fn settle(&mut self, slot: usize) {
        if self.slots[slot].paused_until > self.now {
            return;
        }
        loop {
            self.run_actions(slot);
            if !self.take_acks(slot) {
                break;
            }
        }
        self.run_disk(slot);
        self.pump(slot);
        self.check_memory(slot);
    }

    /// Reports the members' acknowledgements to the node's machine and to waiting transactions.
    fn take_acks(&mut self, slot: usize) -> bool {
        let now = self.local(slot);
        let Some(process) = &mut self.slots[slot].process else {
            return false;
        };
        let acked = process.journal.acked();
        if acked <= process.acked {
            return false;
        }
        let journal = process.journal.id;
        self.check_acked(slot, journal, acked);
        let Some(process) = &mut self.slots[slot].process else {
            return false;
        };
        process.acked = acked;
        process.node.on_acked(now, acked);
        let done = process.txns.iter().filter_map(|txn| match txn.phase {
            TxnPhase::Committing(number) if number <= acked => Some((txn.id, number)),
            _ => None,
        });
        let done: Vec<(TxnId, RecordNumber)> = done.collect();
        for (id, number) in done {
            process.node.end(now, id, Some(number));
            process.txns.retain(|txn| txn.id != id);
        }
        true
    }

    pub(super) fn run_actions(&mut self, slot: usize) {
        while let Some(process) = &mut self.slots[slot].process
            && let Some(action) = process.node.poll()
        {
            self.run_action(slot, action);
        }
    }

    fn run_action(&mut self, slot: usize, action: NodeAction<PayloadBytes>) {
        let now = self.local(slot);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        match action {
            NodeAction::Send(message) => self.send_up(slot, &message),
            NodeAction::Peer(straight) => self.on_peer_action(slot, straight),
            NodeAction::Open(joined) => {
                process.region = vec![0; WORDS];
                process.last = vec![None; LOCKS as usize];
                let (end, version) = (process.journal.start, process.journal.first_view);
                let said = ServerAck { end, version };
                process.journal.writer.on_server_ack(said, now);
                self.history.assign_node(process.journal.id, joined.node);
                self.coverage.hit("region: joinings");
            }
            NodeAction::Page { offset, bytes } => bytes::put_page(&mut process.region, offset, &bytes),
            NodeAction::Whole => self.tell(|| format!("slot {slot} has the region")),
            NodeAction::Apply { payload, .. } => {
                self.check_pinned(slot);
                self.apply(slot, &payload);
            }
            NodeAction::Durable { number, end, view } => {
                self.check_server_ack(slot, number, end, view);
                let Some(process) = &mut self.slots[slot].process else {
                    return;
                };
                process.journal.server_ack = process.journal.server_ack.max(number);
                let said = ServerAck { end, version: view };
                process.journal.writer.on_server_ack(said, now);
            }
            NodeAction::WaitEnded(waited) => self.on_wait_outcome(slot, waited),
            NodeAction::Expired => {
                process.pinned = None;
                self.coverage.hit("region: readers that expired");
            }
            NodeAction::Outcome { node, number, fate } => self.on_outcome(slot, node, number, fate),
            NodeAction::OrphanWanted { node, from } => self.on_wanted(slot, node, from),
            NodeAction::Rejoin => {
                process.pinned = None;
                process.fail_open(now);
                self.coverage.hit("region: nodes that began anew");
            }
            NodeAction::Ended(over) => self.on_node_end(slot, over),
        }
    }

    fn on_wait_outcome(&mut self, slot: usize, waited: WaitOutcome) {
        let now = self.local(slot);
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
        txn.phase = if held { TxnPhase::Ready } else { TxnPhase::Failed };
        let in_vain = txn.must_succeed && matches!(waited, WaitOutcome::TimedOut(..));
        if held {
            return self.check_locks_held(slot, id);
        }
        if in_vain {
            let what = format!("slot {slot}: no node gets the lock that a dead node held");
            self.fail(RegionRule::Ends, &what);
        }
        process.end_failed(now);
        self.coverage.hit(match waited {
            WaitOutcome::Died(..) => "region: transactions that died of a lock",
            WaitOutcome::TimedOut(..) => "region: transactions that waited in vain",
            _ => "region: transactions that lost their node",
        });
    }

    fn on_outcome(&mut self, slot: usize, node: NodeId, number: RecordNumber, fate: RecordOutcome) {
        self.check_outcome(node, number, fate);
        if number == NEVER && fate == RecordOutcome::Aborted {
            self.orphan_is_over(slot, node);
        }
        if fate != RecordOutcome::Open {
            self.slots[slot]
                .unknown_outcomes
                .retain(|asked| *asked != (node, number));
        }
    }

    fn on_node_end(&mut self, slot: usize, over: NodeEnd) {
        if over == NodeEnd::Diverged && self.history.excused.is_empty() {
            let what = format!("slot {slot}: it has a record that does not count");
            self.fail(RegionRule::Survives, &what);
        }
        if let NodeEnd::Violation(misled) = over {
            self.fail(RegionRule::Applied, &format!("slot {slot}: {misled}"));
        }
        let Some(process) = self.slots[slot].process.take() else {
            return;
        };
        self.tell(|| format!("slot {slot}, node {:?}: {over}", process.node.id()));
        if over == NodeEnd::Fenced && process.was_paused {
            self.coverage.hit("region: nodes that slept, and woke up fenced");
        }
        self.coverage.hit(match over {
            NodeEnd::Left => "region: nodes that left",
            _ => "region: nodes that were told that they are fenced",
        });
        let open = process
            .txns
            .iter()
            .any(|txn| matches!(txn.phase, TxnPhase::Committing(_)));
        if over == NodeEnd::Left && open {
            self.fail(RegionRule::Ends, "a node has left with a commit on its way");
        }
        self.reap(slot, process, false);
        if over == NodeEnd::Left {
            // The server has all of it and forgets it: there is nothing to offer.
            self.slots[slot].orphans.pop();
        }
    }
}
