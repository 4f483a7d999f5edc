//! A set of a journal's lenders, identified by their index in the configuration.

use crate::limit::LENDERS_MAX;

/// A set of up to [`LENDERS_MAX`] lenders, as a bit mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LenderIndexSet(u16);

const _: () = assert!(LENDERS_MAX <= u16::BITS as usize, "one bit a lender");

impl LenderIndexSet {
    /// The empty set.
    pub const EMPTY: LenderIndexSet = LenderIndexSet(0);

    /// Number of lenders in the set.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set contains lender `index`.
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

    /// The lenders of this set that are not in `other`.
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
