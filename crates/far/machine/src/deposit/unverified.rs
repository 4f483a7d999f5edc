//! Words that lenders gave, and that nothing has proven yet.
//!
//! A block of a page cannot be proven by itself: what proves a page is of all of it. So a *mark* is kept of
//! each block that was given, and compared when the page comes home and is proven. A lender that gave
//! something else is found then. Of a page that never comes home nothing is found.

use alloc::vec::Vec;

use super::Page;
use crate::limit::{BLOCK_BYTES, UNPROVEN_BLOCKS_MAX};

/// A number for a block's bytes under a secret of the owner's: whoever does not know that hits another
/// block's with one in 2^32.
pub type BlockMac = [u8; 4];

/// A block of a sealed page, as a lender gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedBlock {
    /// The page.
    pub page: Page,
    /// Its version.
    pub version: u64,
    /// Which block.
    pub number: u8,
    /// What is in it.
    pub bytes: [u8; BLOCK_BYTES],
}

/// Blocks whose groups are looked at together.
const TOGETHER: usize = 16;

/// Marks of one group.
const GROUP: usize = 5;
/// No group.
const NONE: u32 = u32::MAX;

/// Some marks of one page, and the group with more: 32 bytes.
#[derive(Clone, Copy, Debug)]
struct MacGroup {
    next: u32,
    count: u8,
    numbers: [u8; GROUP],
    macs: [BlockMac; GROUP],
}

const _: () = assert!(size_of::<MacGroup>() == 32, "docs/far.md says what marks cost");

/// Marks by page, of the version that is away. They lie in groups, so that one more costs no allocation.
#[derive(Clone, Debug)]
pub(super) struct UnverifiedBlocks {
    /// By page: its first group.
    firsts: Vec<u32>,
    groups: Vec<MacGroup>,
    /// The first group that is free.
    free: u32,
    blocks: usize,
}

impl Default for UnverifiedBlocks {
    fn default() -> UnverifiedBlocks {
        UnverifiedBlocks {
            firsts: Vec::new(),
            groups: Vec::new(),
            free: NONE,
            blocks: 0,
        }
    }
}

impl UnverifiedBlocks {
    /// Whether more can be remembered.
    pub(super) fn has_room(&self) -> bool {
        self.blocks < UNPROVEN_BLOCKS_MAX
    }

    /// These blocks were given, with these marks. Most lie in a page of their own, whose group no cache has:
    /// those of some are looked at together, so that the processor waits once for them and not for each.
    pub(super) fn add_all(&mut self, blocks: &[SealedBlock], marks: &[BlockMac]) {
        for (blocks, marks) in blocks.chunks(TOGETHER).zip(marks.chunks(TOGETHER)) {
            let first = |block: &SealedBlock| self.firsts.get(block.page.0 as usize).copied();
            let group = |first: u32| self.groups.get(first as usize);
            let firsts = blocks.iter().filter_map(first).filter_map(group);
            core::hint::black_box(firsts.fold(0, |all, group| all ^ group.count));
            for (block, mark) in blocks.iter().zip(marks) {
                self.add(block.page, block.number, *mark);
            }
        }
    }

    /// This block of the page was given.
    fn add(&mut self, page: Page, number: u8, mark: BlockMac) {
        let index = page.0 as usize;
        if index >= self.firsts.len() {
            self.firsts.resize(index + 1, NONE);
        }
        // The same block with the same bytes is proven with it.
        if { self.macs(page) }.any(|known| known == (number, mark)) {
            return;
        }
        let first = self.firsts[index];
        let group = match self.groups.get(first as usize) {
            Some(group) if usize::from(group.count) < GROUP => first,
            _ => self.new_group(first),
        };
        self.firsts[index] = group;
        let group = &mut self.groups[group as usize];
        let at = usize::from(group.count);
        (group.numbers[at], group.macs[at]) = (number, mark);
        group.count += 1;
        self.blocks += 1;
    }

    /// The blocks of the page that were given, each with the mark of what was given.
    pub(super) fn macs(&self, page: Page) -> impl Iterator<Item = (u8, BlockMac)> {
        let first = self.firsts.get(page.0 as usize);
        let mut next = first.copied().unwrap_or(NONE);
        let groups = core::iter::from_fn(move || {
            let group = self.groups.get(next as usize)?;
            next = group.next;
            Some(group)
        });
        groups.flat_map(|group| {
            let marks = group.numbers.iter().copied().zip(group.macs);
            marks.take(group.count.into())
        })
    }

    /// The page is proven, or has been put anew or forgotten and cannot prove anything any more.
    pub(super) fn drop(&mut self, page: Page) {
        let Some(first) = self.firsts.get_mut(page.0 as usize) else {
            return;
        };
        let mut next = core::mem::replace(first, NONE);
        while let Some(group) = self.groups.get_mut(next as usize) {
            self.blocks -= usize::from(group.count);
            let behind = core::mem::replace(&mut group.next, self.free);
            self.free = core::mem::replace(&mut next, behind);
        }
    }

    /// An empty group in front of this one.
    fn new_group(&mut self, next: u32) -> u32 {
        let empty = MacGroup {
            next,
            count: 0,
            numbers: [0; GROUP],
            macs: [[0; 4]; GROUP],
        };
        let index = self.free;
        match self.groups.get_mut(index as usize) {
            Some(group) => {
                self.free = group.next;
                *group = empty;
                index
            }
            None => {
                self.groups.push(empty);
                (self.groups.len() - 1) as u32
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(unproven: &UnverifiedBlocks, page: u32) -> Vec<(u8, BlockMac)> {
        let mut marks: Vec<(u8, BlockMac)> = unproven.macs(Page(page)).collect();
        marks.sort_unstable();
        marks
    }

    #[test]
    fn marks_of_a_page_are_kept_until_they_are_dropped() {
        let mut unproven = UnverifiedBlocks::default();
        let mark = |page: u32, number: u8| [number, page as u8, 0, 1];
        for number in 0..=255 {
            (0..3).for_each(|page| unproven.add(Page(page), number, mark(page, number)));
        }
        for page in 0..3 {
            let all: Vec<(u8, BlockMac)> = (0..=255).map(|number| (number, mark(page, number))).collect();
            assert_eq!(sorted(&unproven, page), all);
        }
        let groups = unproven.groups.len();
        unproven.drop(Page(1));
        unproven.drop(Page(1));
        unproven.drop(Page(9));
        assert_eq!(unproven.blocks, 2 * 256);
        assert_eq!(sorted(&unproven, 1), []);
        assert_eq!(sorted(&unproven, 0).len(), 256);
        // What is free is used before more is taken.
        (0..=255).for_each(|number| unproven.add(Page(7), number, [number; 4]));
        assert_eq!(unproven.groups.len(), groups);
        assert_eq!(sorted(&unproven, 7).len(), 256);
        assert_eq!(sorted(&unproven, 2).len(), 256);
        assert_eq!(unproven.blocks, 3 * 256);
    }

    #[test]
    fn a_block_that_was_given_as_two_things_has_two_marks_and_one_given_twice_has_one() {
        let mut unproven = UnverifiedBlocks::default();
        for mark in [[1; 4], [2; 4], [1; 4], [2; 4]] {
            unproven.add(Page(1), 3, mark);
        }
        assert_eq!(sorted(&unproven, 1), [(3, [1; 4]), (3, [2; 4])]);
        assert_eq!(unproven.blocks, 2);
    }
}
