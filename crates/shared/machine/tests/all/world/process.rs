//! A node's process: what its machine says is done, and what its link brings.

use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::time::{Span, Time};
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::{Fate, Join, OldJournal, Reach};
use netram_shared_machine::node::{Deed, Full, Node, NodeConfig, Over, State, Waited};
use netram_shared_machine::server::{Closed, Session};
use netram_shared_machine::{Hold, LockId, NodeId, Number, Stamp, ToServer};

use super::bytes::{self, LOCKS, P, WORDS};
use super::journal::Journal;
use super::{Planted, Rule, World};

/// Where processes run one after another.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) process: Option<Process>,
    asleep_until: Time,
    /// A journal that a process before has left.
    pub(crate) left: Option<(NodeId, JournalId)>,
    /// Records of which nobody knows yet what became of them.
    pub(crate) unknown: Vec<(NodeId, Number)>,
}

impl Slot {
    pub(crate) fn awake(&mut self, now: Time) -> Option<&mut Process> {
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
pub(crate) enum Phase {
    Waiting,
    Ready,
    Committing(Number),
    Failed,
}

#[derive(Clone, Debug)]
pub(crate) struct Txn {
    pub(crate) id: TxnId,
    /// Locks that it still wants, one after another.
    pub(crate) wants: Vec<(LockId, Hold)>,
    pub(crate) phase: Phase,
}

pub(crate) struct Process {
    pub(crate) node: Node<P>,
    pub(crate) journal: JournalId,
    pub(crate) session: Option<Session>,
    /// Its link broke, and it has not noticed yet.
    pub(crate) unlinked_late: bool,
    pub(crate) region: Vec<u64>,
    /// The last record under each lock, with where the lock stands.
    pub(crate) last: Vec<Option<Stamp>>,
    pub(crate) txns: Vec<Txn>,
    /// What a pinned reader saw when it began, or accepted.
    pub(crate) pinned: Option<Vec<u64>>,
    pub(crate) offered: bool,
    pub(crate) told_few: bool,
    /// Of its journal, so far.
    pub(crate) views: u64,
}

impl World {
    /// Starts a process that joins.
    pub(crate) fn start_process(&mut self, slot: usize) {
        let id = JournalId(u128::from(self.dice.next()) << 8 | slot as u128);
        self.journals.insert(id, Journal::default());
        let join = Join {
            region: None,
            name: format!("process {slot}"),
            view: View::first(id),
            key: Vec::new(),
            begins: Journal::end(0),
            lazy: self.dice.percent(25),
            link: 0,
        };
        let full = if self.dice.percent(50) {
            Full::Expire
        } else {
            Full::FallBehind
        };
        let config = NodeConfig {
            join,
            pinned_bytes_max: 300,
            full,
        };
        let mut node = Node::new(config);
        node.set_reach(Reach::default());
        let process = Process {
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

    /// Kills it; its journal stays.
    pub(crate) fn kill_process(&mut self, slot: usize) {
        let Some(process) = self.slots[slot].process.take() else {
            return;
        };
        self.slots[slot].wake();
        let how = match self.dice.percent(50) {
            true => Closed::HungUp,
            false => Closed::Broken,
        };
        if let Some(session) = process.session {
            self.break_pipe(session, how);
        }
        self.bury(slot, &process);
    }

    fn bury(&mut self, slot: usize, process: &Process) {
        let Some(node) = process.node.id() else {
            return;
        };
        self.slots[slot].left = Some((node, process.journal));
        for txn in &process.txns {
            if let Phase::Committing(number) = txn.phase {
                self.slots[slot].unknown.push((node, number));
            }
        }
    }

    pub(crate) fn sleep_process(&mut self, slot: usize, time: Span) {
        let until = self.now + time;
        self.slots[slot].sleep(until);
    }

    pub(super) fn run_slot(&mut self, slot: usize) {
        let now = self.now;
        if !self.calm {
            self.endanger(slot);
        }
        if self.slots[slot].process.is_none() {
            if self.dice.percent(5) {
                self.start_process(slot);
            }
            return;
        }
        self.acknowledge(slot);
        if !self.calm
            && self.dice.below(10_000) < self.dangers.members_lost
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
        self.do_deeds(slot);
        self.deliver_down(slot);
        if let Some(process) = self.slots[slot].awake(now) {
            process.node.on_tick(now);
        }
        self.do_deeds(slot);
        if self.slots[slot].process.is_some() {
            self.run_program(slot);
        }
    }

    fn endanger(&mut self, slot: usize) {
        let danger = self.dice.below(10_000);
        let dangers = self.dangers;
        if danger < dangers.process_dies {
            self.kill_process(slot);
        }
        let danger = self.dice.below(10_000);
        if danger < dangers.process_sleeps {
            let time = Span::from_ms(20 + self.dice.below(250));
            self.sleep_process(slot, time);
        }
        let danger = self.dice.below(10_000);
        let process = self.slots[slot].process.as_ref();
        if let Some(session) = process.and_then(|process| process.session)
            && danger < dangers.link_breaks
        {
            self.break_pipe(session, Closed::Broken);
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

    /// Its journal's members change.
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
        self.do_deeds(slot);
    }

    /// The members take what the journal has, whether its process is awake or not.
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
        let (acked, few, now) = (Number(journal.acked as u64), journal.few, self.now);
        let Some(process) = self.slots[slot].awake(now) else {
            return;
        };
        if process.told_few != few {
            process.told_few = few;
            process.node.on_members(now, few);
        }
        process.on_acked(now, acked);
        self.do_deeds(slot);
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
            let Some(pipe) = self.pipes.get_mut(&session) else {
                return;
            };
            match pipe.down.pop_front_if(|(at, _)| *at <= now) {
                Some((_, message)) => process.node.handle(now, message),
                None if pipe.closed && pipe.down.is_empty() => {
                    self.break_pipe(session, Closed::Broken);
                    return;
                }
                None => return,
            }
            self.do_deeds(slot);
        }
    }

    pub(super) fn do_deeds(&mut self, slot: usize) {
        let mut reversed = Vec::new();
        while let Some(process) = &mut self.slots[slot].process {
            let Some(deed) = process.node.poll() else {
                break;
            };
            match deed {
                Deed::Apply {
                    node,
                    number,
                    payload,
                } if self.planted == Planted::WaitingReversed => {
                    reversed.push((node, number, payload));
                }
                deed => self.do_deed(slot, deed),
            }
        }
        for (node, number, payload) in reversed.into_iter().rev() {
            self.do_deed(
                slot,
                Deed::Apply {
                    node,
                    number,
                    payload,
                },
            );
        }
    }

    fn do_deed(&mut self, slot: usize, deed: Deed<P>) {
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        match deed {
            Deed::Send(message) => self.send_up(slot, message),
            Deed::Open(joined) => {
                process.region = vec![0; WORDS];
                process.last = vec![None; LOCKS as usize];
                self.book.known.insert(joined.node, process.journal);
            }
            Deed::Page { offset, bytes } => bytes::put_page(&mut process.region, offset, &bytes),
            Deed::Whole => (),
            Deed::Apply { payload, .. } => {
                if process.pinned.is_some() {
                    self.check_pinned(slot);
                }
                self.apply(slot, &payload);
            }
            Deed::Kept { number, end, view } => {
                self.check_view(slot, view);
                let Some(process) = &mut self.slots[slot].process else {
                    return;
                };
                assert_eq!(end, Journal::end(number.0 as usize));
                let id = process.journal;
                if let Some(journal) = self.journals.get_mut(&id) {
                    journal.acked = journal.acked.max(number.0 as usize);
                    journal.kept = journal.kept.max(number.0 as usize);
                }
                process.on_acked(self.now, number);
            }
            Deed::Waited(waited) => self.on_waited(slot, waited),
            Deed::Expired => process.pinned = None,
            Deed::Fate { node, number, fate } => self.on_fate(slot, node, number, fate),
            Deed::Wanted { node, from } => self.on_wanted(slot, node, from),
            Deed::Anew => {
                self.book.anew += 1;
                process.pinned = None;
                process.fail_open(self.now);
            }
            Deed::Straight(straight) => self.on_straight(slot, straight),
            Deed::Over(over) => self.on_over(slot, over),
        }
    }

    fn send_up(&mut self, slot: usize, message: ToServer<P>) {
        let at = self.delay();
        let mut sent = Vec::new();
        message.head(&mut sent);
        sent.extend_from_slice(message.payload().map_or(&[], |payload| payload));
        let message = ToServer::decode(&sent).expect("what a node says is a message");
        let session = self.slots[slot]
            .process
            .as_ref()
            .and_then(|process| process.session);
        if let Some(pipe) = session.and_then(|session| self.pipes.get_mut(&session)) {
            let after = pipe.up.back().map_or(at, |(before, _)| at.max(*before));
            pipe.up.push_back((after, message.map(P::from)));
        }
    }

    fn on_waited(&mut self, slot: usize, waited: Waited) {
        let now = self.now;
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let (id, held) = match waited {
            Waited::Held(id) => (id, true),
            Waited::Died(id, _) | Waited::TimedOut(id, _) | Waited::Lost(id) => (id, false),
        };
        let Some(txn) = process.txns.iter_mut().find(|txn| txn.id == id) else {
            return;
        };
        match held {
            true => {
                txn.phase = Phase::Ready;
                self.check_held(slot, id);
            }
            false => {
                txn.phase = Phase::Failed;
                process.end_failed(now);
            }
        }
    }

    fn on_fate(&mut self, slot: usize, node: NodeId, number: Number, fate: Fate) {
        self.check_fate(node, number, fate);
        if fate != Fate::Open {
            self.slots[slot].unknown.retain(|asked| *asked != (node, number));
        }
    }

    fn on_wanted(&mut self, slot: usize, node: NodeId, from: Option<Number>) {
        let Some((left, id)) = self.slots[slot].left.filter(|(left, _)| *left == node) else {
            return;
        };
        let Some(from) = from else {
            self.slots[slot].left = None;
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
            let number = Number(index as u64 + 1);
            if number >= from {
                process.node.give_old(left, number, payload);
            }
        }
    }

    fn on_over(&mut self, slot: usize, over: Over) {
        if over == Over::Astray {
            self.fail(
                Rule::Survives,
                &format!("slot {slot}: it has a record that does not count"),
            );
        }
        if let Over::Misled(misled) = over {
            self.fail(Rule::Applied, &format!("slot {slot}: {misled}"));
        }
        let Some(process) = self.slots[slot].process.take() else {
            return;
        };
        if let Some(session) = process.session {
            self.break_pipe(session, Closed::Broken);
        }
        if over == Over::Left {
            let open = process
                .txns
                .iter()
                .any(|txn| matches!(txn.phase, Phase::Committing(_)));
            assert!(!open, "who leaves has nothing on its way");
        } else {
            self.bury(slot, &process);
        }
    }

    /// Reads the journal that a process before has left, and offers it.
    pub(super) fn offer_left(&mut self, slot: usize) {
        let Some((node, id)) = self.slots[slot].left else {
            return;
        };
        let Some(journal) = self.journals.get_mut(&id) else {
            return;
        };
        journal.sealed = true;
        let last = Number(journal.records.len() as u64);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        process.offered = true;
        process.node.offer(OldJournal { node, journal: id }, last);
    }
}

impl Process {
    fn on_acked(&mut self, now: Time, acked: Number) {
        let appended = self.txns.iter().filter_map(|txn| match txn.phase {
            Phase::Committing(number) if number <= acked => Some((txn.id, number)),
            _ => None,
        });
        let done: Vec<(TxnId, Number)> = appended.collect();
        let Some(last) = done.iter().map(|(_, number)| *number).max() else {
            return;
        };
        self.node.on_acked(now, last);
        for (id, number) in done {
            self.node.end(now, id, Some(number));
            self.txns.retain(|txn| txn.id != id);
        }
    }

    /// Transactions that are not on their way to the members fail.
    fn fail_open(&mut self, now: Time) {
        for txn in &mut self.txns {
            if !matches!(txn.phase, Phase::Committing(_)) {
                txn.phase = Phase::Failed;
            }
        }
        self.end_failed(now);
    }

    pub(crate) fn end_failed(&mut self, now: Time) {
        for txn in self.txns.iter().filter(|txn| txn.phase == Phase::Failed) {
            self.node.end(now, txn.id, None);
        }
        self.txns.retain(|txn| txn.phase != Phase::Failed);
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.node.state() == State::Whole
    }
}
