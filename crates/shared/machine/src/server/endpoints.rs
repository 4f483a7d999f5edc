//! Who of the nodes hears of whom, so that they may send their records to each other. Nothing depends on it.

use alloc::vec::Vec;

use super::RegionServer;
use super::peer::ServerPeer;
use crate::limit::GROUP_BYTES_MAX;
use crate::message::{PeerEndpoint, ToNode};
use crate::{NodeId, RecordNumber};

impl<P: Clone + AsRef<[u8]>> RegionServer<P> {
    /// Names the multicast group that nodes send to.
    pub fn set_group(&mut self, group: &str) {
        assert!(group.len() <= GROUP_BYTES_MAX);
        self.group = group.into();
    }

    /// A node is reached so. Over each link it is told first of the group, then of all others that are
    /// reached.
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

    /// All others that are reached are to hear of a node anew.
    pub(super) fn tell_peers(&mut self, node: NodeId) {
        let others = self.peers.iter_mut();
        for (_, peer) in others.filter(|(other, peer)| **other != node && peer.wants_peers) {
            peer.peer_updates.insert(node);
        }
    }

    /// Nothing is to be taken of this node any more but what comes from here.
    pub(super) fn disconnect_peer(&mut self, node: NodeId) {
        let reached = self.peers.get_mut(&node).and_then(|peer| peer.reach.take());
        if reached.is_some() {
            self.tell_peers(node);
        }
    }

    /// A node is gone, which is durable: whoever took its hints finds out whether he has more than counts.
    pub(super) fn tell_gone(&mut self, node: NodeId, last: RecordNumber) {
        let others = self.peers.iter().filter(|(_, peer)| peer.wants_peers);
        let others: Vec<NodeId> = others.map(|(other, _)| *other).collect();
        for other in others {
            self.put(other, ToNode::Gone { node, last });
        }
    }

    /// What a node is to hear of its peers next. One that changes often costs no more than one that does not.
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
    /// The link is gone: over the next one all is told again.
    pub(super) fn reset_peers(&mut self) {
        self.wants_peers = false;
        self.group_due = false;
        self.peer_updates.clear();
    }
}
