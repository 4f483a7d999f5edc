//! Tells nodes how to reach each other, so that they may exchange records directly. Correctness does not
//! depend on it.

use alloc::vec::Vec;

use super::RegionServer;
use super::peer::ServerPeer;
use crate::limit::GROUP_BYTES_MAX;
use crate::message::{PeerEndpoint, ToNode};
use crate::{NodeId, RecordNumber};

impl<P: Clone + AsRef<[u8]>> RegionServer<P> {
    /// Sets the multicast group that nodes send to.
    pub fn set_group(&mut self, group: &str) {
        assert!(group.len() <= GROUP_BYTES_MAX);
        self.group = group.into();
    }

    /// Notes how a node is reached. Over each link it is sent first the group, then the endpoints of all
    /// other nodes.
    pub(super) fn on_reach(&mut self, node: NodeId, reach: PeerEndpoint) {
        let others = self.peers.iter();
        let reached = others.filter(|(other, peer)| **other != node && peer.reach.is_some());
        let reached: Vec<NodeId> = reached.map(|(other, _)| *other).collect();
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let changed = peer.reach.as_ref() != Some(&reach);
        peer.reach = Some(reach);
        if !core::mem::replace(&mut peer.wants_peers, true) {
            peer.group_due = true;
            peer.peer_updates.extend(reached);
        }
        if changed {
            self.tell_peers(node);
        }
    }

    /// Marks a node as changed for all others that exchange records.
    pub(super) fn tell_peers(&mut self, node: NodeId) {
        let others = self.peers.iter_mut();
        for (_, peer) in others.filter(|(other, peer)| **other != node && peer.wants_peers) {
            peer.peer_updates.insert(node);
        }
    }

    /// Tells the other nodes to apply no more hints of this node.
    pub(super) fn disconnect_peer(&mut self, node: NodeId) {
        let reached = self.peers.get_mut(&node).and_then(|peer| peer.reach.take());
        if reached.is_some() {
            self.tell_peers(node);
        }
    }

    /// Tells the other nodes that a node is gone, which is durable. A node that took its hints finds out
    /// whether it applied a record that does not count.
    pub(super) fn tell_gone(&mut self, node: NodeId, last: RecordNumber) {
        let others = self.peers.iter().filter(|(_, peer)| peer.wants_peers);
        let others: Vec<NodeId> = others.map(|(other, _)| *other).collect();
        for other in others {
            self.put(other, ToNode::Gone { node, last });
        }
    }

    /// Next message about peers for a node. A peer that changes often costs no more than one that does not.
    pub(super) fn next_peer_update(&mut self, node: NodeId) -> Option<ToNode<P>> {
        let peer = self.peers.get_mut(&node)?;
        if core::mem::take(&mut peer.group_due) {
            let group = self.group.clone();
            return Some(ToNode::PeerGroup { group });
        }
        let other = peer.peer_updates.pop_first()?;
        let reach = self.peers.get(&other).and_then(|peer| peer.reach.clone());
        Some(ToNode::Peer { node: other, reach })
    }
}

impl<P> ServerPeer<P> {
    /// Forgets what was sent, since the link is gone: over the next one everything is sent again.
    pub(super) fn reset_peers(&mut self) {
        self.wants_peers = false;
        self.group_due = false;
        self.peer_updates.clear();
    }
}
