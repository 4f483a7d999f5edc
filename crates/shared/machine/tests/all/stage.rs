//! A harness around a server: the test controls links, disk and dead journals, writes every message, and sees
//! what is sent over each link.

use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::View;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;
use netram_shared_machine::lock::{LockOrder, LockRequestId, ToService};
use netram_shared_machine::message::RegionOpening;
use netram_shared_machine::server::{
    DurableNode, FenceReason, LinkEnd, LinkOutput, NodeJournal, NodeState, RegionServer, RegionState,
    ServerAction, ServerConfig, SessionId,
};
use netram_shared_machine::{
    GrantNumber, LockId, LockMode, LockVersion, NodeId, Position, RecordNumber, RegionId, Stamp, ToNode,
    ToServer,
};

use super::hostile::join;
use super::world::bytes::{self, PayloadBytes};

/// A lock and its version.
type LockAt = (u32, u64);

pub(super) struct ServerHarness {
    pub(super) server: RegionServer<PayloadBytes>,
    pub(super) now: Time,
    /// While the disk is slow, no fact or record becomes durable.
    pub(super) slow_disk: bool,
    /// Link over which nothing is read.
    pub(super) blocked_link: Option<SessionId>,
    tickets: Vec<u64>,
    applied: Position,
    sent: Vec<(SessionId, ToNode<PayloadBytes>)>,
    ended: Vec<(NodeId, FenceReason)>,
    /// Nodes whose lenders were to be told.
    forgotten: Vec<NodeId>,
}

impl ServerHarness {
    fn of(table: RegionState) -> ServerHarness {
        let config = ServerConfig {
            lease: Nanos::from_ms(100),
            recent_bytes_max: 4096,
            page_bytes: 64,
            forget_retry: Nanos::from_ms(1000),
            opening: RegionOpening {
                bytes: 64,
                ..RegionOpening::default()
            },
        };
        let mut stage = ServerHarness {
            applied: table.position,
            server: RegionServer::new(config, table, Time(1)),
            now: Time(1),
            slow_disk: false,
            blocked_link: None,
            tickets: Vec::new(),
            sent: Vec::new(),
            ended: Vec::new(),
            forgotten: Vec::new(),
        };
        stage.settle();
        stage
    }

    /// A restarted server with these gone nodes, whose lenders do not all know.
    pub(super) fn owing_forgets(nodes: &[u64]) -> ServerHarness {
        let row = |node: u64| DurableNode {
            state: NodeState::Gone,
            id: JournalId(node.into()),
            journal: Some(journal(node)),
            number: RecordNumber(0),
        };
        ServerHarness::of(RegionState {
            nodes: nodes.iter().map(|node| (NodeId(*node), row(*node))).collect(),
            last_node: NodeId(9),
            ..RegionState::default()
        })
    }

    /// A server with `count` nodes that have joined, each over the session of its number, and have the
    /// region.
    pub(super) fn with_nodes(count: u64) -> ServerHarness {
        let mut stage = ServerHarness::of(RegionState {
            versions: (0..4).map(|lock| (LockId(lock), LockVersion(0))).collect(),
            ..RegionState::default()
        });
        for node in 1..=count {
            stage.join(node);
        }
        stage
    }

    /// A restarted server on which no record is durable. Grants up to `GRANT_BEFORE` were used before.
    pub(super) fn restarted(nodes: &[(u64, NodeState)]) -> ServerHarness {
        let row = |(node, standing): &(u64, NodeState)| {
            let row = DurableNode {
                state: *standing,
                id: JournalId((*node).into()),
                journal: (*standing != NodeState::Gone).then(|| journal(*node)),
                number: RecordNumber(0),
            };
            (NodeId(*node), row)
        };
        ServerHarness::of(RegionState {
            versions: (0..4).map(|lock| (LockId(lock), LockVersion(0))).collect(),
            nodes: nodes.iter().map(row).collect(),
            last_node: NodeId(nodes.iter().map(|(node, _)| *node).max().unwrap_or(0)),
            ceiling: GRANT_BEFORE,
            ..RegionState::default()
        })
    }

    /// A node joins with the journal of that number.
    pub(super) fn join(&mut self, session: u64) {
        self.handle(session, ToServer::Join(join(session.into())));
    }

    pub(super) fn handle(&mut self, session: u64, message: ToServer<PayloadBytes>) {
        self.server.handle(self.now, SessionId(session), message);
        self.settle();
    }

    /// Carries out the server's actions. Dead nodes' journals cannot be read until
    /// [`ServerHarness::journal_read`].
    pub(super) fn settle(&mut self) {
        loop {
            while let Some(deed) = self.server.poll() {
                match deed {
                    ServerAction::Store { ticket, .. } => self.tickets.push(ticket),
                    ServerAction::Apply { position, .. } => self.applied = position,
                    ServerAction::Recover { node, .. } => self.server.on_stuck(node),
                    ServerAction::Fenced { node, why } | ServerAction::Refused { node, why } => {
                        self.ended.push((node, why))
                    }
                    ServerAction::Forget { node, .. } => self.forgotten.push(node),
                    ServerAction::Close(session) => self.server.on_closed(self.now, session, LinkEnd::Broken),
                }
                if !self.slow_disk {
                    self.sync_records();
                    self.sync_facts();
                }
            }
            let before = self.sent.len();
            let heard = |session: &SessionId| Some(*session) != self.blocked_link;
            for session in (1..=9).map(SessionId).filter(heard) {
                while let Some(outgoing) = self.server.poll_send(session) {
                    if let LinkOutput::Message(message) = outgoing {
                        self.sent.push((session, message));
                    }
                }
            }
            if self.sent.len() == before {
                return;
            }
        }
    }

    pub(super) fn sync_records(&mut self) {
        self.server.on_durable(self.applied);
    }

    pub(super) fn sync_facts(&mut self) {
        for ticket in std::mem::take(&mut self.tickets) {
            self.server.on_stored(self.now, ticket);
        }
    }

    pub(super) fn advance(&mut self, time: Nanos) {
        let until = self.now + time;
        while self.now < until {
            self.now = self.now + Nanos::from_ms(10);
            self.server.on_tick(self.now);
            self.settle();
        }
    }

    /// Reports that a dead node's journal was read, with these records from the first on.
    pub(super) fn journal_read(&mut self, node: u64, records: Vec<PayloadBytes>) {
        let records = (1..).map(RecordNumber).zip(records).collect();
        self.server.on_recovered(NodeId(node), records);
        self.settle();
    }

    pub(super) fn accuse(&mut self, node: u64) {
        self.server.report_violation(NodeId(node), LIE);
        self.settle();
        assert_eq!(self.ended(), [(NodeId(node), FenceReason::Reported(LIE))]);
    }

    /// Reports that a gone node's lenders were told: all of them, or all but some.
    pub(super) fn tell(&mut self, node: u64, all: bool) {
        self.server.on_forget_tried(self.now, NodeId(node), all);
        self.settle();
    }

    /// Nodes whose lenders were to be told since the last call.
    pub(super) fn forgotten(&mut self) -> Vec<u64> {
        self.forgotten.drain(..).map(|node| node.0).collect()
    }

    /// Messages sent over a link since the last call.
    pub(super) fn take_sent(&mut self, session: u64) -> Vec<ToNode<PayloadBytes>> {
        let said = self.sent.extract_if(.., |(over, _)| *over == SessionId(session));
        said.map(|(_, message)| message).collect()
    }

    /// Nodes that were fenced, or whose records were refused, since the last call.
    pub(super) fn ended(&mut self) -> Vec<(NodeId, FenceReason)> {
        std::mem::take(&mut self.ended)
    }

    pub(super) fn holds(&self, node: u64, lock: u32) -> bool {
        self.server.locks().holds(NodeId(node), LockId(lock)) == Some(LockMode::Exclusive)
    }

    pub(super) fn node_state(&self, node: u64) -> Option<NodeState> {
        self.server.node_state(NodeId(node))
    }
}

/// Last grant number that the earlier server may have used.
pub(super) const GRANT_BEFORE: GrantNumber = GrantNumber(10);
const LIE: &str = "a lie";

fn journal(node: u64) -> NodeJournal {
    NodeJournal {
        view: View::first(JournalId(node.into())),
        key: Vec::new(),
        kept: RecordNumber(0),
        end: ChainPoint::default(),
    }
}

pub(super) fn record(written: &[LockAt], read: &[LockAt]) -> PayloadBytes {
    let versions = |locks: &[LockAt]| {
        let locks = locks.iter();
        locks
            .map(|(lock, at)| (LockId(*lock), LockVersion(*at)))
            .collect()
    };
    let (written, read) = (versions(written), versions(read));
    bytes::record(&Stamp { written, read }, &[])
}

pub(super) fn tail(number: u64, payload: PayloadBytes) -> ToServer<PayloadBytes> {
    ToServer::Record {
        number: RecordNumber(number),
        end: ChainPoint {
            lsn: Lsn(number * 64),
            chain: 0,
        },
        acked: true,
        payload,
    }
}

/// A node with the region resumes over another link, having applied these records of each node.
pub(super) fn resume(node: u64, link: u64, applied: &[(u64, u64)]) -> ToServer<PayloadBytes> {
    let applied = applied.iter();
    ToServer::Resume {
        region: RegionId(0),
        node: NodeId(node),
        link,
        whole: true,
        applied: applied
            .map(|(node, number)| (NodeId(*node), RecordNumber(*number)))
            .collect(),
    }
}

/// A request for exclusive access.
pub(super) fn acquire(lock: u32) -> ToServer<PayloadBytes> {
    ToServer::Lock(ToService::Acquire {
        lock: LockId(lock),
        hold: LockMode::Exclusive,
        order: LockOrder::Up,
        ask: LockRequestId(1),
    })
}

pub(super) fn release(lock: u32, grant: u64, version: u64) -> ToServer<PayloadBytes> {
    ToServer::Lock(ToService::Release {
        lock: LockId(lock),
        grant: GrantNumber(grant),
        version: LockVersion(version),
        keep: None,
    })
}
