//! The server's process and its disk. A crash leaves the flushed part.

use std::collections::VecDeque;

use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;
use netram_shared_machine::message::RegionOpening;
use netram_shared_machine::server::{
    DurableFact, DurableNode, FenceReason, LinkEnd, LinkOutput, NodeJournal as Known, NodeState, RegionState,
    ServerAction, ServerConfig,
};
use netram_shared_machine::{
    GrantNumber, LockVersion, NodeId, Position, RecordNumber, RegionId, RegionServer, ToNode,
};

use super::bytes::{self, PayloadBytes, WORDS};
use super::journal::NodeRecords;
use super::{LEASE, RegionRule, SessionId, WINDOW, World, WorldBug};

/// A write on its way to the disk.
#[derive(Clone, Debug)]
enum QueuedWrite {
    Fact(u64, DurableFact),
    Record {
        position: Position,
        node: NodeId,
        number: RecordNumber,
        end: Option<ChainPoint>,
        payload: PayloadBytes,
    },
}

pub(crate) struct ServerHost {
    server: Option<RegionServer<PayloadBytes>>,
    recent_bytes_max: usize,
    region: Vec<u64>,
    writes: VecDeque<QueuedWrite>,
    /// Journals to read, with the time.
    readings: Vec<(Time, NodeId, Known)>,
    pub(crate) disk: ServerDisk,
}

#[derive(Clone)]
pub(crate) struct ServerDisk {
    pub(crate) table: RegionState,
    pub(crate) region: Vec<u64>,
    /// Every record that was ever flushed.
    pub(crate) log: Vec<(NodeId, RecordNumber, PayloadBytes)>,
}

impl ServerHost {
    pub(crate) fn new(recent_bytes_max: usize) -> ServerHost {
        let versions = bytes::locks().map(|lock| (lock, LockVersion(0))).collect();
        let table = RegionState {
            versions,
            ceiling: GrantNumber(0),
            ..RegionState::default()
        };
        ServerHost {
            server: None,
            recent_bytes_max,
            region: vec![0; WORDS],
            writes: VecDeque::new(),
            readings: Vec::new(),
            disk: ServerDisk {
                table,
                region: vec![0; WORDS],
                log: Vec::new(),
            },
        }
    }

    pub(crate) fn is_down(&self) -> bool {
        self.server.is_none()
    }

    pub(crate) fn server(&self) -> Option<&RegionServer<PayloadBytes>> {
        self.server.as_ref()
    }

    pub(crate) fn memory(&self) -> &[u64] {
        &self.region
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.writes.is_empty() && self.readings.is_empty()
    }
}

impl World {
    pub(crate) fn server(&self) -> Option<&RegionServer<PayloadBytes>> {
        self.host.server()
    }

    pub(crate) fn disk(&self) -> &ServerDisk {
        &self.host.disk
    }

    pub(super) fn host(&self) -> &ServerHost {
        &self.host
    }

    pub(crate) fn start_server(&mut self) {
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
            recent_bytes_max: self.host.recent_bytes_max,
            page_bytes: 8 * 7,
            forget_retry: Nanos::from_ms(1000),
            opening,
        };
        self.host.region = self.host.disk.region.clone();
        let mut server = RegionServer::new(config, self.host.disk.table.clone(), self.now);
        // A trimmed log has only the newest records.
        let log = &self.host.disk.log;
        let trimmed = self.dice.below(2 * log.len() as u64 + 1) as usize;
        server.remember(log[trimmed.min(log.len())..].to_vec());
        self.host.server = Some(server);
        self.run_server_actions();
    }

    pub(crate) fn kill_server(&mut self) {
        self.host.server = None;
        self.host.writes.clear();
        self.host.readings.clear();
        let sessions: Vec<SessionId> = self.links.keys().copied().collect();
        for session in sessions {
            self.break_link(session, LinkEnd::Broken);
        }
    }

    /// Hands the server its messages, the time and the disk's progress, and carries out its actions.
    pub(super) fn run_server(&mut self) {
        if self.host.is_down() {
            return;
        }
        let sessions: Vec<SessionId> = self.links.keys().copied().collect();
        for session in sessions {
            self.deliver_up(session);
        }
        let now = self.now;
        if let Some(server) = &mut self.host.server {
            server.on_tick(now);
        }
        self.run_server_actions();
        if self.dice.percent(30) && !self.hold_flush {
            let count = 1 + self.dice.below(8) as usize;
            self.flush(count);
        }
        self.read_journals();
        let sessions: Vec<SessionId> = self.links.keys().copied().collect();
        for session in sessions {
            self.fill_down(session);
        }
    }

    fn deliver_up(&mut self, session: SessionId) {
        for _ in 0..3 {
            let now = self.now;
            let Some(pipe) = self.links.get_mut(&session) else {
                return;
            };
            if self.planted == WorldBug::ReleaseBeforeTail {
                tails_last(&mut pipe.up);
            }
            let Some((_, message)) = pipe.up.pop_front_if(|(at, _)| *at <= now) else {
                return;
            };
            if let Some(server) = &mut self.host.server {
                server.handle(now, session, message);
            }
            self.run_server_actions();
        }
    }

    fn fill_down(&mut self, session: SessionId) {
        while self
            .links
            .get(&session)
            .is_some_and(|pipe| pipe.down.len() < WINDOW && !pipe.closed)
        {
            let at = self.delay();
            let Some(server) = &mut self.host.server else {
                return;
            };
            let message = match server.poll_send(session) {
                None => return,
                Some(LinkOutput::Message(message)) => message,
                Some(LinkOutput::Page { offset, bytes }) => {
                    let bytes = bytes::page(&self.host.region, offset, bytes);
                    if bytes.iter().all(|byte| *byte == 0) {
                        continue;
                    }
                    ToNode::Page { offset, bytes }
                }
                Some(LinkOutput::Close) => {
                    if let Some(pipe) = self.links.get_mut(&session) {
                        pipe.closed = true;
                    }
                    return;
                }
            };
            let mut sent = Vec::new();
            message.head(&mut sent);
            sent.extend_from_slice(message.payload().map_or(&[], |payload| payload));
            let message = ToNode::decode(&sent).expect("what the server says is a message");
            let message = message.map(PayloadBytes::from);
            if let Some(pipe) = self.links.get_mut(&session) {
                let after = pipe.down.back().map_or(at, |(before, _)| at.max(*before));
                pipe.down.push_back((after, message));
            }
        }
    }

    fn run_server_actions(&mut self) {
        while let Some(deed) = self.host.server.as_mut().and_then(RegionServer::poll) {
            match deed {
                ServerAction::Store { ticket, fact } => {
                    self.host.writes.push_back(QueuedWrite::Fact(ticket, fact))
                }
                ServerAction::Apply {
                    position,
                    node,
                    number,
                    end,
                    payload,
                } => {
                    self.check_merged(node, number, &payload);
                    bytes::apply(&payload, &mut self.host.region);
                    self.host.writes.push_back(QueuedWrite::Record {
                        position,
                        node,
                        number,
                        end,
                        payload,
                    });
                    let early = self.planted == WorldBug::AckBeforeDurable
                        || (self.planted == WorldBug::ReadIsDurable && end.is_none());
                    if let Some(server) = self.host.server.as_mut().filter(|_| early) {
                        server.on_durable(position);
                    }
                }
                ServerAction::Recover { node, journal } => {
                    let at = self.now + Nanos::from_ms(self.dice.below(30));
                    self.host.readings.push((at, node, journal));
                }
                ServerAction::Close(session) => self.break_link(session, LinkEnd::Broken),
                ServerAction::Fenced {
                    why: FenceReason::Unlocked(_),
                    ..
                } => self.history.unlocked += 1,
                ServerAction::Forget { .. } | ServerAction::Fenced { .. } => (),
                ServerAction::Refused { node, why } => {
                    self.fail(
                        RegionRule::Versions,
                        &format!("a record of {node} was refused: {why}"),
                    );
                }
            }
        }
    }

    /// Flushes the first `count` writes.
    pub(super) fn flush(&mut self, count: usize) {
        let (mut ticket, mut position) = (None, None);
        for _ in 0..count {
            match self.host.writes.pop_front() {
                None => break,
                Some(QueuedWrite::Fact(number, fact)) => {
                    ticket = Some(number);
                    self.store_fact(fact);
                }
                Some(QueuedWrite::Record {
                    position: place,
                    node,
                    number,
                    end,
                    payload,
                }) => {
                    position = Some(place);
                    self.store_record(place, node, number, end, payload);
                }
            }
        }
        let now = self.now;
        let Some(server) = &mut self.host.server else {
            return;
        };
        if let Some(position) = position {
            server.on_durable(position);
        }
        if let Some(ticket) = ticket {
            server.on_stored(now, ticket);
        }
        self.run_server_actions();
    }

    fn store_fact(&mut self, fact: DurableFact) {
        let table = &mut self.host.disk.table;
        match fact {
            DurableFact::Joined { node, journal, .. } => {
                let id = journal.view.journal;
                let standing = NodeState::Live;
                let (journal, number) = (Some(journal), RecordNumber(0));
                table.nodes.insert(
                    node,
                    DurableNode {
                        state: standing,
                        id,
                        journal,
                        number,
                    },
                );
                table.last_node = table.last_node.max(node);
                self.journals.entry(id).or_default().node = Some(node);
            }
            DurableFact::Viewed { node, view } => {
                if let Some(journal) = table.nodes.get_mut(&node).and_then(|row| row.journal.as_mut()) {
                    journal.view = view;
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
                    row.journal = None;
                }
                self.check_gone(node);
            }
            DurableFact::Forgotten { .. } => (),
            DurableFact::Ceiling(grant) => table.ceiling = grant,
        }
    }

    fn store_record(
        &mut self,
        place: Position,
        node: NodeId,
        number: RecordNumber,
        end: Option<ChainPoint>,
        payload: PayloadBytes,
    ) {
        let disk = &mut self.host.disk;
        assert_eq!(place, disk.table.position.next());
        disk.table.position = place;
        for (lock, version) in bytes::stamp(&payload).written {
            disk.table.versions[lock.0 as usize] = (lock, version);
        }
        if let Some(row) = disk.table.nodes.get_mut(&node) {
            row.number = number;
            if let (Some(end), Some(journal)) = (end, &mut row.journal) {
                journal.kept = number;
                journal.end = end;
            }
        }
        bytes::apply(&payload, &mut disk.region);
        disk.log.push((node, number, payload));
    }

    fn read_journals(&mut self) {
        let now = self.now;
        while let Some(at) = self.host.readings.iter().position(|(due, ..)| *due <= now) {
            let (_, node, known) = self.host.readings.swap_remove(at);
            let found = self.dice.below(4) as usize;
            let Some(journal) = self.journals.get_mut(&known.view.journal) else {
                continue;
            };
            assert_eq!(known.end, NodeRecords::end(known.kept.0 as usize));
            let Some(server) = &mut self.host.server else {
                return;
            };
            if self.planted == WorldBug::GrantBeforeRead {
                server.on_recovered(node, Vec::new());
            } else if journal.unreachable {
                server.on_stuck(node);
                let later = now + Nanos::from_ms(50);
                self.host.readings.push((later, node, known));
            } else {
                let acked = journal.acked;
                let records = journal.read(known.kept, acked + found);
                journal.sealed = self.planted != WorldBug::NoFence;
                server.on_recovered(node, records);
            }
            self.run_server_actions();
        }
    }

    /// Breaks a link, with the messages on it. `how` the server learns of it: `HungUp` is the link of a
    /// process that has ended.
    pub(super) fn break_link(&mut self, session: SessionId, how: LinkEnd) {
        let Some(pipe) = self.links.remove(&session) else {
            return;
        };
        if let Some(server) = &mut self.host.server {
            server.on_closed(self.now, session, how);
        }
        self.run_server_actions();
        if let Some(process) = &mut self.slots[pipe.slot].process
            && process.session == Some(session)
        {
            process.session = None;
            process.unlinked_late = true;
        }
    }
}

fn tails_last(up: &mut VecDeque<(Time, netram_shared_machine::ToServer<PayloadBytes>)>) {
    use netram_shared_machine::ToServer;
    use netram_shared_machine::lock::ToService;
    let release =
        |message: &ToServer<PayloadBytes>| matches!(message, ToServer::Lock(ToService::Release { .. }));
    for index in 1..up.len() {
        if release(&up[index].1) && matches!(up[index - 1].1, ToServer::Record { .. }) {
            let (one, other) = (up[index].0, up[index - 1].0);
            up.swap(index - 1, index);
            up[index - 1].0 = one.min(other);
            up[index].0 = one.max(other);
        }
    }
}
