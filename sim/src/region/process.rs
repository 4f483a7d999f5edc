//! A node's machine, and the process that runs on it: what the node's machine says is done, what its journal says it is told.

use netram_proto::id::{JournalId, WriterId};
use netram_proto::journal::ServerKept;
use netram_proto::time::{Span, Time};
use netram_shared_machine::lock::TxnId;
use netram_shared_machine::message::{Fate, Join, Reach};
use netram_shared_machine::node::{Deed, Full, Node, NodeConfig, Over, State, Waited};
use netram_shared_machine::server::Session;
use netram_shared_machine::{Hold, LockId, NodeId, Number, Stamp};

use super::asker::Whose;
use super::bytes::{self, LOCKS, P, WORDS};
use super::check::Rule;
use super::journal::Journal;
use super::left::{Left, NEVER};
use super::{Clock, Event, World};
use crate::disk::SharedDisk;

/// Timers are looked at this often.
const TICK: Span = Span::from_ms(5);

/// A machine on which processes run one after another.
pub(super) struct Slot {
    pub(super) process: Option<Process>,
    pub(super) disk: SharedDisk,
    pub(super) clock: Clock,
    pub(super) paused_until: Time,
    /// How far its clock is behind, for the times in which the machine slept: only where that fault is planted.
    pub(super) behind: Span,
    /// It and the server cannot reach each other.
    pub(super) cut_off_until: Time,
    /// Journals that processes before have left.
    pub(super) left: Vec<Left>,
    /// Records of which nobody here knows yet what became of them.
    pub(super) unknown: Vec<(NodeId, Number)>,
}

impl Slot {
    pub(super) fn new(disk: SharedDisk, clock: Clock) -> Slot {
        Slot {
            process: None,
            disk,
            clock,
            paused_until: Time(0),
            behind: Span(0),
            cut_off_until: Time(0),
            left: Vec::new(),
            unknown: Vec::new(),
        }
    }

    pub(super) fn alive(&mut self, life: u64) -> Option<&mut Process> {
        self.process.as_mut().filter(|process| process.life == life)
    }

    pub(super) fn conn(&self, index: usize) -> Option<usize> {
        self.process.as_ref()?.conns[index]
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Ready,
    Committing(Number),
    Failed,
}

#[derive(Clone, Debug)]
pub(super) struct Txn {
    pub(super) id: TxnId,
    /// Locks that it still wants, the next one last.
    pub(super) wants: Vec<(LockId, Hold)>,
    pub(super) phase: Phase,
    /// Until when it waits, by its machine's clock.
    pub(super) deadline: Time,
    /// It must not wait in vain.
    pub(super) must: bool,
}

pub(super) struct Process {
    pub(super) life: u64,
    pub(super) node: Node<P>,
    pub(super) journal: Journal,
    pub(super) session: Option<Session>,
    pub(super) conns: Vec<Option<usize>>,
    pub(super) region: Vec<u64>,
    /// The last record under each lock.
    pub(super) last: Vec<Option<Stamp>>,
    pub(super) txns: Vec<Txn>,
    /// What a pinned reader saw when it began, or accepted.
    pub(super) pinned: Option<Vec<u64>>,
    /// It has stood still.
    pub(super) slept: bool,
    /// Acknowledged, as its machine was told.
    acked: Number,
}

impl Process {
    pub(super) fn is_whole(&self) -> bool {
        self.node.state() == State::Whole
    }

    pub(super) fn end_failed(&mut self, now: Time) {
        for txn in self.txns.iter().filter(|txn| txn.phase == Phase::Failed) {
            self.node.end(now, txn.id, None);
        }
        self.txns.retain(|txn| txn.phase != Phase::Failed);
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

    /// The memory takes a record, its own or another's.
    pub(super) fn change(&mut self, stamp: &Stamp, payload: &P) {
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
        let journal = Journal::create(&disk, id, who, &self.nature, slot, self.planted);
        let config = NodeConfig {
            join: Join {
                region: None,
                name: format!("slot {slot}"),
                view: journal.view.clone(),
                key: Vec::new(),
                begins: journal.begins,
                lazy: self.rng.chance(300),
                link: 0,
            },
            pinned_bytes_max: self.nature.pinned_bytes_max,
            full: if self.rng.chance(500) {
                Full::Expire
            } else {
                Full::FallBehind
            },
        };
        self.book.begin(id);
        let mut node = Node::new(config);
        node.plant(self.planted);
        if self.nature.hints_permille > 0 {
            node.set_reach(Reach::default());
        }
        self.slots[slot].process = Some(Process {
            life,
            node,
            journal,
            session: None,
            conns: vec![None; self.nature.lenders],
            region: vec![0; WORDS],
            last: vec![None; LOCKS as usize],
            txns: Vec::new(),
            pinned: None,
            slept: false,
            acked: Number(0),
        });
        self.tell(|| format!("slot {slot} starts life {life}"));
        self.at(Span(1), Event::Tick { slot, life });
        self.at(Span(2), Event::Program { slot, life });
    }

    /// Its process dies; with `power_cut`, its machine.
    pub(super) fn kill_process(&mut self, slot: usize, power_cut: bool) {
        self.slots[slot].paused_until = Time(0);
        if let Some(process) = self.slots[slot].process.take() {
            self.tell(|| format!("slot {slot} dies, node {:?}", process.node.id()));
            let told = !power_cut && self.rng.chance(500);
            self.bury(slot, process, told);
        }
        if power_cut {
            self.slots[slot].disk.borrow_mut().power_cut();
        }
    }

    /// A process has ended. Its journal stays, and what it was doing is unknown.
    fn bury(&mut self, slot: usize, process: Process, told: bool) {
        for conn in process.conns.iter().flatten() {
            self.close_conn(*conn);
        }
        let life = process.life;
        self.stop_asking(|whose| whose == Whose::Left { slot, life });
        for left in &mut self.slots[slot].left {
            left.interrupt();
        }
        if let Some(session) = process.session {
            self.drop_pipe(session, told);
        }
        if let Some(node) = process.node.id() {
            for txn in &process.txns {
                if let Phase::Committing(number) = txn.phase {
                    self.slots[slot].unknown.push((node, number));
                }
            }
            self.slots[slot].left.push(Left::of(node, &process.journal));
        } else {
            // It never heard that it had joined, so it cannot ask whether the server needs the members: it tells them nothing.
            self.untold.insert(process.journal.id);
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
        let silent = process.node.link_is_silent();
        if silent {
            self.give_up_link(slot);
        }
        let unlinked = self.slots[slot]
            .process
            .as_ref()
            .is_some_and(|process| process.session.is_none());
        if unlinked && self.rng.chance(300) {
            self.try_link(slot);
        }
        self.tell_members(slot);
        self.settle(slot);
        self.check_waits(slot);
        self.at(TICK, Event::Tick { slot, life });
    }

    /// Tells the node's machine what its journal has to say to the server.
    fn tell_members(&mut self, slot: usize) {
        let now = self.local(slot);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let (node, journal) = (&mut process.node, &mut process.journal);
        let view_waits = journal.writer.view_for_server().is_some();
        let few = !journal.writer.counting() || view_waits;
        if few != journal.few {
            journal.few = few;
            node.on_members(now, few);
        }
        if view_waits && journal.view.version > journal.told_view {
            journal.told_view = journal.view.version;
            node.on_view(journal.view.clone());
        }
    }

    /// After an event: everything that follows from it is begun.
    pub(super) fn settle(&mut self, slot: usize) {
        if self.slots[slot].paused_until > self.now {
            return;
        }
        loop {
            self.do_deeds(slot);
            if !self.hear_acks(slot) {
                break;
            }
        }
        self.run_disk(slot);
        self.pump(slot);
        self.check_memory(slot);
    }

    /// What members acknowledge, the node's machine is told, and whoever waits for it.
    fn hear_acks(&mut self, slot: usize) -> bool {
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
            Phase::Committing(number) if number <= acked => Some((txn.id, number)),
            _ => None,
        });
        let done: Vec<(TxnId, Number)> = done.collect();
        for (id, number) in done {
            process.node.end(now, id, Some(number));
            process.txns.retain(|txn| txn.id != id);
        }
        true
    }

    pub(super) fn do_deeds(&mut self, slot: usize) {
        while let Some(process) = &mut self.slots[slot].process
            && let Some(deed) = process.node.poll()
        {
            self.do_deed(slot, deed);
        }
    }

    fn do_deed(&mut self, slot: usize, deed: Deed<P>) {
        let now = self.local(slot);
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        match deed {
            Deed::Send(message) => self.send_up(slot, &message),
            Deed::Straight(straight) => self.on_straight(slot, straight),
            Deed::Open(joined) => {
                process.region = vec![0; WORDS];
                process.last = vec![None; LOCKS as usize];
                let (end, version) = (process.journal.begins, process.journal.first_view);
                let said = ServerKept { end, version };
                process.journal.writer.on_server_kept(said, now);
                self.book.own(process.journal.id, joined.node);
                self.coverage.hit("region: joinings");
            }
            Deed::Page { offset, bytes } => bytes::put_page(&mut process.region, offset, &bytes),
            Deed::Whole => self.tell(|| format!("slot {slot} has the region")),
            Deed::Apply { payload, .. } => {
                self.check_pinned(slot);
                self.apply(slot, &payload);
            }
            Deed::Kept { number, end, view } => {
                self.check_kept(slot, number, end, view);
                let Some(process) = &mut self.slots[slot].process else {
                    return;
                };
                process.journal.kept = process.journal.kept.max(number);
                let said = ServerKept { end, version: view };
                process.journal.writer.on_server_kept(said, now);
            }
            Deed::Waited(waited) => self.on_waited(slot, waited),
            Deed::Expired => {
                process.pinned = None;
                self.coverage.hit("region: readers that expired");
            }
            Deed::Fate { node, number, fate } => self.on_fate(slot, node, number, fate),
            Deed::Wanted { node, from } => self.on_wanted(slot, node, from),
            Deed::Anew => {
                process.pinned = None;
                process.fail_open(now);
                self.coverage.hit("region: nodes that began anew");
            }
            Deed::Over(over) => self.on_over(slot, over),
        }
    }

    fn on_waited(&mut self, slot: usize, waited: Waited) {
        let now = self.local(slot);
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
        txn.phase = if held { Phase::Ready } else { Phase::Failed };
        let in_vain = txn.must && matches!(waited, Waited::TimedOut(..));
        if held {
            return self.check_held(slot, id);
        }
        if in_vain {
            let what = format!("slot {slot}: nobody gets the lock that a dead node held");
            self.fail(Rule::Ends, &what);
        }
        process.end_failed(now);
        self.coverage.hit(match waited {
            Waited::Died(..) => "region: transactions that died of a lock",
            Waited::TimedOut(..) => "region: transactions that waited in vain",
            _ => "region: transactions that lost their node",
        });
    }

    fn on_fate(&mut self, slot: usize, node: NodeId, number: Number, fate: Fate) {
        self.check_fate(node, number, fate);
        if number == NEVER && fate == Fate::Aborted {
            self.left_is_over(slot, node);
        }
        if fate != Fate::Open {
            self.slots[slot].unknown.retain(|asked| *asked != (node, number));
        }
    }

    fn on_over(&mut self, slot: usize, over: Over) {
        if over == Over::Astray && self.book.excused.is_empty() {
            let what = format!("slot {slot}: it has a record that does not count");
            self.fail(Rule::Survives, &what);
        }
        if let Over::Misled(misled) = over {
            self.fail(Rule::Applied, &format!("slot {slot}: {misled}"));
        }
        let Some(process) = self.slots[slot].process.take() else {
            return;
        };
        self.tell(|| format!("slot {slot}, node {:?}: {over}", process.node.id()));
        if over == Over::Fenced && process.slept {
            self.coverage.hit("region: nodes that slept, and woke up fenced");
        }
        self.coverage.hit(match over {
            Over::Left => "region: nodes that left",
            _ => "region: nodes that were told that they are fenced",
        });
        let open = process
            .txns
            .iter()
            .any(|txn| matches!(txn.phase, Phase::Committing(_)));
        if over == Over::Left && open {
            self.fail(Rule::Ends, "a node has left with a commit on its way");
        }
        self.bury(slot, process, false);
        if over == Over::Left {
            // The server has all of it, and forgets it: there is nothing to offer.
            self.slots[slot].left.pop();
        }
    }
}
