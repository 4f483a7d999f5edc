//! One lock as the service knows it: its holders and its queue.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::lock::{LockOrder, LockRequester, conflict};
use crate::{GrantNumber, LockMode, LockVersion, NodeId};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockState {
    /// Merged version.
    pub(super) version: LockVersion,
    /// Versions above `version` that nodes claim to have seen, at most one per node, sorted by node id.
    /// Nothing is granted while there is one. An entry ends when its version is merged, or when all records
    /// of its node are: then the version does not exist, or its author is still awaited.
    pub(super) expected: Vec<(NodeId, LockVersion)>,
    /// Whether no absent node can hold the lock, since a present one has claimed it exclusively.
    pub(super) settled: bool,
    pub(super) holders: Vec<TokenHolder>,
    /// At most one request per node.
    pub(super) queue: VecDeque<LockRequest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenHolder {
    pub(super) node: NodeId,
    pub(super) grant: GrantNumber,
    pub(super) hold: LockMode,
    /// Whether the token was claimed or granted over the node's present link.
    pub(super) claimed: bool,
    pub(super) recall: Option<SentRecall>,
}

/// Last recall that was sent to a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SentRecall {
    pub(super) keep: Option<LockMode>,
    pub(super) asker: LockRequester,
    pub(super) waits: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockRequest {
    pub(super) asker: LockRequester,
    pub(super) hold: LockMode,
    pub(super) order: LockOrder,
}

impl LockState {
    pub(super) fn holder(&self, node: NodeId) -> Option<&TokenHolder> {
        self.holders.iter().find(|holder| holder.node == node)
    }

    pub(super) fn holder_mut(&mut self, node: NodeId) -> Option<&mut TokenHolder> {
        self.holders.iter_mut().find(|holder| holder.node == node)
    }

    pub(super) fn hinders(&self, request: LockRequest) -> impl Iterator<Item = &TokenHolder> {
        self.holders
            .iter()
            .filter(move |holder| request.is_hindered_by(holder))
    }

    /// Notes that the node claims to have seen this version.
    pub(super) fn expect_version(&mut self, node: NodeId, version: LockVersion) {
        if version <= self.version {
            return;
        }
        match self.expected.binary_search_by_key(&node, |(whose, _)| *whose) {
            Ok(at) => self.expected[at].1 = self.expected[at].1.max(version),
            Err(at) => self.expected.insert(at, (node, version)),
        }
    }

    /// Drops expected versions that are merged. Returns `true` if the last one was dropped.
    pub(super) fn settle(&mut self) -> bool {
        let waited = !self.expected.is_empty();
        self.expected.retain(|(_, owed)| *owed > self.version);
        waited && self.expected.is_empty()
    }

    /// Drops the version that a node claims to have seen, once all its records are merged. If it was not
    /// merged, an absent node made it or none did; so an absent node may hold the lock after all.
    pub(super) fn drop_expected(&mut self, node: NodeId) {
        let before = self.expected.len();
        self.expected.retain(|(whose, _)| *whose != node);
        self.settled &= self.expected.len() == before;
    }
}

impl TokenHolder {
    pub(super) fn new(node: NodeId, grant: GrantNumber, hold: LockMode) -> TokenHolder {
        TokenHolder {
            node,
            grant,
            hold,
            claimed: true,
            recall: None,
        }
    }
}

impl LockRequest {
    pub(super) fn is_hindered_by(&self, holder: &TokenHolder) -> bool {
        holder.node != self.asker.node && conflict(holder.hold, self.hold)
    }
}

impl SentRecall {
    /// Whether a holder that was sent this recall need not be sent `other`. A recall for a request that must
    /// not wait is always sent, since the answer may be `Die`. An earlier one of that kind may have been
    /// answered so, and forgotten.
    pub(super) fn covers(self, other: SentRecall) -> bool {
        self == other || (self.waits && other.waits && self.keep <= other.keep)
    }
}
