//! Blocks from lenders that are not verified yet.
//!
//! A single block cannot be verified, because the seal covers a whole page. A *MAC* is therefore kept of each
//! block that a lender gave, and compared when the page itself arrives and is verified. A lender that gave
//! other bytes is found then; for a page that never arrives, nothing is found.

use alloc::vec::Vec;

use super::Page;
use crate::limit::{BLOCK_BYTES, UNPROVEN_BLOCKS_MAX};

/// MAC of a block under a secret of the owner. Without the secret, another block matches with probability
/// 2^-32.
pub type BlockMac = [u8; 4];

/// A block of a sealed page, as a lender gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedBlock {
    /// The page.
    pub page: Page,
    /// Version of the page.
    pub version: u64,
    /// Number of the block.
    pub number: u8,
    /// Sealed bytes of the block.
    pub bytes: [u8; BLOCK_BYTES],
}

/// Number of blocks whose groups are looked up together.
const TOGETHER: usize = 16;

/// Number of MACs in a group.
const GROUP: usize = 5;
/// Marks the end of a list of groups.
const NONE: u32 = u32::MAX;

/// Some MACs of one page, and a link to the group with more: 32 bytes.
#[derive(Clone, Copy, Debug)]
struct MacGroup {
    next: u32,
    count: u8,
    numbers: [u8; GROUP],
    macs: [BlockMac; GROUP],
}

const _: () = assert!(
    size_of::<MacGroup>() == 32,
    "docs/design/far.md states the cost of MACs"
);

/// MACs by page, of its remote version. They are stored in groups, so that a further one costs no allocation.
#[derive(Clone, Debug)]
pub(super) struct UnverifiedBlocks {
    /// First group of each page.
    firsts: Vec<u32>,
    groups: Vec<MacGroup>,
    /// First free group.
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
    /// Whether more MACs can be kept.
    pub(super) fn has_room(&self) -> bool {
        self.blocks < UNPROVEN_BLOCKS_MAX
    }

    /// Adds blocks with their MACs. Most blocks are of different pages, whose groups are not in a cache.
    /// Several are looked up together, so that the processor waits for memory once and not for each.
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

    /// Adds the MAC of one block.
    fn add(&mut self, page: Page, number: u8, mark: BlockMac) {
        let index = page.0 as usize;
        if index >= self.firsts.len() {
            self.firsts.resize(index + 1, NONE);
        }
        // The same block with the same bytes is verified with it.
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

    /// Numbers and MACs of the blocks that were given of a page.
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

    /// Drops the MACs of a page that was verified, put anew or forgotten.
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

    /// Makes an empty group that links to `next`.
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
    fn macs_of_a_page_are_kept_until_they_are_dropped() {
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
        // Free groups are used before more are allocated.
        (0..=255).for_each(|number| unproven.add(Page(7), number, [number; 4]));
        assert_eq!(unproven.groups.len(), groups);
        assert_eq!(sorted(&unproven, 7).len(), 256);
        assert_eq!(sorted(&unproven, 2).len(), 256);
        assert_eq!(unproven.blocks, 3 * 256);
    }

    #[test]
    fn a_block_with_two_contents_has_two_macs() {
        let mut unproven = UnverifiedBlocks::default();
        for mark in [[1; 4], [2; 4], [1; 4], [2; 4]] {
            unproven.add(Page(1), 3, mark);
        }
        assert_eq!(sorted(&unproven, 1), [(3, [1; 4]), (3, [2; 4])]);
        assert_eq!(unproven.blocks, 2);
    }
}
