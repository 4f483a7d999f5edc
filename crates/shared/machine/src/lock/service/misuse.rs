//! Violations of the lock protocol by a node.

use core::fmt;

use crate::{GrantNumber, LockId, LockVersion, NodeId};

/// A lock message that a correct node never sends. It changes nothing, and its sender is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMisuse {
    /// The region does not have the named lock.
    NoSuchLock(LockId),
    /// The node does not have the token that it gives back, upgrades or claims.
    NotHeld(LockId),
    /// The grant number was never handed out.
    GrantAhead {
        /// The lock.
        lock: LockId,
        /// The grant number.
        grant: GrantNumber,
    },
    /// The lock's version does not follow the merged one.
    Version {
        /// The lock.
        lock: LockId,
        /// Version that has been merged.
        stands: LockVersion,
        /// Version in the node's message.
        given: LockVersion,
    },
    /// Two claims exclude each other. The one with the higher grant number is valid; this node's is void.
    Claims {
        /// The lock.
        lock: LockId,
        /// Node whose claim is void.
        node: NodeId,
    },
}

impl fmt::Display for LockMisuse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockMisuse::NoSuchLock(lock) => write!(out, "the region has no lock {lock}"),
            LockMisuse::NotHeld(lock) => write!(out, "the node does not hold lock {lock}"),
            LockMisuse::GrantAhead { lock, grant } => {
                write!(out, "grant {grant} of lock {lock} was never handed out")
            }
            LockMisuse::Version { lock, stands, given } => {
                write!(
                    out,
                    "lock {lock} is at version {stands}, but the node claims version {given}"
                )
            }
            LockMisuse::Claims { lock, node } => {
                write!(
                    out,
                    "node {node} claims lock {lock}, which another node has been granted since"
                )
            }
        }
    }
}

impl core::error::Error for LockMisuse {}
