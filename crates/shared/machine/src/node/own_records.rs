//! The node's own records.
//!
//! ```text
//!  appended ---> acked (the members' rule, or kept) ---> sent ---> kept
//! ```
//!
//! A tail goes when its record is safe, in the order of the numbers. While the journal has too few members a
//! record becomes safe by being kept: then it goes at once, marked so, and the server shows it to nobody
//! before it has it on its disk.

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

/// A record that the server has not kept yet.
#[derive(Clone, Debug)]
struct OwnRecord<P> {
    number: RecordNumber,
    end: ChainPoint,
    payload: P,
    /// What peers must have before it; `None`: they are not sent it.
    needs: Option<Vec<(NodeId, RecordNumber)>>,
    /// Peers have been given it.
    sent_to_peers: bool,
}

#[derive(Clone, Debug)]
pub(super) struct OwnRecords<P> {
    /// All that are not kept, in order.
    records: VecDeque<OwnRecord<P>>,
    durable: RecordNumber,
    pub(super) acked: RecordNumber,
    /// Peers have been given what they are to be given up to here.
    offered_until: RecordNumber,
    /// Sent over the present link, or merged.
    pub(super) sent: RecordNumber,
    /// The newest view, and whether the server is known to have it.
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

    /// The last that was appended.
    pub(super) fn last(&self) -> RecordNumber {
        RecordNumber(self.durable.0 + self.records.len() as u64)
    }

    /// Where those are that come after one, up to another, and are not kept. By their numbers: hundreds may
    /// wait for the server's disk.
    fn indexes(&self, after: RecordNumber, until: RecordNumber) -> Range<usize> {
        let place = |number: RecordNumber| number.0.saturating_sub(self.durable.0) as usize;
        let end = place(until).min(self.records.len());
        place(after).min(end)..end
    }
}

impl<P: Clone + AsRef<[u8]>> RegionNode<P> {
    /// A transaction has written under a lock, or will have when its record is appended: see
    /// [`crate::lock::TokenCache::on_written`].
    pub fn on_written(&mut self, txn: TxnId, lock: LockId) -> Option<LockVersion> {
        self.tokens.on_written(txn, lock)
    }

    /// The stamp of a transaction's record, as it has its locks now. What it has written under, and what it
    /// has only read.
    pub fn stamp(&self, txn: TxnId) -> Stamp {
        let mut stamp = Stamp::default();
        self.stamp_into(txn, &mut stamp);
        stamp
    }

    /// The same, into memory that is there.
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

    /// The journal has a record more, which begins with a stamp and ends there. In the journal's order. The
    /// record's number.
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

    /// The journal's records up to this one are safe. Success may be returned for them when what
    /// [`RegionNode::poll`] says is done.
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

    /// What is safe counts as taken: others' records may follow on it.
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

    /// Gives peers what is safe and they have not been given. What the server's word has made safe is on its
    /// way to them already.
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

    /// A transaction is over: with a record, which is acknowledged, or without. Its locks are free here at
    /// once.
    pub fn end(&mut self, now: Time, txn: TxnId, number: Option<RecordNumber>) {
        assert!(
            number.is_none_or(|number| number <= self.own.acked),
            "locks are held until the record is safe"
        );
        self.tokens.end(now, txn, number);
        self.settle();
    }

    /// Whether records become safe at the server's disk only, for want of members.
    pub fn on_members(&mut self, now: Time, too_few: bool) {
        self.own.by_server = too_few;
        self.send_records();
        self.tokens.on_sent(now, self.own.sent);
        self.finish_leaving();
        self.settle();
    }

    /// The journal has a view that is to count.
    pub fn on_view(&mut self, view: View) {
        self.own.view = view.clone();
        self.own.view_durable = false;
        // Joining again, it says this at once.
        self.config.join.view = view;
        self.send_view();
    }

    pub(super) fn send_view(&mut self) {
        if self.wire == Wire::Up && !self.own.view_durable {
            let view = self.own.view.clone();
            self.actions.push_back(NodeAction::Send(ToServer::View(view)));
        }
    }

    /// Whether somebody may wait for the server to have this. Nobody does for a record that is safe, and that
    /// peers were given, if there are any: it may go along with what comes next, within a moment.
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
        // What the server has made durable is safe, whatever the members say.
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
