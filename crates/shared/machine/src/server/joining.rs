//! Admits nodes, and lets them go on over a new link.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::peer::{PageProgress, ResumeState, ServerPeer};
use super::{
    DurableFact, FenceReason, NodeJournal, NodeState, RegionServer, ServerAction, SessionId, StoreTicket,
};
use crate::limit::REGION_NODES_MAX;
use crate::lock::{LockMisuse, TokenClaim};
use crate::message::{JoinRefusal, JoinReply, JoinRequest, ToNode, ToServer};
use crate::{NodeId, RecordNumber, RegionId};
use netram_proto::id::JournalId;
use netram_proto::owner::is_owned;
use netram_proto::planted::PlantedFault;
use netram_proto::time::Time;

impl<P: Clone + AsRef<[u8]>> RegionServer<P> {
    /// Handles a message over a link whose node is not known.
    pub(super) fn on_unknown_link(&mut self, now: Time, session: SessionId, message: ToServer<P>) {
        match message {
            ToServer::Join(join) if !self.may_speak_for(session, join.view.journal) => {
                self.close_with(session, ToNode::Refused(JoinRefusal::Owner));
            }
            ToServer::Join(join) => self.on_join(now, session, join),
            ToServer::Resume { node, .. } if !self.may_resume(session, node) => {
                self.close_with(session, ToNode::Refused(JoinRefusal::Owner));
            }
            ToServer::Resume {
                region,
                node,
                link,
                whole,
                applied,
            } if !self.is_late(node, link) => {
                self.on_resume(now, session, region, node, whole, applied);
            }
            ToServer::Resume { .. } => {
                self.wires.remove(&session);
                self.actions.push_back(ServerAction::Close(session));
            }
            ToServer::OfferOrphan { old, last } => self.on_offer(session, old, last),
            ToServer::OrphanRecord {
                node,
                number,
                payload,
            } => self.on_orphan_record(session, node, number, payload),
            ToServer::Outcome { node, number } => self.on_outcome(session, node, number),
            // From a node that has ended and has not heard of that yet.
            _ => (),
        }
    }

    /// Whether a session's client may speak for the node with this journal. A journal without owner belongs
    /// to everybody with the cluster key.
    fn may_speak_for(&self, session: SessionId, journal: JournalId) -> bool {
        let proven = self.wires.get(&session).and_then(|wire| wire.owned);
        !is_owned(journal.0) || proven == Some(journal) || self.planted.is(PlantedFault::NodeOwnerIgnored)
    }

    fn may_resume(&self, session: SessionId, node: NodeId) -> bool {
        let peer = self.peers.get(&node);
        peer.is_none_or(|peer| self.may_speak_for(session, peer.id))
    }

    /// Whether a node introduces itself over a link that it has given up since. Its machine went on sending
    /// what was buffered. Accepting it would take from the node what it was sent over the later link.
    fn is_late(&mut self, node: NodeId, link: u64) -> bool {
        let Some(peer) = self.peers.get_mut(&node) else {
            return false;
        };
        let late = link <= peer.link;
        peer.link = peer.link.max(link);
        late
    }

    fn on_join(&mut self, now: Time, session: SessionId, join: JoinRequest) {
        let alien = join
            .region
            .is_some_and(|region| region != self.config.opening.region);
        if alien {
            return self.close_with(session, ToNode::Refused(JoinRefusal::Region));
        }
        let id = join.view.journal;
        let known = self.peers.iter().find(|(_, peer)| peer.id == id);
        let known = known.map(|(node, _)| *node);
        if let Some(node) = known {
            return match self.is_late(node, join.link) {
                true => self.close_with(session, ToNode::Refused(JoinRefusal::Journal)),
                false => self.on_join_again(now, session, node, &join),
            };
        }
        if self.peers.len() >= REGION_NODES_MAX {
            return self.close_with(session, ToNode::Refused(JoinRefusal::Full));
        }
        self.last_node = self.last_node.next();
        let node = self.last_node;
        let journal = NodeJournal {
            view: join.view,
            key: join.key,
            kept: RecordNumber(0),
            end: join.begins,
        };
        let mut peer = ServerPeer::new(NodeState::Entering, id, Some(journal.clone()), now);
        peer.lazy = join.lazy;
        peer.link = join.link;
        self.peers.insert(node, peer);
        self.bind(session, node);
        let name = join.name;
        self.store(
            DurableFact::Joined { node, name, journal },
            StoreTicket::Joined(node),
        );
    }

    /// Handles a join request with a known journal. The first answer was lost, or the process died and
    /// another one has its journal.
    fn on_join_again(&mut self, now: Time, session: SessionId, node: NodeId, join: &JoinRequest) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // No record has been written into the journal since it was announced here. So it is the same node, or
        // one that may take its place.
        let fresh = self.merge.last(node) == RecordNumber(0);
        let begins = peer.journal.as_ref().map(|journal| journal.end);
        let same = fresh && begins == Some(join.begins);
        match peer.state {
            NodeState::Entering if same => {
                peer.heard_at = now;
                self.bind(session, node);
            }
            NodeState::Live | NodeState::Absent if same => {
                peer.heard_at = now;
                peer.state = NodeState::Live;
                self.bind(session, node);
                self.send_region(node);
            }
            NodeState::Live | NodeState::Absent | NodeState::Behind => {
                self.fence(node, FenceReason::Dead);
                self.close_with(session, ToNode::Refused(JoinRefusal::Journal));
            }
            _ => self.close_with(session, ToNode::Refused(JoinRefusal::Journal)),
        }
    }

    /// Notes that the node's id is durable.
    pub(super) fn on_joined(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // Until now the node could not know that it has to send pings.
        peer.heard_at = now;
        peer.state = NodeState::Live;
        self.merge.add(node);
        self.send_region(node);
    }

    /// Sends a node the region from the beginning, as of now.
    fn send_region(&mut self, node: NodeId) {
        let newest = self.ring.newest();
        let joined = JoinReply {
            node,
            lease: self.config.lease,
            position: newest,
            opening: self.config.opening.clone(),
            applied: self.merge.numbers().filter(|(_, number)| number.0 > 0).collect(),
            versions: self.merge.versions().collect(),
        };
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.next = newest.next();
        peer.pages = PageProgress::From(0);
        peer.known = ResumeState::Yes;
        peer.durable_due = true;
        peer.outbox.push_back((newest, ToNode::Joined(joined)));
        // The node holds nothing and has requested nothing, since it has not had the region yet.
        self.locks.resume(node);
        self.locks.on_claims_done(node);
    }

    fn on_resume(
        &mut self,
        now: Time,
        session: SessionId,
        region: RegionId,
        node: NodeId,
        whole: bool,
        applied: Vec<(NodeId, RecordNumber)>,
    ) {
        if region != self.config.opening.region {
            return self.close_with(session, ToNode::Refused(JoinRefusal::Region));
        }
        let standing = self.peers.get(&node).map(|peer| peer.state);
        if !standing.is_some_and(NodeState::has_lease) {
            return self.close_with(session, ToNode::Fenced);
        }
        self.bind(session, node);
        let applied: BTreeMap<NodeId, RecordNumber> = applied.into_iter().collect();
        let lost = self.has_lost(&applied);
        let next = self.ring.first_lacking(&applied);
        let merged = self.merge.last(node);
        let position = crate::Position(next.unwrap_or_default().0.saturating_sub(1));
        let ahead = applied.into_iter();
        let ahead = ahead.filter(|(other, number)| *other != node && *number > self.merge.merged(*other));
        let ahead: BTreeMap<NodeId, RecordNumber> = ahead.collect();
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.heard_at = now;
        peer.ahead.clone_from(&ahead);
        let behind = peer.state == NodeState::Behind;
        if peer.state == NodeState::Absent || !whole {
            peer.state = NodeState::Live;
        }
        if !whole {
            return self.send_region(node);
        }
        peer.known = ResumeState::Unclaimed;
        peer.pages = PageProgress::Done;
        peer.durable_due = true;
        self.locks.resume(node);
        self.queue_message(
            session,
            ToNode::Resumed {
                merged,
                position,
                ahead: ahead.iter().map(|(other, number)| (*other, *number)).collect(),
            },
        );
        match next {
            Some(next) if !lost && !behind => {
                if let Some(peer) = self.peers.get_mut(&node) {
                    peer.next = next;
                }
            }
            _ => self.send_rejoin(node),
        }
    }

    /// Whether a node has records that will never come: their node is gone, and an operator accepted a loss.
    pub(super) fn has_lost(&self, applied: &BTreeMap<NodeId, RecordNumber>) -> bool {
        applied.iter().any(|(node, number)| {
            let peer = self.peers.get(node);
            let gone = peer.is_some_and(|peer| matches!(peer.state, NodeState::Going | NodeState::Gone));
            gone && *number > self.merge.merged(*node)
        })
    }

    /// Makes this link the node's only one.
    fn bind(&mut self, session: SessionId, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.clear_outbox();
        peer.hung_up = None;
        let before = peer.session.replace(session);
        if let Some(before) = before.filter(|before| *before != session) {
            self.wires.remove(&before);
            self.actions.push_back(ServerAction::Close(before));
        }
        if let Some(wire) = self.wires.get_mut(&session) {
            wire.node = Some(node);
        }
    }

    pub(super) fn on_claims(&mut self, node: NodeId, claims: &[TokenClaim]) {
        let last = self.merge.last(node);
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if peer.known != ResumeState::Unclaimed {
            return self.fence(
                node,
                FenceReason::OutOfPlace("it claimed tokens without resuming first"),
            );
        }
        peer.known = ResumeState::Claimed(last);
        for claim in claims {
            match self.locks.claim(node, *claim) {
                Ok(void) => {
                    for node in void {
                        let lock = claim.lock;
                        self.fence(node, FenceReason::Locks(LockMisuse::Claims { lock, node }));
                    }
                }
                Err(misuse) => return self.fence(node, FenceReason::Locks(misuse)),
            }
        }
    }

    /// Frees tokens that a node did not claim, once all records that it sent before its claims are merged.
    pub(super) fn finish_claims(&mut self) {
        let merge = &self.merge;
        for (node, peer) in &mut self.peers {
            let ResumeState::Claimed(last) = peer.known else {
                continue;
            };
            if peer.state.speaks() && merge.merged(*node) >= last {
                peer.known = ResumeState::Yes;
                self.locks.on_claims_done(*node);
            }
        }
    }
}
