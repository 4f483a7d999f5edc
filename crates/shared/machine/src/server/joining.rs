//! Who becomes a node, and goes on being one over a new link.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::peer::{Known, Pages, Peer};
use super::{Deed, Fact, Journal, Server, Session, Standing, Stored, Why};
use crate::limit::REGION_NODES_MAX;
use crate::lock::{Claim, Misuse};
use crate::message::{Join, Joined, Refused, ToNode, ToServer};
use crate::{NodeId, Number, RegionId};
use netram_proto::time::Time;

impl<P: Clone + AsRef<[u8]>> Server<P> {
    /// A message over a link whose node is not known.
    pub(super) fn on_stranger(&mut self, now: Time, session: Session, message: ToServer<P>) {
        match message {
            ToServer::Join(join) => self.on_join(now, session, join),
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
                self.deeds.push_back(Deed::Close(session));
            }
            ToServer::Offer { old, last } => self.on_offer(session, old, last),
            ToServer::OldTail {
                node,
                number,
                payload,
            } => self.on_old_tail(session, node, number, payload),
            ToServer::Outcome { node, number } => self.on_outcome(session, node, number),
            // Of a node that is not one any more, and has not heard of that yet.
            _ => (),
        }
    }

    /// Whether a node introduces itself over a link that it has given up since: its machine went on sending what was in it. To believe that
    /// would take from the node what it was given over the later link.
    fn is_late(&mut self, node: NodeId, link: u64) -> bool {
        let Some(peer) = self.peers.get_mut(&node) else {
            return false;
        };
        let late = link <= peer.link;
        peer.link = peer.link.max(link);
        late
    }

    fn on_join(&mut self, now: Time, session: Session, join: Join) {
        let alien = join
            .region
            .is_some_and(|region| region != self.config.opening.region);
        if alien {
            return self.dismiss(session, ToNode::Refused(Refused::Region));
        }
        let id = join.view.journal;
        let known = self.peers.iter().find(|(_, peer)| peer.id == id);
        let known = known.map(|(node, _)| *node);
        if let Some(node) = known {
            return match self.is_late(node, join.link) {
                true => self.dismiss(session, ToNode::Refused(Refused::Journal)),
                false => self.on_join_again(now, session, node, &join),
            };
        }
        if self.peers.len() >= REGION_NODES_MAX {
            return self.dismiss(session, ToNode::Refused(Refused::Full));
        }
        self.last_node = self.last_node.next();
        let node = self.last_node;
        let journal = Journal {
            view: join.view,
            key: join.key,
            kept: Number(0),
            end: join.begins,
        };
        let mut peer = Peer::new(Standing::Entering, id, Some(journal.clone()), now);
        peer.lazy = join.lazy;
        peer.link = join.link;
        self.peers.insert(node, peer);
        self.bind(session, node);
        let name = join.name;
        self.store(Fact::Joined { node, name, journal }, Stored::Joined(node));
    }

    /// The answer to its first joining was lost, or its process was, and another has its journal.
    fn on_join_again(&mut self, now: Time, session: Session, node: NodeId, join: &Join) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // Nothing has been written into it since it was told here: it is the same node, or one that may take its place.
        let fresh = self.merge.last(node) == Number(0);
        let begins = peer.journal.as_ref().map(|journal| journal.end);
        let same = fresh && begins == Some(join.begins);
        match peer.standing {
            Standing::Entering if same => {
                peer.heard = now;
                self.bind(session, node);
            }
            Standing::Live | Standing::Absent if same => {
                peer.heard = now;
                peer.standing = Standing::Live;
                self.bind(session, node);
                self.give_whole(node);
            }
            Standing::Live | Standing::Absent | Standing::Behind => {
                self.fence(node, Why::Dead);
                self.dismiss(session, ToNode::Refused(Refused::Journal));
            }
            _ => self.dismiss(session, ToNode::Refused(Refused::Journal)),
        }
    }

    /// Its id is durable.
    pub(super) fn on_joined(&mut self, now: Time, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // Until now it could not know that it is to be heard.
        peer.heard = now;
        peer.standing = Standing::Live;
        self.merge.add(node);
        self.give_whole(node);
    }

    /// Gives a node the region from the beginning, as of now.
    fn give_whole(&mut self, node: NodeId) {
        let newest = self.ring.newest();
        let joined = Joined {
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
        peer.pages = Pages::From(0);
        peer.known = Known::Yes;
        peer.kept_due = true;
        peer.outbox.push_back((newest, ToNode::Joined(joined)));
        // It holds nothing, and has asked for nothing: it has not had the region yet.
        self.locks.resume(node);
        self.locks.known(node);
    }

    fn on_resume(
        &mut self,
        now: Time,
        session: Session,
        region: RegionId,
        node: NodeId,
        whole: bool,
        applied: Vec<(NodeId, Number)>,
    ) {
        if region != self.config.opening.region {
            return self.dismiss(session, ToNode::Refused(Refused::Region));
        }
        let standing = self.peers.get(&node).map(|peer| peer.standing);
        if !standing.is_some_and(Standing::has_lease) {
            return self.dismiss(session, ToNode::Fenced);
        }
        self.bind(session, node);
        let applied: BTreeMap<NodeId, Number> = applied.into_iter().collect();
        let lost = self.has_lost(&applied);
        let next = self.ring.first_lacking(&applied);
        let merged = self.merge.last(node);
        let position = crate::Position(next.unwrap_or_default().0.saturating_sub(1));
        let ahead = applied.into_iter();
        let ahead = ahead.filter(|(other, number)| *other != node && *number > self.merge.merged(*other));
        let ahead: BTreeMap<NodeId, Number> = ahead.collect();
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.heard = now;
        peer.ahead.clone_from(&ahead);
        let behind = peer.standing == Standing::Behind;
        if peer.standing == Standing::Absent || !whole {
            peer.standing = Standing::Live;
        }
        if !whole {
            return self.give_whole(node);
        }
        peer.known = Known::Unclaimed;
        peer.pages = Pages::Done;
        peer.kept_due = true;
        self.locks.resume(node);
        self.say(
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
            _ => self.begin_anew(node),
        }
    }

    /// Whether somebody has records that nobody will ever bring: their node is gone, and an operator accepted a loss.
    pub(super) fn has_lost(&self, applied: &BTreeMap<NodeId, Number>) -> bool {
        applied.iter().any(|(node, number)| {
            let peer = self.peers.get(node);
            let gone = peer.is_some_and(|peer| matches!(peer.standing, Standing::Going | Standing::Gone));
            gone && *number > self.merge.merged(*node)
        })
    }

    /// The node goes on over this link, and over no other.
    fn bind(&mut self, session: Session, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.hush();
        peer.hung_up = None;
        let before = peer.session.replace(session);
        if let Some(before) = before.filter(|before| *before != session) {
            self.wires.remove(&before);
            self.deeds.push_back(Deed::Close(before));
        }
        if let Some(wire) = self.wires.get_mut(&session) {
            wire.node = Some(node);
        }
    }

    pub(super) fn on_claims(&mut self, node: NodeId, claims: &[Claim]) {
        let last = self.merge.last(node);
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if peer.known != Known::Unclaimed {
            return self.fence(
                node,
                Why::OutOfPlace("it claimed tokens that it had not to claim"),
            );
        }
        peer.known = Known::Claimed(last);
        for claim in claims {
            match self.locks.claim(node, *claim) {
                Ok(void) => {
                    for node in void {
                        let lock = claim.lock;
                        self.fence(node, Why::Locks(Misuse::Claims { lock, node }));
                    }
                }
                Err(misuse) => return self.fence(node, Why::Locks(misuse)),
            }
        }
    }

    /// What a node did not claim is free once all is merged that it had sent before it claimed.
    pub(super) fn finish_claims(&mut self) {
        let merge = &self.merge;
        for (node, peer) in &mut self.peers {
            let Known::Claimed(last) = peer.known else {
                continue;
            };
            if peer.standing.speaks() && merge.merged(*node) >= last {
                peer.known = Known::Yes;
                self.locks.known(*node);
            }
        }
    }
}
