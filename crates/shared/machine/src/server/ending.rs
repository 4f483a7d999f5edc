//! How a node ends: leases, fencing, journals of the dead, leaving.
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
//! A dead node's locks go on when its journal has been read to its proven end, and both what was read and that it was the end are durable
//! here. Not before: a record that only some of the members had was not acknowledged. It could be read once, and be lost when it is
//! read again by the next start of the server; or be found only then, when others have written what it wrote.

use alloc::vec::Vec;

use super::peer::{Known, Offered, Peer};
use super::{Deed, Fact, Server, Session, Standing, Stored, Tail, Why};
use crate::limit::{HUNG_UP_GRACE, MERGE_RECORDS_MAX, REGION_NODES_MAX, WAITING_BYTES_MAX};
use crate::message::{OldJournal, ToNode};
use crate::{Hold, Missing, NodeId, Number, Queued, Stamp};
use netram_proto::time::{Span, Time};

impl<P: Clone + AsRef<[u8]>> Server<P> {
    pub(super) fn on_ping(&mut self, session: Session, node: NodeId, nonce: u64) {
        let Some(peer) = self.peers.get(&node).filter(|peer| peer.standing.has_lease()) else {
            return;
        };
        // Its own records do not come back to it: it has everything when all others' have been sent.
        let newest = self.visible();
        let newest = if peer.next > newest {
            newest
        } else {
            self.ring.newest()
        };
        let pong = ToNode::Pong { nonce, newest };
        // Of answers that wait one behind the other only the last says something. So a node that takes nothing for a while, as it has
        // no room, goes on being heard.
        match self
            .wires
            .get_mut(&session)
            .and_then(|wire| wire.urgent.back_mut())
        {
            Some(before @ ToNode::Pong { .. }) => *before = pong,
            _ => self.say(session, pong),
        }
    }

    pub(super) fn check_leases(&mut self, now: Time) {
        // A server that slept has not heard anybody: that is not the nodes' fault. A longer lease is safe here; it is the node that
        // must not count it longer than it is.
        let slept = now.since(self.ticked);
        self.ticked = now;
        let (lease, grace) = (self.config.lease, self.grace());
        if slept > Span(lease.0 / 4) {
            for peer in self.peers.values_mut() {
                peer.heard = (peer.heard + slept).min(now);
                peer.hung_up = peer.hung_up.map(|since| (since + slept).min(now));
                peer.behind = peer.behind.map(|since| (since + slept).min(now));
            }
        }
        let mut late = Vec::new();
        for (node, peer) in &mut self.peers {
            // It may say so often that it lives: it holds others up until it has left.
            let why = match peer.standing {
                Standing::Behind => Some(Why::Behind),
                Standing::Leaving => Some(Why::Unmerged),
                _ => None,
            };
            if let Some(why) = why {
                let since = *peer.behind.get_or_insert(now);
                if since + lease <= now {
                    late.push((*node, why));
                }
            }
            if !peer.standing.has_lease() {
                continue;
            }
            if peer.hung_up.is_some_and(|since| since + grace <= now) {
                late.push((*node, Why::Dead));
            } else if peer.heard + lease <= now {
                late.push((*node, Why::Silent));
            }
        }
        for (node, why) in late {
            self.fence(node, why);
        }
    }

    /// When the next node is late, unless it is heard before. `None`: there is none that could be.
    ///
    /// It is never earlier than the last time that was asked, but for a link that has been closed since.
    pub fn deadline(&self) -> Option<Time> {
        let (lease, grace) = (self.config.lease, self.grace());
        let leased = self.peers.values().filter(|peer| peer.standing.has_lease());
        let late = leased.map(|peer| {
            let hung_up = peer.hung_up.map(|since| since + grace);
            let behind = peer.behind.map(|since| since + lease);
            let silent = peer.heard + lease;
            [hung_up, behind].into_iter().flatten().fold(silent, Time::min)
        });
        late.min()
    }

    /// What a node is given to come back over another link when its machine has closed the one that it had.
    fn grace(&self) -> Span {
        HUNG_UP_GRACE.min(Span(self.config.lease.0 / 4))
    }

    /// Nothing of a node counts from here on but what its journal has.
    pub(super) fn fence(&mut self, node: NodeId, why: Why) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if !peer.standing.may_be_fenced() {
            return;
        }
        peer.standing = Standing::Fencing;
        peer.hush();
        let session = peer.session.take();
        if let Some(session) = session {
            self.dismiss(session, ToNode::Fenced);
        }
        self.part(node);
        self.locks.fence(node);
        // What waits is in the journal as well.
        self.forget_waiting(node);
        self.deeds.push_back(Deed::Fenced { node, why });
        self.store(Fact::Fencing { node }, Stored::Fencing(node));
    }

    /// A record of a node was refused that had already been taken in.
    pub(super) fn refuse(&mut self, node: NodeId, why: Why) {
        let standing = self.peers.get(&node).map(|peer| peer.standing);
        match standing.is_some_and(Standing::may_be_fenced) {
            true => self.fence(node, why),
            false => self.deeds.push_back(Deed::Refused { node, why }),
        }
    }

    /// That it is fenced is durable: only now may its journal be sealed, so that no later start of the server takes it for a living
    /// node whose commits are refused for no reason.
    pub(super) fn on_fenced(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.standing = Standing::Reading;
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
            Some(journal) => self.deeds.push_back(Deed::Recover { node, journal }),
            None => self.on_stuck(node),
        }
    }

    /// A fenced node's journal was read to its proven end, and these are its records after `journal.kept`, in order.
    pub fn on_recovered(&mut self, node: NodeId, records: Vec<(Number, P)>) {
        let waits = |standing| matches!(standing, Standing::Reading | Standing::Stuck);
        if !self.peers.get(&node).is_some_and(|peer| waits(peer.standing)) {
            return;
        }
        let kept = self.merge.merged(node);
        for (number, payload) in records.into_iter().filter(|(number, _)| *number > kept) {
            if let Err(why) = self.push_old(node, number, payload) {
                self.deeds.push_back(Deed::Refused { node, why });
                break;
            }
        }
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.standing = Standing::Read;
            peer.offered = Offered::default();
        }
        self.settle();
    }

    fn push_old(&mut self, node: NodeId, number: Number, payload: P) -> Result<(), Why> {
        let stamp = Stamp::of(payload.as_ref()).map_err(Why::Stamp)?;
        let mut locks = stamp.written.iter().chain(&stamp.read);
        let alien = locks.find(|(lock, _)| self.locks.version(*lock).is_none());
        if let Some((lock, _)) = alien {
            return Err(Why::Unlocked(*lock));
        }
        let ticket = Tail {
            end: None,
            proven: false,
            payload,
        };
        self.push(
            node,
            Queued {
                number,
                stamp,
                ticket,
            },
        )
        .map_err(Why::Alien)
    }

    /// Records of dead nodes that were read and can never go: what they need can no node bring any more. Something was lost, or somebody
    /// made a version that was not his; which of them is right nobody can say here. They hold their locks until [`Server::give_up`].
    ///
    /// While any node may still bring something there is no such verdict.
    pub fn hopeless(&self) -> Vec<Missing> {
        let mut missing = self.merge.missing();
        let may_bring = |(node, peer): (&NodeId, &Peer<P>)| match peer.standing {
            Standing::Read | Standing::Going | Standing::Gone | Standing::Entering => false,
            Standing::Live | Standing::Behind => {
                let waits = self.merge.last(*node) > self.merge.merged(*node);
                let holds = |lock| self.locks.holds(*node, lock) == Some(Hold::Exclusive);
                waits || peer.known != Known::Yes || missing.iter().any(|one| holds(one.lock))
            }
            _ => true,
        };
        if missing.is_empty() || self.peers.iter().any(may_bring) {
            return Vec::new();
        }
        missing.retain(|one| self.standing(one.node) == Some(Standing::Read));
        missing
    }

    /// Gives up the [hopeless](Server::hopeless) records of a node. `false`: it has none.
    pub fn give_up(&mut self, node: NodeId) -> bool {
        let Some(missing) = self.hopeless().into_iter().find(|one| one.node == node) else {
            return false;
        };
        let why = Why::GivenUp(missing);
        self.deeds.push_back(Deed::Refused { node, why });
        self.forget_waiting(node);
        self.settle();
        true
    }

    /// A fenced node's journal cannot be read to a proven end now. It stays as it is until [`Server::on_recovered`], or its process
    /// offers it.
    pub fn on_stuck(&mut self, node: NodeId) {
        if let Some(peer) = self
            .peers
            .get_mut(&node)
            .filter(|peer| peer.standing == Standing::Reading)
        {
            peer.standing = Standing::Stuck;
        }
    }

    /// Whose records are all merged, and of whom no more come.
    pub(super) fn finish_readings(&mut self) {
        let done = self.peers.iter().filter(|(node, peer)| {
            let ended = matches!(peer.standing, Standing::Read | Standing::Leaving);
            ended && self.merge.last(**node) == self.merge.merged(**node)
        });
        let done: Vec<NodeId> = done.map(|(node, _)| *node).collect();
        for node in done {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.left = peer.standing == Standing::Leaving;
                peer.standing = Standing::Going;
            }
            self.store(Fact::Gone { node }, Stored::Gone(node));
            let lost = self
                .peers
                .iter()
                .filter(|(_, peer)| peer.standing == Standing::Live);
            let lost = lost.filter(|(_, peer)| peer.ahead.get(&node) > Some(&self.merge.merged(node)));
            let lost: Vec<NodeId> = lost.map(|(node, _)| *node).collect();
            for node in lost {
                self.begin_anew(node);
            }
        }
    }

    pub(super) fn on_gone(&mut self, now: Time, node: NodeId) {
        let newest = self.ring.newest();
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        peer.standing = Standing::Gone;
        // What was merged of it stood before this.
        peer.keep_until(newest);
        let kept = peer.kept();
        let (journal, session) = (peer.journal.take(), peer.session.take());
        let offer = peer.offer.take();
        if let Some(session) = session {
            // Behind this nothing is said any more, and who does not know that all of its records are kept does not let its lenders go.
            kept.into_iter().for_each(|kept| self.say(session, kept));
            self.dismiss(session, ToNode::Left);
        }
        if let Some((session, _)) = offer {
            self.say(session, ToNode::Wanted { node, from: None });
        }
        if let Some(journal) = journal {
            self.owe(now, node, journal);
        }
        self.tell_gone(node, self.merge.merged(node));
        self.locks.reclaim(node);
        self.forget_oldest();
    }

    fn forget_oldest(&mut self) {
        let gone = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.standing == Standing::Gone && peer.untold.is_none());
        let gone: Vec<NodeId> = gone.map(|(node, _)| *node).collect();
        let surplus = gone.len().saturating_sub(REGION_NODES_MAX / 2);
        for node in gone.into_iter().take(surplus) {
            self.peers.remove(&node);
            self.merge.remove(node);
            self.ring.forget(node);
        }
    }

    /// All that it sent is here, and it sends no more.
    pub(super) fn on_leave(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        // Unclaimed or not, what it holds is taken until it is gone.
        peer.standing = Standing::Leaving;
        peer.behind = None;
        peer.outbox.clear();
        self.part(node);
        self.locks.fence(node);
    }

    /// Whoever speaks over a link has done what no node does.
    fn expel(&mut self, session: Session, what: &'static str) {
        match self.node(session) {
            Some(node) => self.fence(node, Why::OutOfPlace(what)),
            None => {
                self.wires.remove(&session);
                self.deeds.push_back(Deed::Close(session));
            }
        }
    }

    /// The node is behind all that is kept for it.
    pub(super) fn begin_anew(&mut self, node: NodeId) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        if !peer.standing.speaks() {
            return;
        }
        peer.standing = Standing::Behind;
        // It is not sent any of that.
        peer.outbox.clear();
        if let Some(session) = peer.session {
            self.say(session, ToNode::Anew);
        }
    }

    /// Somebody has the journal of an earlier node id, and has read all of it: so that node's process is no more.
    pub(super) fn on_offer(&mut self, session: Session, old: OldJournal, last: Number) {
        let OldJournal { node, journal } = old;
        let known = self.peers.get_mut(&node).filter(|peer| {
            let its = peer.journal.as_ref().map(|its| its.view.journal);
            its == Some(journal) && peer.session != Some(session)
        });
        let Some(peer) = known else {
            return self.say(session, ToNode::Wanted { node, from: None });
        };
        peer.offer = Some((session, last));
        peer.offered = Offered::default();
        match peer.standing {
            Standing::Reading | Standing::Stuck => self.want(session, node),
            _ => self.fence(node, Why::Dead),
        }
    }

    fn want(&mut self, session: Session, node: NodeId) {
        let from = self.merge.merged(node).next();
        let last = self
            .peers
            .get(&node)
            .and_then(|peer| peer.offer)
            .map(|(_, last)| last);
        if last.is_some_and(|last| last < from) {
            self.say(session, ToNode::Wanted { node, from: None });
            return self.on_recovered(node, Vec::new());
        }
        let from = Some(from);
        self.say(session, ToNode::Wanted { node, from });
    }

    pub(super) fn on_old_tail(&mut self, session: Session, node: NodeId, number: Number, payload: P) {
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
        if !matches!(peer.standing, Standing::Reading | Standing::Stuck) || !fits {
            return;
        }
        peer.offered.bytes += payload.as_ref().len();
        if peer.offered.bytes > WAITING_BYTES_MAX {
            (peer.offer, peer.offered) = (None, Offered::default());
            return self.expel(session, "it offers more than any journal has that is not kept");
        }
        peer.offered.records.push((number, payload));
        if number >= last {
            let offered = core::mem::take(&mut peer.offered);
            self.on_recovered(node, offered.records);
        }
    }
}
