//! Durable state of a server, and the actions of its driver.

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

/// Durable state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DurableNode {
    /// [`NodeState::Live`], [`NodeState::Fencing`] or [`NodeState::Gone`].
    pub state: NodeState,
    /// Identity of its journal. No other node id may ever have the same journal.
    pub id: JournalId,
    /// Its journal, until the node is gone and its lenders know that: see [`DurableFact::Forgotten`].
    pub journal: Option<NodeJournal>,
    /// Its last merged record.
    pub number: RecordNumber,
}

/// Durable state of a region without its bytes, as of one position.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionState {
    /// Position of the last record that is in the region.
    pub position: Position,
    /// Version of every lock of the region.
    pub versions: Vec<(LockId, LockVersion)>,
    /// Every node id that was ever assigned and is not forgotten.
    pub nodes: BTreeMap<NodeId, DurableNode>,
    /// Highest node id that was ever assigned.
    pub last_node: NodeId,
    /// Highest grant number that may have been handed out.
    pub ceiling: GrantNumber,
}

/// A fact to make durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DurableFact {
    /// A new node has this journal. Its records count from 1 and begin at `journal.end`.
    Joined {
        /// Its id, higher than all before.
        node: NodeId,
        /// Its name, for people.
        name: String,
        /// Its journal.
        journal: NodeJournal,
    },
    /// A node's journal has this view.
    Viewed {
        /// The node.
        node: NodeId,
        /// The view.
        view: View,
    },
    /// A node is being fenced: only the records in its journal count from here on.
    Fencing {
        /// The node.
        node: NodeId,
    },
    /// Every record of a node is durable here. Its journal is not needed, and is remembered only until [its
    /// lenders know](DurableFact::Forgotten).
    Gone {
        /// The node.
        node: NodeId,
    },
    /// The lenders of a gone node know that they may free its windows, or are not told any more.
    Forgotten {
        /// The node.
        node: NodeId,
    },
    /// Highest grant number that may be handed out.
    Ceiling(GrantNumber),
}

/// Reason why a node is fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceReason {
    /// The node was silent for its lease.
    Silent,
    /// The node's machine closed its link, or a message proves that its process has ended.
    Dead,
    /// The node fell behind, and did not leave within its lease.
    Behind,
    /// The node has left, and a record of it still waits for one that no other node sends.
    Unmerged,
    /// The node sent an invalid record.
    Alien(InvalidRecord),
    /// The node sent a record with an invalid stamp.
    Stamp(StampError),
    /// The node sent a record under a lock that it does not hold, or that the region does not have.
    Unlocked(LockId),
    /// The node violated the lock protocol.
    Locks(LockMisuse),
    /// The node sent something at the wrong time.
    OutOfPlace(&'static str),
    /// The node's record needs a version that can never come, and the operator gave it up.
    GivenUp(MissingVersion),
    /// The driver reported a violation: see
    /// [`RegionServer::report_violation`](super::RegionServer::report_violation).
    Reported(&'static str),
}

impl fmt::Display for FenceReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FenceReason::Silent => out.write_str("it was silent for its whole lease"),
            FenceReason::Dead => out.write_str("its process has ended"),
            FenceReason::Behind => {
                out.write_str("it fell behind all records that the server keeps, and did not leave")
            }
            FenceReason::Unmerged => {
                out.write_str("it left a record that needs a version which no other node sends")
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

/// Something that the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAction<P> {
    /// Make this durable, in the order of the tickets and after the records that were to be applied before
    /// it; then call [`RegionServer::on_stored`](super::RegionServer::on_stored).
    Store {
        /// Number of this request.
        ticket: u64,
        /// The fact.
        fact: DurableFact,
    },
    /// Apply a record to the region, and log it with its position, its number and the versions that it makes.
    /// When it is durable, call [`RegionServer::on_durable`](super::RegionServer::on_durable); one call may
    /// cover many records.
    Apply {
        /// Its position in the order.
        position: Position,
        /// Node that wrote it.
        node: NodeId,
        /// Its number.
        number: RecordNumber,
        /// Where it ends in its journal; `None`: it was read from a dead node's journal, or offered.
        end: Option<ChainPoint>,
        /// Stamp and ranges.
        payload: P,
    },
    /// Fence the node's journal and read it to its proven end. Then call
    /// [`RegionServer::on_recovered`](super::RegionServer::on_recovered) or
    /// [`RegionServer::on_stuck`](super::RegionServer::on_stuck).
    Recover {
        /// The node.
        node: NodeId,
        /// Its journal, with the place to read on from.
        journal: NodeJournal,
    },
    /// Tell the node's lenders to free its windows, then call
    /// [`RegionServer::on_forget_tried`](super::RegionServer::on_forget_tried). The action is repeated until
    /// all lenders know.
    Forget {
        /// The node.
        node: NodeId,
        /// Its journal.
        journal: NodeJournal,
    },
    /// Tell the operator that a node is fenced. Comes once per node.
    Fenced {
        /// The node.
        node: NodeId,
        /// The reason.
        why: FenceReason,
    },
    /// Tell the operator that a dead node's journal has an invalid record. It and the records after it are
    /// left out.
    Refused {
        /// The node.
        node: NodeId,
        /// The reason.
        why: FenceReason,
    },
    /// Close a link at once. Its node goes on over another.
    Close(SessionId),
}
