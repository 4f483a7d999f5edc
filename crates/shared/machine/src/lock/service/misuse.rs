//! What a node may not say.

use core::fmt;

use crate::{GrantNumber, LockId, LockVersion, NodeId};

/// Why a message is refused. It comes of a bug or an attack: nothing has changed, and whoever sent it is
/// fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMisuse {
    /// The region has no such lock.
    NoSuchLock(LockId),
    /// A token is given back, upgraded or claimed that the node does not have.
    NotHeld(LockId),
    /// A grant number that was never told.
    GrantAhead {
        /// Of which lock.
        lock: LockId,
        /// The number.
        grant: GrantNumber,
    },
    /// A lock's version does not follow on.
    Version {
        /// Of which lock.
        lock: LockId,
        /// The one that has been merged.
        stands: LockVersion,
        /// The one that was said.
        given: LockVersion,
    },
    /// Two claims exclude each other. The one with the higher grant number stands; this node's is void.
    Claims {
        /// On which lock.
        lock: LockId,
        /// Whose claim is void.
        node: NodeId,
    },
}

impl fmt::Display for LockMisuse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockMisuse::NoSuchLock(lock) => write!(out, "the region has no lock {lock}"),
            LockMisuse::NotHeld(lock) => write!(out, "the node does not hold lock {lock}"),
            LockMisuse::GrantAhead { lock, grant } => {
                write!(out, "grant {grant} of lock {lock} was never told")
            }
            LockMisuse::Version { lock, stands, given } => {
                write!(
                    out,
                    "lock {lock} stands at version {stands}, and is said to be at {given}"
                )
            }
            LockMisuse::Claims { lock, node } => {
                write!(out, "node {node} claims lock {lock}, which another has had since")
            }
        }
    }
}

impl core::error::Error for LockMisuse {}
