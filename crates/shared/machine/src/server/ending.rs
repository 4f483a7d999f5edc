//! The end of a node: leases, fencing, reading dead nodes' journals, leaving.
//!
//! ```text
//!  Live, Absent, Behind --fence--> Fencing --stored--> Reading --recovered--> Read --merged--> Going --stored--> Gone
//!                                                        |  ^                  ^
//!                                                      stuck, offered          |
//!  Live, Behind --leave--> Leaving --------------------------------------------+
//!                            | a record waits for longer than a lease
//!                            +--fence--> Fencing
//! ```
//!
//! A dead node's locks become free when its journal has been read to its proven end, and the records and the
//! end are durable here. Not before: a record that only some of the members had was not acknowledged. It
//! could be read now and be lost at the next start of the server. Or it could be found only then, when other
//! nodes have overwritten its data.

use alloc::vec::Vec;

use super::peer::{OfferedRecords, ResumeState, ServerPeer};
use super::{
    DurableFact, FenceReason, NodeState, ReceivedRecord, RegionServer, ServerAction, SessionId, StoreTicket,
};
use crate::limit::{DISCONNECT_GRACE, MERGE_BYTES_MAX, MERGE_RECORDS_MAX, REGION_NODES_MAX};
use crate::message::{OrphanJournalId, ToNode};
use crate::{LockMode, MissingVersion, NodeId, QueuedRecord, RecordNumber, Stamp};
use netram_proto::time::{Nanos, Time};

impl<P: Clone + AsRef<[u8]>> RegionServer<P> {
    pub(super) fn on_ping(&mut self, session: SessionId, node: NodeId, nonce: u64) {
        let Some(peer) = self.peers.get(&node).filter(|peer| peer.state.has_lease()) else {
            return;
        };
        // The node's own records are not sent back to it: it has everything when all other nodes' records
        // were sent.
        let newest = self.visible();
        let newest = if peer.next > newest {
            newest
        } else {
            self.ring.newest()
        };
        let pong = ToNode::Pong { nonce, newest };
        // Of several waiting answers only the last one matters. So a node that reads nothing for a while, for
        // lack of room, still counts as alive.
        match self
            .wires
            .get_mut(&session)
            .and_then(|wire| wire.urgent.back_mut())
        {
            Some(before @ ToNode::Pong { .. }) => *before = pong,
            _ => self.queue_message(session, pong),
        }
    }

    pub(super) fn check_leases(&mut self, now: Time) {
        // A server that slept has heard no node, which is not the nodes' fault. A longer lease is safe here;
        // the node must not count it longer than it is.
        let slept = now.since(self.ticked);
        self.ticked = now;
        let (lease, grace) = (self.config.lease, self.grace());
        if slept > Nanos(lease.0 / 4) {
            for peer in self.peers.values_mut() {
                peer.heard_at = (peer.heard_at + slept).min(now);
                peer.hung_up = peer.hung_up.map(|since| (since + slept).min(now));
                peer.behind = peer.behind.map(|since| (since + slept).min(now));
            }
        }
        let mut late = Vec::new();
        for (node, peer) in &mut self.peers {
            // Such a node holds others up until it has left, however often it sends pings.
            let why = match peer.state {
                NodeState::Behind => Some(FenceReason::Behind),
                NodeState::Leaving => Some(FenceReason::Unmerged),
                _ => None,
            };
            if let Some(why) = why {
                let since = *peer.behind.get_or_insert(now);
                if since + lease <= now {
                    late.push((*node, why));
                }
            }
            if !peer.state.has_lease() {
                continue;
            }
            if peer.hung_up.is_some_and(|since| since + grace <= now) {
                late.push((*node, FenceReason::Dead));
            } else if peer.heard_at + lease <= now {
                late.push((*node, FenceReason::Silent));
            }
        }
        for (node, why) in late {
            self.fence(node, why);
        }
    }

    /// Next time at which a node's lease ends, unless it is heard before; `None`: no node has a lease.
    ///
    /// It is never earlier than the last time returned, except for a link that has been closed since.
    pub fn deadline(&self) -> Option<Time> {
        let (lease, grace) = (self.config.lease, self.grace());
        let leased = self.peers.values().filter(|peer| peer.state.has_lease());
        let late = leased.map(|peer| {
            let hung_up = peer.hung_up.map(|since| since + grace);
            let behind = peer.behind.map(|since| since + lease);
            let silent = peer.heard_at + lease;
            [hung_up, behind].into_iter().flatten().fold(silent, Time::min)
        });
        late.min()
    }

    /// Time that a node has for reconnecting when its machine has closed its link.
    fn grace(&self) -> Nanos {
        DISCONNECT_GRACE.min(Nanos(self.config.lease.0 / 4))
    }

    /// Fences a node: only the records in its journal count from here on.
    pub(super) fn fence(&mut self, node: NodeId, why: FenceReason) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if !peer.state.may_be_fenced() {
            return;
        }
        peer.state = NodeState::Fencing;
        peer.clear_outbox();
        let session = peer.session.take();
        if let Some(session) = session {
            self.close_with(session, ToNode::Fenced);
        }
        self.disconnect_peer(node);
        self.locks.fence(node);
        // Waiting records are in the journal as well.
        self.forget_waiting(node);
        self.actions.push_back(ServerAction::Fenced { node, why });
        self.store(DurableFact::Fencing { node }, StoreTicket::Fencing(node));
    }

    /// Refuses a record that had already been queued.
    pub(super) fn refuse(&mut self, node: NodeId, why: FenceReason) {
        let standing = self.peers.get(&node).map(|peer| peer.state);
        match standing.is_some_and(NodeState::may_be_fenced) {
            true => self.fence(node, why),
            false => self.actions.push_back(ServerAction::Refused { node, why }),
        }
    }

    /// Notes that the fencing is durable. Only now may the node's journal be fenced at its members: otherwise
    /// a later start of the server could take the node for alive while its commits are refused.
    pub(super) fn on_fenced(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.state = NodeState::Reading;
        }
        self.read_journal(node);
        let offer = self.peers.get(&node).and_then(|peer| peer.offer);
        if let Some((session, _)) = offer {
            self.want(session, node);
        }
    }

    pub(super) fn read_journal(&mut self, node: NodeId) {
        let journal = self.peers.get(&node).and_then(|peer| peer.journal.clone());
        match journal {
            Some(journal) => self.actions.push_back(ServerAction::Recover { node, journal }),
            None => self.on_stuck(node),
        }
    }

    /// Takes the records of a fenced node's journal, which was read to its proven end. They are those after
    /// `journal.kept`, in order.
    pub fn on_recovered(&mut self, node: NodeId, records: Vec<(RecordNumber, P)>) {
        let waits = |standing| matches!(standing, NodeState::Reading | NodeState::Stuck);
        if !self.peers.get(&node).is_some_and(|peer| waits(peer.state)) {
            return;
        }
        let kept = self.merge.merged(node);
        for (number, payload) in records.into_iter().filter(|(number, _)| *number > kept) {
            if let Err(why) = self.push_recovered(node, number, payload) {
                self.actions.push_back(ServerAction::Refused { node, why });
                break;
            }
        }
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.state = NodeState::Read;
            peer.offered = OfferedRecords::default();
        }
        self.settle();
    }

    fn push_recovered(&mut self, node: NodeId, number: RecordNumber, payload: P) -> Result<(), FenceReason> {
        let stamp = Stamp::of(payload.as_ref()).map_err(FenceReason::Stamp)?;
        let mut locks = stamp.written.iter().chain(&stamp.read);
        let alien = locks.find(|(lock, _)| self.locks.version(*lock).is_none());
        if let Some((lock, _)) = alien {
            return Err(FenceReason::Unlocked(*lock));
        }
        let ticket = ReceivedRecord {
            end: None,
            proven: false,
            payload,
        };
        self.push(
            node,
            QueuedRecord {
                number,
                stamp,
                ticket,
            },
        )
        .map_err(FenceReason::Alien)
    }

    /// Records of dead nodes that can never be merged, because no node can send the version that they need.
    /// Either a record was lost, or a node made a version without holding the lock; the server cannot tell
    /// which. The records hold their locks until [`RegionServer::give_up`].
    ///
    /// The list is empty while any node may still send something.
    pub fn unmergeable(&self) -> Vec<MissingVersion> {
        let mut missing = self.merge.missing();
        let may_bring = |(node, peer): (&NodeId, &ServerPeer<P>)| match peer.state {
            NodeState::Read | NodeState::Going | NodeState::Gone | NodeState::Entering => false,
            NodeState::Live | NodeState::Behind => {
                let waits = self.merge.last(*node) > self.merge.merged(*node);
                let holds = |lock| self.locks.holds(*node, lock) == Some(LockMode::Exclusive);
                waits || peer.known != ResumeState::Yes || missing.iter().any(|one| holds(one.lock))
            }
            _ => true,
        };
        if missing.is_empty() || self.peers.iter().any(may_bring) {
            return Vec::new();
        }
        missing.retain(|one| self.node_state(one.node) == Some(NodeState::Read));
        missing
    }

    /// Gives up the [unmergeable](RegionServer::unmergeable) records of a node. Returns `false` if it has
    /// none.
    pub fn give_up(&mut self, node: NodeId) -> bool {
        let Some(missing) = self.unmergeable().into_iter().find(|one| one.node == node) else {
            return false;
        };
        let why = FenceReason::GivenUp(missing);
        self.actions.push_back(ServerAction::Refused { node, why });
        self.forget_waiting(node);
        self.settle();
        true
    }

    /// Notes that a fenced node's journal cannot be read to a proven end now. The node stays fenced until
    /// [`RegionServer::on_recovered`], or until a process offers the journal.
    pub fn on_stuck(&mut self, node: NodeId) {
        if let Some(peer) = self
            .peers
            .get_mut(&node)
            .filter(|peer| peer.state == NodeState::Reading)
        {
            peer.state = NodeState::Stuck;
        }
    }

    /// Ends nodes whose records are all merged and of which no more come.
    pub(super) fn finish_readings(&mut self) {
        let done = self.peers.iter().filter(|(node, peer)| {
            let ended = matches!(peer.state, NodeState::Read | NodeState::Leaving);
            ended && self.merge.last(**node) == self.merge.merged(**node)
        });
        let done: Vec<NodeId> = done.map(|(node, _)| *node).collect();
        for node in done {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.has_left = peer.state == NodeState::Leaving;
                peer.state = NodeState::Going;
            }
            self.store(DurableFact::Gone { node }, StoreTicket::Gone(node));
            let lost = self
                .peers
                .iter()
                .filter(|(_, peer)| peer.state == NodeState::Live);
            let lost = lost.filter(|(_, peer)| peer.ahead.get(&node) > Some(&self.merge.merged(node)));
            let lost: Vec<NodeId> = lost.map(|(node, _)| *node).collect();
            for node in lost {
                self.send_rejoin(node);
            }
        }
    }

    pub(super) fn on_gone(&mut self, now: Time, node: NodeId) {
        let newest = self.ring.newest();
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.state = NodeState::Gone;
        // The node's merged records precede this.
        peer.set_durable(newest);
        let kept = peer.durable_message();
        let (journal, session) = (peer.journal.take(), peer.session.take());
        let offer = peer.offer.take();
        if let Some(session) = session {
            // No message follows on this link. A node that does not know that all its records are durable
            // does not let its lenders free them.
            kept.into_iter()
                .for_each(|kept| self.queue_message(session, kept));
            self.close_with(session, ToNode::Left);
        }
        if let Some((session, _)) = offer {
            self.queue_message(session, ToNode::OrphanWanted { node, from: None });
        }
        if let Some(journal) = journal {
            self.schedule_forget(now, node, journal);
        }
        self.tell_gone(node, self.merge.merged(node));
        self.locks.reclaim(node);
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        let gone = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.state == NodeState::Gone && peer.pending_forget.is_none());
        let gone: Vec<NodeId> = gone.map(|(node, _)| *node).collect();
        let surplus = gone.len().saturating_sub(REGION_NODES_MAX / 2);
        for node in gone.into_iter().take(surplus) {
            self.peers.remove(&node);
            self.merge.remove(node);
            self.ring.forget(node);
        }
    }

    /// Notes that a node has sent all of its records and sends no more.
    pub(super) fn on_leave(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // Claimed or not, its tokens are taken until it is gone.
        peer.state = NodeState::Leaving;
        peer.behind = None;
        peer.outbox.clear();
        self.disconnect_peer(node);
        self.locks.fence(node);
    }

    /// Ends a link over which a message came that no correct node sends.
    fn reject(&mut self, session: SessionId, what: &'static str) {
        match self.node(session) {
            Some(node) => self.fence(node, FenceReason::OutOfPlace(what)),
            None => {
                self.wires.remove(&session);
                self.actions.push_back(ServerAction::Close(session));
            }
        }
    }

    /// Tells a node that it is behind all records that are kept for it.
    pub(super) fn send_rejoin(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if !peer.state.speaks() {
            return;
        }
        peer.state = NodeState::Behind;
        // Messages in the outbox are not sent any more.
        peer.outbox.clear();
        if let Some(session) = peer.session {
            self.queue_message(session, ToNode::Rejoin);
        }
    }

    /// Handles the offer of an earlier node id's journal. The sender has read all of it, so that node's
    /// process has ended.
    pub(super) fn on_offer(&mut self, session: SessionId, old: OrphanJournalId, last: RecordNumber) {
        let OrphanJournalId { node, journal } = old;
        let known = self.peers.get_mut(&node).filter(|peer| {
            let its = peer.journal.as_ref().map(|its| its.view.journal);
            its == Some(journal) && peer.session != Some(session)
        });
        let Some(peer) = known else {
            return self.queue_message(session, ToNode::OrphanWanted { node, from: None });
        };
        peer.offer = Some((session, last));
        peer.offered = OfferedRecords::default();
        match peer.state {
            NodeState::Reading | NodeState::Stuck => self.want(session, node),
            _ => self.fence(node, FenceReason::Dead),
        }
    }

    fn want(&mut self, session: SessionId, node: NodeId) {
        let from = self.merge.merged(node).next();
        let last = self
            .peers
            .get(&node)
            .and_then(|peer| peer.offer)
            .map(|(_, last)| last);
        if last.is_some_and(|last| last < from) {
            self.queue_message(session, ToNode::OrphanWanted { node, from: None });
            return self.on_recovered(node, Vec::new());
        }
        let from = Some(from);
        self.queue_message(session, ToNode::OrphanWanted { node, from });
    }

    pub(super) fn on_orphan_record(
        &mut self,
        session: SessionId,
        node: NodeId,
        number: RecordNumber,
        payload: P,
    ) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let Some((_, last)) = peer.offer.filter(|(by, _)| *by == session) else {
            return;
        };
        let due = self
            .merge
            .merged(node)
            .0
            .saturating_add(peer.offered.records.len() as u64 + 1);
        let fits = number.0 == due && number <= last && peer.offered.records.len() < MERGE_RECORDS_MAX;
        if !matches!(peer.state, NodeState::Reading | NodeState::Stuck) || !fits {
            return;
        }
        peer.offered.bytes += payload.as_ref().len();
        if peer.offered.bytes > MERGE_BYTES_MAX {
            (peer.offer, peer.offered) = (None, OfferedRecords::default());
            return self.reject(
                session,
                "it offers more bytes than a journal can have that are not durable here",
            );
        }
        peer.offered.records.push((number, payload));
        if number >= last {
            let offered = core::mem::take(&mut peer.offered);
            self.on_recovered(node, offered.records);
        }
    }
}
