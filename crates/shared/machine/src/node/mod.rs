//! A node of a shared region, as a value: it has the region in its memory, keeps tokens, and says what its journal has.
//!
//! `on_*`, [`Node::handle`] and the calls of transactions and readers tell it what happened; [`Node::poll`] says what is to be done,
//! in order, until it says nothing more. Deeds are carried out before anything else is told: who is told that a transaction has
//! its lock may look at the memory at once.
//!
//! | file | decides |
//! |---|---|
//! | `linking.rs` | joining, resuming, the lease, the end |
//! | `own.rs` | the node's own records: numbers, tails, what is kept |
//! | `stream.rs` | others' records: applied, held back for pinned readers, known already |
//! | `straight.rs` | records straight from node to node |
//! | `silence.rs` | when a link is given up that nobody has closed |
//!
//! The node's journal is the driver's: it appends, and says what the members have acknowledged. So are the sockets: it says when
//! there is a link, and when it is gone.

mod linking;
mod own;
mod silence;
mod straight;
mod stream;

pub use straight::Straight;
pub use stream::{Age, Full, Misled};

use alloc::collections::{BTreeMap, VecDeque};
use core::fmt;

use super::lock::{AcquireError, Acquired, Cache, Event, TxnId};
use super::message::{Fate, Join, Joined, OldJournal, Refused, ToServer};
use super::{Hold, LockId, NodeId, Number, Position, Version};
use netram_proto::time::{Span, Time};
use netram_proto::wire::Link;
use own::Own;
use silence::Silence;
use straight::Way;
use stream::Foreign;

/// What a node is to do, apart from what its server tells it.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// How it introduces itself.
    pub join: Join,
    /// Bytes of records that are held back for pinned readers.
    pub pinned_bytes_max: usize,
    /// What to do when they are more.
    pub full: Full,
}

/// How the node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It has no id yet.
    Outside,
    /// It has one, and gets the region.
    Joining,
    /// It has the region.
    Whole,
    /// It sends what it has, and then leaves.
    Leaving,
    /// It is no node any more.
    Over(Over),
}

/// Why a node is none any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// It left: all that it had is durable at the server.
    Left,
    /// The server fenced it. What was not acknowledged may have happened or not.
    Fenced,
    /// Nobody joins there.
    Refused(Refused),
    /// The server sent what cannot be.
    Misled(Misled),
    /// It has a record that does not count: a peer sent it, and the server never had it.
    Astray,
}

impl fmt::Display for Over {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Over::Left => out.write_str("the node has left"),
            Over::Fenced => {
                out.write_str("the server fenced the node: ask for the outcome of what was not acknowledged")
            }
            Over::Refused(Refused::Region) => out.write_str("the server has another region"),
            Over::Refused(Refused::Journal) => {
                out.write_str("the journal was another node id's: offer it, and join with a new one")
            }
            Over::Refused(Refused::Full) => out.write_str("the server remembers as many nodes as it can"),
            Over::Misled(misled) => misled.fmt(out),
            Over::Astray => out.write_str(
                "the node has a record that does not count: a peer that sent it is broken, or lost what it had acknowledged",
            ),
        }
    }
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deed<P> {
    /// Send this over the present link, behind all before. What is not sent when the link is gone is to be forgotten.
    Send(ToServer<P>),
    /// Begin with this region, all zeros. It may come again before the region is whole.
    Open(Joined),
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
        number: Number,
        /// Stamp and ranges.
        payload: P,
    },
    /// The server has made durable what the journal has up to here: it may be dropped everywhere else.
    Kept {
        /// The records.
        number: Number,
        /// Where they end.
        end: Link,
        /// The view.
        view: u64,
    },
    /// Tell a transaction how its waiting ended.
    Waited(Waited),
    /// Pinned readers have held back too much, and see what is new from now on: tell them that what they had is past.
    Expired,
    /// What became of a record.
    Fate {
        /// Whose.
        node: NodeId,
        /// Which.
        number: Number,
        /// What became of it.
        fate: Fate,
    },
    /// From which record on an offered journal is wanted; `None`: all of it is known.
    Wanted {
        /// Whose journal.
        node: NodeId,
        /// From where.
        from: Option<Number>,
    },
    /// The node has fallen behind. Its open transactions fail; when it has left, it may join again.
    Anew,
    /// Of peers, and for them.
    Straight(Straight<P>),
    /// It is over, and will not come back: close the link.
    Over(Over),
}

/// How a transaction's waiting for locks ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// It has them.
    Held(TxnId),
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
pub struct Node<P> {
    config: NodeConfig,
    state: State,
    wire: Wire,
    /// What the server told when it joined.
    identity: Option<Identity>,
    /// The last record of each other node that is applied, or waits for a reader.
    taken: BTreeMap<NodeId, Number>,
    /// Where each lock stands in what was taken.
    versions: BTreeMap<LockId, Version>,
    /// The newest place of the server's order that was taken, and that is known.
    position: Position,
    newest: Position,
    tokens: Cache,
    own: Own<P>,
    foreign: Foreign<P>,
    way: Way,
    /// Questions without an answer, with when they were asked.
    pings: VecDeque<(u64, Time)>,
    nonce: u64,
    pinged: Time,
    silence: Silence,
    deeds: VecDeque<Deed<P>>,
}

/// Who a node is.
#[derive(Clone, Copy, Debug)]
struct Identity {
    node: NodeId,
    region: super::RegionId,
    lease: Span,
}

impl<P: Clone + AsRef<[u8]>> Node<P> {
    /// A node that has not joined yet.
    pub fn new(config: NodeConfig) -> Node<P> {
        Node {
            own: Own::new(config.join.view.clone()),
            config,
            state: State::Outside,
            wire: Wire::Down,
            identity: None,
            taken: BTreeMap::new(),
            versions: BTreeMap::new(),
            position: Position(0),
            newest: Position(0),
            tokens: Cache::new(),
            foreign: Foreign::default(),
            way: Way::default(),
            pings: VecDeque::new(),
            nonce: 0,
            pinged: Time(0),
            silence: Silence::default(),
            deeds: VecDeque::new(),
        }
    }

    /// How it is.
    pub fn state(&self) -> State {
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
    pub fn poll(&mut self) -> Option<Deed<P>> {
        self.deeds.pop_front()
    }

    /// The version that the node's memory has of a lock, or has waiting for a reader.
    pub fn version(&self, lock: LockId) -> Version {
        self.versions.get(&lock).copied().unwrap_or_default()
    }

    /// The tokens, to be looked at.
    pub fn tokens(&self) -> &Cache {
        &self.tokens
    }

    /// A transaction begins: see [`Cache::begin`].
    pub fn begin(&mut self, undoable: bool) -> TxnId {
        self.tokens.begin(undoable)
    }

    /// A transaction wants a lock: see [`Cache::acquire`]. Pinned readers see what is new from here on.
    pub fn acquire(
        &mut self,
        now: Time,
        txn: TxnId,
        lock: LockId,
        hold: Hold,
        deadline: Time,
    ) -> Result<Acquired, AcquireError> {
        if self.state != State::Whole {
            return Err(AcquireError::Lost);
        }
        let acquired = self.tokens.acquire(now, txn, lock, hold, deadline);
        self.settle();
        self.accept_if(acquired)
    }

    /// A transaction wants several: see [`Cache::acquire_all`].
    pub fn acquire_all(
        &mut self,
        now: Time,
        txn: TxnId,
        locks: &mut [(LockId, Hold)],
        deadline: Time,
    ) -> Result<Acquired, AcquireError> {
        if self.state != State::Whole {
            return Err(AcquireError::Lost);
        }
        let acquired = self.tokens.acquire_all(now, txn, locks, deadline);
        self.settle();
        self.accept_if(acquired)
    }

    /// Whoever has a lock sees all that was committed under it.
    fn accept_if(&mut self, acquired: Result<Acquired, AcquireError>) -> Result<Acquired, AcquireError> {
        if acquired == Ok(Acquired::Held) {
            self.accept();
        }
        acquired
    }

    /// A transaction does not wait any more.
    pub fn cancel(&mut self, now: Time, txn: TxnId) {
        self.tokens.cancel(now, txn);
        self.settle();
    }

    /// Time has passed. To be called several times a lease, and at [`Cache::deadline`].
    pub fn on_tick(&mut self, now: Time) {
        self.ping_if_due(now);
        self.listen(now);
        self.tokens.tick(now);
        self.settle();
    }

    /// Asks what became of a record. Answered by [`Deed::Fate`], unless the link breaks; to be asked again while that says `Open`.
    pub fn ask_outcome(&mut self, node: NodeId, number: Number) {
        self.send(ToServer::Outcome { node, number });
    }

    /// Offers the journal of an earlier node id, which has been read to its end. Answered by [`Deed::Wanted`], unless the link breaks.
    pub fn offer(&mut self, old: OldJournal, last: Number) {
        self.send(ToServer::Offer { old, last });
    }

    /// A record of an offered journal that is wanted: in order, up to the last.
    pub fn give_old(&mut self, node: NodeId, number: Number, payload: P) {
        self.send(ToServer::OldTail {
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
            self.deeds.push_back(Deed::Send(message));
        }
    }

    /// Makes deeds of what came of the tokens.
    fn settle(&mut self) {
        while let Some(event) = self.tokens.poll() {
            if matches!(event, Event::Held(_)) {
                self.accept();
            }
            self.deeds.push_back(match event {
                Event::Send(message) => Deed::Send(ToServer::Lock(message)),
                Event::Held(txn) => Deed::Waited(Waited::Held(txn)),
                Event::Died(txn, lock) => Deed::Waited(Waited::Died(txn, lock)),
                Event::TimedOut(txn, lock) => Deed::Waited(Waited::TimedOut(txn, lock)),
                Event::Lost(txn) => Deed::Waited(Waited::Lost(txn)),
            });
        }
    }
}
