//! Words that are written to pages that are away: they stay here until their page comes home.

use std::sync::PoisonError;

use netram_far_machine::arena::{Page, PagePatch};
use netram_far_machine::limit::BLOCK_BYTES;

use super::Arena;
use super::moves::ArenaCore;
use crate::seal::PageBytes;

/// Pages that are written while faults wait for the lock.
const WRITTEN_AT_ONCE: usize = 256;

/// What is to be written to one page.
pub(crate) struct PageWrite<'a> {
    pub(crate) page: Page,
    /// Blocks in which that lies.
    pub(crate) words: u32,
    /// Bytes, and how many of the page come before them. Where they overlap the later ones stay.
    pub(crate) values: &'a [(usize, &'a [u8])],
}

impl Arena {
    /// Writes to pages that are away, as long as they have not earned to come. Tells of each, in order,
    /// whether that was done; else its page has to come.
    pub(crate) fn patch(&self, pages: &[PageWrite<'_>], mut tell: impl FnMut(bool)) {
        let core = &self.0.core;
        let all = pages.iter().map(|written| written.words as usize).sum();
        for pages in pages.chunks(WRITTEN_AT_ONCE) {
            // What the program has thrown away may have been heard and not be known yet; what is written now
            // would go with it.
            let shape = core.layout_lock.read().unwrap_or_else(PoisonError::into_inner);
            let mut state = core.monitor.lock();
            drop(shape);
            if state.machine.free() == 0 {
                // The evictor tells of it only when it has done what it does.
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
    /// Puts into a page that has come from the depot what was written to it meanwhile.
    pub(super) fn apply_patch(&self, page: Page, bytes: &mut PageBytes) {
        let patch = self.monitor.lock().machine.take_patch(page);
        if let Some(patch) = patch {
            patch.apply(bytes);
        }
    }
}

/// Whether the block has to be fetched: not all of its bytes were written.
pub(super) fn is_missing(number: u8, patch: &PagePatch) -> bool {
    !patch.is_whole(number)
}

/// The blocks as they are, out of those that were missing.
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
