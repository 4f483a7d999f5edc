//! The node's own records.
//!
//! ```text
//!  appended ---> acked (the members' rule, or kept) ---> sent ---> kept
//! ```
//!
//! A tail goes when its record is safe, in the order of the numbers. While the journal has too few members a record becomes safe by being
//! kept: then it goes at once, marked so, and the server shows it to nobody before it has it on its disk.

use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;

use super::{Deed, Node, State, Straight, Wire};
use crate::limit::HINT_BYTES_MAX;
use crate::lock::TxnId;
use crate::message::{Hint, ToServer};
use crate::{Hold, LockId, NodeId, Number, Stamp, Version};
use netram_proto::journal::View;
use netram_proto::time::Time;
use netram_proto::wire::Link;

/// A record that the server has not kept yet.
#[derive(Clone, Debug)]
struct Record<P> {
    number: Number,
    end: Link,
    payload: P,
    /// What peers must have before it; `None`: they are not sent it.
    needs: Option<Vec<(NodeId, Number)>>,
    /// Peers have been given it.
    given: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Own<P> {
    /// All that are not kept, in order.
    records: VecDeque<Record<P>>,
    kept: Number,
    pub(super) acked: Number,
    /// Peers have been given what they are to be given up to here.
    shown: Number,
    /// Sent over the present link, or merged.
    pub(super) sent: Number,
    /// The newest view, and whether the server is known to have it.
    view: View,
    view_kept: bool,
    by_server: bool,
}

impl<P> Own<P> {
    pub(super) fn new(view: View) -> Own<P> {
        Own {
            records: VecDeque::new(),
            kept: Number(0),
            acked: Number(0),
            shown: Number(0),
            sent: Number(0),
            view,
            view_kept: true,
            by_server: false,
        }
    }

    /// The last that was appended.
    pub(super) fn last(&self) -> Number {
        Number(self.kept.0 + self.records.len() as u64)
    }

    /// Where those are that come after one, up to another, and are not kept. By their numbers: hundreds may wait for the server's disk.
    fn places(&self, after: Number, until: Number) -> Range<usize> {
        let place = |number: Number| number.0.saturating_sub(self.kept.0) as usize;
        let end = place(until).min(self.records.len());
        place(after).min(end)..end
    }
}

impl<P: Clone + AsRef<[u8]>> Node<P> {
    /// A transaction has written under a lock, or will have when its record is appended: see [`crate::lock::Cache::wrote`].
    pub fn wrote(&mut self, txn: TxnId, lock: LockId) -> Option<Version> {
        self.tokens.wrote(txn, lock)
    }

    /// The stamp of a transaction's record, as it has its locks now. What it has written under, and what it has only read.
    pub fn stamp(&self, txn: TxnId) -> Stamp {
        let mut stamp = Stamp::default();
        self.stamp_into(txn, &mut stamp);
        stamp
    }

    /// The same, into memory that is there.
    pub fn stamp_into(&self, txn: TxnId, stamp: &mut Stamp) {
        stamp.clear();
        for held in self.tokens.held(txn) {
            match held.wrote && held.hold == Hold::Exclusive {
                true => stamp.written.push((held.lock, held.version.next())),
                false => stamp.read.push((held.lock, held.version)),
            }
        }
        stamp.written.sort_unstable();
        stamp.read.sort_unstable();
    }

    /// The journal has a record more, which begins with a stamp and ends there. In the journal's order. The record's number.
    pub fn on_appended(&mut self, now: Time, end: Link, payload: P) -> Number {
        let number = self.own.last().next();
        let needs = self.way.needs();
        self.own.records.push_back(Record {
            number,
            end,
            payload,
            needs,
            given: false,
        });
        self.send_tails();
        self.tokens.sent(now, self.own.sent);
        self.settle();
        number
    }

    /// The journal's records up to this one are safe. Success may be returned for them when what [`Node::poll`] says is done.
    pub fn on_acked(&mut self, now: Time, number: Number) {
        assert!(
            number <= self.own.last(),
            "only what was appended is acknowledged"
        );
        self.own.acked = self.own.acked.max(number);
        self.take_own();
        self.send_straight();
        self.send_tails();
        self.tokens.sent(now, self.own.sent);
        self.finish_leaving();
        self.settle();
    }

    /// What is safe counts as taken: others' records may follow on it.
    fn take_own(&mut self) {
        let Some(id) = self.id() else {
            return;
        };
        let taken = self.taken.get(&id).copied().unwrap_or_default();
        let places = self.own.places(taken, self.own.acked);
        for record in self.own.records.range(places) {
            self.versions.extend(Stamp::written_of(record.payload.as_ref()));
        }
        self.taken.insert(id, taken.max(self.own.acked));
    }

    /// Gives peers what is safe and they have not been given. What the server's word has made safe is on its way to them already.
    fn send_straight(&mut self) {
        let (before, acked) = (self.own.shown, self.own.acked);
        self.own.shown = acked;
        let Some(node) = self.id().filter(|_| self.way.has_peers()) else {
            return;
        };
        if !matches!(self.state, State::Whole | State::Leaving) {
            return;
        }
        let places = self.own.places(before, acked);
        for record in self.own.records.range_mut(places) {
            let fits = record.payload.as_ref().len() <= HINT_BYTES_MAX;
            let Some(needs) = record.needs.take().filter(|_| fits) else {
                continue;
            };
            record.given = true;
            self.deeds.push_back(Deed::Straight(Straight::Hint(Hint {
                node,
                number: record.number,
                needs,
                payload: record.payload.clone(),
            })));
        }
    }

    /// A transaction is over: with a record, which is acknowledged, or without. Its locks are free here at once.
    pub fn end(&mut self, now: Time, txn: TxnId, number: Option<Number>) {
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
        self.send_tails();
        self.tokens.sent(now, self.own.sent);
        self.finish_leaving();
        self.settle();
    }

    /// The journal has a view that is to count.
    pub fn on_view(&mut self, view: View) {
        self.own.view = view.clone();
        self.own.view_kept = false;
        // Joining again, it says this at once.
        self.config.join.view = view;
        self.send_view();
    }

    pub(super) fn send_view(&mut self) {
        if self.wire == Wire::Up && !self.own.view_kept {
            let view = self.own.view.clone();
            self.deeds.push_back(Deed::Send(ToServer::View(view)));
        }
    }

    /// Whether somebody may wait for the server to have this. Nobody does for a record that is safe, and that peers were given, if there
    /// are any: it may go along with what comes next, within a moment.
    pub fn hurries(&self, message: &ToServer<P>) -> bool {
        let ToServer::Tail {
            number, acked: true, ..
        } = message
        else {
            return true;
        };
        let mut places = self.own.places(Number(number.0 - 1), *number);
        let given = places.next().is_some_and(|place| self.own.records[place].given);
        self.way.has_peers() && !given
    }

    pub(super) fn send_tails(&mut self) {
        if self.wire != Wire::Up {
            return;
        }
        let until = match self.own.by_server {
            true => self.own.last(),
            false => self.own.acked,
        };
        let (sent, acked) = (self.own.sent, self.own.acked);
        let places = self.own.places(sent, until);
        for record in self.own.records.range(places) {
            self.own.sent = record.number;
            self.deeds.push_back(Deed::Send(ToServer::Tail {
                number: record.number,
                end: record.end,
                acked: record.number <= acked,
                payload: record.payload.clone(),
            }));
        }
    }

    pub(super) fn on_kept(&mut self, number: Number, end: Link, view: u64) {
        // What the server has made durable is safe, whatever the members say.
        self.own.acked = self.own.acked.max(number.min(self.own.last()));
        self.own.shown = self.own.shown.max(number.min(self.own.last()));
        self.take_own();
        while self
            .own
            .records
            .pop_front_if(|record| record.number <= number)
            .is_some()
        {
            self.own.kept = self.own.kept.next();
        }
        self.own.view_kept |= view >= self.own.view.version;
        self.deeds.push_back(Deed::Kept { number, end, view });
        self.finish_leaving();
    }
}
