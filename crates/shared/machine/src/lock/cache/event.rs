//! What a transaction is told, and its driver.

use core::fmt;

use super::TxnId;
use crate::limit::STAMP_LOCKS_MAX;
use crate::lock::ToService;
use crate::{Hold, LockId, Version};

/// What came of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// The transaction has the lock, or all of them.
    Held,
    /// It waits: an [`Event`] with its id says how that ends.
    Waits,
}

/// Why a transaction does not get a lock. It keeps those that it has until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireError {
    /// The lock is out of order, and another transaction uses it: end this one, and begin again with this lock.
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

impl fmt::Display for AcquireError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcquireError::Died(lock) => write!(
                out,
                "lock {lock} is in use, and out of order: begin again, with it first"
            ),
            AcquireError::OutOfOrder(lock) => write!(
                out,
                "lock {lock} is out of order, and the transaction cannot be undone: acquire it earlier"
            ),
            AcquireError::TooMany => {
                write!(out, "a transaction may have {STAMP_LOCKS_MAX} locks, and no more")
            }
            AcquireError::Waiting => out.write_str("the transaction already waits for a lock"),
            AcquireError::Lost => out.write_str("the node has lost its locks: begin again"),
            AcquireError::NoSuchTxn => out.write_str("there is no such transaction"),
        }
    }
}

impl core::error::Error for AcquireError {}

/// What a driver is to do, or to tell a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Send this, behind all that was sent before.
    Send(ToService),
    /// The transaction that waited has the lock, or all of them.
    Held(TxnId),
    /// It does not get this one.
    Died(TxnId, LockId),
    /// Nor this one, in time.
    TimedOut(TxnId, LockId),
    /// The node has lost its tokens.
    Lost(TxnId),
}

/// The service said what it cannot mean: end the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unasked(pub LockId);

impl fmt::Display for Unasked {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the server grants lock {}, which was not asked for", self.0)
    }
}

impl core::error::Error for Unasked {}

/// A lock as one transaction has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Which.
    pub lock: LockId,
    /// How.
    pub hold: Hold,
    /// The version that the transaction sees.
    pub version: Version,
    /// It has [written](super::Cache::wrote) under it: its record makes the version after.
    pub wrote: bool,
}
