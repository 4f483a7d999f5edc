//! Draining: the lender serves on, takes no new windows and pages, and asks its clients to move theirs to
//! other lenders, until its operator stops it or takes the order back.
//!
//! Orders are counted, and each thread that has windows or pages notes the last one that it obeys. Once all
//! of them obey a drain, no client gets more than what the reports count, so *safe to stop* stays true.

use std::sync::atomic::{AtomicU64, Ordering};

use netram_proto::wire::{Flag, FrameHeader, FrameKind};

/// A wish that clients move away, as sessions are told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WithdrawNotice {
    /// The machine lacks memory: the client moves if another lender takes its window.
    Reclaims,
    /// The lender serves on until its clients have moved.
    Drains,
    /// Its sessions end in a moment.
    Stops,
}

impl WithdrawNotice {
    /// The frame that says so.
    pub(crate) fn frame(self, incarnation: u64) -> FrameHeader {
        FrameHeader {
            flags: match self {
                WithdrawNotice::Reclaims => Flag::DRAINS | Flag::PARTIAL,
                WithdrawNotice::Drains => Flag::DRAINS,
                WithdrawNotice::Stops => 0,
            },
            sender: incarnation,
            ..FrameHeader::new(FrameKind::Withdraw)
        }
    }
}

/// An operator's order by its number. The orders alternate: odd ones drain the lender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrderNumber(u64);

impl OrderNumber {
    pub(crate) fn drains(self) -> bool {
        self.0 % 2 == 1
    }
}

/// The operator's orders, and the threads that obey them.
pub(crate) struct DrainOrders {
    given: AtomicU64,
    /// The last order that each thread obeys: the shards, then the deposit thread.
    obeyed: Vec<AtomicU64>,
}

impl DrainOrders {
    pub(crate) fn new(threads: usize) -> DrainOrders {
        DrainOrders {
            given: AtomicU64::new(0),
            obeyed: (0..threads).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Gives an order. `false`: it is in force already.
    pub(crate) fn give(&self, drain: bool) -> bool {
        let next = |given: u64| (OrderNumber(given).drains() != drain).then_some(given + 1);
        self.given
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .is_ok()
    }

    /// The order in force.
    pub(crate) fn last(&self) -> OrderNumber {
        OrderNumber(self.given.load(Ordering::Acquire))
    }

    /// Notes that `thread` obeys `order`. What it published before is seen by whoever sees this.
    pub(crate) fn obey(&self, thread: usize, order: OrderNumber) {
        self.obeyed[thread].store(order.0, Ordering::Release);
    }

    /// Whether the lender drains, and all threads know it.
    pub(crate) fn is_obeyed(&self) -> bool {
        let last = self.last();
        let obeys = |thread: &AtomicU64| thread.load(Ordering::Acquire) == last.0;
        last.drains() && self.obeyed.iter().all(obeys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_counts_once_every_thread_obeys_it() {
        let orders = DrainOrders::new(2);
        assert!(!orders.is_obeyed() && !orders.give(false));
        assert!(orders.give(true) && !orders.give(true));
        orders.obey(0, orders.last());
        assert!(!orders.is_obeyed());
        orders.obey(1, orders.last());
        assert!(orders.is_obeyed());
        assert!(orders.give(false) && orders.give(true));
        assert!(!orders.is_obeyed(), "the threads obey an earlier one");
    }
}
