//! Records straight from node to node.
//!
//! A *hint* is a record that its node sends to its peers when it is safe, beside its way through the server.
//! It may come late, twice, out of order or never: the server's stream brings every record, and one that came
//! before is known by its number.
//!
//! What a hint may do is be early, and nothing else. It is taken only if
//!
//! - the server has named its node as a peer, and not taken that back;
//! - it is that node's next record, every lock that it wrote stands here one below, and every lock that it
//!   read has reached what was read. So versions neither skip nor go back, and nothing lacks what it has
//!   read;
//! - everything is here that its node had of others (`needs`). Otherwise a reader could see a write and lack
//!   another record that had read what it overwrote: in the server's order that one comes first, as the lock
//!   was handed on behind it;
//! - this node's lease runs, and none of the locks that it wrote has a token here. A fenced node that does
//!   not know of it might have a transaction open under the same lock;
//! - readers do not hold back so much that it would end them.
//!
//! **Which needs.** All that came in the stream since the node's record before, and what it took as a hint
//! and has not seen in the stream. Older ones need not be said: whoever has the record before from the stream
//! has what stands before it there, and whoever took it as a hint had its needs. A node that resumes is not
//! sent again what it took as a hint and the server has by then: that counts as come in the stream. A
//! restarted server may have another order: what a node has that is not in it, the server says when the node
//! resumes, and until it comes again all hints need it.
//!
//! **Whom it trusts.** The driver checks that a record's ranges lie under the locks that it wrote. That its
//! node held those locks only the server knows. A node that hints what it never commits is broken or hostile,
//! with the cluster's key in its hands; it cannot change what the server has. Who took such a record finds
//! out, when the server says what that node's last record was, or grants a lock below what is here
//! ([`NodeEnd::Diverged`](super::NodeEnd::Diverged)), and gets the region anew.

use alloc::collections::BTreeMap;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use super::{NodeAction, NodeEnd, NodePhase, RegionNode, Wire};
use crate::limit::HINT_NEEDS_MAX;
use crate::message::{PeerEndpoint, PeerHint, ToServer};
use crate::{LockId, NodeId, RecordNumber, Stamp};
use netram_proto::time::Time;

/// What the driver is to do for peers. All of it may fail: nothing is lost by that but time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAction<P> {
    /// The server has a multicast group for nodes; empty: none.
    PeerGroup(String),
    /// A peer is reached so from now on; `None`: not any more.
    Peer(NodeId, Option<PeerEndpoint>),
    /// Send this to all peers.
    Hint(PeerHint<P>),
}

/// What a node knows of its peers, and they need of it.
#[derive(Clone, Debug, Default)]
pub(super) struct DirectPeers {
    /// How peers reach this node; `None`: it has no peers.
    reach: Option<PeerEndpoint>,
    peers: BTreeSet<NodeId>,
    /// What came in the stream since the last record of its own.
    streamed: BTreeMap<NodeId, RecordNumber>,
    /// What is here, and is still to come in the stream.
    ahead: BTreeMap<NodeId, RecordNumber>,
    /// Hints that were taken, and that were not.
    hints_applied: u64,
    hints_dropped: u64,
}

impl DirectPeers {
    /// The node has joined, with all that.
    pub(super) fn begin(&mut self, taken: &BTreeMap<NodeId, RecordNumber>) {
        self.streamed.clone_from(taken);
        self.ahead.clear();
        self.peers.clear();
    }

    /// There is a new link: the server knows all but these, and names the peers anew. The other hints that
    /// were taken are in its order by now, and it sends none of them again.
    pub(super) fn resume(&mut self, ahead: Vec<(NodeId, RecordNumber)>) {
        for (node, number) in core::mem::take(&mut self.ahead) {
            let streamed = self.streamed.entry(node).or_default();
            *streamed = (*streamed).max(number);
        }
        self.ahead = ahead.into_iter().collect();
    }

    /// A record has come in the stream, known or not.
    pub(super) fn streamed(&mut self, node: NodeId, number: RecordNumber) {
        if self.reach.is_none() {
            return;
        }
        self.streamed.insert(node, number);
        if self.ahead.get(&node).is_some_and(|ahead| *ahead <= number) {
            self.ahead.remove(&node);
        }
    }

    pub(super) fn has_peers(&self) -> bool {
        !self.peers.is_empty()
    }

    /// What peers must have before the record that is appended now; `None`: more than is said.
    pub(super) fn needs(&mut self) -> Option<Vec<(NodeId, RecordNumber)>> {
        let mut needs = core::mem::take(&mut self.streamed);
        for (node, number) in &self.ahead {
            let need = needs.entry(*node).or_default();
            *need = (*need).max(*number);
        }
        (needs.len() <= HINT_NEEDS_MAX).then(|| needs.into_iter().collect())
    }
}

impl<P: Clone + AsRef<[u8]>> RegionNode<P> {
    /// How peers reach this node. From now on it takes hints, and gives them.
    pub fn set_reach(&mut self, reach: PeerEndpoint) {
        if self.direct_peers.reach.is_none() {
            // What came until now was not counted.
            self.direct_peers.streamed.clone_from(&self.received);
        }
        self.direct_peers.reach = Some(reach);
        self.send_reach();
    }

    /// Hints that were taken, and that were not.
    pub fn hints(&self) -> (u64, u64) {
        (self.direct_peers.hints_applied, self.direct_peers.hints_dropped)
    }

    pub(super) fn send_reach(&mut self) {
        let up = self.wire == Wire::Up && matches!(self.state, NodePhase::Joining | NodePhase::Whole);
        if let Some(reach) = self.direct_peers.reach.clone().filter(|_| up) {
            self.actions
                .push_back(NodeAction::Send(ToServer::Endpoint(reach)));
        }
    }

    /// The server is about to name all peers.
    pub(super) fn on_peer_group(&mut self, group: String) {
        self.direct_peers.peers.clear();
        self.actions
            .push_back(NodeAction::Peer(PeerAction::PeerGroup(group)));
    }

    pub(super) fn on_peer(&mut self, node: NodeId, reach: Option<PeerEndpoint>) {
        if self.direct_peers.reach.is_none() || self.id() == Some(node) {
            return;
        }
        match reach.is_some() {
            true => self.direct_peers.peers.insert(node),
            false => self.direct_peers.peers.remove(&node),
        };
        self.actions
            .push_back(NodeAction::Peer(PeerAction::Peer(node, reach)));
    }

    /// Nothing of this node counts but what has come in the stream.
    pub(super) fn on_gone(&mut self, node: NodeId, last: RecordNumber) {
        self.on_peer(node, None);
        self.direct_peers.ahead.remove(&node);
        if self.received.get(&node).is_some_and(|taken| *taken > last) && self.id() != Some(node) {
            self.over(NodeEnd::Diverged);
        }
    }

    /// Hints of this node are not taken any more: it has sent what is no record of the region.
    pub fn distrust(&mut self, node: NodeId) {
        self.on_peer(node, None);
    }

    /// A record that its node sent itself. Its ranges lie under the locks that it wrote. Whether it is
    /// applied: if not, it is forgotten, for the server sends it.
    pub fn on_hint(&mut self, now: Time, hint: PeerHint<P>) -> bool {
        let known = self.received.get(&hint.node).copied().unwrap_or_default();
        if hint.number <= known {
            return false;
        }
        let taken = self.fits(now, &hint, known);
        match taken {
            Some(stamp) => {
                let PeerHint { node, number, .. } = hint;
                self.take(now, node, number, &stamp, hint.payload);
                self.direct_peers.ahead.insert(node, number);
                self.direct_peers.hints_applied += 1;
                true
            }
            None => {
                self.direct_peers.hints_dropped += 1;
                false
            }
        }
    }

    /// Its stamp, if it may be applied.
    fn fits(&self, now: Time, hint: &PeerHint<P>, known: RecordNumber) -> Option<Stamp> {
        let bytes = self.foreign.bytes + hint.payload.as_ref().len();
        let room = self.foreign.readers == 0 || bytes <= self.config.pinned_bytes_max;
        let open = self.state == NodePhase::Whole && self.tokens.leased(now) && room;
        if !open || !self.direct_peers.peers.contains(&hint.node) || hint.number != known.next() {
            return None;
        }
        let has =
            |need: &(NodeId, RecordNumber)| self.received.get(&need.0).is_some_and(|taken| *taken >= need.1);
        if !hint.needs.iter().all(has) {
            return None;
        }
        let stamp = Stamp::of(hint.payload.as_ref()).ok()?;
        let free = |lock: &LockId| !self.tokens.keeps(*lock);
        let written = stamp.written.iter().map(|(lock, _)| lock);
        (written.into_iter().all(free) && self.unfit(&stamp).is_none()).then_some(stamp)
    }
}
