//! The pack: inactive pages kept compressed in local memory. A fault on one costs a decompression and no
//! network. The oldest are sent on to lenders.
//!
//! Also here: whether compressing is worth trying. A page that does not compress costs as much time as one
//! that does, and such pages come in groups.

use alloc::vec::Vec;

use super::Page;
use super::insertion_order::InsertionOrder;
use crate::limit::{PACK_PAGE_BYTES, PAGE_BYTES, UNPACKED_RUN_MAX};

/// Packed pages, oldest first. The driver has their bytes.
#[derive(Clone, Debug)]
pub(super) struct CompressedPool {
    bytes_max: u64,
    bytes: u64,
    /// Bytes of the cap that each page takes.
    pages: InsertionOrder<u32>,
}

impl CompressedPool {
    /// An empty pack of at most `frames` frames of the cap.
    pub(super) fn new(frames: u32) -> CompressedPool {
        CompressedPool {
            bytes_max: u64::from(frames) * PAGE_BYTES as u64,
            bytes: 0,
            pages: InsertionOrder::new(),
        }
    }

    /// Frames of the cap that the pack takes, rounded up.
    pub(super) fn frames(&self) -> u32 {
        self.bytes.div_ceil(PAGE_BYTES as u64) as u32
    }

    /// Whether pages must be sent on: those above the limit, or all if packing is off.
    pub(super) fn is_over(&self, packs: bool) -> bool {
        self.bytes > if packs { self.bytes_max } else { 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Adds a page that compressed to `bytes`.
    pub(super) fn add(&mut self, page: Page, bytes: u32) {
        let bytes = bytes + PACK_PAGE_BYTES;
        let mut is_new = false;
        self.pages.get_or_add(page, || {
            is_new = true;
            bytes
        });
        assert!(is_new, "a page is packed once");
        self.bytes += u64::from(bytes);
    }

    /// Removes a page.
    pub(super) fn remove(&mut self, page: Page) {
        let bytes = self.pages.remove(page).expect("the page is in the pack");
        self.bytes -= u64::from(bytes);
    }

    /// The next pages to send on. They stay until [`CompressedPool::remove`] and are not returned twice.
    pub(super) fn oldest(&mut self, count: usize) -> Vec<Page> {
        core::iter::from_fn(|| self.pages.oldest()).take(count).collect()
    }
}

/// Whether compressing the next page is likely to help. After pages that did not compress, ever more are
/// skipped.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompressionBackoff {
    /// Number of pages in a row that did not compress.
    run: u32,
    /// Number of pages still to skip.
    rest: u32,
}

impl CompressionBackoff {
    /// Whether to try the next page. Counts down the pages to skip.
    pub fn should_try(&mut self) -> bool {
        let worth = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        worth
    }

    /// Records the result of an attempt.
    pub fn record(&mut self, compressed: bool) {
        self.run = if compressed {
            0
        } else {
            (self.run + 1).min(UNPACKED_RUN_MAX)
        };
        // Each further page that does not compress doubles the number skipped; the first one skips none.
        self.rest = (1 << self.run.saturating_sub(1)) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_packed_pages_are_sent_on() {
        let mut pack = CompressedPool::new(2);
        (0..9).for_each(|page| pack.add(Page(page), 1000 - PACK_PAGE_BYTES));
        assert!((pack.frames(), pack.is_over(true)) == (3, true));
        pack.remove(Page(1));
        pack.add(Page(1), 1000 - PACK_PAGE_BYTES);
        assert_eq!(pack.oldest(3), [Page(0), Page(2), Page(3)]);
        pack.remove(Page(0));
        assert!((pack.frames(), pack.is_over(true), pack.is_over(false)) == (2, false, true));
        assert_eq!(pack.oldest(9).last(), Some(&Page(1)));
        for page in 1..9 {
            pack.remove(Page(page));
        }
        assert!(pack.is_empty() && pack.frames() == 0);
    }

    #[test]
    fn incompressible_pages_are_tried_ever_less_until_one_compresses() {
        let mut effort = CompressionBackoff::default();
        let tried = |effort: &mut CompressionBackoff, pages: u32, compressed: bool| {
            (0..pages)
                .filter(|_| {
                    let worth = effort.should_try();
                    if worth {
                        effort.record(compressed);
                    }
                    worth
                })
                .count()
        };
        assert_eq!(tried(&mut effort, 100, true), 100);
        assert!(tried(&mut effort, 10_000, false) < 200);
        assert!(tried(&mut effort, 1000, true) > 900);
    }
}
