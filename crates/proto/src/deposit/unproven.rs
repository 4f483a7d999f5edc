//! Words that lenders gave, and that nothing has proven yet.
//!
//! A block of a page cannot be proven by itself: what proves a page is of all of it. So a *mark* is kept of each block that was given, and compared
//! when the page comes home and is proven. A lender that gave something else is found then. Of a page that never comes home nothing is found.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::Page;
use crate::limit::UNPROVEN_BLOCKS_MAX;

/// A number for a block's bytes under a secret of the owner's: whoever does not know that hits another block's with one in 2^32.
pub type Mark = [u8; 4];

/// Marks by page, of the version that is away. Five bytes each.
#[derive(Clone, Debug, Default)]
pub(super) struct Unproven {
    pages: BTreeMap<Page, Vec<(u8, Mark)>>,
    blocks: usize,
}

impl Unproven {
    /// Whether more can be remembered.
    pub(super) fn has_room(&self) -> bool {
        self.blocks < UNPROVEN_BLOCKS_MAX
    }

    /// These blocks of the page were given.
    pub(super) fn add(&mut self, page: Page, marks: impl Iterator<Item = (u8, Mark)>) {
        let known = self.pages.entry(page).or_default();
        let before = known.len();
        for mark in marks {
            // The same block with the same bytes is proven with it.
            if !known.contains(&mark) {
                known.push(mark);
            }
        }
        self.blocks += known.len() - before;
    }

    /// The page is here and proven: whether every block that was given is in it.
    pub(super) fn prove(&mut self, page: Page, mut mark: impl FnMut(u8) -> Option<Mark>) -> bool {
        self.drop(page)
            .into_iter()
            .all(|(block, given)| mark(block) == Some(given))
    }

    /// The page has been put anew or forgotten, and cannot prove anything any more.
    pub(super) fn drop(&mut self, page: Page) -> Vec<(u8, Mark)> {
        let known = self.pages.remove(&page).unwrap_or_default();
        self.blocks -= known.len();
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_compared_once_with_what_the_page_has() {
        let mut unproven = Unproven::default();
        let truth = |block: u8| Some([block, 0, 0, 1]);
        unproven.add(Page(1), [(3, [3, 0, 0, 1]), (9, [9, 0, 0, 1])].into_iter());
        unproven.add(Page(1), [(3, [3, 0, 0, 1])].into_iter());
        unproven.add(Page(2), [(3, [3, 0, 0, 2])].into_iter());
        assert_eq!(unproven.blocks, 3);
        assert!(unproven.prove(Page(1), truth));
        assert!(!unproven.prove(Page(2), truth));
        assert!(unproven.prove(Page(2), truth), "it is told once");
        assert_eq!(unproven.blocks, 0);
    }

    #[test]
    fn a_block_that_was_given_as_two_things_is_found_whatever_the_page_has() {
        let mut unproven = Unproven::default();
        unproven.add(Page(1), [(3, [1; 4]), (3, [2; 4])].into_iter());
        assert!(!unproven.prove(Page(1), |_| Some([1; 4])));
    }
}
