//! Decides which evicted pages are compressed: those that stay packed in local memory
//! (`netram_far_machine::arena` decides), and those sent over a link that takes longer for the saved bytes
//! than compressing does. Some pages are compressed as samples, so that both are known.

use std::time::Instant;

use netram_far_machine::arena::CompressionBackoff;
use netram_far_machine::limit::PAGE_BYTES;

use super::moves::ArenaCore;
use crate::compression::PlainPage;
use crate::seal::PageBytes;

/// One page in this many is compressed as a sample.
const SAMPLE: u32 = 64;

/// The evictor's compressor.
#[derive(Debug, Default)]
pub(super) struct Compressor {
    effort: CompressionBackoff,
    packs: bool,
    for_link: bool,
    pages: u32,
    /// Mean time in ns that compressing took in the last samples; `saves`: mean bytes saved.
    took: u64,
    saves: u64,
}

impl Compressor {
    /// Begins a batch of evicted pages.
    pub(super) fn begin(&mut self, core: &ArenaCore) {
        self.packs = core.packs && core.monitor.lock().machine.packs();
        // The saved bytes are saved twice: on the way to the lender and back.
        let spared_ns = 2 * self.saves * core.remote_pages.byte_ps() / 1000;
        self.for_link = core.compresses && spared_ns > self.took;
    }

    /// Whether compressed pages of this batch stay in local memory.
    pub(super) fn packs(&self) -> bool {
        self.packs
    }

    /// The page compressed, if that is of use.
    pub(super) fn compress(&mut self, core: &ArenaCore, bytes: &PageBytes) -> Option<PlainPage> {
        self.pages = self.pages.wrapping_add(1);
        let of_use = self.packs || self.for_link;
        if core.compresses && self.pages % SAMPLE == 1 {
            return self.sample(core, bytes).filter(|_| of_use);
        }
        if !of_use || !self.effort.should_try() {
            return None;
        }
        let packed = PlainPage::pack(bytes);
        self.effort.record(packed.is_some());
        packed
    }

    fn sample(&mut self, core: &ArenaCore, bytes: &PageBytes) -> Option<PlainPage> {
        let began = Instant::now();
        let packed = PlainPage::pack(bytes);
        let ns = began.elapsed().as_nanos() as u64;
        let length = packed.as_ref().map_or(PAGE_BYTES, |packed| packed.parts().len());
        let saved = (PAGE_BYTES - length) as u64;
        if self.took == 0 {
            (self.took, self.saves) = (ns, saved);
        }
        self.took = self.took - self.took / 8 + ns / 8;
        self.saves = self.saves - self.saves / 8 + saved / 8;
        self.effort.record(packed.is_some());
        if core.packs {
            core.monitor.lock().machine.packing_took(ns, length as u32);
        }
        packed
    }
}
