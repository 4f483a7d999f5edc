//! One lock as the service knows it: who holds it, who waits for it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::lock::{Asker, Order, conflict};
use crate::{Grant, Hold, NodeId, Version};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lock {
    /// What has been merged.
    pub(super) version: Version,
    /// Versions above `version` that nodes say to have seen, one a node, by their ids: nothing is granted while there is one. It
    /// counts until that version is merged, or all of its node is: then there was none, or whoever made it is still awaited.
    pub(super) owed: Vec<(NodeId, Version)>,
    /// No absent node can hold it: one that is here claimed it alone.
    pub(super) settled: bool,
    pub(super) holders: Vec<Holder>,
    /// At most one request a node.
    pub(super) queue: VecDeque<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holder {
    pub(super) node: NodeId,
    pub(super) grant: Grant,
    pub(super) hold: Hold,
    /// It has been claimed over the node's present link, or been granted over it.
    pub(super) claimed: bool,
    pub(super) recalled: Option<Recalled>,
}

/// The last recall that a holder was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Recalled {
    pub(super) keep: Option<Hold>,
    pub(super) asker: Asker,
    pub(super) waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) asker: Asker,
    pub(super) hold: Hold,
    pub(super) order: Order,
}

impl Lock {
    pub(super) fn holder(&self, node: NodeId) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.node == node)
    }

    pub(super) fn holder_mut(&mut self, node: NodeId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.node == node)
    }

    pub(super) fn hinders(&self, request: Request) -> impl Iterator<Item = &Holder> {
        self.holders
            .iter()
            .filter(move |holder| request.is_hindered_by(holder))
    }

    /// The node says to have seen this version.
    pub(super) fn owe(&mut self, node: NodeId, version: Version) {
        if version <= self.version {
            return;
        }
        match self.owed.binary_search_by_key(&node, |(whose, _)| *whose) {
            Ok(at) => self.owed[at].1 = self.owed[at].1.max(version),
            Err(at) => self.owed.insert(at, (node, version)),
        }
    }

    /// The version that is merged has grown. `true`: nothing more is awaited, and something was.
    pub(super) fn settle(&mut self) -> bool {
        let waited = !self.owed.is_empty();
        self.owed.retain(|(_, owed)| *owed > self.version);
        waited && self.owed.is_empty()
    }

    /// All of a node is merged. What it had seen and is not there was made by another that is absent, or by nobody: that nobody absent
    /// holds the lock is not to be believed of it either.
    pub(super) fn forgive(&mut self, node: NodeId) {
        let before = self.owed.len();
        self.owed.retain(|(whose, _)| *whose != node);
        self.settled &= self.owed.len() == before;
    }
}

impl Holder {
    pub(super) fn new(node: NodeId, grant: Grant, hold: Hold) -> Holder {
        Holder {
            node,
            grant,
            hold,
            claimed: true,
            recalled: None,
        }
    }
}

impl Request {
    pub(super) fn is_hindered_by(&self, holder: &Holder) -> bool {
        holder.node != self.asker.node && conflict(holder.hold, self.hold)
    }
}

impl Recalled {
    /// Whether a holder that was told this need not be told `other`. One for a request that must not wait is told in any case: its answer
    /// may be `Die`. And one that was for such a request may have been answered so, and forgotten.
    pub(super) fn covers(self, other: Recalled) -> bool {
        self == other || (self.waits && other.waits && self.keep <= other.keep)
    }
}
