//! State machine of a shared region's node: it keeps a copy of the region, tokens, and the state of its
//! journal's records.
//!
//! Events are reported with `on_*`, [`RegionNode::handle`] and the calls of transactions and readers.
//! [`RegionNode::poll`] returns the resulting actions in order. The driver carries out all actions before it
//! reports the next event: a transaction that is told of its lock may look at the memory at once.
//!
//! | file | decides |
//! |---|---|
//! | `linking.rs` | joining, resuming, renewing the lease, leaving |
//! | `own_records.rs` | the node's own records: numbers, sending, durability |
//! | `stream.rs` | other nodes' records: applied, held back for pinned readers, or known already |
//! | `direct.rs` | records sent directly from node to node |
//! | `silence.rs` | when to give up a link that carries nothing any more |
//!
//! The driver owns the node's journal and sockets. It appends records, and reports what the members have
//! acknowledged and when the link goes up or down.

mod direct;
mod linking;
mod own_records;
mod silence;
mod stream;

pub use direct::PeerAction;
pub use stream::{PinnedOverflow, ReaderLag, ServerViolation};

use alloc::collections::{BTreeMap, VecDeque};
use core::fmt;

use super::lock::{Acquired, CacheEvent, TokenCache, TokenError, TxnId};
use super::message::{JoinRefusal, JoinReply, JoinRequest, OrphanJournalId, RecordOutcome, ToServer};
use super::{LockId, LockMode, LockVersion, NodeId, Position, RecordNumber};
use direct::DirectPeers;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;
use own_records::OwnRecords;
use silence::SilenceTimer;
use stream::ForeignRecords;

/// Configuration of a node, apart from what its server sends.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Request with which the node joins.
    pub join: JoinRequest,
    /// Maximum bytes of records that are held back for pinned readers.
    pub pinned_bytes_max: usize,
    /// Reaction when pinned readers hold back more than that.
    pub full: PinnedOverflow,
}

/// Phase of a node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePhase {
    /// The node has no id yet.
    Outside,
    /// The node has an id and receives the region.
    Joining,
    /// The node has the whole region.
    Whole,
    /// The node sends what it has, and then leaves.
    Leaving,
    /// The node has ended.
    Over(NodeEnd),
}

/// Reason why a node has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    /// The node left: all of its records are durable at the server.
    Left,
    /// The server fenced the node. Transactions that were not acknowledged may have committed or not.
    Fenced,
    /// The server refused the node.
    Refused(JoinRefusal),
    /// The server sent an invalid message.
    Violation(ServerViolation),
    /// The node has applied a record that does not count: a peer sent it, and the server never had it.
    Diverged,
}

impl fmt::Display for NodeEnd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeEnd::Left => out.write_str("the node has left"),
            NodeEnd::Fenced => {
                out.write_str("the server fenced the node: ask for the outcome of each commit that was not acknowledged")
            }
            NodeEnd::Refused(JoinRefusal::Region) => out.write_str("the server has another region"),
            NodeEnd::Refused(JoinRefusal::Journal) => {
                out.write_str("the journal belongs to an earlier node id: offer it to the server, and join with a new journal")
            }
            NodeEnd::Refused(JoinRefusal::Full) => out.write_str("the server remembers the maximum number of node ids and admits no new node"),
            NodeEnd::Refused(JoinRefusal::Owner) => out.write_str("the node has not proven that it owns its journal: run the same release on node and server"),
            NodeEnd::Violation(misled) => misled.fmt(out),
            NodeEnd::Diverged => out.write_str(
                "the node has applied a record that is not part of the region: the peer that sent it is faulty, or lost a record that it had acknowledged",
            ),
        }
    }
}

/// Something that the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAction<P> {
    /// Send this over the present link, after everything before it. Drop what is unsent when the link is
    /// gone.
    Send(ToServer<P>),
    /// Start with this region, filled with zeros. May come again before the region is complete.
    Open(JoinReply),
    /// Write bytes into the region.
    Page {
        /// Offset in the region, in bytes.
        offset: u64,
        /// The bytes.
        bytes: P,
    },
    /// The region is complete: transactions may begin.
    Whole,
    /// Apply a record of another node to the region, all of it at once.
    Apply {
        /// Node that wrote it.
        node: NodeId,
        /// Its number.
        number: RecordNumber,
        /// Stamp and ranges.
        payload: P,
    },
    /// The server has made the journal durable up to here: it may be dropped everywhere else.
    Durable {
        /// Last durable record.
        number: RecordNumber,
        /// Where that record ends in the journal.
        end: ChainPoint,
        /// Version of the newest durable view.
        view: u64,
    },
    /// Tell a transaction how its waiting ended.
    WaitEnded(WaitOutcome),
    /// Tell pinned readers that they see newer data from now on, since they have held back too many records.
    Expired,
    /// Report the outcome of a record.
    Outcome {
        /// Node that wrote the record.
        node: NodeId,
        /// The record's number.
        number: RecordNumber,
        /// The record's outcome.
        fate: RecordOutcome,
    },
    /// Report which records of an offered journal the server wants.
    OrphanWanted {
        /// Node whose journal was offered.
        node: NodeId,
        /// First record that is wanted; `None`: the server needs none.
        from: Option<RecordNumber>,
    },
    /// The node has fallen behind. Its open transactions fail; when it has left, it may join again.
    Rejoin,
    /// Do this for peers.
    Peer(PeerAction<P>),
    /// The node has ended for good: close the link.
    Ended(NodeEnd),
}

/// How a transaction's waiting for locks ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The transaction has all the locks that it asked for.
    Acquired(TxnId),
    /// The transaction must not wait for this lock any longer.
    Died(TxnId, LockId),
    /// This lock did not come before the deadline.
    TimedOut(TxnId, LockId),
    /// The node has lost all of its tokens.
    Lost(TxnId),
}

/// State of the link to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Down,
    /// The node has introduced itself, and the server has not answered.
    Introduced,
    Up,
}

/// A node of a shared region; see the module. `P` holds a record's payload, and is cheap to clone.
#[derive(Clone, Debug)]
pub struct RegionNode<P> {
    config: NodeConfig,
    state: NodePhase,
    wire: Wire,
    /// Identity from the server's answer to the join request.
    identity: Option<Identity>,
    /// Last record of each node that is applied, or waits for pinned readers.
    received: BTreeMap<NodeId, RecordNumber>,
    /// Version of each lock in the records of `received`.
    versions: BTreeMap<LockId, LockVersion>,
    /// Newest position of the server's order that was received, and the newest that is known.
    position: Position,
    newest: Position,
    tokens: TokenCache,
    own: OwnRecords<P>,
    foreign: ForeignRecords<P>,
    direct_peers: DirectPeers,
    /// Unanswered pings, each with its time.
    pings: VecDeque<(u64, Time)>,
    nonce: u64,
    pinged: Time,
    silence: SilenceTimer,
    actions: VecDeque<NodeAction<P>>,
}

/// A node's id, region and lease.
#[derive(Clone, Copy, Debug)]
struct Identity {
    node: NodeId,
    region: super::RegionId,
    lease: Nanos,
}

impl<P: Clone + AsRef<[u8]>> RegionNode<P> {
    /// Creates a node that has not joined yet.
    pub fn new(config: NodeConfig) -> RegionNode<P> {
        RegionNode {
            own: OwnRecords::new(config.join.view.clone()),
            config,
            state: NodePhase::Outside,
            wire: Wire::Down,
            identity: None,
            received: BTreeMap::new(),
            versions: BTreeMap::new(),
            position: Position(0),
            newest: Position(0),
            tokens: TokenCache::new(),
            foreign: ForeignRecords::default(),
            direct_peers: DirectPeers::default(),
            pings: VecDeque::new(),
            nonce: 0,
            pinged: Time(0),
            silence: SilenceTimer::default(),
            actions: VecDeque::new(),
        }
    }

    /// The node's phase.
    pub fn state(&self) -> NodePhase {
        self.state
    }

    /// The node's id, once it has joined.
    pub fn id(&self) -> Option<NodeId> {
        self.identity.map(|identity| identity.node)
    }

    /// The region's identity, once the node has joined.
    pub fn region(&self) -> Option<super::RegionId> {
        self.identity.map(|identity| identity.region)
    }

    /// Next action for the driver.
    pub fn poll(&mut self) -> Option<NodeAction<P>> {
        self.actions.pop_front()
    }

    /// Version of a lock in the node's copy, or in records that wait for pinned readers.
    pub fn version(&self, lock: LockId) -> LockVersion {
        self.versions.get(&lock).copied().unwrap_or_default()
    }

    /// The node's tokens, for inspection.
    pub fn tokens(&self) -> &TokenCache {
        &self.tokens
    }

    /// Begins a transaction: see [`TokenCache::begin`].
    pub fn begin(&mut self, undoable: bool) -> TxnId {
        self.tokens.begin(undoable)
    }

    /// Acquires a lock for a transaction: see [`TokenCache::acquire`]. Pinned readers see newer data from
    /// here on.
    ///
    /// # Errors
    ///
    /// [`TokenError::Lost`] if the node is not a complete member of the region; otherwise as for
    /// [`TokenCache::acquire`].
    pub fn acquire(
        &mut self,
        now: Time,
        txn: TxnId,
        lock: LockId,
        hold: LockMode,
        deadline: Time,
    ) -> Result<Acquired, TokenError> {
        if self.state != NodePhase::Whole {
            return Err(TokenError::Lost);
        }
        let acquired = self.tokens.acquire(now, txn, lock, hold, deadline);
        self.settle();
        self.accept_if(acquired)
    }

    /// Acquires several locks for a transaction: see [`TokenCache::acquire_all`].
    ///
    /// # Errors
    ///
    /// The same as for [`RegionNode::acquire`].
    pub fn acquire_all(
        &mut self,
        now: Time,
        txn: TxnId,
        locks: &mut [(LockId, LockMode)],
        deadline: Time,
    ) -> Result<Acquired, TokenError> {
        if self.state != NodePhase::Whole {
            return Err(TokenError::Lost);
        }
        let acquired = self.tokens.acquire_all(now, txn, locks, deadline);
        self.settle();
        self.accept_if(acquired)
    }

    /// Applies waiting records if a lock was granted: its holder sees everything that was committed under it.
    fn accept_if(&mut self, acquired: Result<Acquired, TokenError>) -> Result<Acquired, TokenError> {
        if acquired == Ok(Acquired::Granted) {
            self.accept();
        }
        acquired
    }

    /// Stops the waiting of a transaction.
    pub fn cancel(&mut self, now: Time, txn: TxnId) {
        self.tokens.cancel(now, txn);
        self.settle();
    }

    /// Notes the time. Call it several times per lease, and at [`TokenCache::deadline`].
    pub fn on_tick(&mut self, now: Time) {
        self.ping_if_due(now);
        self.listen(now);
        self.tokens.on_tick(now);
        self.settle();
    }

    /// Asks for the outcome of a record. [`NodeAction::Outcome`] answers, unless the link breaks. Ask again
    /// while the outcome is `Open`.
    pub fn ask_outcome(&mut self, node: NodeId, number: RecordNumber) {
        self.send(ToServer::Outcome { node, number });
    }

    /// Offers the journal of an earlier node id, which has been read to its end. [`NodeAction::OrphanWanted`]
    /// answers, unless the link breaks.
    pub fn offer_orphan(&mut self, old: OrphanJournalId, last: RecordNumber) {
        self.send(ToServer::OfferOrphan { old, last });
    }

    /// Sends a wanted record of an offered journal. Send them in order, up to the last.
    pub fn send_orphan_record(&mut self, node: NodeId, number: RecordNumber, payload: P) {
        self.send(ToServer::OrphanRecord {
            node,
            number,
            payload,
        });
    }

    /// Asks for all records. A lazy node gets them otherwise only before a grant.
    pub fn pull(&mut self) {
        self.send(ToServer::Pull);
    }

    fn send(&mut self, message: ToServer<P>) {
        if self.wire != Wire::Down {
            self.actions.push_back(NodeAction::Send(message));
        }
    }

    /// Turns the token cache's events into actions.
    fn settle(&mut self) {
        while let Some(event) = self.tokens.poll() {
            if matches!(event, CacheEvent::Acquired(_)) {
                self.accept();
            }
            self.actions.push_back(match event {
                CacheEvent::Send(message) => NodeAction::Send(ToServer::Lock(message)),
                CacheEvent::Acquired(txn) => NodeAction::WaitEnded(WaitOutcome::Acquired(txn)),
                CacheEvent::Died(txn, lock) => NodeAction::WaitEnded(WaitOutcome::Died(txn, lock)),
                CacheEvent::TimedOut(txn, lock) => NodeAction::WaitEnded(WaitOutcome::TimedOut(txn, lock)),
                CacheEvent::Lost(txn) => NodeAction::WaitEnded(WaitOutcome::Lost(txn)),
            });
        }
    }
}
