//! Records sent directly from node to node.
//!
//! A *hint* is a record that its node sends to its peers when it is safe, besides its way through the server.
//! A hint may come late, twice, out of order or never: the server's stream brings every record, and one that
//! is known already is recognised by its number.
//!
//! A hint can only make a record arrive earlier. It is applied only if
//!
//! - the server has named its node as a peer, and not taken that back;
//! - it is that node's next record, every lock that it wrote stands here one version below, and every lock
//!   that it
//!   read has reached the version read. So versions neither skip nor go back, and everything that the record
//!   has
//!   read is here;
//! - every record that its node had of others (`needs`) is here. Otherwise a reader could see a write and
//!   lack
//!   another record that had read the overwritten data. In the server's order that record comes first, since
//!   the
//!   lock was handed on after it;
//! - this node's lease runs, and it has no token of the locks that the record wrote. A fenced node that does
//!   not
//!   know of its fencing might have a transaction open under the same lock;
//! - it does not exceed the bytes that may be held back for pinned readers.
//!
//! **Needs.** A record needs every record that came in the stream since the node's previous record, and every
//! hint that the node applied and has not seen in the stream. Older needs can be left out: a peer that has
//! the previous record from the stream has everything before it, and a peer that applied it as a hint had its
//! needs. A node that resumes is not sent again the hints that the server has by then; they count as
//! streamed. A restarted server may have another order. It tells a resuming node which of its records are not
//! in that order, and until they come again all hints need them.
//!
//! **Trust.** The driver checks that a record's ranges lie under the locks that it wrote. Only the server
//! knows whether its node held those locks. A node that hints records that it never commits is broken, or
//! hostile with the cluster's key; it cannot change the server's data. A node that applied such a record
//! finds out when the server names that node's last record, or grants a lock below the version here
//! ([`NodeEnd::Diverged`](super::NodeEnd::Diverged)). It then fetches the region anew.

use alloc::collections::BTreeMap;
use alloc::collections::BTreeSet;
use alloc::string::String;
use alloc::vec::Vec;

use super::{NodeAction, NodeEnd, NodePhase, RegionNode, Wire};
use crate::limit::HINT_NEEDS_MAX;
use crate::message::{PeerEndpoint, PeerHint, ToServer};
use crate::{LockId, NodeId, RecordNumber, Stamp};
use netram_proto::time::Time;

/// Something that the driver must do for peers. If it fails, only time is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAction<P> {
    /// Join the server's multicast group for nodes; empty: there is none.
    PeerGroup(String),
    /// Use this endpoint for a peer from now on; `None`: the peer cannot be reached any more.
    Peer(NodeId, Option<PeerEndpoint>),
    /// Send this hint to all peers.
    Hint(PeerHint<P>),
}

/// A node's knowledge of its peers, and the needs of its next record.
#[derive(Clone, Debug, Default)]
pub(super) struct DirectPeers {
    /// How peers reach this node; `None`: it has no peers.
    reach: Option<PeerEndpoint>,
    peers: BTreeSet<NodeId>,
    /// Last record of each node that came in the stream since this node's own last record.
    streamed: BTreeMap<NodeId, RecordNumber>,
    /// Applied hints that have not come in the stream yet.
    ahead: BTreeMap<NodeId, RecordNumber>,
    /// Numbers of hints that were applied and dropped.
    hints_applied: u64,
    hints_dropped: u64,
}

impl DirectPeers {
    /// Starts after joining, with these records applied.
    pub(super) fn begin(&mut self, taken: &BTreeMap<NodeId, RecordNumber>) {
        self.streamed.clone_from(taken);
        self.ahead.clear();
        self.peers.clear();
    }

    /// Goes on over a new link, with the records that the server's order does not contain. The other applied
    /// hints are in that order, and the server does not send them again.
    pub(super) fn resume(&mut self, ahead: Vec<(NodeId, RecordNumber)>) {
        for (node, number) in core::mem::take(&mut self.ahead) {
            let streamed = self.streamed.entry(node).or_default();
            *streamed = (*streamed).max(number);
        }
        self.ahead = ahead.into_iter().collect();
    }

    /// Notes that a record came in the stream, whether known or not.
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

    /// Records that peers must have before the record that is appended now; `None`: too many to send.
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
    /// Sets how peers reach this node. From now on it applies hints and sends them.
    pub fn set_reach(&mut self, reach: PeerEndpoint) {
        if self.direct_peers.reach.is_none() {
            // Records that came until now were not counted.
            self.direct_peers.streamed.clone_from(&self.received);
        }
        self.direct_peers.reach = Some(reach);
        self.send_reach();
    }

    /// Numbers of hints that were applied and dropped.
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

    /// Forgets the peers, since the server is about to name all of them.
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

    /// Notes that a node is gone: only its records in the server's order count.
    pub(super) fn on_gone(&mut self, node: NodeId, last: RecordNumber) {
        self.on_peer(node, None);
        self.direct_peers.ahead.remove(&node);
        if self.received.get(&node).is_some_and(|taken| *taken > last) && self.id() != Some(node) {
            self.over(NodeEnd::Diverged);
        }
    }

    /// Stops applying hints of `node`, which sent an invalid record.
    pub fn distrust(&mut self, node: NodeId) {
        self.on_peer(node, None);
    }

    /// Takes a hint whose ranges lie under the locks that it wrote. Returns whether it is applied; if not, it
    /// is dropped, since the server sends the record.
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

    /// The hint's stamp, if it may be applied.
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
