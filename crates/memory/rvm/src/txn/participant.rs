//! Participants: objects with volatile state about transactions that must learn how each one ended.
//!
//! A heap is a participant: a block freed in a transaction can be reused only when that transaction is in the
//! log, and a block allocated in an aborted one becomes free again.

use std::sync::Arc;

use netram_proto::port::RecordLog;

use super::Transaction;
use crate::options::RestoreMode;
use crate::state::RvmState;
use crate::stats::add;
use crate::storage::SegmentStorage;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// The record is in the log before the record of every later commit. Or it is spooled, and will be logged
    /// before every such record or together with it. Commits with an unknown outcome count as committed:
    /// later records can survive only together with them.
    Committed,
    /// The transaction was not logged and never will be. In [`RestoreMode::Restore`] memory is as before.
    Aborted,
}

/// An object that is notified how transactions end.
pub trait Participant: Send + Sync {
    /// Called when the transaction has ended: after it was logged and before it waits to be safe, or after an
    /// abort restored memory. Called once for each [`Transaction::enlist`], on the transaction's thread, with
    /// no region locked. It may begin transactions. The regions count the transaction as open until every
    /// participant was called.
    fn ended(&self, note: u64, outcome: TransactionOutcome);
}

impl<L: RecordLog, S: SegmentStorage> Transaction<L, S> {
    /// Has `participant` notified how this transaction ends. The `note` is passed back to it then.
    ///
    /// Enlist before the transaction's first change: a transaction that has ended notifies no one.
    pub fn enlist(&mut self, participant: &Arc<dyn Participant>, note: u64) {
        assert!(self.open, "only an open transaction can be enlisted in");
        self.buffers.enlisted.push((Arc::clone(participant), note));
    }

    /// The note that `participant` enlisted with, if it did. Searches the list of participants, which is
    /// short.
    pub fn note_of(&self, participant: &Arc<dyn Participant>) -> Option<u64> {
        let address = Arc::as_ptr(participant).cast::<()>();
        let mut enlisted = self.buffers.enlisted.iter();
        // Only the address is compared: one value may have several vtables.
        let (_, note) = enlisted.find(|(other, _)| Arc::as_ptr(other).cast::<()>() == address)?;
        Some(*note)
    }

    /// Begins another transaction on the same `Rvm`, independent of this one: its commit stays even if this
    /// one aborts.
    pub fn begin_another(&self, mode: RestoreMode) -> Transaction<L, S> {
        Transaction::begin(&self.shared, mode)
    }

    pub(crate) fn begin(shared: &Arc<RvmState<L, S>>, mode: RestoreMode) -> Transaction<L, S> {
        let buffers = crate::sync::lock(&shared.pool).pop().unwrap_or_default();
        add(&shared.counters.begun, 1);
        shared
            .open_transactions
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Transaction::new(Arc::clone(shared), buffers, mode)
    }
}
