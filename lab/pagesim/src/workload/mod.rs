//! The paper's programs, section 3.1.1: they compute what they say, on data of their own, and tell every reference to it.
//!
//! Loops and indices of the compiled programs of 1996 are references as well; a program here tells only those to its matrices, vectors and records.

mod gauss;
mod matrix;
mod mvec;
mod sort;
mod trans;

pub use gauss::gauss;
pub use mvec::mvec;
pub use sort::{Sortable, quicksort, sort};
pub use trans::trans;

use netram_far_machine::paging::Access;

use crate::Study;

/// Who is told of references.
pub trait Memory {
    /// So many bytes are referenced.
    fn reference(&mut self, address: u64, bytes: u32, access: Access);

    /// They are read.
    #[inline]
    fn read(&mut self, address: u64, bytes: u32) {
        self.reference(address, bytes, Access::Read);
    }

    /// They are written.
    #[inline]
    fn write(&mut self, address: u64, bytes: u32) {
        self.reference(address, bytes, Access::Write);
    }
}

impl Memory for Study {
    #[inline]
    fn reference(&mut self, address: u64, bytes: u32, access: Access) {
        Study::reference(self, address, bytes, access);
    }
}

/// Nobody: to see what a program costs by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nobody;

impl Memory for Nobody {
    #[inline]
    fn reference(&mut self, address: u64, bytes: u32, access: Access) {
        std::hint::black_box((address, bytes, access));
    }
}
