//! Results and events of a node's token cache.

use core::fmt;

use super::TxnId;
use crate::limit::STAMP_LOCKS_MAX;
use crate::lock::ToService;
use crate::{LockId, LockMode, LockVersion};

/// Result of a request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The transaction has all the locks that it asked for.
    Granted,
    /// The transaction waits. A [`CacheEvent`] with its id tells how that ends.
    Waits,
}

/// Reason why a transaction does not get a lock. It keeps the locks that it has until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The lock is out of order, and another transaction uses it. End this transaction and start again with
    /// this lock first.
    Died(LockId),
    /// The lock is out of order, and the transaction cannot be undone. Acquire the lock first, or all locks
    /// together.
    OutOfOrder(LockId),
    /// The transaction would have more locks than [`STAMP_LOCKS_MAX`].
    TooMany,
    /// The transaction is already waiting for another lock.
    Waiting,
    /// The node has lost its tokens. End the transaction, and start again when the node has rejoined.
    Lost,
    /// The transaction does not exist, or has ended.
    NoSuchTxn,
}

impl fmt::Display for TokenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenError::Died(lock) => write!(
                out,
                "lock {lock} is in use and was requested out of order: end the transaction and acquire this lock first"
            ),
            TokenError::OutOfOrder(lock) => write!(
                out,
                "lock {lock} was requested out of order, and the transaction cannot be undone: acquire locks in ascending order"
            ),
            TokenError::TooMany => {
                write!(
                    out,
                    "the transaction has the maximum of {STAMP_LOCKS_MAX} locks already"
                )
            }
            TokenError::Waiting => out.write_str("the transaction is already waiting for a lock"),
            TokenError::Lost => {
                out.write_str("the node has lost its locks: end the transaction and start it again")
            }
            TokenError::NoSuchTxn => out.write_str("the transaction does not exist or has ended"),
        }
    }
}

impl core::error::Error for TokenError {}

/// Something that the driver must do, or tell a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheEvent {
    /// Send this, after everything that was sent before.
    Send(ToService),
    /// The waiting transaction has all the locks that it asked for.
    Acquired(TxnId),
    /// The waiting transaction must not wait for this lock any longer.
    Died(TxnId, LockId),
    /// This lock did not come before the transaction's deadline.
    TimedOut(TxnId, LockId),
    /// The node has lost its tokens, and the transaction its locks.
    Lost(TxnId),
}

/// The server granted a lock that was not asked for. The driver ends the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnaskedReply(pub LockId);

impl fmt::Display for UnaskedReply {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "the server granted lock {}, which this node did not ask for",
            self.0
        )
    }
}

impl core::error::Error for UnaskedReply {}

/// A lock as one transaction holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// The lock.
    pub lock: LockId,
    /// Whether it is held shared or exclusive.
    pub hold: LockMode,
    /// Version that the transaction sees.
    pub version: LockVersion,
    /// Whether the transaction has [written](super::TokenCache::on_written) under it: its record makes the
    /// next version.
    pub wrote: bool,
}
