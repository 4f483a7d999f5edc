//! What a server has durable, and what it has its driver do.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::{NodeJournal, NodeState, SessionId};
use crate::lock::LockMisuse;
use crate::{
    GrantNumber, InvalidRecord, LockId, LockVersion, MissingVersion, NodeId, Position, RecordNumber,
    StampError,
};
use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::wire::ChainPoint;

/// What is durable of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurableNode {
    /// [`NodeState::Live`], [`NodeState::Fencing`] or [`NodeState::Gone`].
    pub state: NodeState,
    /// Which journal it has, or had: no other node id may ever have that.
    pub id: JournalId,
    /// What is known of it, until the node is gone and its lenders know that: see [`Fact::Forgotten`].
    pub journal: Option<NodeJournal>,
    /// Its last merged record.
    pub number: RecordNumber,
}

/// What is durable of a region beside its bytes: all of it as of one position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionState {
    /// The last record that is in the region.
    pub position: Position,
    /// The version of every lock of the region.
    pub versions: Vec<(LockId, LockVersion)>,
    /// Every node id that was ever told, but for those forgotten.
    pub nodes: BTreeMap<NodeId, DurableNode>,
    /// No node id above this was told.
    pub last_node: NodeId,
    /// No grant above this was told.
    pub ceiling: GrantNumber,
}

/// Something that is to be durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DurableFact {
    /// There is a node with this journal, whose records count from 1 and stand from `journal.end` on.
    Joined {
        /// Its id: above all before.
        node: NodeId,
        /// For people.
        name: String,
        /// Its journal.
        journal: NodeJournal,
    },
    /// A node's journal has this view.
    Viewed {
        /// Whose.
        node: NodeId,
        /// Which.
        view: View,
    },
    /// Nothing of a node counts any more but what is in its journal.
    Fencing {
        /// Whose.
        node: NodeId,
    },
    /// Everything of a node is here; its journal is not needed, and is remembered only until its lenders are
    /// [told](Fact::Forgotten).
    Gone {
        /// Whose.
        node: NodeId,
    },
    /// The lenders of a node that is gone know that they may give its windows back, or are not told any more.
    Forgotten {
        /// Whose.
        node: NodeId,
    },
    /// No grant above this is told.
    Ceiling(GrantNumber),
}

/// Why a node is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceReason {
    /// It was silent for its lease.
    Silent,
    /// Its machine closed its link, or a process speaks that could not if it lived.
    Dead,
    /// It fell behind, and did not leave.
    Behind,
    /// It has left, and a record of it still waits for what no other node brings.
    Unmerged,
    /// A record that cannot be.
    Alien(InvalidRecord),
    /// A record whose stamp is none.
    Stamp(StampError),
    /// A record under a lock that it does not hold, or that the region has not.
    Unlocked(LockId),
    /// It said something of locks that cannot be.
    Locks(LockMisuse),
    /// It said something out of place.
    OutOfPlace(&'static str),
    /// A record that needs what nobody can bring any more, and was given up by whoever looks after the
    /// region.
    GivenUp(MissingVersion),
    /// The driver says so: see [`RegionServer::report_violation`](super::RegionServer::report_violation).
    Reported(&'static str),
}

impl fmt::Display for FenceReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FenceReason::Silent => out.write_str("it was not heard for its lease"),
            FenceReason::Dead => out.write_str("its process has ended"),
            FenceReason::Behind => {
                out.write_str("it fell behind all records that are kept, and did not leave")
            }
            FenceReason::Unmerged => {
                out.write_str("it has left a record that needs what no other node brings")
            }
            FenceReason::Alien(alien) => alien.fmt(out),
            FenceReason::Stamp(error) => error.fmt(out),
            FenceReason::Unlocked(lock) => {
                write!(out, "it sent a record under lock {lock}, which it does not hold")
            }
            FenceReason::Locks(misuse) => misuse.fmt(out),
            FenceReason::GivenUp(missing) => missing.fmt(out),
            FenceReason::OutOfPlace(what) | FenceReason::Reported(what) => out.write_str(what),
        }
    }
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAction<P> {
    /// Make this durable, in the order of the tickets, and not before the records that were to be applied
    /// before it; then [`RegionServer::on_stored`](super::RegionServer::on_stored).
    Store {
        /// Which.
        ticket: u64,
        /// What.
        fact: DurableFact,
    },
    /// Bring a record into the region, and log it together with its position, its node's number and the
    /// versions that it makes. When that is durable,
    /// [`RegionServer::on_durable`](super::RegionServer::on_durable); many at once will do.
    Apply {
        /// Its place in the order.
        position: Position,
        /// Whose.
        node: NodeId,
        /// Its number.
        number: RecordNumber,
        /// Where it ends in its journal; `None`: it was read from there, or offered.
        end: Option<ChainPoint>,
        /// Stamp and ranges.
        payload: P,
    },
    /// Seal the node's journal and read it to its proven end; then
    /// [`RegionServer::on_recovered`](super::RegionServer::on_recovered), or
    /// [`RegionServer::on_stuck`](super::RegionServer::on_stuck).
    Recover {
        /// Whose.
        node: NodeId,
        /// The journal, with where to read on.
        journal: NodeJournal,
    },
    /// The node's lenders are to give its windows back: tell them, then
    /// [`RegionServer::on_told`](super::RegionServer::on_told). It is said again until all know.
    Forget {
        /// Whose.
        node: NodeId,
        /// The journal.
        journal: NodeJournal,
    },
    /// Tell whoever looks after this that a node is fenced. Told once.
    Fenced {
        /// Which.
        node: NodeId,
        /// Why.
        why: FenceReason,
    },
    /// A dead node's journal has a record that cannot be. It and what is behind it is left out: tell whoever
    /// looks after this.
    Refused {
        /// Whose.
        node: NodeId,
        /// What.
        why: FenceReason,
    },
    /// Close a link at once: its node goes on over another.
    Close(SessionId),
}
