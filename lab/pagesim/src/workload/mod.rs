//! The paper's programs, section 3.1.1. They do their computation on generated data, and report every
//! reference to it.
//!
//! Compiled programs of 1996 also referenced loop counters and indices; these programs report only references
//! to matrices, vectors and records.

mod gauss;
mod matrix;
mod mvec;
mod sort;
mod trans;

pub use gauss::gauss;
pub use mvec::mvec;
pub use sort::{Sortable, quicksort, sort};
pub use trans::trans;

use netram_far_machine::paging::PageAccess;

use crate::Study;

/// Receiver of references.
pub trait ReferenceSink {
    /// Handles a reference to `bytes` bytes.
    fn reference(&mut self, address: u64, bytes: u32, access: PageAccess);

    /// Handles a read.
    #[inline]
    fn read(&mut self, address: u64, bytes: u32) {
        self.reference(address, bytes, PageAccess::Read);
    }

    /// Handles a write.
    #[inline]
    fn write(&mut self, address: u64, bytes: u32) {
        self.reference(address, bytes, PageAccess::Write);
    }
}

impl ReferenceSink for Study {
    #[inline]
    fn reference(&mut self, address: u64, bytes: u32, access: PageAccess) {
        Study::reference(self, address, bytes, access);
    }
}

/// Ignores references, to measure a program's own cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

impl ReferenceSink for NullSink {
    #[inline]
    fn reference(&mut self, address: u64, bytes: u32, access: PageAccess) {
        std::hint::black_box((address, bytes, access));
    }
}
