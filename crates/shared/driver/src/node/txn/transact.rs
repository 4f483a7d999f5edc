//! The interface that a heap needs of a transaction under locks.

use std::ops::{Deref, Range};
use std::sync::Arc;

use netram_heap::{AllocError, EditBytes, TopActionOutcome, Transact};
use netram_rvm::{EditGuard, Participant, RangeError, RealStorage, Region, RestoreMode, Transaction};
use netram_shared_machine::LockMode;

use super::locked_spans::LockedSpans;
use super::{DeclareError, NodeInner, NodeLog, Txn};

/// A region's bytes, borrowed by a transaction to change what is under its locks.
pub struct TxnEdit<'t> {
    guard: EditGuard<'t, NodeLog, RealStorage>,
    locked_spans: &'t mut LockedSpans,
    shared: &'t NodeInner,
}

impl Deref for TxnEdit<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.guard
    }
}

impl EditBytes for TxnEdit<'_> {
    fn range_mut(&mut self, offset: usize, length: usize) -> Result<&mut [u8], RangeError> {
        let places = admit(self.locked_spans, self.shared, offset, length)?;
        self.locked_spans.set_written(places);
        self.guard.range_mut(offset, length)
    }
}

impl std::fmt::Debug for TxnEdit<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("TxnEdit").finish_non_exhaustive()
    }
}

impl Txn<'_> {
    fn own(&self, region: &Region) -> Result<(), RangeError> {
        match std::ptr::eq(region, &*self.shared.region) {
            true => Ok(()),
            false => Err(RangeError::ForeignRegion),
        }
    }

    fn open(&mut self) -> &mut Transaction<NodeLog, RealStorage> {
        self.inner
            .as_mut()
            .expect("only a commit ends the transaction, and it consumes it")
    }
}

impl Transact for Txn<'_> {
    type Edit<'t>
        = TxnEdit<'t>
    where
        Self: 't;

    fn is_open(&self) -> bool {
        self.inner.as_ref().is_some_and(Transaction::is_open)
    }

    fn mode(&self) -> RestoreMode {
        self.mode
    }

    fn admits(&self, region: &Region, offset: usize, length: usize) -> Result<(), RangeError> {
        self.own(region)?;
        self.admit(offset, length)?;
        Ok(())
    }

    /// No other transaction with the heap's lock can be open.
    fn others_in(&self, _: &Region) -> usize {
        0
    }

    fn write(&mut self, region: &Region, offset: usize, bytes: &[u8]) -> Result<(), RangeError> {
        self.own(region)?;
        Ok(Txn::write(self, offset, bytes)?)
    }

    fn edit<'t>(&'t mut self, region: &'t Region) -> TxnEdit<'t> {
        let inner = self
            .inner
            .as_mut()
            .expect("only a commit ends the transaction, and it consumes it");
        TxnEdit {
            guard: inner.edit(region),
            locked_spans: &mut self.scratch.locked_spans,
            shared: &self.shared,
        }
    }

    fn enlist(&mut self, participant: &Arc<dyn Participant>, note: u64) {
        self.open().enlist(participant, note);
    }

    fn note_of(&self, participant: &Arc<dyn Participant>) -> Option<u64> {
        self.inner.as_ref()?.note_of(participant)
    }

    /// No other transaction gets the heap's lock before this one ends, so a separate record would have no
    /// use.
    fn top_action(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<(), RangeError>,
    ) -> Result<TopActionOutcome, AllocError> {
        change(self)?;
        Ok(TopActionOutcome::Within)
    }
}

/// Indexes of the held spans that contain the bytes, if they may be written.
fn admit(
    held: &LockedSpans,
    shared: &NodeInner,
    offset: usize,
    length: usize,
) -> Result<Range<usize>, RangeError> {
    let region = shared.region.len();
    let end = offset.checked_add(length).filter(|end| *end <= region);
    let end = end.ok_or(RangeError::OutOfRegion {
        offset,
        length,
        region,
    })?;
    held.cover(offset, end, LockMode::Exclusive)
        .map_err(|offset| RangeError::NotHeld {
            offset,
            address: shared.region.as_ptr().addr() + offset,
            lock: shared.lock_at(offset as u64).map(|lock| lock.0),
        })
}

impl From<DeclareError> for RangeError {
    fn from(error: DeclareError) -> RangeError {
        match error {
            DeclareError::NotHeld {
                offset,
                address,
                lock,
            } => RangeError::NotHeld {
                offset,
                address,
                lock: Some(lock.0),
            },
            DeclareError::NoLock { offset, address } => RangeError::NotHeld {
                offset,
                address,
                lock: None,
            },
            DeclareError::Range(error) => error,
        }
    }
}
