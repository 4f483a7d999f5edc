//! Those who keep volatile state about what transactions do, and must know how each ended.
//!
//! A heap is one: a block freed in a transaction can be given out again only when that transaction is in the
//! log, and a block taken in one that aborts comes back.

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
    /// Its record has its place in the log, before that of every transaction that commits later; or it is
    /// spooled, and logged before, or in one record with, every such transaction. This includes commits whose
    /// outcome is unknown: whatever is logged from now on can survive only together with them.
    Committed,
    /// Nothing of it was or will be logged. In [`RestoreMode::Restore`] memory is as before.
    Aborted,
}

/// Somebody who wants to know how transactions end.
pub trait Participant: Send + Sync {
    /// The transaction has ended: logged, before it waits to be safe; or aborted, after memory was restored.
    /// Called once for each [`Transaction::enlist`], by the transaction's thread, with no region locked. It
    /// may begin transactions. The transaction's regions count it as open until all have been told.
    fn ended(&self, note: u64, outcome: TransactionOutcome);
}

impl<L: RecordLog, S: SegmentStorage> Transaction<L, S> {
    /// Has `participant` told how this transaction ends. The note is the participant's own, handed back then.
    ///
    /// A transaction that has ended tells nobody: enlist before, or in the same breath as, the first change.
    pub fn enlist(&mut self, participant: &Arc<dyn Participant>, note: u64) {
        assert!(self.open, "only an open transaction has an end to come");
        self.buffers.enlisted.push((Arc::clone(participant), note));
    }

    /// The note that `participant` enlisted with, if it did. Looks through the few who have enlisted.
    pub fn note_of(&self, participant: &Arc<dyn Participant>) -> Option<u64> {
        let address = Arc::as_ptr(participant).cast::<()>();
        let mut enlisted = self.buffers.enlisted.iter();
        // The address alone tells them apart: one value may have several vtables.
        let (_, note) = enlisted.find(|(other, _)| Arc::as_ptr(other).cast::<()>() == address)?;
        Some(*note)
    }

    /// Begins another transaction on the same `Rvm`, independent of this one: what is committed through it
    /// stays, whatever becomes of this one.
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
