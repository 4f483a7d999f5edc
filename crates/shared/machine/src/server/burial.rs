//! Nodes that are gone, and the lenders that still have windows of their journals.
//!
//! Everything of a node that is gone is durable here, so its windows are memory that lenders waste. They are told that they may give them back
//! ([`Deed::Forget`]) until all of them know, however long one is away and however often the server starts meanwhile: that they are to be told is
//! durable with the word that the node is gone, until [`Fact::Told`]. It does not matter how the journal was read, or by whom: nobody can have begun
//! it anew, for no journal is a node's twice.
//!
//! | the node | its lenders are told |
//! |---|---|
//! | was fenced | at once |
//! | has left | after a moment: it tells them itself, unless its process ends first |
//! | was gone when the server started, or somebody could not be reached | later, one such node at a time |
//!
//! What is owed to nodes that are gone takes places of those that may come: whoever has no more of them gives one up ([`Server::forgo`]).

use alloc::vec::Vec;

use super::{Deed, Fact, Journal, Server, Stored};
use crate::NodeId;
use crate::limit::{LEFT_GRACE, TELL_DOUBLINGS_MAX};
use netram_proto::time::{Span, Time};

/// The lenders of a node that is gone are to be told.
#[derive(Clone, Debug)]
pub(super) struct Untold {
    journal: Journal,
    /// The next attempt is due then, unless one is under way.
    due: Time,
    /// Attempts so far, whoever made them.
    attempts: u32,
    under_way: bool,
}

impl Untold {
    /// As an earlier start of the server has left it.
    pub(super) fn since_before(journal: Journal, now: Time) -> Untold {
        Untold {
            journal,
            due: now,
            attempts: 1,
            under_way: false,
        }
    }
}

impl<P: Clone + AsRef<[u8]>> Server<P> {
    /// A node is gone, and that is durable.
    pub(super) fn owe(&mut self, now: Time, node: NodeId, journal: Journal) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let grace = if peer.left { LEFT_GRACE } else { Span(0) };
        peer.untold = Some(Untold {
            journal,
            due: now + grace,
            attempts: 0,
            under_way: false,
        });
        self.tell_due(now);
    }

    /// Has those told whose time it is. Whoever was told in vain waits until nobody else is being told.
    pub(super) fn tell_due(&mut self, now: Time) {
        let mut untold = self.peers.values().filter_map(|peer| peer.untold.as_ref());
        let mut busy = untold.any(|untold| untold.under_way);
        let mut due: Vec<(Time, NodeId)> = Vec::new();
        for (node, peer) in &self.peers {
            let untold = peer.untold.as_ref();
            let waits = untold.filter(|untold| !untold.under_way && untold.due <= now);
            due.extend(waits.map(|untold| (untold.due, *node)));
        }
        due.sort_unstable();
        for (_, node) in due {
            let peer = self.peers.get_mut(&node);
            let Some(untold) = peer.and_then(|peer| peer.untold.as_mut()) else {
                continue;
            };
            if untold.attempts > 0 && core::mem::replace(&mut busy, true) {
                continue;
            }
            untold.under_way = true;
            let journal = untold.journal.clone();
            self.deeds.push_back(Deed::Forget { node, journal });
        }
    }

    /// The lenders of a node that is gone were told: `all` of them know, or those that could not be reached are to be told again.
    pub fn on_told(&mut self, now: Time, node: NodeId, all: bool) {
        let peer = self.peers.get_mut(&node);
        let Some(untold) = peer.and_then(|peer| peer.untold.as_mut()) else {
            return;
        };
        if all {
            self.let_go(node);
        } else {
            let doublings = untold.attempts.min(TELL_DOUBLINGS_MAX);
            untold.due = now + Span(self.config.tell_again.0 << doublings);
            untold.attempts = untold.attempts.saturating_add(1);
            untold.under_way = false;
        }
        self.tell_due(now);
    }

    /// Gives up telling the lenders of the node that came first of those whose lenders do not know: there is no place for it any more. What they
    /// have of it is theirs again when they are restarted.
    pub fn forgo(&mut self) -> Option<NodeId> {
        let mut untold = self.peers.iter().filter(|(_, peer)| peer.untold.is_some());
        let node = *untold.next()?.0;
        self.let_go(node);
        Some(node)
    }

    /// Nodes whose lenders are still to be told.
    pub fn untold(&self) -> impl Iterator<Item = NodeId> {
        let untold = self.peers.iter().filter(|(_, peer)| peer.untold.is_some());
        untold.map(|(node, _)| *node)
    }

    fn let_go(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.untold = None;
        }
        self.store(Fact::Told { node }, Stored::Told);
    }
}
