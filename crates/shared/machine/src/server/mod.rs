//! The server of a shared region, as a value: it orders the nodes' records, hands locks on, and decides who is still a node.
//!
//! `on_*` and [`Server::handle`] tell it what happened; [`Server::poll`] says what is to be done, until it says nothing more; then
//! [`Server::poll_send`] says what each link is to be sent, as far as that takes it. Deeds are carried out in their order; what is
//! to be durable may be so later, and is answered then.
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
//! **What the driver checks.** That a record's ranges lie in the spans of the locks that its stamp has written under: before it
//! hands a `Tail` or a recovered record in. Where they do not, it calls [`Server::accuse`].
//!
//! **What bounds memory.** Records are kept in a ring. Answers to questions wait for their link: a driver reads nothing more from a
//! link while [`Server::poll_send`] has not said all that there is for it but records and pages. What waits of one node is bounded in bytes: records
//! that wait for others', and those of a journal that is offered ([`WAITING_BYTES_MAX`]: whoever sends more is fenced), and what it is to be told of locks and
//! nodes ([`OUTBOX_BYTES_MAX`]: whoever does not take it begins anew).
//!
//! [`WAITING_BYTES_MAX`]: crate::limit::WAITING_BYTES_MAX
//! [`OUTBOX_BYTES_MAX`]: crate::limit::OUTBOX_BYTES_MAX

mod burial;
mod deed;
mod ending;
mod joining;
mod meeting;
mod peer;
mod records;
mod ring;
mod stream;

pub use deed::{Deed, Fact, Row, Table, Why};
pub use peer::{Journal, Standing};
pub use stream::Outgoing;

use alloc::collections::{BTreeMap, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;

use super::lock::Service;
use super::message::{Opening, ToNode, ToServer};
use super::{Grant, Merge, Missing, NodeId, Number, Position};
use burial::Untold;
use netram_proto::time::{Span, Time};
use netram_proto::wire::Link;
use peer::Peer;
use ring::{Recent, Ring};

/// Names one link to a node, as the driver likes; never used twice in one life of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Session(pub u64);

/// How a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It broke, or was closed here: its node may live, and goes on over another.
    Broken,
    /// The node's machine has closed it, as it does for a process that has ended. A node that lives keeps a link that is of no use to it
    /// until it goes on over another, so that this says nothing wrong of it; what lies between may.
    HungUp,
}

/// What a server is to do, apart from its region's state.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// How long a node may be silent.
    pub lease: Span,
    /// Bytes of records that are kept for nodes that are behind.
    pub recent_bytes_max: usize,
    /// Bytes of the region that one message carries to a joining node.
    pub page_bytes: u64,
    /// After so long the lenders of a node that is gone are told again, if some of them could not be. It doubles, a few times.
    pub tell_again: Span,
    /// What a joining node is told of the region.
    pub opening: Opening,
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
struct Tail<P> {
    /// Where it ends in its journal; `None`: it was read from there, or offered.
    end: Option<Link>,
    /// It will be found again whatever dies.
    proven: bool,
    payload: P,
}

/// What a ticket is for.
#[derive(Clone, Copy, Debug)]
enum Stored {
    Joined(NodeId),
    Viewed(NodeId),
    Fencing(NodeId),
    Gone(NodeId),
    Told,
    Ceiling(Grant),
}

/// The server: see the module. `P` holds a record's payload, and is cheap to clone.
#[derive(Clone, Debug)]
pub struct Server<P> {
    config: ServerConfig,
    peers: BTreeMap<NodeId, Peer<P>>,
    wires: BTreeMap<Session, Wire<P>>,
    last_node: NodeId,
    merge: Merge<Tail<P>>,
    locks: Service,
    ring: Ring<P>,
    durable: Position,
    /// Records that are not durable, and might be lost, from the first to the last: of the dead, for not all members may have had
    /// them, and of a journal with too few members. Until they are durable nobody sees them, or anything behind them.
    unproven: Option<(Position, Position)>,
    deeds: VecDeque<Deed<P>>,
    stores: VecDeque<(u64, Stored)>,
    tickets: u64,
    ceiling_asked: bool,
    ticked: Time,
    /// The multicast group that nodes are told.
    group: String,
}

impl<P: Clone + AsRef<[u8]>> Server<P> {
    /// A server as its disk says. Its nodes have a lease from now on to come back.
    pub fn new(config: ServerConfig, table: Table, now: Time) -> Server<P> {
        let numbers = || table.nodes.iter().map(|(node, row)| (*node, row.number));
        let mut server = Server {
            merge: Merge::new(
                table
                    .versions
                    .iter()
                    .copied()
                    .filter(|(_, version)| version.0 > 0),
                numbers(),
            ),
            locks: Service::new(table.ceiling, table.versions.iter().copied()),
            ring: Ring::new(table.position, numbers().collect(), config.recent_bytes_max),
            config,
            peers: BTreeMap::new(),
            wires: BTreeMap::new(),
            last_node: table.last_node,
            durable: table.position,
            unproven: None,
            deeds: VecDeque::new(),
            stores: VecDeque::new(),
            tickets: 0,
            ceiling_asked: false,
            ticked: now,
            group: String::new(),
        };
        for (node, row) in table.nodes {
            let standing = match row.standing {
                Standing::Live => Standing::Absent,
                Standing::Gone => Standing::Gone,
                _ => Standing::Reading,
            };
            if standing != Standing::Gone {
                server.locks.expect(node);
            }
            let mut peer = Peer::new(standing, row.id, row.journal, now);
            if standing == Standing::Gone {
                peer.untold = peer
                    .journal
                    .take()
                    .map(|journal| Untold::since_before(journal, now));
            }
            server.peers.insert(node, peer);
        }
        let dead = server
            .peers
            .iter()
            .filter(|(_, peer)| peer.standing == Standing::Reading);
        let dead: Vec<NodeId> = dead.map(|(node, _)| *node).collect();
        for node in dead {
            server.locks.fence(node);
            server.read_journal(node);
        }
        server.settle();
        server
    }

    /// Remembers the newest records up to the table's position, in their order: of those that are here no node need begin anew. To be called
    /// before anything has happened.
    pub fn remember(&mut self, recent: Vec<(NodeId, Number, P)>) {
        let newest = self.ring.newest();
        let before = newest.0.checked_sub(recent.len() as u64).map(Position);
        let before = before.expect("there are no more records than there were");
        let mut numbers: BTreeMap<NodeId, Number> = self.merge.numbers().collect();
        for (node, number, _) in recent.iter().rev() {
            numbers.insert(*node, Number(number.0.saturating_sub(1)));
        }
        self.ring = Ring::new(before, numbers, self.config.recent_bytes_max);
        for (node, number, payload) in recent {
            self.ring.push(Recent {
                node,
                number,
                payload,
            });
        }
        assert_eq!(self.ring.newest(), newest);
    }

    /// Takes a message. The first over a session makes it known.
    pub fn handle(&mut self, now: Time, session: Session, message: ToServer<P>) {
        let wire = self.wires.entry(session).or_insert_with(|| Wire {
            node: None,
            urgent: VecDeque::new(),
            closing: false,
        });
        if wire.closing {
            return;
        }
        match wire.node {
            None => self.on_stranger(now, session, message),
            Some(node) => self.on_node(now, session, node, message),
        }
        self.settle();
    }

    fn on_node(&mut self, now: Time, session: Session, node: NodeId, message: ToServer<P>) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.heard = now;
        let standing = peer.standing;
        match message {
            ToServer::Ping { nonce, .. } => self.on_ping(session, node, nonce),
            ToServer::Outcome { node, number } => self.on_outcome(session, node, number),
            ToServer::Offer { old, last } => self.on_offer(session, old, last),
            ToServer::OldTail {
                node,
                number,
                payload,
            } => self.on_old_tail(session, node, number, payload),
            // What it says while its fencing is on the way to the disk does not count any more.
            _ if !standing.speaks() => (),
            ToServer::Tail {
                number,
                end,
                acked,
                payload,
            } => {
                let tail = Tail {
                    end: Some(end),
                    proven: acked,
                    payload,
                };
                self.on_tail(node, number, tail)
            }
            ToServer::Lock(message) => {
                if let Err(misuse) = self.locks.handle(node, message) {
                    self.fence(node, Why::Locks(misuse));
                }
            }
            ToServer::Claims(claims) => self.on_claims(node, &claims),
            ToServer::View(view) => self.on_view(node, view),
            ToServer::Pull => peer.wanted = self.ring.newest(),
            ToServer::Reach(reach) => self.on_reach(node, reach),
            ToServer::Leave => self.on_leave(node),
            ToServer::Join(_) | ToServer::Resume { .. } => {
                self.fence(node, Why::OutOfPlace("it introduced itself twice"));
            }
        }
    }

    /// A link is no more.
    pub fn on_closed(&mut self, now: Time, session: Session, closed: Closed) {
        let node = self.wires.remove(&session).and_then(|wire| wire.node);
        if let Some(peer) = node.and_then(|node| self.peers.get_mut(&node)) {
            peer.session = None;
            peer.hung_up = (closed == Closed::HungUp).then_some(now);
            peer.hush();
        }
        self.settle();
    }

    /// The fact of this ticket, and all before it, are durable.
    pub fn on_stored(&mut self, now: Time, ticket: u64) {
        while let Some((_, stored)) = self.stores.pop_front_if(|(stored, _)| *stored <= ticket) {
            match stored {
                Stored::Joined(node) => self.on_joined(now, node),
                Stored::Viewed(node) => {
                    if let Some(peer) = self.peers.get_mut(&node) {
                        peer.on_view_stored();
                    }
                }
                Stored::Fencing(node) => self.on_fenced(node),
                Stored::Gone(node) => self.on_gone(now, node),
                Stored::Told => (),
                Stored::Ceiling(grant) => {
                    self.ceiling_asked = false;
                    self.locks.ceiling_stored(grant);
                }
            }
        }
        self.settle();
    }

    /// Time has passed. To be called several times a lease, and at [`Server::deadline`].
    pub fn on_tick(&mut self, now: Time) {
        self.check_leases(now);
        self.tell_due(now);
        self.settle();
    }

    /// A node, says the driver, has done what no node does: its records lie outside of its locks' spans, its bytes are no messages.
    pub fn accuse(&mut self, node: NodeId, what: &'static str) {
        self.fence(node, Why::Accused(what));
        self.settle();
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<Deed<P>> {
        self.deeds.pop_front()
    }

    /// The newest record's place.
    pub fn newest(&self) -> Position {
        self.ring.newest()
    }

    /// Who speaks over a link.
    pub fn node(&self, session: Session) -> Option<NodeId> {
        self.wires.get(&session)?.node
    }

    /// All nodes that are remembered.
    pub fn standings(&self) -> impl Iterator<Item = (NodeId, Standing)> {
        self.peers.iter().map(|(node, peer)| (*node, peer.standing))
    }

    /// Where a node is in its life. `None`: there is none of that id, or it is forgotten.
    pub fn standing(&self, node: NodeId) -> Option<Standing> {
        self.peers.get(&node).map(|peer| peer.standing)
    }

    /// How many messages wait for a link that answer questions, or end it: what [`Server::poll_send`] says first.
    pub fn urgent(&self, session: Session) -> usize {
        self.wires.get(&session).map_or(0, |wire| wire.urgent.len())
    }

    /// How many records a living node is still to be sent. `None`: it has no link.
    pub fn behind(&self, node: NodeId) -> Option<u64> {
        let linked = |peer: &&Peer<P>| peer.standing == Standing::Live && peer.session.is_some();
        let peer = self.peers.get(&node).filter(linked)?;
        Some(self.ring.newest().next().0.saturating_sub(peer.next.0))
    }

    /// Every record up to there is durable.
    pub fn durable(&self) -> Position {
        self.durable
    }

    /// What records that wait are waiting for.
    pub fn missing(&self) -> Vec<Missing> {
        self.merge.missing()
    }

    /// The lock service, to be looked at.
    pub fn locks(&self) -> &Service {
        &self.locks
    }

    /// Makes everything follow from what happened, so that nothing waits for another event.
    fn settle(&mut self) {
        self.merge_ready();
        self.finish_claims();
        self.finish_readings();
        let wanted = self.locks.ceiling_wanted().filter(|_| !self.ceiling_asked);
        if let Some(grant) = wanted {
            self.ceiling_asked = true;
            self.store(Fact::Ceiling(grant), Stored::Ceiling(grant));
        }
        // A grant goes behind all records that there are: whoever gets it has all that was committed under it.
        while let Some((node, message)) = self.locks.poll() {
            self.put(node, ToNode::Lock(message));
        }
    }

    fn store(&mut self, fact: Fact, stored: Stored) {
        self.tickets += 1;
        let ticket = self.tickets;
        self.stores.push_back((ticket, stored));
        self.deeds.push_back(Deed::Store { ticket, fact });
    }

    fn say(&mut self, session: Session, message: ToNode<P>) {
        if let Some(wire) = self.wires.get_mut(&session) {
            wire.urgent.push_back(message);
        }
    }

    /// Says a last thing, and closes the link.
    fn dismiss(&mut self, session: Session, message: ToNode<P>) {
        if let Some(wire) = self.wires.get_mut(&session) {
            wire.urgent.push_back(message);
            wire.closing = true;
            wire.node = None;
        }
    }
}
