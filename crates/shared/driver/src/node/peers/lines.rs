//! Links and peers: who is sent what, and what has come.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use netram_proto::cast::Tune;
use netram_shared_machine::message::{Hint, Reach};
use netram_shared_machine::{NodeId, RegionId};
use netram_transport::{Address, Events, Group, Poller};

use super::BELL;
use super::cast::Cast;
use super::line::{Ended, Line, Names, Said};
use crate::channel::{Arrival, Channel};
use crate::limit::MESSAGES_A_TURN;
use crate::node::payload::Payload;

const EAR: u64 = 1;

/// What is under the lock of the links.
pub(super) struct Lines {
    names: Names,
    /// It is nowhere reached: it goes to all that are.
    goes: bool,
    peers: BTreeMap<NodeId, Peer>,
    lines: BTreeMap<u64, Line>,
    tokens: u64,
    cast: Option<Cast>,
    /// Those with something that has left the kernel.
    due: Vec<u64>,
    scratch: Vec<u8>,
}

/// A node that the server has named.
struct Peer {
    reach: Reach,
    /// Multicast reaches it.
    hears: bool,
    /// It is not called before.
    not_before: Option<Instant>,
}

/// What one record cost.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) cast: u64,
    pub(super) linked: u64,
    pub(super) dropped: u64,
}

impl Lines {
    pub(super) fn new(region: RegionId, own: NodeId, goes: bool) -> Lines {
        Lines {
            names: Names { region, own },
            goes,
            peers: BTreeMap::new(),
            lines: BTreeMap::new(),
            tokens: EAR,
            cast: None,
            due: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// The server is about to name all peers, and the group. Whether this node is reached otherwise now.
    pub(super) fn meet(&mut self, group: Option<Group>, poller: &Poller) -> bool {
        if self.cast.as_ref().map(Cast::group) == group.as_ref() {
            return false;
        }
        self.cast = None;
        if let Some(group) = group {
            match Cast::open(&group, EAR, poller) {
                Ok(cast) => self.cast = Some(cast),
                Err(error) => {
                    tracing::error!(%group, %error, "records cannot be multicast: they go over links, where there are some");
                }
            }
        }
        for (node, peer) in &mut self.peers {
            let tune = peer.reach.tune.as_ref();
            peer.hears = self.cast.as_mut().is_some_and(|cast| cast.listen(*node, tune));
        }
        true
    }

    /// A peer is reached so from now on.
    pub(super) fn on_peer(&mut self, node: NodeId, reach: Option<Reach>) {
        let tune = reach.as_ref().and_then(|reach| reach.tune.as_ref());
        let cast = self.cast.as_mut();
        let hears = cast.is_some_and(|cast| cast.listen(node, tune));
        match reach {
            Some(reach) => {
                let not_before = None;
                let peer = Peer {
                    reach,
                    hears,
                    not_before,
                };
                self.peers.insert(node, peer);
            }
            None => {
                self.peers.remove(&node);
                self.lines.retain(|_, line| line.to != Some(node));
            }
        }
    }

    /// How peers listen to this node.
    pub(super) fn tune(&mut self) -> Option<Tune> {
        self.cast.as_mut().map(Cast::tune)
    }

    /// Whether peers have to listen to another channel from now on.
    pub(super) fn renew(&mut self) -> bool {
        self.cast.as_mut().is_some_and(Cast::renew)
    }

    /// Peers that are sent records.
    pub(super) fn reached(&self) -> usize {
        let linked = |node: &NodeId| self.lines.values().any(|line| line.to == Some(*node));
        let reached = self.peers.iter();
        reached.filter(|(node, peer)| peer.hears || linked(node)).count()
    }

    /// Somebody came.
    pub(super) fn let_in(&mut self, arrival: Arrival, poller: &Poller) -> io::Result<()> {
        let Arrival { channel, permit, .. } = arrival;
        self.tokens += 1;
        let line = Line::new(channel, self.tokens, None, Some(permit));
        self.add(line, poller)
    }

    /// Somebody was gone to.
    pub(super) fn called(&mut self, node: NodeId, channel: Channel, poller: &Poller) -> io::Result<()> {
        self.tokens += 1;
        let mut line = Line::new(channel, self.tokens, Some(node), None);
        line.greet(self.names, node, poller).map_err(io::Error::other)?;
        self.add(line, poller)
    }

    fn add(&mut self, line: Line, poller: &Poller) -> io::Result<()> {
        line.wait_for(poller)?;
        self.due.push(self.tokens);
        self.lines.insert(self.tokens, line);
        Ok(())
    }

    /// Whom to go to: of two that are reached, the later one goes to the earlier.
    pub(super) fn next_call(&mut self, now: Instant) -> Option<(NodeId, Address)> {
        let (own, goes, lines) = (self.names.own, self.goes, &self.lines);
        let mut calls = self.peers.iter_mut().filter(|(node, peer)| {
            let ours = goes || **node < own;
            let due = peer.not_before.is_none_or(|then| then <= now);
            let linked = || lines.values().any(|line| line.to == Some(**node));
            ours && due && !peer.hears && !peer.reach.address.is_empty() && !linked()
        });
        let (node, peer) = calls.next()?;
        match peer.reach.address.parse() {
            Ok(address) => Some((*node, address)),
            Err(error) => {
                tracing::error!(node = node.0, %error, "a peer's address");
                peer.reach.address.clear();
                None
            }
        }
    }

    pub(super) fn call_failed(&mut self, node: NodeId, again: Instant) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.not_before = Some(again);
        }
    }

    /// Sends a record to all peers.
    pub(super) fn send(&mut self, hint: Hint<Payload>, poller: &Poller) -> Sent {
        self.scratch.clear();
        hint.head(&mut self.scratch);
        let mut sent = Sent::default();
        if let Some(cast) = self
            .cast
            .as_mut()
            .filter(|_| self.peers.values().any(|peer| peer.hears))
        {
            let head = self.scratch.len();
            self.scratch.extend_from_slice(hint.payload.as_ref());
            cast.send(&self.scratch);
            self.scratch.truncate(head);
            sent.cast = 1;
        }
        let peers = &self.peers;
        let parts = [&self.scratch[..], hint.payload.as_ref()];
        self.lines.retain(|_, line| {
            let peer = line.to.and_then(|to| peers.get(&to));
            if peer.is_none_or(|peer| peer.hears) {
                return true;
            }
            match line.say(&parts, poller) {
                Ok(true) => sent.linked += 1,
                Ok(false) => sent.dropped += 1,
                Err(_) => return false,
            }
            true
        });
        sent
    }

    /// Takes what has come. Whether anything had, or may have.
    pub(super) fn receive(
        &mut self,
        events: &Events,
        hints: &mut Vec<Hint<Payload>>,
        poller: &Poller,
    ) -> io::Result<bool> {
        let mut due = std::mem::take(&mut self.due);
        due.extend(
            events
                .iter()
                .map(|ready| ready.token)
                .filter(|token| *token != BELL),
        );
        due.sort_unstable();
        due.dedup();
        let moved = !due.is_empty();
        for token in due.drain(..) {
            let more = match token {
                EAR => match &mut self.cast {
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

    /// Takes what one link has brought. Whether there may be more.
    fn read(&mut self, token: u64, hints: &mut Vec<Hint<Payload>>, poller: &Poller) -> bool {
        let Some(line) = self.lines.get_mut(&token) else {
            return false;
        };
        for _ in 0..MESSAGES_A_TURN {
            match line.receive(self.names) {
                Ok(Some(Said::Hint(hint))) => hints.push(hint),
                Ok(Some(Said::Hello(node))) => {
                    if !self.greeted(token, node, poller) {
                        self.lines.remove(&token);
                    }
                    return self.lines.get(&token).is_some_and(Line::has_buffered);
                }
                Ok(None) => {
                    if line.flush(poller).is_ok() {
                        return false;
                    }
                    self.lines.remove(&token);
                    return false;
                }
                Err(ended) => {
                    if matches!(ended, Ended::Alien) {
                        let peer = line.peer();
                        tracing::warn!(
                            peer,
                            "what somebody who came as a peer says is none's: the link is closed"
                        );
                    }
                    self.lines.remove(&token);
                    return false;
                }
            }
        }
        true
    }

    /// The other end of a link has said who it is. Whether the link is kept.
    fn greeted(&mut self, token: u64, node: NodeId, poller: &Poller) -> bool {
        let names = self.names;
        let Some(line) = self.lines.get_mut(&token) else {
            return false;
        };
        // Whom this node went to answers: it has been greeted.
        if line.to.is_some() {
            return true;
        }
        line.to = Some(node);
        let kept = line.greet(names, node, poller).is_ok();
        // It has come anew: its earlier link is of no use, though nobody may have told.
        self.lines
            .retain(|other, line| *other == token || line.to != Some(node));
        kept
    }
}
