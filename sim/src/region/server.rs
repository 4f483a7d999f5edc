//! The server's machine: its process, its disk, and the journals that it reads.
//!
//! Its disk keeps the order of writes. A crash leaves everything synced and some of the rest, never a later
//! write without an earlier one: it is one log. Other worlds ([`crate::scenario`]) model that log by sectors.

use std::collections::{BTreeMap, VecDeque};

use netram_proto::journal::{ForgetNotice, Recovery, RecoveryError, node_records};
use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ChainPoint, CheckedRecord};
use netram_shared_machine::message::RegionOpening;
use netram_shared_machine::server::{
    DurableFact, DurableNode, LinkEnd, LinkOutput, NodeJournal as Known, NodeState, RegionState,
    ServerAction, ServerConfig, SessionId,
};
use netram_shared_machine::{
    GrantNumber, LockVersion, NodeId, Position, RecordNumber, RegionId, RegionServer, ToServer,
};

use super::bytes::{self, PayloadBytes, WORDS};
use super::check::RegionRule;
use super::member_query::{ALL_MEMBERS_WAIT, QUERY_TIMEOUT, QueryKind, QueryOwner, ReadOutcome};
use super::profile::LEASE;
use super::{Clock, Event, World};

/// Interval at which the machine is told the time.
const TICK: Nanos = Nanos::from_ms(10);
/// First delay after which lenders are told again that a node is gone.
const TELL_AGAIN: Nanos = Nanos::from_ms(40);
/// Delay after which a journal that could not be read is tried again.
const READ_AGAIN: Nanos = Nanos::from_ms(60);

/// A write on its way to the disk.
#[derive(Clone, Debug)]
enum QueuedWrite {
    Fact(u64, DurableFact),
    Record(ServerRecord),
}

/// A record in the server's order.
#[derive(Clone, Debug)]
pub(super) struct ServerRecord {
    position: Position,
    pub(super) node: NodeId,
    pub(super) number: RecordNumber,
    end: Option<ChainPoint>,
    pub(super) payload: PayloadBytes,
}

/// The reading of a dead node's journal.
#[derive(Clone, Debug)]
struct JournalReading {
    known: Known,
    due: Time,
    runs: bool,
    failed: bool,
}

pub(super) struct ServerHost {
    machine: Option<RegionServer<PayloadBytes>>,
    /// Number of its current process.
    pub(super) boot: u32,
    pub(super) clock: Clock,
    pub(super) paused_until: Time,
    pub(super) slow_until: Time,
    region: Vec<u64>,
    writes: VecDeque<QueuedWrite>,
    flushing: bool,
    readings: BTreeMap<NodeId, JournalReading>,
    pub(super) disk: ServerDisk,
}

/// Durable state of the server.
pub(super) struct ServerDisk {
    pub(super) table: RegionState,
    pub(super) region: Vec<u64>,
    /// Every record that was ever stored.
    pub(super) log: Vec<ServerRecord>,
}

impl ServerHost {
    pub(super) fn new(clock: Clock) -> ServerHost {
        let versions = bytes::locks().map(|lock| (lock, LockVersion(0))).collect();
        ServerHost {
            machine: None,
            boot: 0,
            clock,
            paused_until: Time(0),
            slow_until: Time(0),
            region: vec![0; WORDS],
            writes: VecDeque::new(),
            flushing: false,
            readings: BTreeMap::new(),
            disk: ServerDisk {
                table: RegionState {
                    versions,
                    ceiling: GrantNumber(0),
                    ..RegionState::default()
                },
                region: vec![0; WORDS],
                log: Vec::new(),
            },
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    pub(super) fn machine(&self) -> Option<&RegionServer<PayloadBytes>> {
        self.machine.as_ref()
    }

    pub(super) fn memory(&self) -> &[u64] {
        &self.region
    }

    pub(super) fn is_idle(&self) -> bool {
        self.writes.is_empty()
    }

    pub(super) fn poll_send(&mut self, session: SessionId) -> Option<LinkOutput<PayloadBytes>> {
        self.machine.as_mut()?.poll_send(session)
    }
}

impl World {
    pub(super) fn start_server(&mut self) {
        if self.server.is_up() {
            return;
        }
        let opening = RegionOpening {
            region: RegionId(7),
            bytes: WORDS as u64 * 8,
            address: 0,
            spans: Vec::new(),
            record_bytes_max: 0,
            settings: Vec::new(),
        };
        let config = ServerConfig {
            lease: LEASE,
            recent_bytes_max: self.profile.recent_bytes_max,
            page_bytes: 8 * 7,
            forget_retry: TELL_AGAIN,
            opening,
        };
        self.tell(|| String::from("the server starts"));
        let now = self.server_time();
        // A trimmed log has only the newest records.
        let trimmed = self.rng.index(2 * self.server.disk.log.len() + 1);
        let host = &mut self.server;
        host.boot += 1;
        host.region = host.disk.region.clone();
        let mut machine = RegionServer::new(config, host.disk.table.clone(), now);
        let recent = host.disk.log.iter().skip(trimmed);
        let recent = recent.map(|merged| (merged.node, merged.number, merged.payload.clone()));
        machine.remember(recent.collect());
        host.machine = Some(machine);
        let boot = host.boot;
        self.after_server();
        self.at(TICK, Event::ServerTick { boot });
    }

    /// Kills the server's process. Some of its unsynced writes are on the disk all the same.
    pub(super) fn kill_server(&mut self) {
        if !self.server.is_up() {
            return;
        }
        self.tell(|| String::from("the server dies"));
        self.coverage.hit("region: deaths of the server");
        self.server.machine = None;
        self.server.flushing = false;
        self.server.paused_until = Time(0);
        self.server.readings.clear();
        let written = self.rng.index(self.server.writes.len() + 1);
        let lost = self.server.writes.len() - written;
        self.flush(written);
        self.server.writes.clear();
        if lost > 0 {
            self.coverage.hit("region: deaths of the server that lost writes");
        }
        self.stop_queries(|whose| matches!(whose, QueryOwner::Server { .. }));
        let sessions: Vec<SessionId> = self.node_links.keys().copied().collect();
        sessions
            .into_iter()
            .for_each(|session| self.break_node_link(session));
        let ms = self.rng.pick(&[1, 10, 100, 500]);
        self.after_ms(ms, Event::ServerUp);
    }

    pub(super) fn on_server_message(&mut self, session: SessionId, message: ToServer<PayloadBytes>) {
        let now = self.server_time();
        self.trace.mark(self.now, 20, session.0);
        if let Some(slot) = self.node_link_slot(session) {
            self.tell(|| format!("the server hears {message:?} of slot {slot}"));
        }
        if let Some(machine) = &mut self.server.machine {
            machine.handle(now, session, message);
        }
        self.after_server();
    }

    pub(super) fn on_server_link_lost(&mut self, session: SessionId, closed: LinkEnd) {
        let now = self.server_time();
        if let Some(machine) = &mut self.server.machine {
            if closed == LinkEnd::HungUp && machine.node(session).is_some() {
                self.coverage
                    .hit("region: links closed by the machine of a dead process");
            }
            machine.on_closed(now, session, closed);
        }
        self.after_server();
    }

    pub(super) fn on_server_tick(&mut self, boot: u32) {
        let now = self.server_time();
        if boot != self.server.boot {
            return;
        }
        let Some(machine) = &mut self.server.machine else {
            return;
        };
        machine.on_tick(now);
        self.after_server();
        self.read_due();
        self.at(TICK, Event::ServerTick { boot });
    }

    /// Performs the machine's actions, and sends its messages.
    pub(super) fn after_server(&mut self) {
        while let Some(action) = self.server.machine.as_mut().and_then(RegionServer::poll) {
            self.run_server_action(action);
        }
        if !self.server.writes.is_empty() && !self.server.flushing {
            self.server.flushing = true;
            let (boot, count) = (self.server.boot, self.server.writes.len());
            let slow = if self.server.slow_until > self.now { 20 } else { 1 };
            let delay = Nanos(self.disk_time().0 * slow);
            self.at(delay, Event::ServerFlushed { boot, count });
        }
        let sessions: Vec<SessionId> = self.node_links.keys().copied().collect();
        sessions.into_iter().for_each(|session| self.send_down(session));
    }

    fn run_server_action(&mut self, action: ServerAction<PayloadBytes>) {
        match action {
            ServerAction::Store { ticket, fact } => {
                self.server.writes.push_back(QueuedWrite::Fact(ticket, fact))
            }
            ServerAction::Apply {
                position,
                node,
                number,
                end,
                payload,
            } => {
                self.check_merged(node, number, &payload);
                bytes::apply(&payload, &mut self.server.region);
                self.server.writes.push_back(QueuedWrite::Record(ServerRecord {
                    position,
                    node,
                    number,
                    end,
                    payload,
                }));
            }
            ServerAction::Recover { node, journal } => {
                let reading = JournalReading {
                    known: journal,
                    due: self.now,
                    runs: false,
                    failed: false,
                };
                self.server.readings.insert(node, reading);
                self.read_due();
            }
            ServerAction::Forget { node, journal } => {
                self.server.readings.remove(&node);
                let (boot, host) = (self.server.boot, self.slots.len());
                let lenders = (0..self.machines.len()).map(|index| format!("l{index}"));
                let lenders: Vec<String> = lenders.collect();
                let talk = QueryKind::Forget(ForgetNotice::new(&journal.view, &lenders));
                self.start_query(talk, QueryOwner::Server { boot, node }, host, &journal.view);
            }
            ServerAction::Close(session) => self.break_node_link(session),
            ServerAction::Fenced { node, why } => {
                self.tell(|| format!("node {node} is fenced: {why}"));
                self.coverage.hit("region: nodes fenced");
                self.check_fencing(node, why);
            }
            ServerAction::Refused { node, why } => {
                self.fail(
                    RegionRule::Versions,
                    &format!("a record of {node} was refused: {why}"),
                );
            }
        }
    }

    pub(super) fn on_server_flushed(&mut self, boot: u32, count: usize) {
        if boot != self.server.boot || !self.server.is_up() {
            return;
        }
        self.server.flushing = false;
        let (ticket, position) = self.flush(count);
        let now = self.server_time();
        if let Some(machine) = &mut self.server.machine {
            if let Some(position) = position {
                machine.on_durable(position);
            }
            if let Some(ticket) = ticket {
                machine.on_stored(now, ticket);
            }
        }
        self.after_server();
    }

    /// Applies the first `count` writes to the disk.
    fn flush(&mut self, count: usize) -> (Option<u64>, Option<Position>) {
        let (mut ticket, mut position) = (None, None);
        for write in self.server.writes.drain(..count).collect::<Vec<QueuedWrite>>() {
            match write {
                QueuedWrite::Fact(number, fact) => {
                    ticket = Some(number);
                    self.store_fact(fact);
                }
                QueuedWrite::Record(merged) => {
                    position = Some(merged.position);
                    self.store_record(merged);
                }
            }
        }
        (ticket, position)
    }

    fn store_fact(&mut self, fact: DurableFact) {
        let table = &mut self.server.disk.table;
        match fact {
            DurableFact::Joined { node, journal, .. } => {
                let row = DurableNode {
                    state: NodeState::Live,
                    id: journal.view.journal,
                    journal: Some(journal),
                    number: RecordNumber(0),
                };
                table.nodes.insert(node, row);
                table.last_node = table.last_node.max(node);
            }
            DurableFact::Viewed { node, view } => {
                let row = table.nodes.get_mut(&node);
                if let Some(journal) = row.and_then(|row| row.journal.as_mut()) {
                    journal.view = view;
                    self.coverage.hit("region: views stored at the server");
                }
            }
            DurableFact::Fencing { node } => {
                if let Some(row) = table.nodes.get_mut(&node) {
                    row.state = NodeState::Fencing;
                }
            }
            DurableFact::Gone { node } => {
                if let Some(row) = table.nodes.get_mut(&node) {
                    row.state = NodeState::Gone;
                }
                self.check_gone(node);
            }
            DurableFact::Forgotten { node } => {
                if let Some(row) = table.nodes.get_mut(&node) {
                    row.journal = None;
                }
                self.coverage
                    .hit("region: nodes that are gone, and all lenders know");
            }
            DurableFact::Ceiling(grant) => table.ceiling = grant,
        }
    }

    fn store_record(&mut self, merged: ServerRecord) {
        let disk = &mut self.server.disk;
        assert_eq!(merged.position, disk.table.position.next());
        disk.table.position = merged.position;
        for (lock, version) in bytes::stamp(&merged.payload).written {
            disk.table.versions[lock.0 as usize] = (lock, version);
        }
        if let Some(row) = disk.table.nodes.get_mut(&merged.node) {
            row.number = merged.number;
            if let (Some(end), Some(journal)) = (merged.end, &mut row.journal) {
                journal.kept = merged.number;
                journal.end = end;
            }
        }
        bytes::apply(&merged.payload, &mut disk.region);
        disk.log.push(merged);
    }

    /// Begins the readings that are due.
    fn read_due(&mut self) {
        let (now, boot, host) = (self.now, self.server.boot, self.slots.len());
        let due = |reading: &JournalReading| !reading.runs && reading.due <= now;
        let waits = |standing| matches!(standing, Some(NodeState::Reading | NodeState::Stuck));
        let Some(machine) = &self.server.machine else {
            return;
        };
        let readings = self.server.readings.iter();
        let all: Vec<(NodeId, Known)> = readings
            .filter(|(node, reading)| due(reading) && waits(machine.node_state(**node)))
            .map(|(node, reading)| (*node, reading.known.clone()))
            .collect();
        for (node, known) in all {
            if let Some(reading) = self.server.readings.get_mut(&node) {
                reading.runs = true;
            }
            self.provoke_late_commit(node);
            let mut recovery =
                Recovery::of_node(&known.view, known.end.lsn, now, ALL_MEMBERS_WAIT, QUERY_TIMEOUT);
            recovery.plant(self.planted);
            self.start_query(
                QueryKind::Read(recovery),
                QueryOwner::Server { boot, node },
                host,
                &known.view,
            );
        }
    }

    /// Handles the members' answers about a dead node's journal.
    pub(super) fn on_server_read(&mut self, node: NodeId, (verdict, windows): ReadOutcome) {
        let now = self.now;
        let Some(reading) = self.server.readings.get_mut(&node) else {
            return;
        };
        reading.runs = false;
        let known = reading.known.clone();
        if let Err(refusal) = verdict {
            let again = reading.failed;
            reading.failed = true;
            reading.due = now + READ_AGAIN;
            self.tell(|| format!("node {node} cannot be read: {refusal}"));
            self.coverage.hit("region: readings refused");
            if again && self.accepts_loss(node, &known, &refusal) {
                return;
            }
            if let Some(machine) = &mut self.server.machine {
                machine.on_stuck(node);
            }
            return self.after_server();
        }
        let mut records: Vec<(RecordNumber, PayloadBytes)> = Vec::new();
        let mut number = known.kept;
        let (end, all) = node_records(
            &windows,
            known.end,
            known.view.epoch,
            known.view.journal.into(),
            FaultSwitch::NONE,
            &mut |_| true,
            &mut |record: CheckedRecord<'_>| {
                number = number.next();
                records.push((number, PayloadBytes::from(record.payload())));
            },
        );
        if all.is_err() {
            self.fail(
                RegionRule::Survives,
                "intact members returned less than they claimed to hold",
            );
        }
        self.tell(|| format!("node {node} is read from {} to {}", known.end.lsn, end.lsn));
        self.coverage.hit("region: journals read");
        if !records.is_empty() {
            self.coverage.hit("region: journals read that had records");
        }
        self.check_read(node, &records);
        if let Some(machine) = &mut self.server.machine {
            machine.on_recovered(node, records);
        }
        self.after_server();
        if self.calm_since.is_none() && self.rng.chance(self.profile.crash_readings_permille) {
            self.coverage
                .hit("region: readings cut off by the server's death");
            self.kill_server();
        }
    }

    /// Handles the end of telling a dead node's lenders, as far as they could be reached.
    pub(super) fn on_server_forget_done(&mut self, node: NodeId, all: bool) {
        if !all {
            self.coverage
                .hit("region: nodes that are gone, and some lender could not be told");
        }
        let now = self.server_time();
        if let Some(machine) = &mut self.server.machine {
            machine.on_forget_tried(now, node, all);
        }
        self.after_server();
    }

    /// With everything healed and too few members left for a proof, gives up the unproven records, as an
    /// operator does with `netram shared merge` for a journal that cannot be read.
    fn accepts_loss(&mut self, node: NodeId, known: &Known, refusal: &RecoveryError) -> bool {
        let since = self.calm_since;
        if since.is_none_or(|since| self.now.since(since) <= Nanos::from_ms(1500)) {
            return false;
        }
        let intact = self.intact(&known.view);
        if intact >= known.view.answers() {
            let what = format!("node {node} could be read of {intact} members, and is not: {refusal}");
            self.fail(RegionRule::Ends, &what);
        }
        self.tell(|| format!("the loss of what node {node} had is accepted"));
        self.coverage.hit("region: losses accepted");
        self.history.excuse(node);
        // The server is stopped for that and restarted, so all nodes report their state.
        let all = self.server.writes.len();
        self.flush(all);
        self.store_fact(DurableFact::Gone { node });
        self.kill_server();
        true
    }

    /// Whether it is durable that a node is gone.
    pub(super) fn is_gone(&self, node: NodeId) -> bool {
        let row = self.server.disk.table.nodes.get(&node);
        row.is_some_and(|row| row.state == NodeState::Gone)
    }

    fn server_time(&self) -> Time {
        self.server.clock.local(self.now)
    }
}
