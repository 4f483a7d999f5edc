//! Words written to remote pages; they are kept locally until their page arrives.

use std::sync::PoisonError;

use netram_far_machine::arena::{Page, PagePatch};
use netram_far_machine::limit::BLOCK_BYTES;

use super::Arena;
use super::moves::ArenaCore;
use crate::seal::PageBytes;

/// Number of pages that are written under one hold of the lock, while faults wait for it.
const WRITTEN_AT_ONCE: usize = 256;

/// A write to one page.
pub(crate) struct PageWrite<'a> {
    pub(crate) page: Page,
    /// Number of blocks that it touches.
    pub(crate) words: u32,
    /// Bytes with their offsets in the page. Where they overlap, the later ones remain.
    pub(crate) values: &'a [(usize, &'a [u8])],
}

impl Arena {
    /// Writes to remote pages as far as their counters allow. Tells for each, in order, whether it was done;
    /// if not, its page must be brought.
    pub(crate) fn patch(&self, pages: &[PageWrite<'_>], mut tell: impl FnMut(bool)) {
        let core = &self.0.core;
        let all = pages.iter().map(|written| written.words as usize).sum();
        for pages in pages.chunks(WRITTEN_AT_ONCE) {
            // A discard may have been read from the kernel but not recorded yet. What is written now would be
            // discarded with it.
            let shape = core.layout_lock.read().unwrap_or_else(PoisonError::into_inner);
            let mut state = core.monitor.lock();
            drop(shape);
            if state.machine.free() == 0 {
                // The evictor reports pending pages only after it has finished a step.
                state.machine.stashing(core.remote_pages.pending() as u32);
            }
            let initial = self.counter(&state, all);
            for written in pages {
                let stays = state.machine.may_patch(written.page, written.words, initial);
                if stays {
                    for (at, bytes) in written.values {
                        state.machine.patch(written.page, *at, bytes);
                    }
                }
                tell(stays);
            }
            core.monitor.notify_waiting(&state);
        }
    }
}

impl ArenaCore {
    /// Merges the patch of a page into its fetched bytes.
    pub(super) fn apply_patch(&self, page: Page, bytes: &mut PageBytes) {
        let patch = self.monitor.lock().machine.take_patch(page);
        if let Some(patch) = patch {
            patch.apply(bytes);
        }
    }
}

/// Whether the block must be fetched, because not all of its bytes were written.
pub(super) fn is_missing(number: u8, patch: &PagePatch) -> bool {
    !patch.is_whole(number)
}

/// Assembles the blocks from the fetched ones and the patch.
pub(super) fn complete(numbers: &[u8], patch: &PagePatch, came: &[u8], bytes: &mut Vec<u8>) {
    let mut came = came.chunks_exact(BLOCK_BYTES);
    bytes.clear();
    for number in numbers {
        let start = bytes.len();
        match is_missing(*number, patch) {
            true => bytes.extend(came.next().into_iter().flatten()),
            false => bytes.extend([0; BLOCK_BYTES]),
        }
        patch.overlay(*number, &mut bytes[start..]);
    }
}
