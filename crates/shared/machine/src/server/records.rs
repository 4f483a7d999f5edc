//! The order of records, and which of them are durable.

use super::peer::UndurableRecord;
use super::ring::RingRecord;
use super::{DurableFact, FenceReason, ReceivedRecord, RegionServer, ServerAction, SessionId, StoreTicket};
use crate::limit::{MERGE_BYTES_MAX, PENDING_VIEWS_MAX};
use crate::message::{RecordOutcome, ToNode};
use crate::{
    InvalidRecord, LockId, LockMode, MergeEntry, NodeId, Position, QueuedRecord, RecordNumber, Stamp,
};
use netram_proto::journal::View;

use super::NodeState;

impl<P: Clone + AsRef<[u8]>> RegionServer<P> {
    pub(super) fn on_record(&mut self, node: NodeId, number: RecordNumber, ticket: ReceivedRecord<P>) {
        let stamp = match Stamp::of(ticket.payload.as_ref()) {
            Ok(stamp) => stamp,
            Err(error) => return self.fence(node, FenceReason::Stamp(error)),
        };
        if let Some(lock) = self.unlocked(node, &stamp) {
            return self.fence(node, FenceReason::Unlocked(lock));
        }
        let waits = self.peers.get(&node).map_or(0, |peer| peer.waiting_bytes);
        if waits + ticket.payload.as_ref().len() > MERGE_BYTES_MAX {
            return self.fence(
                node,
                FenceReason::OutOfPlace("more bytes of its records wait than any window holds"),
            );
        }
        if let Err(alien) = self.push(
            node,
            QueuedRecord {
                number,
                stamp,
                ticket,
            },
        ) {
            self.fence(node, FenceReason::Alien(alien));
        }
    }

    /// Queues a record after the waiting ones of its node.
    pub(super) fn push(
        &mut self,
        node: NodeId,
        record: QueuedRecord<ReceivedRecord<P>>,
    ) -> Result<(), InvalidRecord> {
        let bytes = record.ticket.payload.as_ref().len();
        self.merge.push(node, record)?;
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.waiting_bytes += bytes;
        }
        Ok(())
    }

    /// Drops the waiting records of a node: they come again from elsewhere, or never.
    pub(super) fn forget_waiting(&mut self, node: NodeId) {
        self.merge.forget_waiting(node);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.waiting_bytes = 0;
        }
    }

    /// First lock under which the node must not have made this record. A node gives tokens back after its
    /// records, so the service still knows them. After a start of the server it may not know them yet.
    fn unlocked(&self, node: NodeId, stamp: &Stamp) -> Option<LockId> {
        let known = !self.locks.may_hold_anything(node);
        let written = stamp.written.iter().map(|(lock, _)| (*lock, LockMode::Exclusive));
        let read = stamp.read.iter().map(|(lock, _)| (*lock, LockMode::Shared));
        let wrong = |(lock, hold): &(LockId, LockMode)| match known {
            true => self.locks.holds(node, *lock).is_none_or(|held| held < *hold),
            false => self.locks.version(*lock).is_none(),
        };
        written.chain(read).find(wrong).map(|(lock, _)| lock)
    }

    /// Merges every record that can be merged.
    pub(super) fn merge_ready(&mut self) {
        loop {
            match self.merge.pop() {
                Ok(Some(entry)) => self.on_merged(entry),
                Ok(None) => break,
                Err(alien) => {
                    let node = alien.node();
                    self.forget_waiting(node);
                    self.refuse(node, FenceReason::Alien(alien));
                }
            }
        }
    }

    fn on_merged(&mut self, entry: MergeEntry<ReceivedRecord<P>>) {
        let MergeEntry { node, record } = entry;
        let ReceivedRecord { end, proven, payload } = record.ticket;
        for (lock, version) in &record.stamp.written {
            let wrote = self.locks.on_written(*lock, *version);
            assert!(
                wrote.is_ok(),
                "the lock service has the versions that were merged"
            );
        }
        let number = record.number;
        let recent = RingRecord {
            node,
            number,
            payload: payload.clone(),
        };
        let position = self.ring.push(recent);
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.waiting_bytes -= payload.as_ref().len();
            peer.undurable.push_back(UndurableRecord {
                position,
                number,
                end,
            });
        }
        if !proven {
            let first = self.unproven.map_or(position, |(first, _)| first);
            self.unproven = Some((first, position));
        }
        self.actions.push_back(ServerAction::Apply {
            position,
            node,
            number,
            end,
            payload,
        });
    }

    /// Notes that every record up to this position is durable, with its number and versions.
    pub fn on_durable(&mut self, position: Position) {
        assert!(position <= self.ring.newest());
        self.durable = self.durable.max(position);
        for peer in self.peers.values_mut() {
            peer.set_durable(position);
        }
        if self.unproven.is_some_and(|(_, last)| last <= position) {
            self.unproven = None;
        }
        self.settle();
    }

    /// Last position that nodes may see.
    pub(super) fn visible(&self) -> Position {
        match self.unproven {
            Some((first, _)) => Position(first.0 - 1),
            None => self.ring.newest(),
        }
    }

    pub(super) fn on_view(&mut self, node: NodeId, view: View) {
        let Some(peer) = self.peers.get_mut(&node) else {
            return;
        };
        let Some(journal) = &peer.journal else {
            return;
        };
        let newest = peer.views.back().unwrap_or(&journal.view);
        let order = |view: &View| (view.epoch, view.version);
        if view.journal != newest.journal || order(&view) < order(newest) {
            return self.fence(
                node,
                FenceReason::OutOfPlace("it sent a view of another journal, or an older view"),
            );
        }
        if order(&view) == order(newest) {
            // The view was sent again over another link.
            peer.durable_due |= peer.views.is_empty();
            return;
        }
        if peer.views.len() >= PENDING_VIEWS_MAX {
            return self.fence(
                node,
                FenceReason::OutOfPlace("it sends views without waiting for them to be durable"),
            );
        }
        // The view counts only once it is durable here. Until then the members of the view before have
        // everything.
        peer.views.push_back(view.clone());
        self.store(DurableFact::Viewed { node, view }, StoreTicket::Viewed(node));
    }

    /// Answers a question about a record's outcome. Committed are records that are durable here: merged ones
    /// may still be lost with their members. Aborted are records of a gone node that its journal did not
    /// have. Only gone nodes are forgotten. An id that was never assigned is `Open`, since it may be assigned
    /// later.
    pub(super) fn on_outcome(&mut self, session: SessionId, node: NodeId, number: RecordNumber) {
        let merged = self.merge.merged(node);
        let fate = match self.peers.get(&node) {
            Some(peer) => {
                let unkept = peer.undurable.front().map(|unkept| unkept.number);
                let kept = unkept.map_or(merged, |number| RecordNumber(number.0 - 1));
                match peer.state {
                    _ if number <= kept => RecordOutcome::Committed,
                    NodeState::Gone => RecordOutcome::Aborted,
                    _ => RecordOutcome::Open,
                }
            }
            None if node <= self.last_node => RecordOutcome::Forgotten,
            None => RecordOutcome::Open,
        };
        self.queue_message(session, ToNode::Outcome { node, number, fate });
    }
}
