//! The server of a shared region, as a value: it orders the nodes' records, hands locks on, and decides who
//! is still a node.
//!
//! `on_*` and [`RegionServer::handle`] tell it what happened; [`RegionServer::poll`] says what is to be done,
//! until it says nothing more; then [`RegionServer::poll_send`] says what each link is to be sent, as far as
//! that takes it. Deeds are carried out in their order; what is to be durable may be so later, and is
//! answered then.
//!
//! | file | decides |
//! |---|---|
//! | `deed.rs` | nothing: what is durable, and what the driver is to do |
//! | `joining.rs` | who becomes a node, and goes on being one over a new link |
//! | `records.rs` | the order of records, and what of them is durable |
//! | `meeting.rs` | who of the nodes hears of whom |
//! | `ending.rs` | leases, fencing, journals of the dead, leaving |
//! | `burial.rs` | that the lenders of those who are gone give their windows back |
//! | `stream.rs` | what goes over a link next |
//!
//! **What the driver checks.** That a record's ranges lie in the spans of the locks that its stamp has
//! written under: before it hands a `ReceivedRecord` or a recovered record in. Where they do not, it calls
//! [`RegionServer::report_violation`].
//!
//! **What bounds memory.** Records are kept in a ring. Answers to questions wait for their link: a driver
//! reads nothing more from a link while [`RegionServer::poll_send`] has not said all that there is for it but
//! records and pages. What waits of one node is bounded in bytes: records that wait for others', and those of
//! a journal that is offered ([`WAITING_BYTES_MAX`]: whoever sends more is fenced), and what it is to be told
//! of locks and nodes ([`OUTBOX_BYTES_MAX`]: whoever does not take it begins anew).
//!
//! [`WAITING_BYTES_MAX`]: crate::limit::WAITING_BYTES_MAX
//! [`OUTBOX_BYTES_MAX`]: crate::limit::OUTBOX_BYTES_MAX

mod action;
mod ending;
mod endpoints;
mod joining;
mod peer;
mod records;
mod retire;
mod ring;
mod stream;

pub use action::{DurableFact, DurableNode, FenceReason, RegionState, ServerAction};
pub use peer::{NodeJournal, NodeState};
pub use stream::LinkOutput;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use super::lock::LockService;
use super::message::{RegionOpening, ToNode, ToServer};
use super::{GrantNumber, MergeQueue, MissingVersion, NodeId, Position, RecordNumber};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;
use peer::ServerPeer;
use retire::PendingForget;
use ring::{RecordRing, RingRecord};

/// Names one link to a node, as the driver likes; never used twice in one life of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// How a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// It broke, or was closed here: its node may live, and goes on over another.
    Broken,
    /// The node's machine has closed it, as it does for a process that has ended. A node that lives keeps a
    /// link that is of no use to it until it goes on over another, so that this says nothing wrong of it;
    /// what lies between may.
    HungUp,
}

/// What a server is to do, apart from its region's state.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// How long a node may be silent.
    pub lease: Nanos,
    /// Bytes of records that are kept for nodes that are behind.
    pub recent_bytes_max: usize,
    /// Bytes of the region that one message carries to a joining node.
    pub page_bytes: u64,
    /// After so long the lenders of a node that is gone are told again, if some of them could not be. It
    /// doubles, a few times.
    pub forget_retry: Nanos,
    /// What a joining node is told of the region.
    pub opening: RegionOpening,
}

/// One link.
#[derive(Clone, Debug)]
struct Wire<P> {
    node: Option<NodeId>,
    /// What goes at once.
    urgent: VecDeque<ToNode<P>>,
    /// What is in `urgent` is the last.
    closing: bool,
}

/// A record that has come.
#[derive(Clone, Debug)]
struct ReceivedRecord<P> {
    /// Where it ends in its journal; `None`: it was read from there, or offered.
    end: Option<ChainPoint>,
    /// It will be found again whatever dies.
    proven: bool,
    payload: P,
}

/// What a ticket is for.
#[derive(Clone, Copy, Debug)]
enum StoreTicket {
    Joined(NodeId),
    Viewed(NodeId),
    Fencing(NodeId),
    Gone(NodeId),
    Forgotten,
    Ceiling(GrantNumber),
}

/// The server: see the module. `P` holds a record's payload, and is cheap to clone.
#[derive(Clone, Debug)]
pub struct RegionServer<P> {
    config: ServerConfig,
    peers: BTreeMap<NodeId, ServerPeer<P>>,
    wires: BTreeMap<SessionId, Wire<P>>,
    last_node: NodeId,
    merge: MergeQueue<ReceivedRecord<P>>,
    locks: LockService,
    ring: RecordRing<P>,
    durable: Position,
    /// Records that are not durable, and might be lost, from the first to the last: of the dead, for not all
    /// members may have had them, and of a journal with too few members. Until they are durable nobody sees
    /// them, or anything behind them.
    unproven: Option<(Position, Position)>,
    actions: VecDeque<ServerAction<P>>,
    stores: VecDeque<(u64, StoreTicket)>,
    tickets: u64,
    ceiling_requested: bool,
    ticked: Time,
    /// The multicast group that nodes are told.
    group: String,
}

impl<P: Clone + AsRef<[u8]>> RegionServer<P> {
    /// A server as its disk says. Its nodes have a lease from now on to come back.
    pub fn new(config: ServerConfig, table: RegionState, now: Time) -> RegionServer<P> {
        let numbers = || table.nodes.iter().map(|(node, row)| (*node, row.number));
        let mut server = RegionServer {
            merge: MergeQueue::new(
                table
                    .versions
                    .iter()
                    .copied()
                    .filter(|(_, version)| version.0 > 0),
                numbers(),
            ),
            locks: LockService::new(table.ceiling, table.versions.iter().copied()),
            ring: RecordRing::new(table.position, numbers().collect(), config.recent_bytes_max),
            config,
            peers: BTreeMap::new(),
            wires: BTreeMap::new(),
            last_node: table.last_node,
            durable: table.position,
            unproven: None,
            actions: VecDeque::new(),
            stores: VecDeque::new(),
            tickets: 0,
            ceiling_requested: false,
            ticked: now,
            group: String::new(),
        };
        for (node, row) in table.nodes {
            let standing = match row.state {
                NodeState::Live => NodeState::Absent,
                NodeState::Gone => NodeState::Gone,
                _ => NodeState::Reading,
            };
            if standing != NodeState::Gone {
                server.locks.expect(node);
            }
            let mut peer = ServerPeer::new(standing, row.id, row.journal, now);
            if standing == NodeState::Gone {
                peer.pending_forget = peer
                    .journal
                    .take()
                    .map(|journal| PendingForget::from_table(journal, now));
            }
            server.peers.insert(node, peer);
        }
        let dead = server
            .peers
            .iter()
            .filter(|(_, peer)| peer.state == NodeState::Reading);
        let dead: Vec<NodeId> = dead.map(|(node, _)| *node).collect();
        for node in dead {
            server.locks.fence(node);
            server.read_journal(node);
        }
        server.settle();
        server
    }

    /// Remembers the newest records up to the table's position, in their order: of those that are here no
    /// node need begin anew. To be called before anything has happened.
    pub fn remember(&mut self, recent: Vec<(NodeId, RecordNumber, P)>) {
        let newest = self.ring.newest();
        let before = newest.0.checked_sub(recent.len() as u64).map(Position);
        let before = before.expect("there are no more records than there were");
        let mut numbers: BTreeMap<NodeId, RecordNumber> = self.merge.numbers().collect();
        for (node, number, _) in recent.iter().rev() {
            numbers.insert(*node, RecordNumber(number.0.saturating_sub(1)));
        }
        self.ring = RecordRing::new(before, numbers, self.config.recent_bytes_max);
        for (node, number, payload) in recent {
            self.ring.push(RingRecord {
                node,
                number,
                payload,
            });
        }
        assert_eq!(self.ring.newest(), newest);
    }

    /// Takes a message. The first over a session makes it known.
    pub fn handle(&mut self, now: Time, session: SessionId, message: ToServer<P>) {
        let wire = self.wires.entry(session).or_insert_with(|| Wire {
            node: None,
            urgent: VecDeque::new(),
            closing: false,
        });
        if wire.closing {
            return;
        }
        match wire.node {
            None => self.on_unknown_link(now, session, message),
            Some(node) => self.on_node(now, session, node, message),
        }
        self.settle();
    }

    fn on_node(&mut self, now: Time, session: SessionId, node: NodeId, message: ToServer<P>) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.heard_at = now;
        let standing = peer.state;
        match message {
            ToServer::Ping { nonce, .. } => self.on_ping(session, node, nonce),
            ToServer::Outcome { node, number } => self.on_outcome(session, node, number),
            ToServer::OfferOrphan { old, last } => self.on_offer(session, old, last),
            ToServer::OrphanRecord {
                node,
                number,
                payload,
            } => self.on_orphan_record(session, node, number, payload),
            // What it says while its fencing is on the way to the disk does not count any more.
            _ if !standing.speaks() => (),
            ToServer::Record {
                number,
                end,
                acked,
                payload,
            } => {
                let tail = ReceivedRecord {
                    end: Some(end),
                    proven: acked,
                    payload,
                };
                self.on_record(node, number, tail)
            }
            ToServer::Lock(message) => {
                if let Err(misuse) = self.locks.handle(node, message) {
                    self.fence(node, FenceReason::Locks(misuse));
                }
            }
            ToServer::Claims(claims) => self.on_claims(node, &claims),
            ToServer::View(view) => self.on_view(node, view),
            ToServer::Pull => peer.wanted = self.ring.newest(),
            ToServer::Endpoint(reach) => self.on_reach(node, reach),
            ToServer::Leave => self.on_leave(node),
            ToServer::Join(_) | ToServer::Resume { .. } => {
                self.fence(node, FenceReason::OutOfPlace("it introduced itself twice"));
            }
        }
    }

    /// A link is no more.
    pub fn on_closed(&mut self, now: Time, session: SessionId, closed: LinkEnd) {
        let node = self.wires.remove(&session).and_then(|wire| wire.node);
        if let Some(peer) = node.and_then(|node| self.peers.get_mut(&node)) {
            peer.session = None;
            peer.hung_up = (closed == LinkEnd::HungUp).then_some(now);
            peer.clear_outbox();
        }
        self.settle();
    }

    /// The fact of this ticket, and all before it, are durable.
    pub fn on_stored(&mut self, now: Time, ticket: u64) {
        while let Some((_, stored)) = self.stores.pop_front_if(|(stored, _)| *stored <= ticket) {
            match stored {
                StoreTicket::Joined(node) => self.on_joined(now, node),
                StoreTicket::Viewed(node) => {
                    if let Some(peer) = self.peers.get_mut(&node) {
                        peer.on_view_stored();
                    }
                }
                StoreTicket::Fencing(node) => self.on_fenced(node),
                StoreTicket::Gone(node) => self.on_gone(now, node),
                StoreTicket::Forgotten => (),
                StoreTicket::Ceiling(grant) => {
                    self.ceiling_requested = false;
                    self.locks.ceiling_stored(grant);
                }
            }
        }
        self.settle();
    }

    /// Time has passed. To be called several times a lease, and at [`RegionServer::deadline`].
    pub fn on_tick(&mut self, now: Time) {
        self.check_leases(now);
        self.start_due_forgets(now);
        self.settle();
    }

    /// A node, says the driver, has done what no node does: its records lie outside of its locks' spans, its
    /// bytes are no messages.
    pub fn report_violation(&mut self, node: NodeId, what: &'static str) {
        self.fence(node, FenceReason::Reported(what));
        self.settle();
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<ServerAction<P>> {
        self.actions.pop_front()
    }

    /// The newest record's place.
    pub fn newest(&self) -> Position {
        self.ring.newest()
    }

    /// Who speaks over a link.
    pub fn node(&self, session: SessionId) -> Option<NodeId> {
        self.wires.get(&session)?.node
    }

    /// All nodes that are remembered.
    pub fn node_states(&self) -> impl Iterator<Item = (NodeId, NodeState)> {
        self.peers.iter().map(|(node, peer)| (*node, peer.state))
    }

    /// Where a node is in its life. `None`: there is none of that id, or it is forgotten.
    pub fn node_state(&self, node: NodeId) -> Option<NodeState> {
        self.peers.get(&node).map(|peer| peer.state)
    }

    /// How many messages wait for a link that answer questions, or end it: what [`RegionServer::poll_send`]
    /// says first.
    pub fn urgent(&self, session: SessionId) -> usize {
        self.wires.get(&session).map_or(0, |wire| wire.urgent.len())
    }

    /// How many records a living node is still to be sent. `None`: it has no link.
    pub fn behind(&self, node: NodeId) -> Option<u64> {
        let linked = |peer: &&ServerPeer<P>| peer.state == NodeState::Live && peer.session.is_some();
        let peer = self.peers.get(&node).filter(linked)?;
        Some(self.ring.newest().next().0.saturating_sub(peer.next.0))
    }

    /// Every record up to there is durable.
    pub fn durable(&self) -> Position {
        self.durable
    }

    /// What records that wait are waiting for.
    pub fn missing(&self) -> Vec<MissingVersion> {
        self.merge.missing()
    }

    /// The lock service, to be looked at.
    pub fn locks(&self) -> &LockService {
        &self.locks
    }

    /// Makes everything follow from what happened, so that nothing waits for another event.
    fn settle(&mut self) {
        self.merge_ready();
        self.finish_claims();
        self.finish_readings();
        let wanted = self.locks.ceiling_wanted().filter(|_| !self.ceiling_requested);
        if let Some(grant) = wanted {
            self.ceiling_requested = true;
            self.store(DurableFact::Ceiling(grant), StoreTicket::Ceiling(grant));
        }
        // A grant goes behind all records that there are: whoever gets it has all that was committed under
        // it.
        while let Some((node, message)) = self.locks.poll() {
            self.put(node, ToNode::Lock(message));
        }
    }

    fn store(&mut self, fact: DurableFact, stored: StoreTicket) {
        self.tickets += 1;
        let ticket = self.tickets;
        self.stores.push_back((ticket, stored));
        self.actions.push_back(ServerAction::Store { ticket, fact });
    }

    fn queue_message(&mut self, session: SessionId, message: ToNode<P>) {
        if let Some(wire) = self.wires.get_mut(&session) {
            wire.urgent.push_back(message);
        }
    }

    /// Says a last thing, and closes the link.
    fn close_with(&mut self, session: SessionId, message: ToNode<P>) {
        if let Some(wire) = self.wires.get_mut(&session) {
            wire.urgent.push_back(message);
            wire.closing = true;
            wire.node = None;
        }
    }
}
