//! What a transaction is told, and its driver.

use core::fmt;

use super::TxnId;
use crate::limit::STAMP_LOCKS_MAX;
use crate::lock::ToService;
use crate::{LockId, LockMode, LockVersion};

/// What came of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The transaction has the lock, or all of them.
    Granted,
    /// It waits: an [`CacheEvent`] with its id says how that ends.
    Waits,
}

/// Why a transaction does not get a lock. It keeps those that it has until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenError {
    /// The lock is out of order, and another transaction uses it: end this one, and begin again with this
    /// lock.
    Died(LockId),
    /// The lock is out of order, and the transaction cannot be undone: acquire it first, or with all others.
    OutOfOrder(LockId),
    /// More locks than a transaction may have ([`STAMP_LOCKS_MAX`]).
    TooMany,
    /// The transaction is waiting for another lock.
    Waiting,
    /// The node has lost its tokens: end the transaction, and begin again when the node has joined again.
    Lost,
    /// There is no such transaction (any more).
    NoSuchTxn,
}

impl fmt::Display for TokenError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenError::Died(lock) => write!(
                out,
                "lock {lock} is in use, and out of order: begin again, with it first"
            ),
            TokenError::OutOfOrder(lock) => write!(
                out,
                "lock {lock} is out of order, and the transaction cannot be undone: acquire it earlier"
            ),
            TokenError::TooMany => {
                write!(out, "a transaction may have {STAMP_LOCKS_MAX} locks, and no more")
            }
            TokenError::Waiting => out.write_str("the transaction already waits for a lock"),
            TokenError::Lost => out.write_str("the node has lost its locks: begin again"),
            TokenError::NoSuchTxn => out.write_str("there is no such transaction"),
        }
    }
}

impl core::error::Error for TokenError {}

/// What a driver is to do, or to tell a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheEvent {
    /// Send this, behind all that was sent before.
    Send(ToService),
    /// The transaction that waited has the lock, or all of them.
    Acquired(TxnId),
    /// It does not get this one.
    Died(TxnId, LockId),
    /// Nor this one, in time.
    TimedOut(TxnId, LockId),
    /// The node has lost its tokens.
    Lost(TxnId),
}

/// The service said what it cannot mean: end the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnaskedReply(pub LockId);

impl fmt::Display for UnaskedReply {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the server grants lock {}, which was not asked for", self.0)
    }
}

impl core::error::Error for UnaskedReply {}

/// A lock as one transaction has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldLock {
    /// Which.
    pub lock: LockId,
    /// How.
    pub hold: LockMode,
    /// The version that the transaction sees.
    pub version: LockVersion,
    /// It has [written](super::TokenCache::on_written) under it: its record makes the version after.
    pub wrote: bool,
}
