//! One region in the memory of several machines, kept coherent by the redo log. `docs/shared.md` says how.
//!
//! | part | decides |
//! |---|---|
//! | [`message`] | what nodes and the server say to each other, as bytes |
//! | [`Stamp`] | what a record says of locks: which versions it made, which it had read |
//! | [`MergeQueue`] | in which order records of several journals may go |
//! | [`lock`] | who may use which lock: the server's service, the nodes' tokens |
//! | [`RegionNode`] | a node's side: tokens, its own records, others' |
//! | [`RegionServer`] | the server's side: order, standing of nodes, streams |
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

/// Names one joining of a node to a region. Never zero, and never used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

/// Names a lock of a region, and so the span of bytes that it covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(pub u32);

/// A lock's count of committed writes. Zero: nothing was ever written under it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockVersion(pub u64);

/// The number of a lock's hand-over. A higher one makes the lower void.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GrantNumber(pub u64);

/// The number of a record in its node's journal: 1, 2, 3 ...
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordNumber(pub u64);

/// The place of a record in the server's order: 1, 2, 3 ... over the region's whole life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// Names a region for ever; random, chosen when it is made.
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
    /// With others that only read.
    Shared,
    /// Alone.
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
            /// The one after this. None counts so far; but a peer may say that it did.
            pub const fn next(self) -> $name {
                $name(self.0.saturating_add(1))
            }
        }
    )*};
}

number!(NodeId, LockId, LockVersion, GrantNumber, RecordNumber, Position);
