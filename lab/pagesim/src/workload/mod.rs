//! The paper's programs, section 3.1.1: they compute what they say, on data of their own, and tell every
//! reference to it.
//!
//! Loops and indices of the compiled programs of 1996 are references as well; a program here tells only those
//! to its matrices, vectors and records.

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

/// Who is told of references.
pub trait ReferenceSink {
    /// So many bytes are referenced.
    fn reference(&mut self, address: u64, bytes: u32, access: PageAccess);

    /// They are read.
    #[inline]
    fn read(&mut self, address: u64, bytes: u32) {
        self.reference(address, bytes, PageAccess::Read);
    }

    /// They are written.
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

/// Nobody: to see what a program costs by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

impl ReferenceSink for NullSink {
    #[inline]
    fn reference(&mut self, address: u64, bytes: u32, access: PageAccess) {
        std::hint::black_box((address, bytes, access));
    }
}
