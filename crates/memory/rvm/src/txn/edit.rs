//! Changing a region's bytes in place.

use std::ops::Deref;
use std::sync::RwLockWriteGuard;

use netram_proto::port::RecordLog;

use super::Transaction;
use crate::error::RangeError;
use crate::memory::RegionMemory;
use crate::region::Region;
use crate::storage::SegmentStorage;

/// Exclusive access to a region's bytes within a transaction.
///
/// All bytes can be read. The call that lends bytes for writing also declares them, so no store can miss its
/// `set_range`.
pub struct EditGuard<'t, L: RecordLog, S: SegmentStorage> {
    transaction: &'t mut Transaction<L, S>,
    region: &'t Region,
    memory: RwLockWriteGuard<'t, RegionMemory>,
}

impl<'t, L: RecordLog, S: SegmentStorage> EditGuard<'t, L, S> {
    pub(crate) fn new(transaction: &'t mut Transaction<L, S>, region: &'t Region) -> EditGuard<'t, L, S> {
        EditGuard {
            transaction,
            region,
            memory: region.mapping.write(),
        }
    }

    /// Declares a range and lends it for writing.
    ///
    /// # Errors
    ///
    /// As [`Transaction::set_range`].
    pub fn range_mut(&mut self, offset: usize, length: usize) -> Result<&mut [u8], RangeError> {
        if let Some(index) = self.transaction.admit(self.region, offset, length)? {
            self.transaction
                .declare_locked(&self.memory, index, offset, length);
        }
        Ok(&mut self.memory[offset..offset + length])
    }
}

impl<L: RecordLog, S: SegmentStorage> Deref for EditGuard<'_, L, S> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}
