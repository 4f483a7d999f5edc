//! The operations that a heap needs of a transaction. Transactions of rvm and of shared regions implement
//! them.

use std::ops::Deref;
use std::sync::Arc;

use netram_proto::port::{Durability, RecordLog};
use netram_rvm::{
    EditGuard, Participant, RangeError, Region, RestoreMode, RvmCommitError, SegmentStorage, Transaction,
};

use crate::error::AllocError;

/// A transaction that can change a heap.
pub trait Transact: Sized {
    /// Type of the access that [`Transact::edit`] lends.
    type Edit<'t>: EditBytes
    where
        Self: 't;

    /// Whether the transaction is neither committed nor aborted.
    fn is_open(&self) -> bool;

    /// Whether an abort restores memory.
    fn mode(&self) -> RestoreMode;

    /// Fails unless the transaction may change these bytes. Under the locks of a shared region, no other
    /// transaction may change them before it ends.
    ///
    /// # Errors
    ///
    /// [`RangeError::NotHeld`] where a lock is missing; other [`RangeError`]s where the bytes cannot be
    /// changed.
    fn admits(&self, region: &Region, offset: usize, length: usize) -> Result<(), RangeError>;

    /// Number of other open transactions that may have changed the heap's bytes.
    fn others_in(&self, region: &Region) -> usize;

    /// Declares bytes and stores them.
    ///
    /// # Errors
    ///
    /// [`RangeError`] if the bytes cannot be declared; none is stored then.
    fn write(&mut self, region: &Region, offset: usize, bytes: &[u8]) -> Result<(), RangeError>;

    /// Exclusive access to the region's bytes, in which ranges are declared as they are borrowed.
    fn edit<'t>(&'t mut self, region: &'t Region) -> Self::Edit<'t>;

    /// Notifies `participant` when this transaction ends: [`Transaction::enlist`].
    fn enlist(&mut self, participant: &Arc<dyn Participant>, note: u64);

    /// The note that `participant` enlisted with: [`Transaction::note_of`].
    fn note_of(&self, participant: &Arc<dyn Participant>) -> Option<u64>;

    /// Makes a change that stays committed whatever this transaction does, where other transactions may need
    /// it earlier.
    ///
    /// # Errors
    ///
    /// [`AllocError`] if the change was not made or not logged.
    fn top_action(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<(), RangeError>,
    ) -> Result<TopActionOutcome, AllocError>;
}

/// Outcome of a [top action](Transact::top_action).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopActionOutcome {
    /// The change is in the log, before the commit of the transaction.
    Committed,
    /// The change is part of the transaction. No other transaction can use the heap before it ends.
    Within,
}

/// A region's bytes, lent for changing.
pub trait EditBytes: Deref<Target = [u8]> {
    /// Declares a range and lends it for writing.
    ///
    /// # Errors
    ///
    /// [`RangeError`] if the bytes cannot be declared.
    fn range_mut(&mut self, offset: usize, length: usize) -> Result<&mut [u8], RangeError>;
}

impl<L: RecordLog, S: SegmentStorage> EditBytes for EditGuard<'_, L, S> {
    fn range_mut(&mut self, offset: usize, length: usize) -> Result<&mut [u8], RangeError> {
        EditGuard::range_mut(self, offset, length)
    }
}

impl<L: RecordLog, S: SegmentStorage> Transact for Transaction<L, S> {
    type Edit<'t>
        = EditGuard<'t, L, S>
    where
        Self: 't;

    fn is_open(&self) -> bool {
        Transaction::is_open(self)
    }

    fn mode(&self) -> RestoreMode {
        Transaction::mode(self)
    }

    fn admits(&self, _: &Region, _: usize, _: usize) -> Result<(), RangeError> {
        Ok(())
    }

    fn others_in(&self, region: &Region) -> usize {
        region.open_transactions() - usize::from(self.has_ranges_in(region))
    }

    fn write(&mut self, region: &Region, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        Transaction::write(self, region, offset, bytes)
    }

    fn edit<'t>(&'t mut self, region: &'t Region) -> EditGuard<'t, L, S> {
        Transaction::edit(self, region)
    }

    fn enlist(&mut self, participant: &Arc<dyn Participant>, note: u64) {
        Transaction::enlist(self, participant, note);
    }

    fn note_of(&self, participant: &Arc<dyn Participant>) -> Option<u64> {
        Transaction::note_of(self, participant)
    }

    /// Any number of transactions use the heap at once, so a change for all of them is committed at once, in
    /// a transaction of its own. It does not wait: a crash that loses it also loses everything later.
    fn top_action(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<(), RangeError>,
    ) -> Result<TopActionOutcome, AllocError> {
        let mut own = self.begin_another(RestoreMode::NoRestore);
        change(&mut own)?;
        match own.commit(Durability::Lazy) {
            // An unknown outcome counts as committed, because the record is in the log.
            Ok(_) | Err(RvmCommitError::Unknown { .. }) => Ok(TopActionOutcome::Committed),
            Err(error) => Err(AllocError::Prepare(error)),
        }
    }
}
