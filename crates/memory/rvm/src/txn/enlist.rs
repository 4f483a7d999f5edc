//! Enlisting participants, and beginning further transactions.

use std::sync::Arc;

use netram_proto::port::RecordLog;

use super::Transaction;
use crate::options::RestoreMode;
use crate::participant::Participant;
use crate::state::RvmState;
use crate::stats::add;
use crate::storage::SegmentStorage;

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
