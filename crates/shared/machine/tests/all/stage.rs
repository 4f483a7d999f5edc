//! A server whose links, disk and dead journals are the test's: every message is written by hand, and what is said over each link is kept.

use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::View;
use netram_proto::time::{Span, Time};
use netram_proto::wire::Link;
use netram_shared_machine::lock::{Ask, Order, ToService};
use netram_shared_machine::message::Opening;
use netram_shared_machine::server::{
    Closed, Deed, Journal, Outgoing, Row, Server, ServerConfig, Session, Standing, Table, Why,
};
use netram_shared_machine::{
    Grant, Hold, LockId, NodeId, Number, Position, RegionId, Stamp, ToNode, ToServer, Version,
};

use super::hostile::join;
use super::world::bytes::{self, P};

/// What a lock is said to be at.
type At = (u32, u64);

pub(super) struct Stage {
    pub(super) server: Server<P>,
    pub(super) now: Time,
    /// While it is slow, nothing that is stored or applied becomes durable.
    pub(super) slow_disk: bool,
    /// Over this link nothing is taken.
    pub(super) deaf: Option<Session>,
    tickets: Vec<u64>,
    applied: Position,
    said: Vec<(Session, ToNode<P>)>,
    ended: Vec<(NodeId, Why)>,
    /// Nodes whose lenders were to be told.
    forgotten: Vec<NodeId>,
}

impl Stage {
    fn of(table: Table) -> Stage {
        let config = ServerConfig {
            lease: Span::from_ms(100),
            recent_bytes_max: 4096,
            page_bytes: 64,
            tell_again: Span::from_ms(1000),
            opening: Opening {
                bytes: 64,
                ..Opening::default()
            },
        };
        let mut stage = Stage {
            applied: table.position,
            server: Server::new(config, table, Time(1)),
            now: Time(1),
            slow_disk: false,
            deaf: None,
            tickets: Vec::new(),
            said: Vec::new(),
            ended: Vec::new(),
            forgotten: Vec::new(),
        };
        stage.settle();
        stage
    }

    /// A server that was started again. These nodes are gone, and not all of their lenders know.
    pub(super) fn owing(nodes: &[u64]) -> Stage {
        let row = |node: u64| Row {
            standing: Standing::Gone,
            id: JournalId(node.into()),
            journal: Some(journal(node)),
            number: Number(0),
        };
        Stage::of(Table {
            nodes: nodes.iter().map(|node| (NodeId(*node), row(*node))).collect(),
            last_node: NodeId(9),
            ..Table::default()
        })
    }

    /// As many nodes have joined, each over the session of its number, and have the region.
    pub(super) fn with_nodes(count: u64) -> Stage {
        let mut stage = Stage::of(Table {
            versions: (0..4).map(|lock| (LockId(lock), Version(0))).collect(),
            ..Table::default()
        });
        for node in 1..=count {
            stage.join(node);
        }
        stage
    }

    /// A server that was started again, and no record is durable. Up to `GRANT_BEFORE` was granted before.
    pub(super) fn restarted(nodes: &[(u64, Standing)]) -> Stage {
        let row = |(node, standing): &(u64, Standing)| {
            let row = Row {
                standing: *standing,
                id: JournalId((*node).into()),
                journal: (*standing != Standing::Gone).then(|| journal(*node)),
                number: Number(0),
            };
            (NodeId(*node), row)
        };
        Stage::of(Table {
            versions: (0..4).map(|lock| (LockId(lock), Version(0))).collect(),
            nodes: nodes.iter().map(row).collect(),
            last_node: NodeId(nodes.iter().map(|(node, _)| *node).max().unwrap_or(0)),
            ceiling: GRANT_BEFORE,
            ..Table::default()
        })
    }

    /// A node joins with the journal of that number.
    pub(super) fn join(&mut self, session: u64) {
        self.hear(session, ToServer::Join(join(session.into())));
    }

    pub(super) fn hear(&mut self, session: u64, message: ToServer<P>) {
        self.server.handle(self.now, Session(session), message);
        self.settle();
    }

    /// Does what the server says: journals of the dead cannot be read, until [`Stage::found`].
    pub(super) fn settle(&mut self) {
        loop {
            while let Some(deed) = self.server.poll() {
                match deed {
                    Deed::Store { ticket, .. } => self.tickets.push(ticket),
                    Deed::Apply { position, .. } => self.applied = position,
                    Deed::Recover { node, .. } => self.server.on_stuck(node),
                    Deed::Fenced { node, why } | Deed::Refused { node, why } => self.ended.push((node, why)),
                    Deed::Forget { node, .. } => self.forgotten.push(node),
                    Deed::Close(session) => self.server.on_closed(self.now, session, Closed::Broken),
                }
                if !self.slow_disk {
                    self.sync_records();
                    self.sync_facts();
                }
            }
            let before = self.said.len();
            let heard = |session: &Session| Some(*session) != self.deaf;
            for session in (1..=9).map(Session).filter(heard) {
                while let Some(outgoing) = self.server.poll_send(session) {
                    if let Outgoing::Message(message) = outgoing {
                        self.said.push((session, message));
                    }
                }
            }
            if self.said.len() == before {
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

    pub(super) fn pass(&mut self, time: Span) {
        let until = self.now + time;
        while self.now < until {
            self.now = self.now + Span::from_ms(10);
            self.server.on_tick(self.now);
            self.settle();
        }
    }

    /// A dead node's journal was read, and these are its records from the first on.
    pub(super) fn found(&mut self, node: u64, records: Vec<P>) {
        let records = (1..).map(Number).zip(records).collect();
        self.server.on_recovered(NodeId(node), records);
        self.settle();
    }

    pub(super) fn accuse(&mut self, node: u64) {
        self.server.accuse(NodeId(node), LIE);
        self.settle();
        assert_eq!(self.ended(), [(NodeId(node), Why::Accused(LIE))]);
    }

    /// The lenders of a node that is gone were told: all of them, or some could not be reached.
    pub(super) fn tell(&mut self, node: u64, all: bool) {
        self.server.on_told(self.now, NodeId(node), all);
        self.settle();
    }

    /// Whose lenders were to be told since this was asked last.
    pub(super) fn forgotten(&mut self) -> Vec<u64> {
        self.forgotten.drain(..).map(|node| node.0).collect()
    }

    /// What was said over a link since this was asked last.
    pub(super) fn said(&mut self, session: u64) -> Vec<ToNode<P>> {
        let said = self.said.extract_if(.., |(over, _)| *over == Session(session));
        said.map(|(_, message)| message).collect()
    }

    /// Who was fenced, and whose records were refused, since this was asked last.
    pub(super) fn ended(&mut self) -> Vec<(NodeId, Why)> {
        std::mem::take(&mut self.ended)
    }

    pub(super) fn holds(&self, node: u64, lock: u32) -> bool {
        self.server.locks().holds(NodeId(node), LockId(lock)) == Some(Hold::Exclusive)
    }

    pub(super) fn standing(&self, node: u64) -> Option<Standing> {
        self.server.standing(NodeId(node))
    }
}

/// The last number of a hand-over that the server before may have told.
pub(super) const GRANT_BEFORE: Grant = Grant(10);
const LIE: &str = "a lie";

fn journal(node: u64) -> Journal {
    Journal {
        view: View::first(JournalId(node.into())),
        key: Vec::new(),
        kept: Number(0),
        end: Link::default(),
    }
}

pub(super) fn record(written: &[At], read: &[At]) -> P {
    let versions = |locks: &[At]| {
        let locks = locks.iter();
        locks.map(|(lock, at)| (LockId(*lock), Version(*at))).collect()
    };
    let (written, read) = (versions(written), versions(read));
    bytes::record(&Stamp { written, read }, &[])
}

pub(super) fn tail(number: u64, payload: P) -> ToServer<P> {
    ToServer::Tail {
        number: Number(number),
        end: Link {
            lsn: Lsn(number * 64),
            chain: 0,
        },
        acked: true,
        payload,
    }
}

/// A node goes on over another link. It has the region, and up to the number of each.
pub(super) fn resume(node: u64, link: u64, applied: &[(u64, u64)]) -> ToServer<P> {
    let applied = applied.iter();
    ToServer::Resume {
        region: RegionId(0),
        node: NodeId(node),
        link,
        whole: true,
        applied: applied
            .map(|(node, number)| (NodeId(*node), Number(*number)))
            .collect(),
    }
}

/// The lock is wanted alone.
pub(super) fn acquire(lock: u32) -> ToServer<P> {
    ToServer::Lock(ToService::Acquire {
        lock: LockId(lock),
        hold: Hold::Exclusive,
        order: Order::Up,
        ask: Ask(1),
    })
}

pub(super) fn release(lock: u32, grant: u64, version: u64) -> ToServer<P> {
    ToServer::Lock(ToService::Release {
        lock: LockId(lock),
        grant: Grant(grant),
        version: Version(version),
        keep: None,
    })
}
