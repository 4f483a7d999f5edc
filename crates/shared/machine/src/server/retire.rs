//! Nodes that are gone, and the lenders that still have windows of their journals.
//!
//! Everything of a node that is gone is durable here, so its windows are memory that lenders waste. They are
//! told that they may give them back ([`NodeAction::Forget`]) until all of them know, however long one is
//! away and however often the server starts meanwhile: that they are to be told is durable with the word that
//! the node is gone, until [`Fact::Forgotten`]. It does not matter how the journal was read, or by whom:
//! nobody can have begun it anew, for no journal is a node's twice.
//!
//! | the node | its lenders are told |
//! |---|---|
//! | was fenced | at once |
//! | has left | after a moment: it tells them itself, unless its process ends first |
//! | was gone when the server started, or somebody could not be reached | later, one such node at a time |
//!
//! What is owed to nodes that are gone takes places of those that may come: whoever has no more of them gives
//! one up ([`RegionServer::forgo`]).

use alloc::vec::Vec;

use super::{DurableFact, NodeJournal, RegionServer, ServerAction, StoreTicket};
use crate::NodeId;
use crate::limit::{FORGET_DOUBLINGS_MAX, LEAVE_GRACE};
use netram_proto::time::{Nanos, Time};

/// The lenders of a node that is gone are to be told.
#[derive(Clone, Debug)]
pub(super) struct PendingForget {
    journal: NodeJournal,
    /// The next attempt is due then, unless one is under way.
    due: Time,
    /// Attempts so far, whoever made them.
    attempts: u32,
    under_way: bool,
}

impl PendingForget {
    /// As an earlier start of the server has left it.
    pub(super) fn from_table(journal: NodeJournal, now: Time) -> PendingForget {
        PendingForget {
            journal,
            due: now,
            attempts: 1,
            under_way: false,
        }
    }
}

impl<P: Clone + AsRef<[u8]>> RegionServer<P> {
    /// A node is gone, and that is durable.
    pub(super) fn schedule_forget(&mut self, now: Time, node: NodeId, journal: NodeJournal) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let grace = if peer.has_left { LEAVE_GRACE } else { Nanos(0) };
        peer.pending_forget = Some(PendingForget {
            journal,
            due: now + grace,
            attempts: 0,
            under_way: false,
        });
        self.start_due_forgets(now);
    }

    /// Has those told whose time it is. Whoever was told in vain waits until nobody else is being told.
    pub(super) fn start_due_forgets(&mut self, now: Time) {
        let mut untold = self
            .peers
            .values()
            .filter_map(|peer| peer.pending_forget.as_ref());
        let mut busy = untold.any(|untold| untold.under_way);
        let mut due: Vec<(Time, NodeId)> = Vec::new();
        for (node, peer) in &self.peers {
            let untold = peer.pending_forget.as_ref();
            let waits = untold.filter(|untold| !untold.under_way && untold.due <= now);
            due.extend(waits.map(|untold| (untold.due, *node)));
        }
        due.sort_unstable();
        for (_, node) in due {
            let peer = self.peers.get_mut(&node);
            let Some(untold) = peer.and_then(|peer| peer.pending_forget.as_mut()) else {
                continue;
            };
            if untold.attempts > 0 && core::mem::replace(&mut busy, true) {
                continue;
            }
            untold.under_way = true;
            let journal = untold.journal.clone();
            self.actions.push_back(ServerAction::Forget { node, journal });
        }
    }

    /// The lenders of a node that is gone were told: `all` of them know, or those that could not be reached
    /// are to be told again.
    pub fn on_forget_tried(&mut self, now: Time, node: NodeId, all: bool) {
        let peer = self.peers.get_mut(&node);
        let Some(untold) = peer.and_then(|peer| peer.pending_forget.as_mut()) else {
            return;
        };
        if all {
            self.remove_forget(node);
        } else {
            let doublings = untold.attempts.min(FORGET_DOUBLINGS_MAX);
            untold.due = now + Nanos(self.config.forget_retry.0 << doublings);
            untold.attempts = untold.attempts.saturating_add(1);
            untold.under_way = false;
        }
        self.start_due_forgets(now);
    }

    /// Gives up telling the lenders of the node that came first of those whose lenders do not know: there is
    /// no place for it any more. What they have of it is theirs again when they are restarted.
    pub fn abandon_forget(&mut self) -> Option<NodeId> {
        let mut untold = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.pending_forget.is_some());
        let node = *untold.next()?.0;
        self.remove_forget(node);
        Some(node)
    }

    /// Nodes whose lenders are still to be told.
    pub fn pending_forgets(&self) -> impl Iterator<Item = NodeId> {
        let untold = self
            .peers
            .iter()
            .filter(|(_, peer)| peer.pending_forget.is_some());
        untold.map(|(node, _)| *node)
    }

    fn remove_forget(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.pending_forget = None;
        }
        self.store(DurableFact::Forgotten { node }, StoreTicket::Forgotten);
    }
}
