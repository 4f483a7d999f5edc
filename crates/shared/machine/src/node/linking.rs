//! Joining, resuming, renewing the lease, leaving.

use alloc::vec::Vec;

use super::{Identity, NodeAction, NodeEnd, NodePhase, RegionNode, ServerViolation, Wire};
use crate::message::{JoinReply, ToNode, ToServer};
use crate::{NodeId, Position, RecordNumber};
use netram_proto::time::{Nanos, Time};

/// Maximum number of unanswered pings that are remembered. An answer to an older one renews nothing.
const PINGS_MAX: usize = 8;

impl<P: Clone + AsRef<[u8]>> RegionNode<P> {
    /// Notes that a link to the server is up and nothing has been sent over it.
    pub fn on_linked(&mut self) {
        if matches!(self.state, NodePhase::Over(_)) {
            return;
        }
        self.wire = Wire::Introduced;
        self.silence.end();
        self.config.join.link += 1;
        let link = self.config.join.link;
        let message = match self.identity {
            None => ToServer::Join(self.config.join.clone()),
            Some(Identity { node, region, .. }) => ToServer::Resume {
                region,
                node,
                link,
                whole: matches!(self.state, NodePhase::Whole | NodePhase::Leaving),
                applied: self.applied_of_all(),
            },
        };
        self.actions.push_back(NodeAction::Send(message));
    }

    /// Last record of each node, including this one, that is in the copy or waits for pinned readers.
    pub fn applied_of_all(&self) -> Vec<(NodeId, RecordNumber)> {
        let mut taken = self.received.clone();
        // The node has all its own records, safe or not.
        if let Some(id) = self.id() {
            taken.insert(id, self.own.last());
        }
        taken.into_iter().collect()
    }

    /// Notes that the link is gone. Transactions go on under the tokens that are here, until the lease ends.
    pub fn on_unlinked(&mut self) {
        self.wire = Wire::Down;
        self.silence.end();
        self.pings.clear();
        self.tokens.on_unlinked();
        self.settle();
    }

    /// Handles a message of the server. If it violates the protocol, the node ends.
    pub fn handle(&mut self, now: Time, message: ToNode<P>) {
        if matches!(self.state, NodePhase::Over(_)) || self.wire == Wire::Down {
            return;
        }
        self.silence.end();
        if let Err(violation) = self.dispatch(now, message) {
            self.over(NodeEnd::Violation(violation));
        }
        self.settle();
    }

    fn dispatch(&mut self, now: Time, message: ToNode<P>) -> Result<(), ServerViolation> {
        match message {
            ToNode::Joined(joined) => self.on_joined(now, joined),
            ToNode::Page { offset, bytes } if self.state == NodePhase::Joining => {
                self.actions.push_back(NodeAction::Page { offset, bytes });
                Ok(())
            }
            ToNode::Page { .. } => Err(ServerViolation::OutOfPlace("bytes of the region")),
            ToNode::Current => self.on_current(now),
            ToNode::Resumed {
                merged,
                position,
                ahead,
            } => self.on_resumed(now, merged, position, ahead),
            ToNode::Record {
                position,
                node,
                number,
                payload,
            } => self.on_record(now, position, node, number, payload),
            ToNode::Lock(message) => self.on_lock(now, message),
            ToNode::Durable { number, end, view } => {
                self.on_server_durable(number, end, view);
                Ok(())
            }
            ToNode::Pong { nonce, newest } => {
                self.on_pong(now, nonce, newest);
                Ok(())
            }
            ToNode::Outcome { node, number, fate } => {
                self.actions.push_back(NodeAction::Outcome { node, number, fate });
                Ok(())
            }
            ToNode::OrphanWanted { node, from } => {
                self.actions.push_back(NodeAction::OrphanWanted { node, from });
                Ok(())
            }
            ToNode::Left if self.state == NodePhase::Leaving => {
                self.over(NodeEnd::Left);
                Ok(())
            }
            ToNode::Left => Err(ServerViolation::OutOfPlace(
                "a confirmation that the node has left",
            )),
            ToNode::Rejoin => {
                self.leave();
                Ok(())
            }
            ToNode::Refused(why) => {
                self.over(NodeEnd::Refused(why));
                Ok(())
            }
            ToNode::Fenced => {
                self.over(NodeEnd::Fenced);
                Ok(())
            }
            ToNode::PeerGroup { group } => {
                self.on_peer_group(group);
                Ok(())
            }
            ToNode::Peer { node, reach } => {
                self.on_peer(node, reach);
                Ok(())
            }
            ToNode::Gone { node, last } => {
                self.on_gone(node, last);
                Ok(())
            }
        }
    }

    fn on_joined(&mut self, now: Time, joined: JoinReply) -> Result<(), ServerViolation> {
        let again = self.id().is_none_or(|node| node == joined.node);
        if self.wire != Wire::Introduced
            || !again
            || !matches!(self.state, NodePhase::Outside | NodePhase::Joining)
        {
            return Err(ServerViolation::OutOfPlace("a second answer to its join request"));
        }
        self.wire = Wire::Up;
        self.state = NodePhase::Joining;
        self.identity = Some(Identity {
            node: joined.node,
            region: joined.opening.region,
            lease: joined.lease,
        });
        self.received = joined.applied.iter().copied().collect();
        self.versions = joined.versions.iter().copied().collect();
        self.position = joined.position;
        self.newest = joined.position;
        self.direct_peers.begin(&self.received);
        self.actions.push_back(NodeAction::Open(joined));
        self.ping(now);
        self.send_view();
        self.send_reach();
        Ok(())
    }

    fn on_current(&mut self, now: Time) -> Result<(), ServerViolation> {
        if self.state != NodePhase::Joining {
            return Err(ServerViolation::OutOfPlace("the end of the region's pages"));
        }
        self.state = NodePhase::Whole;
        self.actions.push_back(NodeAction::Whole);
        self.tokens.on_linked(now, RecordNumber(0));
        Ok(())
    }

    fn on_resumed(
        &mut self,
        now: Time,
        merged: RecordNumber,
        position: Position,
        ahead: Vec<(NodeId, RecordNumber)>,
    ) -> Result<(), ServerViolation> {
        let whole = matches!(self.state, NodePhase::Whole | NodePhase::Leaving);
        if self.wire != Wire::Introduced || !whole || merged > self.own.last() {
            return Err(ServerViolation::OutOfPlace("an answer to a resume request"));
        }
        self.wire = Wire::Up;
        self.position = position;
        self.newest = position;
        self.own.sent = merged;
        self.direct_peers.resume(ahead);
        self.ping(now);
        self.send_view();
        self.send_reach();
        self.send_records();
        // A leaving node does not claim: its tokens are taken until it is gone.
        if self.state == NodePhase::Whole {
            self.send_claims();
            self.tokens.on_linked(now, merged);
            self.tokens.on_sent(now, self.own.sent);
        }
        self.finish_leaving();
        Ok(())
    }

    /// Sends the claims after the records: every token that is not claimed was given back after them.
    fn send_claims(&mut self) {
        let mut claims: Vec<_> = self.tokens.claims().collect();
        claims.sort_unstable_by_key(|claim| claim.lock);
        self.actions.push_back(NodeAction::Send(ToServer::Claims(claims)));
    }

    pub(super) fn ping_if_due(&mut self, now: Time) {
        let Some(Identity { lease, .. }) = self.identity else {
            return;
        };
        if self.wire == Wire::Up && now.since(self.pinged) >= Nanos(lease.0 / 4) {
            self.ping(now);
        }
    }

    fn ping(&mut self, now: Time) {
        self.nonce += 1;
        self.pinged = now;
        if self.pings.len() >= PINGS_MAX {
            self.pings.pop_front();
        }
        self.pings.push_back((self.nonce, now));
        let (nonce, applied) = (self.nonce, self.position);
        self.actions
            .push_back(NodeAction::Send(ToServer::Ping { nonce, applied }));
    }

    /// Renews the lease from the time of the ping: the server got it later. An eighth is kept back for clocks
    /// that differ in speed.
    fn on_pong(&mut self, now: Time, nonce: u64, newest: Position) {
        self.newest = newest.max(self.position);
        let asked = self.pings.iter().find(|(other, _)| *other == nonce);
        let (Some((_, asked)), Some(Identity { lease, .. })) = (asked.copied(), self.identity) else {
            return;
        };
        while self.pings.pop_front_if(|(other, _)| *other <= nonce).is_some() {}
        self.tokens.on_renewed(now, asked + Nanos(lease.0 - lease.0 / 8));
    }

    /// Starts to leave. No transaction begins any more and open ones fail, except those whose records are on
    /// their way to the members: these end as they would have.
    pub fn leave(&mut self) {
        if !matches!(self.state, NodePhase::Whole | NodePhase::Joining) {
            return;
        }
        self.state = NodePhase::Leaving;
        self.tokens.lose();
        self.actions.push_back(NodeAction::Rejoin);
        self.finish_leaving();
        self.settle();
    }

    /// Tells the server that the node leaves, once everything has been sent.
    pub(super) fn finish_leaving(&mut self) {
        let all = self.own.sent == self.own.last() && self.own.acked == self.own.last();
        if self.state == NodePhase::Leaving && self.wire == Wire::Up && all {
            self.actions.push_back(NodeAction::Send(ToServer::Leave));
        }
    }

    pub(super) fn over(&mut self, over: NodeEnd) {
        self.state = NodePhase::Over(over);
        self.wire = Wire::Down;
        self.tokens.lose();
        self.actions.push_back(NodeAction::Ended(over));
    }
}
