//! A set of a journal's lenders, by their place in the configuration.

use crate::limit::LENDERS_MAX;

/// Up to [`LENDERS_MAX`] lenders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LenderIndexSet(u16);

const _: () = assert!(LENDERS_MAX <= u16::BITS as usize, "one bit a lender");

impl LenderIndexSet {
    /// No lender.
    pub const EMPTY: LenderIndexSet = LenderIndexSet(0);

    /// How many.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether lender `index` is in it.
    pub fn has(self, index: usize) -> bool {
        index < LENDERS_MAX && self.0 & (1 << index) != 0
    }

    /// The set with lender `index`.
    #[must_use]
    pub fn with(self, index: usize) -> LenderIndexSet {
        assert!(index < LENDERS_MAX);
        LenderIndexSet(self.0 | 1 << index)
    }

    /// The set without lender `index`.
    #[must_use]
    pub fn without(self, index: usize) -> LenderIndexSet {
        assert!(index < LENDERS_MAX);
        LenderIndexSet(self.0 & !(1 << index))
    }

    /// What is in this set and not in `other`.
    #[must_use]
    pub fn minus(self, other: LenderIndexSet) -> LenderIndexSet {
        LenderIndexSet(self.0 & !other.0)
    }

    /// The lenders, lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            (rest != 0).then(|| {
                let index = rest.trailing_zeros() as usize;
                rest &= rest - 1;
                index
            })
        })
    }
}
