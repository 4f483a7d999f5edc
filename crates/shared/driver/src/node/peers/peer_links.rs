//! Links and peers: sending to each, and receiving.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use netram_proto::multicast::ChannelInvite;
use netram_shared_machine::message::{PeerEndpoint, PeerHint};
use netram_shared_machine::{NodeId, RegionId};
use netram_transport::{MulticastGroup, NetAddress, Poller, ReadyEvents};

use super::WAKER_TOKEN;
use super::multicast::HintMulticast;
use super::peer_link::{HelloIdentity, PeerLink, PeerLinkError, PeerMessage};
use crate::channel::{AcceptedSession, Channel};
use crate::limit::MESSAGES_A_TURN;
use crate::node::payload::NodePayload;

const MULTICAST_TOKEN: u64 = 1;

/// State under the links' lock.
pub(super) struct PeerLinks {
    identity: HelloIdentity,
    /// Whether this node cannot be reached, so that it connects to all peers that can.
    dials: bool,
    peers: BTreeMap<NodeId, Peer>,
    links: BTreeMap<u64, PeerLink>,
    tokens: u64,
    multicast: Option<HintMulticast>,
    /// Tokens of links with bytes that have left the kernel.
    due: Vec<u64>,
    scratch: Vec<u8>,
}

/// A node that the server has named.
struct Peer {
    reach: PeerEndpoint,
    /// Whether multicast reaches the peer.
    has_multicast: bool,
    /// Time before which the peer is not dialled.
    not_before: Option<Instant>,
}

/// Number of copies of one record that were sent or dropped.
#[derive(Default)]
pub(super) struct HintCounts {
    pub(super) multicast: u64,
    pub(super) unicast: u64,
    pub(super) dropped: u64,
}

impl PeerLinks {
    pub(super) fn new(region: RegionId, own: NodeId, goes: bool) -> PeerLinks {
        PeerLinks {
            identity: HelloIdentity { region, own },
            dials: goes,
            peers: BTreeMap::new(),
            links: BTreeMap::new(),
            tokens: MULTICAST_TOKEN,
            multicast: None,
            due: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Sets the multicast group, before the server names all peers. Returns whether this node is reached
    /// differently now.
    pub(super) fn set_group(&mut self, group: Option<MulticastGroup>, poller: &Poller) -> bool {
        if self.multicast.as_ref().map(HintMulticast::group) == group.as_ref() {
            return false;
        }
        self.multicast = None;
        if let Some(group) = group {
            match HintMulticast::open(&group, MULTICAST_TOKEN, poller) {
                Ok(cast) => self.multicast = Some(cast),
                Err(error) => {
                    tracing::error!(%group, %error, "cannot multicast records; they are sent over links instead");
                }
            }
        }
        for (node, peer) in &mut self.peers {
            let tune = peer.reach.tune.as_ref();
            peer.has_multicast = self
                .multicast
                .as_mut()
                .is_some_and(|cast| cast.listen(*node, tune));
        }
        true
    }

    /// Sets how a peer is reached from now on.
    pub(super) fn on_peer(&mut self, node: NodeId, reach: Option<PeerEndpoint>) {
        let tune = reach.as_ref().and_then(|reach| reach.tune.as_ref());
        let cast = self.multicast.as_mut();
        let hears = cast.is_some_and(|cast| cast.listen(node, tune));
        match reach {
            Some(reach) => {
                let not_before = None;
                let peer = Peer {
                    reach,
                    has_multicast: hears,
                    not_before,
                };
                self.peers.insert(node, peer);
            }
            None => {
                self.peers.remove(&node);
                self.links.retain(|_, line| line.to != Some(node));
            }
        }
    }

    /// Invitation with which peers listen to this node.
    pub(super) fn tune(&mut self) -> Option<ChannelInvite> {
        self.multicast.as_mut().map(HintMulticast::tune)
    }

    /// Whether peers have to listen to another channel from now on.
    pub(super) fn renew(&mut self) -> bool {
        self.multicast.as_mut().is_some_and(HintMulticast::renew)
    }

    /// Number of peers that are sent records.
    pub(super) fn reached(&self) -> usize {
        let linked = |node: &NodeId| self.links.values().any(|line| line.to == Some(*node));
        let reached = self.peers.iter();
        reached
            .filter(|(node, peer)| peer.has_multicast || linked(node))
            .count()
    }

    /// Adds a link that a peer opened.
    pub(super) fn add_incoming(&mut self, arrival: AcceptedSession, poller: &Poller) -> io::Result<()> {
        let AcceptedSession { channel, permit, .. } = arrival;
        self.tokens += 1;
        let line = PeerLink::new(channel, self.tokens, None, Some(permit));
        self.add(line, poller)
    }

    /// Adds a link that this node opened.
    pub(super) fn add_outgoing(&mut self, node: NodeId, channel: Channel, poller: &Poller) -> io::Result<()> {
        self.tokens += 1;
        let mut line = PeerLink::new(channel, self.tokens, Some(node), None);
        line.greet(self.identity, node, poller)
            .map_err(io::Error::other)?;
        self.add(line, poller)
    }

    fn add(&mut self, line: PeerLink, poller: &Poller) -> io::Result<()> {
        line.wait_for(poller)?;
        self.due.push(self.tokens);
        self.links.insert(self.tokens, line);
        Ok(())
    }

    /// Next peer to dial: of two nodes that can be reached, the later one dials the earlier.
    pub(super) fn next_dial(&mut self, now: Instant) -> Option<(NodeId, NetAddress)> {
        let (own, goes, lines) = (self.identity.own, self.dials, &self.links);
        let mut calls = self.peers.iter_mut().filter(|(node, peer)| {
            let ours = goes || **node < own;
            let due = peer.not_before.is_none_or(|then| then <= now);
            let linked = || lines.values().any(|line| line.to == Some(**node));
            ours && due && !peer.has_multicast && !peer.reach.address.is_empty() && !linked()
        });
        let (node, peer) = calls.next()?;
        match peer.reach.address.parse() {
            Ok(address) => Some((*node, address)),
            Err(error) => {
                tracing::error!(node = node.0, %error, "the server names an invalid address of a peer");
                peer.reach.address.clear();
                None
            }
        }
    }

    pub(super) fn dial_failed(&mut self, node: NodeId, again: Instant) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.not_before = Some(again);
        }
    }

    /// Sends a record to all peers.
    pub(super) fn send(&mut self, hint: PeerHint<NodePayload>, poller: &Poller) -> HintCounts {
        self.scratch.clear();
        hint.head(&mut self.scratch);
        let mut sent = HintCounts::default();
        if let Some(cast) = self
            .multicast
            .as_mut()
            .filter(|_| self.peers.values().any(|peer| peer.has_multicast))
        {
            let head = self.scratch.len();
            self.scratch.extend_from_slice(hint.payload.as_ref());
            cast.send(&self.scratch);
            self.scratch.truncate(head);
            sent.multicast = 1;
        }
        let peers = &self.peers;
        let parts = [&self.scratch[..], hint.payload.as_ref()];
        self.links.retain(|_, line| {
            let peer = line.to.and_then(|to| peers.get(&to));
            if peer.is_none_or(|peer| peer.has_multicast) {
                return true;
            }
            match line.send(&parts, poller) {
                Ok(true) => sent.unicast += 1,
                Ok(false) => sent.dropped += 1,
                Err(_) => return false,
            }
            true
        });
        sent
    }

    /// Receives what has come. Returns whether something had, or may have.
    pub(super) fn receive(
        &mut self,
        events: &ReadyEvents,
        hints: &mut Vec<PeerHint<NodePayload>>,
        poller: &Poller,
    ) -> io::Result<bool> {
        let mut due = std::mem::take(&mut self.due);
        due.extend(
            events
                .iter()
                .map(|ready| ready.token)
                .filter(|token| *token != WAKER_TOKEN),
        );
        due.sort_unstable();
        due.dedup();
        let moved = !due.is_empty();
        for token in due.drain(..) {
            let more = match token {
                MULTICAST_TOKEN => match &mut self.multicast {
                    Some(cast) => cast.receive(hints)?,
                    None => false,
                },
                token => self.read(token, hints, poller),
            };
            if more {
                self.due.push(token);
            }
        }
        Ok(moved)
    }

    /// Receives from one link. Returns whether there may be more.
    fn read(&mut self, token: u64, hints: &mut Vec<PeerHint<NodePayload>>, poller: &Poller) -> bool {
        let Some(line) = self.links.get_mut(&token) else {
            return false;
        };
        for _ in 0..MESSAGES_A_TURN {
            match line.receive(self.identity) {
                Ok(Some(PeerMessage::Hint(hint))) => hints.push(hint),
                Ok(Some(PeerMessage::Hello(node))) => {
                    if !self.on_hello(token, node, poller) {
                        self.links.remove(&token);
                    }
                    return self.links.get(&token).is_some_and(PeerLink::has_buffered);
                }
                Ok(None) => {
                    if line.flush(poller).is_ok() {
                        // A long message may take more than one turn.
                        return line.has_buffered();
                    }
                    self.links.remove(&token);
                    return false;
                }
                Err(ended) => {
                    if matches!(ended, PeerLinkError::Invalid) {
                        let peer = line.peer();
                        tracing::warn!(peer, "a peer sent an invalid message; its link is closed");
                    }
                    self.links.remove(&token);
                    return false;
                }
            }
        }
        true
    }

    /// Handles the introduction of the other end. Returns whether the link is kept.
    fn on_hello(&mut self, token: u64, node: NodeId, poller: &Poller) -> bool {
        let names = self.identity;
        let Some(line) = self.links.get_mut(&token) else {
            return false;
        };
        // A dialled peer answers; it has been greeted already.
        if line.to.is_some() {
            return true;
        }
        line.to = Some(node);
        let kept = line.greet(names, node, poller).is_ok();
        // The peer has connected anew. Its earlier link is useless, although it may not have been reported as
        // broken.
        self.links
            .retain(|other, line| *other == token || line.to != Some(node));
        kept
    }
}
