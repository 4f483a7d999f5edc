//! The part of a mapped region in which a heap lies.

use std::sync::Arc;

use netram_rvm::{RangeError, Region};

use crate::block::HeapBytes;
use crate::transact::Transact;

/// Owner that keeps the region mapped: the region itself, or a value that contains it.
pub(crate) type RegionOwner = Arc<dyn AsRef<Region> + Send + Sync>;

/// A part of a region. Offsets count from its beginning.
pub(crate) struct RegionSlice {
    owner: RegionOwner,
    start: usize,
    length: usize,
}

impl RegionSlice {
    /// `length` bytes of the region from `start`, clipped at the region's end.
    pub(crate) fn new(owner: RegionOwner, start: usize, length: usize) -> RegionSlice {
        let room = (*owner).as_ref().len();
        let start = start.min(room);
        RegionSlice {
            owner,
            start,
            length: length.min(room - start),
        }
    }

    pub(crate) fn region(&self) -> &Region {
        (*self.owner).as_ref()
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Declares and writes bytes in a transaction. The caller has checked that the heap reaches that far.
    pub(crate) fn write<X: Transact>(
        &self,
        transaction: &mut X,
        at: u64,
        bytes: &[u8],
    ) -> Result<(), RangeError> {
        assert!(at as usize + bytes.len() <= self.length);
        transaction.write(self.region(), self.start + at as usize, bytes)
    }

    /// Stores bytes only in memory, to undo a change that was not logged.
    pub(crate) fn put_back(&self, at: u64, bytes: &[u8]) {
        assert!(at as usize + bytes.len() <= self.length);
        let put = self.region().put_back(self.start + at as usize, bytes);
        put.expect("the slice lies in its region");
    }
}

impl HeapBytes for RegionSlice {
    fn copy(&self, at: u64, into: &mut [u8]) {
        assert!(at as usize + into.len() <= self.length);
        let read = self.region().read_into(self.start + at as usize, into);
        read.expect("the slice lies in its region");
    }
}
