//! Internal to netram: programs use the crate `netram`.
//!
//! One region in the memory of several machines, kept coherent by the redo log. See `docs/design/shared.md`.
//!
//! | part | decides |
//! |---|---|
//! | [`message`] | the messages between nodes and the server, as bytes |
//! | [`Stamp`] | the locks of a record: which versions it made and which it had read |
//! | [`MergeQueue`] | the order in which records of several journals are merged |
//! | [`lock`] | who may use which lock: the server's service, the nodes' tokens |
//! | [`RegionNode`] | a node's side: tokens, its own records, other nodes' records |
//! | [`RegionServer`] | the server's side: order, node states, streams |
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod limit;
pub mod lock;
mod merge;
pub mod message;
pub mod node;
pub mod server;
mod stamp;

pub use merge::{InvalidRecord, MergeEntry, MergeQueue, MissingVersion, QueuedRecord};
pub use message::{ToNode, ToPeer, ToServer};
pub use node::RegionNode;
pub use server::RegionServer;
pub use stamp::{Stamp, StampError};

use core::fmt;

/// Identifies one joining of a node to a region. Never zero and never reused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// Identifies a lock of a region, and so the span of bytes that the lock covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(pub u32);

/// Number of committed writes under a lock. Zero: nothing was ever written under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockVersion(pub u64);

/// Number of a lock's hand-over. A higher number makes lower ones void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantNumber(pub u64);

/// Number of a record in its node's journal: 1, 2, 3 ...
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordNumber(pub u64);

/// Place of a record in the server's order: 1, 2, 3 ... over the region's whole life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// Identifies a region for ever: a random number chosen at creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u128);

impl fmt::Display for RegionId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockMode {
    /// Held together with other readers.
    Shared,
    /// Held alone.
    Exclusive,
}

macro_rules! number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        }

        impl $name {
            /// The number after this one. It saturates: no real count gets that far, but a peer may claim
            /// that it did.
            pub const fn next(self) -> $name {
                $name(self.0.saturating_add(1))
            }
        }
    )*};
}

number!(NodeId, LockId, LockVersion, GrantNumber, RecordNumber, Position);
