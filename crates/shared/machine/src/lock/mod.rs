//! Who may use which lock: the server's side, a node's side, and what they say to each other.
//!
//! | part | decides |
//! |---|---|
//! | [`LockService`] | the server's: for each lock its grant number, version, holders and queue |
//! | [`TokenCache`] | a node's: tokens kept between transactions, local transactions that wait |
//!
//! A *token* is a node's right to a lock: shared, with other nodes that read, or exclusive. Transactions of a
//! node *use* its tokens in the same two ways. Both machines are values; [`ToService`] and [`ToCache`] go
//! over one ordered link, among the records.
//!
//! # Why every acquire ends
//!
//! A transaction asks in one of three ways ([`LockOrder`]), and what it may wait for depends on that alone:
//!
//! - [`Up`](LockOrder::Up): the lock is above all that it has. It may wait for anybody.
//! - [`Upgrade`](LockOrder::Upgrade): it reads under the lock, wants to write, and has none above it. It goes
//!   before all that wait for the lock, and waits for the others that read. Only one may do so at a time: a
//!   second one dies.
//! - [`Out`](LockOrder::Out) of order. It never waits for a transaction, neither one that uses the lock nor
//!   one that waits for it: it dies at once. It waits for messages only: until a token that nobody uses comes
//!   from another node, or its nodes have said `Die`.
//!
//! Whoever waits for a transaction, then, has asked `Up` or `Upgrade`, for some lock *l*. It waits for (1)
//! those who use *l*, and (2) those before it in the queues for *l*, at its node and at the server. Those of
//! (2) wait for *l* too, and stand nearer to its front. Those of (1) have *l*; if they wait, then for a lock
//! above it (`Up`), or, one of them, at the very front, for *l* itself (`Upgrade`); and that one waits only
//! for others of (1), none of which waits for *l*: it would be a second upgrade. So along any chain of waits
//! the lock never goes down, and while it stays the same the place in its queue gets better: the chain ends
//! at a transaction that waits for nobody. There is no cycle, and nobody is ever told to die that had begun
//! to wait for a transaction, but for the second upgrade.
//!
//! Ages of transactions (wait-die) would let one ask downwards and wait for younger ones. That is sound only
//! if all waits obey it: an old one that has 2 and waits for 1, and a young one that has 1 and waits, in
//! order, for 2, would wait for ever.
//!
//! Not all can starve: of those that ask out of order and die, one that has the lowest lock in use dies of
//! nobody. A single one can, on a lock that is never free when it comes; so it should begin again with the
//! lock that it died of, or with [`TokenCache::acquire_all`].
//!
//! # What else must hold
//!
//! - A token is given back only behind the records made under it, also those that only *read* under it: a
//!   later version of what they read must not be merged before them. [`TokenCache::on_sent`] says how far the
//!   node's tails have gone.
//! - The service hands on only what it has merged: a token that is claimed or given back at a version not
//!   merged yet holds its lock back until that version has come, or its node is gone and so are all that were
//!   absent.
//! - Grant numbers rise over all locks and all starts of the server; a message with an older one than the
//!   token's is void.

mod cache;
mod service;
mod table;

pub use cache::{Acquired, CacheEvent, HeldLock, TokenCache, TokenError, TxnId, UnaskedReply};
pub use service::{LockMisuse, LockService};

use super::{GrantNumber, LockId, LockMode, LockVersion, NodeId};

/// Where a lock stands among those that its transaction has. It says what the request may wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockOrder {
    /// Above them all. It waits for anybody.
    Up,
    /// It is the highest of them, held shared and wanted exclusive. It waits for the others that read, unless
    /// one of them waits for it.
    Upgrade,
    /// Not above them all: it waits for no transaction, and dies instead.
    Out,
}

/// Numbers a node's requests, so that an answer finds its question: 1, 2, 3 ...
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockRequestId(pub u64);

/// A request, as a recall names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockRequester {
    /// Who wants the lock.
    pub node: NodeId,
    /// By which request.
    pub ask: LockRequestId,
}

/// A token that a node says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenClaim {
    /// Of which lock.
    pub lock: LockId,
    /// The hand-over that gave it.
    pub grant: GrantNumber,
    /// How it is held.
    pub hold: LockMode,
    /// The lock's version at the node.
    pub version: LockVersion,
}

/// What a node says to the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ToService {
    /// A token is wanted. A later request for the same lock takes the place of an earlier one.
    Acquire {
        /// Of which lock.
        lock: LockId,
        /// How.
        hold: LockMode,
        /// What it may wait for.
        order: LockOrder,
        /// The request's number.
        ask: LockRequestId,
    },
    /// A token comes back, behind all records made under it.
    Release {
        /// Of which lock.
        lock: LockId,
        /// The hand-over that gave it.
        grant: GrantNumber,
        /// The lock's version at the node.
        version: LockVersion,
        /// What is kept of it.
        keep: Option<LockMode>,
    },
    /// A recall for one that must not wait meets a transaction that uses the token.
    Die {
        /// Of which lock.
        lock: LockId,
        /// Whose request.
        asker: LockRequester,
    },
}

/// What the service says to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ToCache {
    /// A token: the answer to an `Acquire`.
    Grant {
        /// Of which lock.
        lock: LockId,
        /// The number of this hand-over.
        grant: GrantNumber,
        /// How it is held.
        hold: LockMode,
        /// The lock's version: the node must have applied it before its transactions may have the lock.
        version: LockVersion,
    },
    /// Somebody else wants the token.
    Recall {
        /// Of which lock.
        lock: LockId,
        /// The hand-over that gave it.
        grant: GrantNumber,
        /// What may be kept of it.
        keep: Option<LockMode>,
        /// Who wants it.
        asker: LockRequester,
        /// Whether that may wait for transactions. If not, and one uses the token, the answer is `Die`.
        waits: bool,
    },
    /// The request must not wait: its transaction does not get the lock.
    Died {
        /// Of which lock.
        lock: LockId,
        /// Which request.
        ask: LockRequestId,
    },
}

/// Whether two tokens, or two uses, of a lock exclude each other.
fn conflict(one: LockMode, other: LockMode) -> bool {
    one == LockMode::Exclusive || other == LockMode::Exclusive
}
