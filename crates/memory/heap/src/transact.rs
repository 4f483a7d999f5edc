//! What a heap needs of a transaction: rvm's own has it, and so has one under the locks of a shared region.

use std::ops::Deref;
use std::sync::Arc;

use netram_proto::port::{Durability, RecordLog};
use netram_rvm::{
    EditGuard, Participant, RangeError, Region, RestoreMode, RvmCommitError, SegmentStorage, Transaction,
};

use crate::error::AllocError;

/// A transaction, as far as a heap needs it.
pub trait Transact: Sized {
    /// What [`Transact::edit`] lends.
    type Edit<'t>: EditBytes
    where
        Self: 't;

    /// Whether it is neither committed nor aborted.
    fn is_open(&self) -> bool;

    /// Whether an abort restores memory.
    fn mode(&self) -> RestoreMode;

    /// Fails unless the transaction may change these bytes, and nobody else before it ends, if that is what
    /// its memory promises.
    fn admits(&self, region: &Region, offset: usize, length: usize) -> Result<(), RangeError>;

    /// Open transactions beside this one that may have changed the heap's bytes.
    fn others_in(&self, region: &Region) -> usize;

    /// Declares bytes and stores them.
    fn write(&mut self, region: &Region, offset: usize, bytes: &[u8]) -> Result<(), RangeError>;

    /// Exclusive access to the region's bytes, in which ranges are declared as they are borrowed.
    fn edit<'t>(&'t mut self, region: &'t Region) -> Self::Edit<'t>;

    /// Has `participant` told how this transaction ends: [`Transaction::enlist`].
    fn enlist(&mut self, participant: &Arc<dyn Participant>, note: u64);

    /// The note that `participant` enlisted with: [`Transaction::note_of`].
    fn note_of(&self, participant: &Arc<dyn Participant>) -> Option<u64>;

    /// Makes a change that is to outlast this transaction where others may need it before this one ends.
    fn top_action(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<(), RangeError>,
    ) -> Result<TopActionOutcome, AllocError>;
}

/// What became of a change that was made [apart](Transact::top_action).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopActionOutcome {
    /// It is in the log, before whatever the transaction will commit.
    Committed,
    /// It ends as the transaction does. Nobody else can have changed the heap by then.
    Within,
}

/// A region's bytes, lent for changing.
pub trait EditBytes: Deref<Target = [u8]> {
    /// Declares a range and lends it for writing.
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

    /// Any number of transactions use the heap at once: what serves all of them is committed at once, in a
    /// transaction of its own. It waits for nothing: a crash that loses it loses all that came later, too.
    fn top_action(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<(), RangeError>,
    ) -> Result<TopActionOutcome, AllocError> {
        let mut own = self.begin_another(RestoreMode::NoRestore);
        change(&mut own)?;
        match own.commit(Durability::Lazy) {
            // In the log, whatever became of it there.
            Ok(_) | Err(RvmCommitError::Unknown { .. }) => Ok(TopActionOutcome::Committed),
            Err(error) => Err(AllocError::Prepare(error)),
        }
    }
}
