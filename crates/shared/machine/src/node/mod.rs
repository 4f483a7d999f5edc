//! A node of a shared region, as a value: it has the region in its memory, keeps tokens, and says what its
//! journal has.
//!
//! `on_*`, [`RegionNode::handle`] and the calls of transactions and readers tell it what happened;
//! [`RegionNode::poll`] says what is to be done, in order, until it says nothing more. Deeds are carried out
//! before anything else is told: who is told that a transaction has its lock may look at the memory at once.
//!
//! | file | decides |
//! |---|---|
//! | `linking.rs` | joining, resuming, the lease, the end |
//! | `own.rs` | the node's own records: numbers, tails, what is kept |
//! | `stream.rs` | others' records: applied, held back for pinned readers, known already |
//! | `straight.rs` | records straight from node to node |
//! | `silence.rs` | when a link is given up that nobody has closed |
//!
//! The node's journal is the driver's: it appends, and says what the members have acknowledged. So are the
//! sockets: it says when there is a link, and when it is gone.

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

/// What a node is to do, apart from what its server tells it.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// How it introduces itself.
    pub join: JoinRequest,
    /// Bytes of records that are held back for pinned readers.
    pub pinned_bytes_max: usize,
    /// What to do when they are more.
    pub full: PinnedOverflow,
}

/// How the node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodePhase {
    /// It has no id yet.
    Outside,
    /// It has one, and gets the region.
    Joining,
    /// It has the region.
    Whole,
    /// It sends what it has, and then leaves.
    Leaving,
    /// It is no node any more.
    Over(NodeEnd),
}

/// Why a node is none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEnd {
    /// It left: all that it had is durable at the server.
    Left,
    /// The server fenced it. What was not acknowledged may have happened or not.
    Fenced,
    /// Nobody joins there.
    Refused(JoinRefusal),
    /// The server sent what cannot be.
    Violation(ServerViolation),
    /// It has a record that does not count: a peer sent it, and the server never had it.
    Diverged,
}

impl fmt::Display for NodeEnd {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeEnd::Left => out.write_str("the node has left"),
            NodeEnd::Fenced => {
                out.write_str("the server fenced the node: ask for the outcome of what was not acknowledged")
            }
            NodeEnd::Refused(JoinRefusal::Region) => out.write_str("the server has another region"),
            NodeEnd::Refused(JoinRefusal::Journal) => {
                out.write_str("the journal was another node id's: offer it, and join with a new one")
            }
            NodeEnd::Refused(JoinRefusal::Full) => out.write_str("the server remembers as many nodes as it can"),
            NodeEnd::Violation(misled) => misled.fmt(out),
            NodeEnd::Diverged => out.write_str(
                "the node has a record that does not count: a peer that sent it is broken, or lost what it had acknowledged",
            ),
        }
    }
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAction<P> {
    /// Send this over the present link, behind all before. What is not sent when the link is gone is to be
    /// forgotten.
    Send(ToServer<P>),
    /// Begin with this region, all zeros. It may come again before the region is whole.
    Open(JoinReply),
    /// Put bytes into the region.
    Page {
        /// Where.
        offset: u64,
        /// What.
        bytes: P,
    },
    /// The region is whole: transactions may begin.
    Whole,
    /// Apply a record of another node to the region, all of it at once.
    Apply {
        /// Whose.
        node: NodeId,
        /// Its number.
        number: RecordNumber,
        /// Stamp and ranges.
        payload: P,
    },
    /// The server has made durable what the journal has up to here: it may be dropped everywhere else.
    Durable {
        /// The records.
        number: RecordNumber,
        /// Where they end.
        end: ChainPoint,
        /// The view.
        view: u64,
    },
    /// Tell a transaction how its waiting ended.
    WaitEnded(WaitOutcome),
    /// Pinned readers have held back too much, and see what is new from now on: tell them that what they had
    /// is past.
    Expired,
    /// What became of a record.
    Outcome {
        /// Whose.
        node: NodeId,
        /// Which.
        number: RecordNumber,
        /// What became of it.
        fate: RecordOutcome,
    },
    /// From which record on an offered journal is wanted; `None`: all of it is known.
    OrphanWanted {
        /// Whose journal.
        node: NodeId,
        /// From where.
        from: Option<RecordNumber>,
    },
    /// The node has fallen behind. Its open transactions fail; when it has left, it may join again.
    Rejoin,
    /// Of peers, and for them.
    Peer(PeerAction<P>),
    /// It is over, and will not come back: close the link.
    Ended(NodeEnd),
}

/// How a transaction's waiting for locks ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// It has them.
    Acquired(TxnId),
    /// It is not to wait for this one.
    Died(TxnId, LockId),
    /// This one did not come in time.
    TimedOut(TxnId, LockId),
    /// The node has lost all of its tokens.
    Lost(TxnId),
}

/// Whether the server hears the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Down,
    /// It was told who speaks, and has not answered.
    Introduced,
    Up,
}

/// A node: see the module. `P` holds a record's payload, and is cheap to clone.
#[derive(Clone, Debug)]
pub struct RegionNode<P> {
    config: NodeConfig,
    state: NodePhase,
    wire: Wire,
    /// What the server told when it joined.
    identity: Option<Identity>,
    /// The last record of each other node that is applied, or waits for a reader.
    received: BTreeMap<NodeId, RecordNumber>,
    /// Where each lock stands in what was taken.
    versions: BTreeMap<LockId, LockVersion>,
    /// The newest place of the server's order that was taken, and that is known.
    position: Position,
    newest: Position,
    tokens: TokenCache,
    own: OwnRecords<P>,
    foreign: ForeignRecords<P>,
    direct_peers: DirectPeers,
    /// Questions without an answer, with when they were asked.
    pings: VecDeque<(u64, Time)>,
    nonce: u64,
    pinged: Time,
    silence: SilenceTimer,
    actions: VecDeque<NodeAction<P>>,
}

/// Who a node is.
#[derive(Clone, Copy, Debug)]
struct Identity {
    node: NodeId,
    region: super::RegionId,
    lease: Nanos,
}

impl<P: Clone + AsRef<[u8]>> RegionNode<P> {
    /// A node that has not joined yet.
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

    /// How it is.
    pub fn state(&self) -> NodePhase {
        self.state
    }

    /// Its id, once it has one.
    pub fn id(&self) -> Option<NodeId> {
        self.identity.map(|identity| identity.node)
    }

    /// The region, once it has joined.
    pub fn region(&self) -> Option<super::RegionId> {
        self.identity.map(|identity| identity.region)
    }

    /// What is to be done next.
    pub fn poll(&mut self) -> Option<NodeAction<P>> {
        self.actions.pop_front()
    }

    /// The version that the node's memory has of a lock, or has waiting for a reader.
    pub fn version(&self, lock: LockId) -> LockVersion {
        self.versions.get(&lock).copied().unwrap_or_default()
    }

    /// The tokens, to be looked at.
    pub fn tokens(&self) -> &TokenCache {
        &self.tokens
    }

    /// A transaction begins: see [`TokenCache::begin`].
    pub fn begin(&mut self, undoable: bool) -> TxnId {
        self.tokens.begin(undoable)
    }

    /// A transaction wants a lock: see [`TokenCache::acquire`]. Pinned readers see what is new from here on.
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

    /// A transaction wants several: see [`TokenCache::acquire_all`].
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

    /// Whoever has a lock sees all that was committed under it.
    fn accept_if(&mut self, acquired: Result<Acquired, TokenError>) -> Result<Acquired, TokenError> {
        if acquired == Ok(Acquired::Granted) {
            self.accept();
        }
        acquired
    }

    /// A transaction does not wait any more.
    pub fn cancel(&mut self, now: Time, txn: TxnId) {
        self.tokens.cancel(now, txn);
        self.settle();
    }

    /// Time has passed. To be called several times a lease, and at [`TokenCache::deadline`].
    pub fn on_tick(&mut self, now: Time) {
        self.ping_if_due(now);
        self.listen(now);
        self.tokens.on_tick(now);
        self.settle();
    }

    /// Asks what became of a record. Answered by [`NodeAction::RecordOutcome`], unless the link breaks; to be
    /// asked again while that says `Open`.
    pub fn ask_outcome(&mut self, node: NodeId, number: RecordNumber) {
        self.send(ToServer::Outcome { node, number });
    }

    /// Offers the journal of an earlier node id, which has been read to its end. Answered by
    /// [`NodeAction::OrphanWanted`], unless the link breaks.
    pub fn offer_orphan(&mut self, old: OrphanJournalId, last: RecordNumber) {
        self.send(ToServer::OfferOrphan { old, last });
    }

    /// A record of an offered journal that is wanted: in order, up to the last.
    pub fn send_orphan_record(&mut self, node: NodeId, number: RecordNumber, payload: P) {
        self.send(ToServer::OrphanRecord {
            node,
            number,
            payload,
        });
    }

    /// Asks for all records that there are. For a lazy node, that gets them otherwise only before a grant.
    pub fn pull(&mut self) {
        self.send(ToServer::Pull);
    }

    fn send(&mut self, message: ToServer<P>) {
        if self.wire != Wire::Down {
            self.actions.push_back(NodeAction::Send(message));
        }
    }

    /// Makes deeds of what came of the tokens.
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
