//! State machine of a shared region's server: it orders the nodes' records, hands locks on, and decides which
//! nodes are alive.
//!
//! Events are reported with `on_*` and [`RegionServer::handle`]. [`RegionServer::poll`] returns the resulting
//! actions until there are none; then [`RegionServer::poll_send`] returns the messages for each link, as far
//! as the link has room. The driver carries out actions in their order. Facts to make durable may take
//! longer, and are confirmed then.
//!
//! | file | decides |
//! |---|---|
//! | `action.rs` | nothing: types of durable facts and of actions |
//! | `joining.rs` | which nodes are admitted, and how they go on over a new link |
//! | `records.rs` | the order of records, and which of them are durable |
//! | `endpoints.rs` | what nodes are told of each other |
//! | `ending.rs` | leases, fencing, reading dead nodes' journals, leaving |
//! | `retire.rs` | when the lenders of gone nodes are told to free their windows |
//! | `stream.rs` | what is sent over a link next |
//!
//! **Checks of the driver.** A record's ranges must lie in the spans of the locks that its stamp has written
//! under. The driver checks this before it hands in a received or recovered record. If they do not, it calls
//! [`RegionServer::report_violation`].
//!
//! **Bounds on memory.** Records are kept in a ring. Answers wait for their link: a driver reads nothing more
//! from a link while [`RegionServer::poll_send`] still has answers for it. Waiting records of one node are
//! bounded in bytes, and so are those of an offered journal ([`MERGE_BYTES_MAX`]: a node that sends more is
//! fenced). Messages about locks and nodes are bounded, too ([`OUTBOX_BYTES_MAX`]: a node that does not read
//! them has to rejoin).
//!
//! [`MERGE_BYTES_MAX`]: crate::limit::MERGE_BYTES_MAX
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
use netram_proto::id::JournalId;
use netram_proto::planted::FaultSwitch;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;
use peer::ServerPeer;
use retire::PendingForget;
use ring::{RecordRing, RingRecord};

/// Identifies one link to a node. The driver chooses it; it is never used twice in one life of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// How a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEnd {
    /// The link broke, or was closed by the server: its node may be alive, and go on over another.
    Broken,
    /// The node's machine closed the link, as it does for a process that has ended. A living node keeps a
    /// useless link until it goes on over another. Only the network between the machines can make this signal
    /// wrong.
    HungUp,
}

/// Configuration of a server, apart from its region's state.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Time for which a node may be silent.
    pub lease: Nanos,
    /// Bytes of recent records that are kept for nodes that are behind.
    pub recent_bytes_max: usize,
    /// Bytes of the region that one message carries to a joining node.
    pub page_bytes: u64,
    /// Pause before the lenders of a gone node are told again, if some could not be reached. It doubles at
    /// most [`FORGET_DOUBLINGS_MAX`](crate::limit::FORGET_DOUBLINGS_MAX) times.
    pub forget_retry: Nanos,
    /// Description of the region for joining nodes.
    pub opening: RegionOpening,
}

/// State of one link.
#[derive(Clone, Debug)]
struct Wire<P> {
    node: Option<NodeId>,
    /// Journal whose key the client has proven to hold.
    owned: Option<JournalId>,
    /// Messages that are sent before all others.
    urgent: VecDeque<ToNode<P>>,
    /// Whether the link is closed after the messages in `urgent`.
    closing: bool,
}

impl<P> Default for Wire<P> {
    fn default() -> Wire<P> {
        Wire {
            node: None,
            owned: None,
            urgent: VecDeque::new(),
            closing: false,
        }
    }
}

/// A record that has come and is not merged.
#[derive(Clone, Debug)]
struct ReceivedRecord<P> {
    /// Where it ends in its journal; `None`: it was read from a dead node's journal, or offered.
    end: Option<ChainPoint>,
    /// Whether the record will be found again whichever machine fails.
    proven: bool,
    payload: P,
}

/// The fact that a ticket stands for.
#[derive(Clone, Copy, Debug)]
enum StoreTicket {
    Joined(NodeId),
    Viewed(NodeId),
    Fencing(NodeId),
    Gone(NodeId),
    Forgotten,
    Ceiling(GrantNumber),
}

/// The server of a shared region; see the module. `P` holds a record's payload, and is cheap to clone.
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
    /// First and last record that are not durable and might be lost: dead nodes' records that perhaps not all
    /// members had, and records of a journal with too few members. Until they are durable, no node sees them
    /// or anything after them.
    unproven: Option<(Position, Position)>,
    actions: VecDeque<ServerAction<P>>,
    stores: VecDeque<(u64, StoreTicket)>,
    tickets: u64,
    ceiling_requested: bool,
    ticked: Time,
    /// Multicast group that nodes send to.
    group: String,
    planted: FaultSwitch,
}

impl<P: Clone + AsRef<[u8]>> RegionServer<P> {
    /// Creates a server from its durable state. Its nodes have one lease from now on to come back.
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
            planted: FaultSwitch::NONE,
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

    /// Fills the ring with the newest records up to the table's position, in order, so that nodes that lack
    /// only these need not start anew. Call it before anything else.
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

    /// Plants a fault (simulator tests only).
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Notes that the client of a session has proven to hold this journal's key. The proof comes before the
    /// session's first message.
    pub fn on_proven(&mut self, session: SessionId, journal: JournalId) {
        self.wires.entry(session).or_default().owned = Some(journal);
    }

    /// Handles a message. The first one over a session creates the session, unless a proof did.
    pub fn handle(&mut self, now: Time, session: SessionId, message: ToServer<P>) {
        let wire = self.wires.entry(session).or_default();
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
            // Messages that come while the node's fencing is on its way to the disk do not count.
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

    /// Notes that a link is gone.
    pub fn on_closed(&mut self, now: Time, session: SessionId, closed: LinkEnd) {
        let node = self.wires.remove(&session).and_then(|wire| wire.node);
        if let Some(peer) = node.and_then(|node| self.peers.get_mut(&node)) {
            peer.session = None;
            peer.hung_up = (closed == LinkEnd::HungUp).then_some(now);
            peer.clear_outbox();
        }
        self.settle();
    }

    /// Notes that the fact of this ticket and all earlier ones are durable.
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

    /// Notes the time. Call it several times per lease, and at [`RegionServer::deadline`].
    pub fn on_tick(&mut self, now: Time) {
        self.check_leases(now);
        self.start_due_forgets(now);
        self.settle();
    }

    /// Takes the driver's report that a node did what no correct node does: its records lie outside its
    /// locks' spans, or its bytes are no messages.
    pub fn report_violation(&mut self, node: NodeId, what: &'static str) {
        self.fence(node, FenceReason::Reported(what));
        self.settle();
    }

    /// Next action for the driver.
    pub fn poll(&mut self) -> Option<ServerAction<P>> {
        self.actions.pop_front()
    }

    /// Position of the newest record.
    pub fn newest(&self) -> Position {
        self.ring.newest()
    }

    /// Node that speaks over a link.
    pub fn node(&self, session: SessionId) -> Option<NodeId> {
        self.wires.get(&session)?.node
    }

    /// All remembered nodes with their states.
    pub fn node_states(&self) -> impl Iterator<Item = (NodeId, NodeState)> {
        self.peers.iter().map(|(node, peer)| (*node, peer.state))
    }

    /// State of a node; `None`: the id was never assigned, or is forgotten.
    pub fn node_state(&self, node: NodeId) -> Option<NodeState> {
        self.peers.get(&node).map(|peer| peer.state)
    }

    /// Number of messages that answer questions or end a link and wait for it. [`RegionServer::poll_send`]
    /// returns them first.
    pub fn urgent(&self, session: SessionId) -> usize {
        self.wires.get(&session).map_or(0, |wire| wire.urgent.len())
    }

    /// Number of records that a living node is still to be sent; `None`: it has no link.
    pub fn behind(&self, node: NodeId) -> Option<u64> {
        let linked = |peer: &&ServerPeer<P>| peer.state == NodeState::Live && peer.session.is_some();
        let peer = self.peers.get(&node).filter(linked)?;
        Some(self.ring.newest().next().0.saturating_sub(peer.next.0))
    }

    /// Position up to which every record is durable.
    pub fn durable(&self) -> Position {
        self.durable
    }

    /// Versions that block waiting records.
    pub fn missing(&self) -> Vec<MissingVersion> {
        self.merge.missing()
    }

    /// The lock service, for inspection.
    pub fn locks(&self) -> &LockService {
        &self.locks
    }

    /// Draws all consequences of the last event, so that nothing waits for another event.
    fn settle(&mut self) {
        self.merge_ready();
        self.finish_claims();
        self.finish_readings();
        let wanted = self.locks.ceiling_wanted().filter(|_| !self.ceiling_requested);
        if let Some(grant) = wanted {
            self.ceiling_requested = true;
            self.store(DurableFact::Ceiling(grant), StoreTicket::Ceiling(grant));
        }
        // A grant follows all records that there are: its node has everything that was committed under the
        // lock.
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

    /// Sends a last message, and closes the link.
    fn close_with(&mut self, session: SessionId, message: ToNode<P>) {
        if let Some(wire) = self.wires.get_mut(&session) {
            wire.urgent.push_back(message);
            wire.closing = true;
            wire.node = None;
        }
    }
}
