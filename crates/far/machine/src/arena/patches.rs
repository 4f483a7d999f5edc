//! Patches: words that were written to pages that are away. They stay here, and go into their page when it
//! comes home, before the program can see it.
//!
//! Nothing is written in place at a lender: a page is sealed under a nonce, which must not seal other bytes a
//! second time.
//!
//! Only a page that is away gets a patch, or one on its way home has one. What is nowhere or packed comes to
//! be written, for no link is needed then. Patches take a part of the cap. When most of that is taken, the
//! pages that were patched first come home, as if asked for ahead; when all of it is, a page that is to be
//! written comes.

use alloc::vec::Vec;

use super::insertion_order::InsertionOrder;
use super::pages::{ArenaMachine, PageState};
use super::{Page, words};
use crate::limit::{BLOCK_BYTES, PAGE_BYTES, PATCH_PAGE_BYTES, PREFETCH_PAGES_MAX};

/// A block of which bytes were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    number: u8,
    /// One bit a byte, the lowest for the first.
    mask: u16,
    bytes: [u8; BLOCK_BYTES],
}

const _: () = assert!(
    BLOCK_BYTES <= u16::BITS as usize,
    "one bit a byte in `Block::mask`"
);

/// What was written to a page since it left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagePatch {
    /// In the order of their numbers.
    blocks: Vec<Block>,
}

impl PagePatch {
    /// These bytes are written, so many bytes behind the page's beginning.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= PAGE_BYTES, "they lie in the page");
        let mut at = at;
        let mut rest = bytes;
        while !rest.is_empty() {
            let first = at % BLOCK_BYTES;
            let (part, behind) = rest.split_at(rest.len().min(BLOCK_BYTES - first));
            let block = self.block((at / BLOCK_BYTES) as u8);
            for (index, byte) in part.iter().enumerate() {
                block.bytes[first + index] = *byte;
                block.mask |= 1 << (first + index);
            }
            at += part.len();
            rest = behind;
        }
    }

    fn block(&mut self, number: u8) -> &mut Block {
        let place = self.blocks.binary_search_by_key(&number, |block| block.number);
        let index = place.unwrap_or_else(|index| {
            if self.blocks.len() == self.blocks.capacity() {
                // From one on: many pages have one word written.
                self.blocks.reserve_exact(self.blocks.len().max(1));
            }
            let empty = Block {
                number,
                mask: 0,
                bytes: [0; BLOCK_BYTES],
            };
            self.blocks.insert(index, empty);
            index
        });
        &mut self.blocks[index]
    }

    /// Puts what was written into the page.
    pub fn apply(&self, page: &mut [u8; PAGE_BYTES]) {
        for block in &self.blocks {
            let start = usize::from(block.number) * BLOCK_BYTES;
            block.overlay(&mut page[start..start + BLOCK_BYTES]);
        }
    }

    /// Puts what was written of a block into that block.
    pub fn overlay(&self, number: u8, target: &mut [u8]) {
        if let Some(block) = self.find(number) {
            block.overlay(target);
        }
    }

    /// Whether each byte of the block was written: nothing beneath it is of use.
    pub fn is_whole(&self, number: u8) -> bool {
        self.find(number).is_some_and(|block| block.mask == u16::MAX)
    }

    /// That of these blocks. `None`: nothing was written to any.
    pub fn of(&self, numbers: impl Iterator<Item = u8>) -> Option<PagePatch> {
        let blocks: Vec<Block> = numbers.filter_map(|number| self.find(number).copied()).collect();
        (!blocks.is_empty()).then_some(PagePatch { blocks })
    }

    fn find(&self, number: u8) -> Option<&Block> {
        let place = self.blocks.binary_search_by_key(&number, |block| block.number);
        self.blocks.get(place.ok()?)
    }

    fn bytes(&self) -> u64 {
        (self.blocks.capacity() * size_of::<Block>()) as u64 + u64::from(PATCH_PAGE_BYTES)
    }
}

impl Block {
    fn overlay(&self, target: &mut [u8]) {
        assert_eq!(target.len(), BLOCK_BYTES);
        for (index, (target, byte)) in target.iter_mut().zip(&self.bytes).enumerate() {
            if self.mask & 1 << index != 0 {
                *target = *byte;
            }
        }
    }
}

/// The patches of an arena.
#[derive(Clone, Debug)]
pub(super) struct PatchTable {
    bytes_max: u64,
    bytes: u64,
    pages: InsertionOrder<PagePatch>,
}

impl PatchTable {
    /// Of so many frames of the cap.
    pub(super) fn new(frames: u32) -> PatchTable {
        PatchTable {
            bytes_max: u64::from(frames) * PAGE_BYTES as u64,
            bytes: 0,
            pages: InsertionOrder::new(),
        }
    }

    /// What they take of the cap.
    pub(super) fn frames(&self) -> u32 {
        self.bytes.div_ceil(PAGE_BYTES as u64) as u32
    }

    /// Whether nothing more is to be written here. What is exceeds it by one page's patch at most.
    fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    /// Whether some pages are to come home: room is left for what is written until they have.
    fn is_above_limit(&self) -> bool {
        self.bytes > self.bytes_max / 4 * 3
    }

    pub(super) fn has(&self, page: Page) -> bool {
        self.pages.has(page)
    }

    fn write(&mut self, page: Page, at: usize, bytes: &[u8]) {
        let patch = self.pages.get_or_add(page, PagePatch::default);
        let before = match patch.blocks.is_empty() {
            true => 0,
            false => patch.bytes(),
        };
        patch.write(at, bytes);
        self.bytes += patch.bytes() - before;
    }

    pub(super) fn take(&mut self, page: Page) -> Option<PagePatch> {
        let patch = self.pages.remove(page)?;
        self.bytes -= patch.bytes();
        Some(patch)
    }
}

impl ArenaMachine {
    /// So many words of a page are to be written. `true`: by [`ArenaMachine::patch`], and the page stays
    /// away. Else it has to come. They count as words that are fetched do ([`ArenaMachine::word_source`]).
    pub fn may_patch(&mut self, page: Page, words: u32, initial: u32) -> bool {
        self.fetch_oldest_patched();
        if self.records.state(page) != PageState::Remote || self.patches.is_full() || self.free() == 0 {
            return false;
        }
        let patched = words::spend(self.records.of(page), words, initial);
        self.tally.written += if patched { u64::from(words) } else { 0 };
        patched
    }

    /// These bytes of a page are written, so many bytes behind its beginning. [`ArenaMachine::may_patch`] has
    /// just said that they may.
    pub fn patch(&mut self, page: Page, at: usize, bytes: &[u8]) {
        assert!(self.records.state(page) == PageState::Remote, "its page is away");
        self.patches.write(page, at, bytes);
    }

    /// What was written of these blocks while their page was away. `None`: nothing.
    pub fn patched(&self, page: Page, numbers: impl Iterator<Item = u8>) -> Option<PagePatch> {
        self.patches.pages.get(page)?.of(numbers)
    }

    /// What is to be put into a page that comes from the depot, before [`ArenaMachine::arrive`].
    pub fn take_patch(&mut self, page: Page) -> Option<PagePatch> {
        if self.records.state(page) != PageState::Arriving {
            return None;
        }
        self.patches.take(page)
    }

    /// When patches take much, the pages that were patched first are asked for ahead. They stay out of sight,
    /// unless somebody wants them.
    fn fetch_oldest_patched(&mut self) {
        if !self.patches.is_above_limit() || self.has_ahead() {
            return;
        }
        let spare = self.watermarks.spare(self.free());
        for _ in 0..spare.min(PREFETCH_PAGES_MAX) {
            let Some(page) = self.patches.pages.oldest() else {
                break;
            };
            // Others are on their way.
            if self.records.state(page) == PageState::Remote {
                self.tally.patch_fetches += 1;
                self.ask_ahead(page, true);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(count: usize) -> Vec<u8> {
        (1..=count as u8).collect()
    }

    #[test]
    fn what_was_written_last_is_in_the_page_and_nothing_beside_it_changes() {
        let mut patch = PagePatch::default();
        let mut expected = [0xAA; PAGE_BYTES];
        for (at, count) in [(4000, 40), (10, 12), (0, 3), (16, 16), (15, 2), (4095, 1)] {
            patch.write(at, &numbered(count));
            expected[at..at + count].copy_from_slice(&numbered(count));
        }
        let mut page = [0xAA; PAGE_BYTES];
        patch.apply(&mut page);
        assert_eq!(page, expected);
        assert!(patch.is_whole(1) && !patch.is_whole(0) && !patch.is_whole(2));
        let some = patch.of([0, 1, 2].into_iter()).unwrap();
        let mut blocks = [0xAA; 3 * BLOCK_BYTES];
        for (number, block) in blocks.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            some.overlay(number as u8, block);
        }
        assert_eq!(blocks[..], expected[..3 * BLOCK_BYTES]);
        assert_eq!(patch.of([2, 3, 100].into_iter()), None);
    }

    #[test]
    fn what_patches_take_is_known_and_given_back() {
        let mut patches = PatchTable::new(1);
        let mut pages = 0;
        while !patches.is_full() {
            patches.write(Page(pages), 8, &[1; 8]);
            pages += 1;
        }
        assert!(patches.is_above_limit() && patches.frames() >= 1);
        assert!(pages > 20, "one word takes little: {pages}");
        let taken = patches.bytes;
        patches.write(Page(0), 8, &[2; 8]);
        assert_eq!(patches.bytes, taken, "there is room for it");
        patches.write(Page(0), 100, &[2; 8]);
        assert!(patches.bytes > taken);
        assert_eq!(patches.pages.oldest(), Some(Page(0)));
        patches.take(Page(1));
        patches.write(Page(1), 0, &[1]);
        assert_eq!(patches.pages.oldest(), Some(Page(2)), "page 1 was begun anew");
        (0..pages).for_each(|page| drop(patches.take(Page(page)).unwrap()));
        assert_eq!(
            (patches.bytes, patches.frames(), patches.pages.oldest()),
            (0, 0, None)
        );
    }
}
