//! Gone nodes, and the lenders that still have windows of their journals.
//!
//! All records of a gone node are durable here, so its windows waste the lenders' memory. The server has the
//! lenders told to free them ([`ServerAction::Forget`]) until all of them know, across restarts and
//! unreachable lenders. The duty is durable together with the fact that the node is gone, until
//! [`DurableFact::Forgotten`]. It does not matter which process read the journal: no journal belongs to two
//! nodes, so none can have started it anew.
//!
//! | the node | its lenders are told |
//! |---|---|
//! | was fenced | at once |
//! | has left | after [`LEAVE_GRACE`]: the node tells them itself, unless its process ends first |
//! | was gone when the server started, or a lender could not be reached | later, one such node at a time |
//!
//! Nodes whose lenders are still to be told take table entries that new nodes may need. A driver without free
//! entries gives one up ([`RegionServer::abandon_forget`]).

use alloc::vec::Vec;

use super::{DurableFact, NodeJournal, RegionServer, ServerAction, StoreTicket};
use crate::NodeId;
use crate::limit::{FORGET_DOUBLINGS_MAX, LEAVE_GRACE};
use netram_proto::time::{Nanos, Time};

/// Pending duty to tell the lenders of a gone node.
#[derive(Clone, Debug)]
pub(super) struct PendingForget {
    journal: NodeJournal,
    /// Time of the next attempt, unless one is under way.
    due: Time,
    /// Number of attempts so far, by any process.
    attempts: u32,
    under_way: bool,
}

impl PendingForget {
    /// Creates the duty that an earlier start of the server has left.
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
    /// Schedules telling the lenders of a node whose end is durable.
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

    /// Starts all attempts that are due. A repeated attempt waits until no other one is under way.
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

    /// Notes the end of an attempt to tell a gone node's lenders. `all`: every lender knows; if not, those
    /// that could not be reached are told again later.
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

    /// Gives up telling the lenders of the oldest such node, because its table entry is needed. These lenders
    /// free the windows when they restart.
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
