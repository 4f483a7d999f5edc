//! The node's own records.
//!
//! ```text
//!  appended ---> acked (members' rule, or durable) ---> sent ---> durable
//! ```
//!
//! A record is sent when it is safe, in the order of the numbers. While the journal has too few members, a
//! record becomes safe only by being durable at the server. Then it is sent at once, marked as not
//! acknowledged, and the server shows it to no node before it is durable there.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use super::{NodeAction, NodePhase, PeerAction, RegionNode, Wire};
use crate::limit::HINT_BYTES_MAX;
use crate::lock::TxnId;
use crate::message::{PeerHint, ToServer};
use crate::{LockId, LockMode, LockVersion, NodeId, RecordNumber, Stamp};
use netram_proto::journal::View;
use netram_proto::time::Time;
use netram_proto::wire::ChainPoint;

/// A record that is not known to be durable at the server.
#[derive(Clone, Debug)]
struct OwnRecord<P> {
    number: RecordNumber,
    end: ChainPoint,
    payload: P,
    /// Other nodes' records that peers must have before it; `None`: it is not sent to peers.
    needs: Option<Vec<(NodeId, RecordNumber)>>,
    /// Whether the record was sent to peers.
    sent_to_peers: bool,
}

#[derive(Clone, Debug)]
pub(super) struct OwnRecords<P> {
    /// Records that are not durable at the server, in order.
    records: VecDeque<OwnRecord<P>>,
    durable: RecordNumber,
    pub(super) acked: RecordNumber,
    /// Last record that peers were offered.
    offered_until: RecordNumber,
    /// Last record that was sent over the present link, or is merged.
    pub(super) sent: RecordNumber,
    /// Newest view, and whether it is known to be durable at the server.
    view: View,
    view_durable: bool,
    by_server: bool,
}

impl<P> OwnRecords<P> {
    pub(super) fn new(view: View) -> OwnRecords<P> {
        OwnRecords {
            records: VecDeque::new(),
            durable: RecordNumber(0),
            acked: RecordNumber(0),
            offered_until: RecordNumber(0),
            sent: RecordNumber(0),
            view,
            view_durable: true,
            by_server: false,
        }
    }

    /// Last appended record.
    pub(super) fn last(&self) -> RecordNumber {
        RecordNumber(self.durable.0 + self.records.len() as u64)
    }

    /// Indexes of the records after `after` up to `until`. Computed from the numbers, since hundreds of
    /// records may wait for the server's disk.
    fn indexes(&self, after: RecordNumber, until: RecordNumber) -> Range<usize> {
        let place = |number: RecordNumber| number.0.saturating_sub(self.durable.0) as usize;
        let end = place(until).min(self.records.len());
        place(after).min(end)..end
    }
}

impl<P: Clone + AsRef<[u8]>> RegionNode<P> {
    /// Notes that a transaction has written under a lock, or will have when its record is appended: see
    /// [`crate::lock::TokenCache::on_written`].
    pub fn on_written(&mut self, txn: TxnId, lock: LockId) -> Option<LockVersion> {
        self.tokens.on_written(txn, lock)
    }

    /// Stamp of a transaction's record, as it holds its locks now: the locks that it wrote under, and those
    /// that it only read under.
    pub fn stamp(&self, txn: TxnId) -> Stamp {
        let mut stamp = Stamp::default();
        self.stamp_into(txn, &mut stamp);
        stamp
    }

    /// Makes the same stamp as [`RegionNode::stamp`] in the given memory.
    pub fn stamp_into(&self, txn: TxnId, stamp: &mut Stamp) {
        stamp.clear();
        for held in self.tokens.held_locks(txn) {
            match held.wrote && held.hold == LockMode::Exclusive {
                true => stamp.written.push((held.lock, held.version.next())),
                false => stamp.read.push((held.lock, held.version)),
            }
        }
        stamp.written.sort_unstable();
        stamp.read.sort_unstable();
    }

    /// Notes that the journal has one more record, which begins with a stamp and ends at `end`. Call it in
    /// the journal's order. Returns the record's number.
    pub fn on_appended(&mut self, now: Time, end: ChainPoint, payload: P) -> RecordNumber {
        let number = self.own.last().next();
        let needs = self.direct_peers.needs();
        self.own.records.push_back(OwnRecord {
            number,
            end,
            payload,
            needs,
            sent_to_peers: false,
        });
        self.send_records();
        self.tokens.on_sent(now, self.own.sent);
        self.settle();
        number
    }

    /// Notes that the journal's records up to this one are safe. The driver may report success for them once
    /// the actions of [`RegionNode::poll`] are done.
    pub fn on_acked(&mut self, now: Time, number: RecordNumber) {
        assert!(
            number <= self.own.last(),
            "only what was appended is acknowledged"
        );
        self.own.acked = self.own.acked.max(number);
        self.take_own();
        self.send_direct();
        self.send_records();
        self.tokens.on_sent(now, self.own.sent);
        self.finish_leaving();
        self.settle();
    }

    /// Counts safe records as received: other nodes' records may depend on them.
    fn take_own(&mut self) {
        let Some(id) = self.id() else {
            return;
        };
        let taken = self.received.get(&id).copied().unwrap_or_default();
        let places = self.own.indexes(taken, self.own.acked);
        for record in self.own.records.range(places) {
            self.versions.extend(Stamp::written_of(record.payload.as_ref()));
        }
        self.received.insert(id, taken.max(self.own.acked));
    }

    /// Sends peers the safe records that they have not been offered. Records that became safe at the server
    /// are on their way to the peers already.
    fn send_direct(&mut self) {
        let (before, acked) = (self.own.offered_until, self.own.acked);
        self.own.offered_until = acked;
        let Some(node) = self.id().filter(|_| self.direct_peers.has_peers()) else {
            return;
        };
        if !matches!(self.state, NodePhase::Whole | NodePhase::Leaving) {
            return;
        }
        let places = self.own.indexes(before, acked);
        for record in self.own.records.range_mut(places) {
            let fits = record.payload.as_ref().len() <= HINT_BYTES_MAX;
            let Some(needs) = record.needs.take().filter(|_| fits) else {
                continue;
            };
            record.sent_to_peers = true;
            self.actions
                .push_back(NodeAction::Peer(PeerAction::Hint(PeerHint {
                    node,
                    number: record.number,
                    needs,
                    payload: record.payload.clone(),
                })));
        }
    }

    /// Ends a transaction, with an acknowledged record or without one. Its locks are free at this node at
    /// once.
    pub fn end(&mut self, now: Time, txn: TxnId, number: Option<RecordNumber>) {
        assert!(
            number.is_none_or(|number| number <= self.own.acked),
            "locks are held until the record is safe"
        );
        self.tokens.end(now, txn, number);
        self.settle();
    }

    /// Notes whether the journal has too few members, so that records become safe only on the server's disk.
    pub fn on_members(&mut self, now: Time, too_few: bool) {
        self.own.by_server = too_few;
        self.send_records();
        self.tokens.on_sent(now, self.own.sent);
        self.finish_leaving();
        self.settle();
    }

    /// Notes that the journal has a new view, which takes effect once the server has it.
    pub fn on_view(&mut self, view: View) {
        self.own.view = view.clone();
        self.own.view_durable = false;
        // A later join request carries the new view, too.
        self.config.join.view = view;
        self.send_view();
    }

    pub(super) fn send_view(&mut self) {
        if self.wire == Wire::Up && !self.own.view_durable {
            let view = self.own.view.clone();
            self.actions.push_back(NodeAction::Send(ToServer::View(view)));
        }
    }

    /// Whether a transaction may be waiting for the server to have this message. None waits for a safe record
    /// that peers were sent, or if there are no peers. Such a record may go with the next message, within a
    /// moment.
    pub fn is_urgent(&self, message: &ToServer<P>) -> bool {
        let ToServer::Record {
            number, acked: true, ..
        } = message
        else {
            return true;
        };
        let mut places = self.own.indexes(RecordNumber(number.0 - 1), *number);
        let given = places
            .next()
            .is_some_and(|place| self.own.records[place].sent_to_peers);
        self.direct_peers.has_peers() && !given
    }

    pub(super) fn send_records(&mut self) {
        if self.wire != Wire::Up {
            return;
        }
        let until = match self.own.by_server {
            true => self.own.last(),
            false => self.own.acked,
        };
        let (sent, acked) = (self.own.sent, self.own.acked);
        let places = self.own.indexes(sent, until);
        for record in self.own.records.range(places) {
            self.own.sent = record.number;
            self.actions.push_back(NodeAction::Send(ToServer::Record {
                number: record.number,
                end: record.end,
                acked: record.number <= acked,
                payload: record.payload.clone(),
            }));
        }
    }

    pub(super) fn on_server_durable(&mut self, number: RecordNumber, end: ChainPoint, view: u64) {
        // Records that are durable at the server are safe, whatever the members have acknowledged.
        self.own.acked = self.own.acked.max(number.min(self.own.last()));
        self.own.offered_until = self.own.offered_until.max(number.min(self.own.last()));
        self.take_own();
        while self
            .own
            .records
            .pop_front_if(|record| record.number <= number)
            .is_some()
        {
            self.own.durable = self.own.durable.next();
        }
        self.own.view_durable |= view >= self.own.view.version;
        self.actions.push_back(NodeAction::Durable { number, end, view });
        self.finish_leaving();
    }
}
