//! What a node may not say.

use core::fmt;

use crate::{Grant, LockId, NodeId, Version};

/// Why a message is refused. It comes of a bug or an attack: nothing has changed, and whoever sent it is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misuse {
    /// The region has no such lock.
    NoSuchLock(LockId),
    /// A token is given back, upgraded or claimed that the node does not have.
    NotHeld(LockId),
    /// A grant number that was never told.
    GrantAhead {
        /// Of which lock.
        lock: LockId,
        /// The number.
        grant: Grant,
    },
    /// A lock's version does not follow on.
    Version {
        /// Of which lock.
        lock: LockId,
        /// The one that has been merged.
        stands: Version,
        /// The one that was said.
        given: Version,
    },
    /// Two claims exclude each other. The one with the higher grant number stands; this node's is void.
    Claims {
        /// On which lock.
        lock: LockId,
        /// Whose claim is void.
        node: NodeId,
    },
}

impl fmt::Display for Misuse {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misuse::NoSuchLock(lock) => write!(out, "the region has no lock {lock}"),
            Misuse::NotHeld(lock) => write!(out, "the node does not hold lock {lock}"),
            Misuse::GrantAhead { lock, grant } => {
                write!(out, "grant {grant} of lock {lock} was never told")
            }
            Misuse::Version { lock, stands, given } => {
                write!(
                    out,
                    "lock {lock} stands at version {stands}, and is said to be at {given}"
                )
            }
            Misuse::Claims { lock, node } => {
                write!(out, "node {node} claims lock {lock}, which another has had since")
            }
        }
    }
}

impl core::error::Error for Misuse {}
