//! The pack: pages that have left the program's sight and are still here, compressed. A fault on one costs
//! the uncompressing, and no link. The oldest go on to the depot.
//!
//! Also here: whether to try. A page that does not compress costs as much time as one that does, and where
//! one is, there are more.

use alloc::vec::Vec;

use super::Page;
use super::insertion_order::InsertionOrder;
use crate::limit::{PACK_PAGE_BYTES, PAGE_BYTES, UNPACKED_RUN_MAX};

/// What is in it, the oldest first. How pages look is the driver's.
#[derive(Clone, Debug)]
pub(super) struct CompressedPool {
    bytes_max: u64,
    bytes: u64,
    /// What each takes.
    pages: InsertionOrder<u32>,
}

impl CompressedPool {
    /// Of so many frames of the cap.
    pub(super) fn new(frames: u32) -> CompressedPool {
        CompressedPool {
            bytes_max: u64::from(frames) * PAGE_BYTES as u64,
            bytes: 0,
            pages: InsertionOrder::new(),
        }
    }

    /// What it takes of the cap.
    pub(super) fn frames(&self) -> u32 {
        self.bytes.div_ceil(PAGE_BYTES as u64) as u32
    }

    /// Whether some have to go on: all, while no pages are packed.
    pub(super) fn is_over(&self, packs: bool) -> bool {
        self.bytes > if packs { self.bytes_max } else { 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// A page comes, with so many bytes.
    pub(super) fn add(&mut self, page: Page, bytes: u32) {
        let bytes = bytes + PACK_PAGE_BYTES;
        let mut is_new = false;
        self.pages.get_or_add(page, || {
            is_new = true;
            bytes
        });
        assert!(is_new, "a page leaves sight once");
        self.bytes += u64::from(bytes);
    }

    /// A page is here no more.
    pub(super) fn remove(&mut self, page: Page) {
        let bytes = self.pages.remove(page).expect("it is in the pack");
        self.bytes -= u64::from(bytes);
    }

    /// The next ones to go on. They stay until [`Pack::remove`], and are not named twice.
    pub(super) fn oldest(&mut self, count: usize) -> Vec<Page> {
        core::iter::from_fn(|| self.pages.oldest()).take(count).collect()
    }
}

/// Whether compressing the next page is likely to be of use. After pages that did not compress, more and more
/// are left as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompressionBackoff {
    /// So many pages in a row did not compress.
    run: u32,
    /// So many are not tried.
    rest: u32,
}

impl CompressionBackoff {
    /// Whether to try the next page.
    pub fn should_try(&mut self) -> bool {
        let worth = self.rest == 0;
        self.rest = self.rest.saturating_sub(1);
        worth
    }

    /// It was tried.
    pub fn record(&mut self, compressed: bool) {
        self.run = if compressed {
            0
        } else {
            (self.run + 1).min(UNPACKED_RUN_MAX)
        };
        // Each page that does not compress doubles those after it that are not tried; the first one proves
        // nothing.
        self.rest = (1 << self.run.saturating_sub(1)) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_on_and_what_was_taken_out_does_not() {
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
    fn pages_that_do_not_compress_are_tried_less_and_less_and_one_that_does_ends_that() {
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
