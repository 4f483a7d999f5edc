//! Patches: bytes written to remote pages. They are kept locally and merged into their page when it arrives,
//! before the program can see it.
//!
//! Nothing is modified in place at a lender: a page is sealed under a nonce, which must never seal other
//! bytes.
//!
//! Only a remote page gets a patch; an arriving page may still have one. A blank or packed page is brought to
//! be written, since that needs no network. Patches take a bounded part of the cap. When most of it is used,
//! the pages patched first are prefetched. When all of it is, a page to be written is fetched instead.

use alloc::vec::Vec;

use super::insertion_order::InsertionOrder;
use super::pages::{ArenaMachine, PageState};
use super::{Page, words};
use crate::limit::{BLOCK_BYTES, PAGE_BYTES, PATCH_PAGE_BYTES, PREFETCH_PAGES_MAX};

/// A block of which some bytes were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    number: u8,
    /// Written bytes, one bit each; the lowest bit is the first byte.
    mask: u16,
    bytes: [u8; BLOCK_BYTES],
}

const _: () = assert!(
    BLOCK_BYTES <= u16::BITS as usize,
    "one bit per byte in `Block::mask`"
);

/// Bytes written to a page since it left local memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagePatch {
    /// Blocks in ascending order.
    blocks: Vec<Block>,
}

impl PagePatch {
    /// Writes bytes at an offset in the page.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= PAGE_BYTES, "the bytes lie within the page");
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
                // Start at one: many pages have a single word written.
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

    /// Applies the patch to the page.
    pub fn apply(&self, page: &mut [u8; PAGE_BYTES]) {
        for block in &self.blocks {
            let start = usize::from(block.number) * BLOCK_BYTES;
            block.overlay(&mut page[start..start + BLOCK_BYTES]);
        }
    }

    /// Applies the patch to one block.
    pub fn overlay(&self, number: u8, target: &mut [u8]) {
        if let Some(block) = self.find(number) {
            block.overlay(target);
        }
    }

    /// Whether every byte of the block was written, so that its stored content does not matter.
    pub fn is_whole(&self, number: u8) -> bool {
        self.find(number).is_some_and(|block| block.mask == u16::MAX)
    }

    /// The patch restricted to these blocks. `None`: none of them was written.
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
    /// No patches; at most `frames` frames of the cap.
    pub(super) fn new(frames: u32) -> PatchTable {
        PatchTable {
            bytes_max: u64::from(frames) * PAGE_BYTES as u64,
            bytes: 0,
            pages: InsertionOrder::new(),
        }
    }

    /// Frames of the cap that the patches take, rounded up.
    pub(super) fn frames(&self) -> u32 {
        self.bytes.div_ceil(PAGE_BYTES as u64) as u32
    }

    /// Whether no further patch is accepted. The limit is exceeded by one page's patch at most.
    fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max
    }

    /// Whether some patched pages should be fetched. The margin covers writes until they arrive.
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
    /// Whether `words` words of a page may be written through [`ArenaMachine::patch`] while it stays remote.
    /// Otherwise it must be brought. The words count like fetched ones ([`ArenaMachine::word_source`]).
    pub fn may_patch(&mut self, page: Page, words: u32, initial: u32) -> bool {
        self.fetch_oldest_patched();
        if self.records.state(page) != PageState::Remote || self.patches.is_full() || self.free() == 0 {
            return false;
        }
        let patched = words::spend(self.records.of(page), words, initial);
        self.tally.written += if patched { u64::from(words) } else { 0 };
        patched
    }

    /// Writes bytes at an offset in a remote page. [`ArenaMachine::may_patch`] must have just allowed it.
    pub fn patch(&mut self, page: Page, at: usize, bytes: &[u8]) {
        assert!(
            self.records.state(page) == PageState::Remote,
            "the page is remote"
        );
        self.patches.write(page, at, bytes);
    }

    /// Bytes of these blocks written while their page was remote. `None`: nothing.
    pub fn patched(&self, page: Page, numbers: impl Iterator<Item = u8>) -> Option<PagePatch> {
        self.patches.pages.get(page)?.of(numbers)
    }

    /// The patch to merge into an arriving page, before [`ArenaMachine::arrive`].
    pub fn take_patch(&mut self, page: Page) -> Option<PagePatch> {
        if self.records.state(page) != PageState::Arriving {
            return None;
        }
        self.patches.take(page)
    }

    /// Prefetches the pages patched first when patches take much memory. They stay unmapped unless a thread
    /// wants them.
    fn fetch_oldest_patched(&mut self) {
        if !self.patches.is_above_limit() || self.has_ahead() {
            return;
        }
        let spare = self.watermarks.spare(self.free());
        for _ in 0..spare.min(PREFETCH_PAGES_MAX) {
            let Some(page) = self.patches.pages.oldest() else {
                break;
            };
            // Others are arriving already.
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
    fn a_patch_changes_exactly_the_written_bytes() {
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
    fn memory_of_patches_is_counted_and_released() {
        let mut patches = PatchTable::new(1);
        let mut pages = 0;
        while !patches.is_full() {
            patches.write(Page(pages), 8, &[1; 8]);
            pages += 1;
        }
        assert!(patches.is_above_limit() && patches.frames() >= 1);
        assert!(pages > 20, "a patch of one word is small: {pages}");
        let taken = patches.bytes;
        patches.write(Page(0), 8, &[2; 8]);
        assert_eq!(patches.bytes, taken, "it fits");
        patches.write(Page(0), 100, &[2; 8]);
        assert!(patches.bytes > taken);
        assert_eq!(patches.pages.oldest(), Some(Page(0)));
        patches.take(Page(1));
        patches.write(Page(1), 0, &[1]);
        assert_eq!(
            patches.pages.oldest(),
            Some(Page(2)),
            "the patch of page 1 is a new one"
        );
        (0..pages).for_each(|page| drop(patches.take(Page(page)).unwrap()));
        assert_eq!(
            (patches.bytes, patches.frames(), patches.pages.oldest()),
            (0, 0, None)
        );
    }
}
