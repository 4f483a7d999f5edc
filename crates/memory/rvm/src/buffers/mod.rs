//! The memory of a transaction: what it touched, and the locks and the record of its commit.

pub(crate) mod locks;
pub(crate) mod payload;
pub(crate) mod regions;

use std::sync::Arc;

use crate::capture::{PageCapture, Verifier};
use crate::limit::POOL_BUFFER_BYTES_MAX;
use crate::participant::Participant;
use crate::range::RangeList;
use payload::PayloadLayout;
use regions::TouchedRegions;

/// The memory of a transaction, reused by later ones.
#[derive(Default)]
pub(crate) struct TransactionBuffers {
    pub(crate) regions: TouchedRegions,
    pub(crate) ranges: RangeList,
    /// Old values, in the order of the declared ranges.
    pub(crate) undo: Vec<u8>,
    /// Capture state of regions whose stores are found by page, with the regions' indexes in the list.
    pub(crate) captures: Vec<(u32, Box<PageCapture>)>,
    /// Verifiers of verified regions, with the regions' indexes in the list and the transaction's number at
    /// each.
    pub(crate) verifiers: Vec<(u32, u64, Arc<Verifier>)>,
    /// Bytes for other readers that the record begins with.
    pub(crate) preamble: Vec<u8>,
    /// A record is written even without ranges.
    pub(crate) always: bool,
    pub(crate) layout: PayloadLayout,
    /// Participants to notify when the transaction ends, with their notes.
    pub(crate) enlisted: Vec<(Arc<dyn Participant>, u64)>,
}

impl TransactionBuffers {
    /// Empties the buffers; returns `false` if they have grown too large to keep.
    pub(crate) fn clear(&mut self) -> bool {
        assert!(
            self.regions.list.is_empty(),
            "the regions are let go when the transaction ends"
        );
        assert!(
            self.enlisted.is_empty(),
            "participants are told when the transaction ends"
        );
        self.ranges.clear();
        self.undo.clear();
        self.preamble.clear();
        self.always = false;
        self.ranges.capacity_bytes() + self.undo.capacity() <= POOL_BUFFER_BYTES_MAX
    }
}
