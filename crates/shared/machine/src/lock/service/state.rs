//! One lock as the service knows it: who holds it, who waits for it.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::lock::{LockOrder, LockRequester, conflict};
use crate::{GrantNumber, LockMode, LockVersion, NodeId};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LockState {
    /// What has been merged.
    pub(super) version: LockVersion,
    /// Versions above `version` that nodes say to have seen, one a node, by their ids: nothing is granted
    /// while there is one. It counts until that version is merged, or all of its node is: then there was
    /// none, or whoever made it is still awaited.
    pub(super) expected: Vec<(NodeId, LockVersion)>,
    /// No absent node can hold it: one that is here claimed it alone.
    pub(super) settled: bool,
    pub(super) holders: Vec<TokenHolder>,
    /// At most one request a node.
    pub(super) queue: VecDeque<LockRequest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct TokenHolder {
    pub(super) node: NodeId,
    pub(super) grant: GrantNumber,
    pub(super) hold: LockMode,
    /// It has been claimed over the node's present link, or been granted over it.
    pub(super) claimed: bool,
    pub(super) recall: Option<SentRecall>,
}

/// The last recall that a holder was sent.
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

    /// The node says to have seen this version.
    pub(super) fn expect_version(&mut self, node: NodeId, version: LockVersion) {
        if version <= self.version {
            return;
        }
        match self.expected.binary_search_by_key(&node, |(whose, _)| *whose) {
            Ok(at) => self.expected[at].1 = self.expected[at].1.max(version),
            Err(at) => self.expected.insert(at, (node, version)),
        }
    }

    /// The version that is merged has grown. `true`: nothing more is awaited, and something was.
    pub(super) fn settle(&mut self) -> bool {
        let waited = !self.expected.is_empty();
        self.expected.retain(|(_, owed)| *owed > self.version);
        waited && self.expected.is_empty()
    }

    /// All of a node is merged. What it had seen and is not there was made by another that is absent, or by
    /// nobody: that nobody absent holds the lock is not to be believed of it either.
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
    /// Whether a holder that was told this need not be told `other`. One for a request that must not wait is
    /// told in any case: its answer may be `Die`. And one that was for such a request may have been answered
    /// so, and forgotten.
    pub(super) fn covers(self, other: SentRecall) -> bool {
        self == other || (self.waits && other.waits && self.keep <= other.keep)
    }
}
