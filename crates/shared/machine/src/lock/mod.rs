//! Locks: the server's service, the nodes' token caches, and their messages.
//!
//! | part | decides |
//! |---|---|
//! | [`LockService`] | the server's side: for each lock its grant number, version, holders and queue |
//! | [`TokenCache`] | a node's side: tokens kept between transactions, and local transactions that wait |
//!
//! A *token* is a node's right to a lock: shared with other nodes that read, or exclusive. Transactions of a
//! node *use* its tokens in the same two modes. Both machines are plain values; [`ToService`] and [`ToCache`]
//! go over one ordered link, among the records.
//!
//! # Why every acquire ends
//!
//! A transaction asks in one of three ways ([`LockOrder`]), which alone decide what it may wait for:
//!
//! - [`Up`](LockOrder::Up): the lock is above all that the transaction has. It may wait for any other one.
//! - [`Upgrade`](LockOrder::Upgrade): the transaction reads under the lock, wants to write, and has no higher
//!   one. It goes before all that wait for the lock, and waits for the other readers. Only one upgrade at a
//!   time may wait for a lock: a second one dies.
//! - [`Out`](LockOrder::Out) of order. The transaction never waits for another one, whether that uses the
//!   lock or waits for it; it dies at once. It waits for messages only: until an unused token comes from
//!   another node, or until a node has answered `Die`.
//!
//! So a transaction that waits for another one has asked `Up` or `Upgrade`, for some lock *l*. It waits for
//! (1) the users of *l*, and (2) those before it in the queues for *l*, at its node and at the server. Those
//! of (2) wait for *l* too, nearer to its front. Those of (1) have *l*. If one of them waits, it is for a
//! higher lock (`Up`), or, at the very front, for *l* itself (`Upgrade`). The upgrade waits only for others
//! of (1), none of which waits for *l*: that would be a second upgrade. Along any chain of waits, therefore,
//! the lock never goes down, and while it stays the same the place in its queue gets better. The chain ends
//! at a transaction that waits for no other one. There is no cycle, and no transaction that waits for another
//! is ever made to die, except for the second upgrade.
//!
//! Ages of transactions (wait-die) would let one ask downwards and wait for younger ones. That is sound only
//! if all waits obey it. An old transaction with lock 2 that waits for 1, and a young one with lock 1 that
//! waits, in order, for 2, would wait for ever.
//!
//! Not all can starve: among those that ask out of order and die, the one that holds the lowest lock in use
//! dies for no other one. A single transaction can starve on a lock that is never free when it asks. It
//! should start again with the lock that it died of, or with [`TokenCache::acquire_all`].
//!
//! # Further invariants
//!
//! - A token is given back only after the records made under it, also those that only *read* under it: a
//!   later version of what they read must not be merged before them. [`TokenCache::on_sent`] tells how far
//!   the node's records have been sent.
//! - The service hands on only what it has merged. A token that is claimed or given back at a version that is
//!   not
//!   merged yet blocks its lock. The block ends when that version has come, or when the node and all absent
//!   nodes
//!   are gone.
//! - Grant numbers rise over all locks and all starts of the server. A message with an older number than the
//!   token's is void.

mod cache;
mod service;
mod table;

pub use cache::{Acquired, CacheEvent, HeldLock, TokenCache, TokenError, TxnId, UnaskedReply};
pub use service::{LockMisuse, LockService};

use super::{GrantNumber, LockId, LockMode, LockVersion, NodeId};

/// Place of a lock among those that its transaction has. It decides what the request may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockOrder {
    /// The lock is above all others: the request may wait for any transaction.
    Up,
    /// The lock is the highest one, held shared and wanted exclusive. The request waits for the other
    /// readers, unless one of them waits for it.
    Upgrade,
    /// The lock is not above all others: the request waits for no transaction, and dies instead.
    Out,
}

/// Number of a node's request, by which its answer is recognised: 1, 2, 3 ...
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockRequestId(pub u64);

/// A request as a recall names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockRequester {
    /// Node that wants the lock.
    pub node: NodeId,
    /// Number of its request.
    pub ask: LockRequestId,
}

/// A token that a node claims to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenClaim {
    /// The lock.
    pub lock: LockId,
    /// Number of the hand-over that gave the token.
    pub grant: GrantNumber,
    /// How the lock is held.
    pub hold: LockMode,
    /// The lock's version at the node.
    pub version: LockVersion,
}

/// Message of a node to the lock service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ToService {
    /// A request for a token. A later request for the same lock replaces an earlier one.
    Acquire {
        /// The lock.
        lock: LockId,
        /// Mode that is wanted.
        hold: LockMode,
        /// Order of the lock, which decides what the request may wait for.
        order: LockOrder,
        /// Number of the request.
        ask: LockRequestId,
    },
    /// A token that is given back, after all records made under it.
    Release {
        /// The lock.
        lock: LockId,
        /// Number of the hand-over that gave the token.
        grant: GrantNumber,
        /// The lock's version at the node.
        version: LockVersion,
        /// Mode that the node keeps; `None`: none.
        keep: Option<LockMode>,
    },
    /// Answer to a recall for a request that must not wait: a transaction uses the token.
    Die {
        /// The lock.
        lock: LockId,
        /// Request that has to die.
        asker: LockRequester,
    },
}

/// Message of the lock service to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ToCache {
    /// A token: the answer to an `Acquire`.
    Grant {
        /// The lock.
        lock: LockId,
        /// Number of this hand-over.
        grant: GrantNumber,
        /// How the lock is held.
        hold: LockMode,
        /// The lock's version. The node must have applied it before its transactions may have the lock.
        version: LockVersion,
    },
    /// Asks for the token back, because another node wants it.
    Recall {
        /// The lock.
        lock: LockId,
        /// Number of the hand-over that gave the token.
        grant: GrantNumber,
        /// Mode that the node may keep; `None`: none.
        keep: Option<LockMode>,
        /// Request that the recall is for.
        asker: LockRequester,
        /// Whether that request may wait for transactions. If not, and one uses the token, the answer is
        /// `Die`.
        waits: bool,
    },
    /// The request must not wait: its transaction does not get the lock.
    Died {
        /// The lock.
        lock: LockId,
        /// Number of the request.
        ask: LockRequestId,
    },
}

/// Whether two tokens or two uses of a lock exclude each other.
fn conflict(one: LockMode, other: LockMode) -> bool {
    one == LockMode::Exclusive || other == LockMode::Exclusive
}
