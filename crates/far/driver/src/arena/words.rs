//! Words of remote pages.

use std::sync::PoisonError;
use std::time::Instant;

use netram_far_machine::arena::{Page, PagePatch, WordSource};
use netram_far_machine::deposit::BlockRequest;
use netram_far_machine::limit::{BLOCK_BYTES, COUNTER_MIN, PAGE_BLOCKS};

use super::Arena;
use super::moves::{ArenaState, ZEROS};
use super::patches::{complete, is_missing};
use crate::compression::PlainPage;
use crate::remote_pages::GatheredWords;

/// Whether values of remote pages may be read without their pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WordAccess {
    /// Pages are fetched whole, and verified.
    #[default]
    Never,
    /// A page is fetched when this many of its 16-byte blocks were used, 1 to 256. Until then blocks come
    /// singly, and are verified when the page arrives.
    Counted(u32),
    /// As `Counted`, with a count that follows the measured costs of pages and words.
    Measured,
}

/// Content of the requested blocks of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockValues<'b> {
    /// Zeros.
    Zeros,
    /// The blocks' bytes, in order; their page stayed where it is.
    Blocks(&'b [u8]),
    /// The page must be used; it can be brought.
    Page,
}

/// Source of a page's blocks.
enum BlockSource {
    Zeros,
    Page,
    /// A packed page, given here.
    Packed(PlainPage),
    /// Lenders, except for bytes written since.
    Remote(Option<PagePatch>),
}

/// Blocks of some pages with their sources.
struct BlockLookup<'w> {
    wanted: &'w BlockRequest,
    /// One source per page.
    sources: Vec<BlockSource>,
}

/// The numbers of all blocks of a page; a subslice names contiguous blocks.
pub(crate) static NUMBERS: [u8; PAGE_BLOCKS] = {
    let mut numbers = [0; PAGE_BLOCKS];
    let mut index = 0;
    while index < PAGE_BLOCKS {
        numbers[index] = index as u8;
        index += 1;
    }
    numbers
};

impl Arena {
    /// Whether values may be read without their pages.
    pub(crate) fn takes_words(&self) -> bool {
        self.0.words != WordAccess::Never
    }

    /// Reads blocks of one page. If the page is local, this costs no allocation.
    pub(crate) fn word<R>(&self, page: Page, numbers: &[u8], tell: impl FnOnce(BlockValues<'_>) -> R) -> R {
        let mut state = self.look();
        let initial = self.counter(&state, numbers.len());
        let whence = self.block_source(&mut state, page, numbers, initial);
        drop(state);
        match whence {
            BlockSource::Zeros => tell(BlockValues::Zeros),
            BlockSource::Page => tell(BlockValues::Page),
            BlockSource::Packed(clear) => tell(BlockValues::Blocks(&cut(&clear, numbers))),
            depot @ BlockSource::Remote(_) => {
                let mut wanted = BlockRequest::with_capacity(1, numbers.len());
                wanted.extend(page, numbers);
                let sought = BlockLookup {
                    wanted: &wanted,
                    sources: vec![depot],
                };
                let mut tell = Some(tell);
                let mut told = None;
                self.fetch_words(sought, |found| told = tell.take().map(|tell| tell(found)));
                told.expect("the callback is called for the page")
            }
        }
    }

    /// Reads blocks of several pages; remote ones in one round trip per lender. Calls `tell` for each page,
    /// in order.
    pub(crate) fn words(&self, wanted: &BlockRequest, tell: impl FnMut(BlockValues<'_>)) {
        let mut state = self.look();
        let initial = self.counter(&state, wanted.blocks());
        // All sources are as of the same moment.
        let whence = |(page, numbers)| self.block_source(&mut state, page, numbers, initial);
        let whences = wanted.iter().map(whence).collect();
        drop(state);
        self.fetch_words(
            BlockLookup {
                wanted,
                sources: whences,
            },
            tell,
        );
    }

    /// Locks the state in order to look at pages.
    fn look(&self) -> std::sync::MutexGuard<'_, ArenaState> {
        let core = &self.0.core;
        // A discard may have been read from the kernel but not recorded yet; its words would still be
        // returned.
        let shape = core.layout_lock.read().unwrap_or_else(PoisonError::into_inner);
        let state = core.monitor.lock();
        drop(shape);
        state
    }

    fn block_source(&self, state: &mut ArenaState, page: Page, numbers: &[u8], initial: u32) -> BlockSource {
        let count = numbers.len() as u32;
        match state.machine.word_source(page, count, initial) {
            WordSource::Zeros => BlockSource::Zeros,
            WordSource::Page => BlockSource::Page,
            WordSource::Words => BlockSource::Remote(state.machine.patched(page, numbers.iter().copied())),
            WordSource::Packed => {
                state.machine.words_came(count);
                let packed = self.0.core.pack().get(&page).cloned();
                BlockSource::Packed(packed.expect("a page that is packed is in the pack"))
            }
        }
    }

    /// Initial value of a page's counter for a request of `all` blocks.
    pub(super) fn counter(&self, state: &ArenaState, all: usize) -> u32 {
        match self.0.words {
            WordAccess::Never => COUNTER_MIN,
            WordAccess::Counted(initial) => initial,
            WordAccess::Measured => state.costs.initial(all),
        }
    }

    /// Fetches missing blocks and calls `tell` for each page.
    fn fetch_words(&self, sought: BlockLookup<'_>, mut tell: impl FnMut(BlockValues<'_>)) {
        let missing = sought.missing();
        let came = self.fetch_missing(missing);
        let mut came = came.iter().flat_map(GatheredWords::pages);
        let mut words = 0;
        let mut completed = Vec::new();
        for ((_, numbers), whence) in sought.wanted.iter().zip(&sought.sources) {
            let found = match whence {
                BlockSource::Zeros => BlockValues::Zeros,
                BlockSource::Page => BlockValues::Page,
                BlockSource::Packed(clear) => {
                    completed = cut(clear, numbers);
                    BlockValues::Blocks(&completed)
                }
                BlockSource::Remote(None) => came
                    .next()
                    .flatten()
                    .map_or(BlockValues::Page, BlockValues::Blocks),
                BlockSource::Remote(Some(patch)) => {
                    let bytes = match { numbers.iter() }.any(|number| is_missing(*number, patch)) {
                        true => came.next().flatten(),
                        false => Some(&[][..]),
                    };
                    match bytes {
                        Some(bytes) => {
                            complete(numbers, patch, bytes, &mut completed);
                            BlockValues::Blocks(&completed)
                        }
                        None => BlockValues::Page,
                    }
                }
            };
            if let (BlockSource::Remote(_), BlockValues::Blocks(_)) = (whence, found) {
                words += numbers.len() as u32;
            }
            tell(found);
        }
        if words > 0 {
            self.0.core.monitor.lock().machine.words_came(words);
        }
    }

    /// Fetches the missing blocks. `None`: every page must be used itself.
    fn fetch_missing(&self, missing: BlockRequest) -> Option<GatheredWords> {
        let core = &self.0.core;
        if missing.is_empty() || !core.remote_pages.may_gather() {
            return None;
        }
        let count = missing.blocks();
        let began = Instant::now();
        let words = core.remote_pages.gather(missing);
        let ns = began.elapsed().as_nanos() as u64;
        if words.pages().all(|page| page.is_some()) {
            core.monitor.lock().costs.words_took(count, ns);
        }
        Some(words)
    }
}

impl BlockLookup<'_> {
    /// The blocks to request from lenders.
    fn missing(&self) -> BlockRequest {
        let mut missing = BlockRequest::with_capacity(self.wanted.len(), self.wanted.blocks());
        for ((page, numbers), whence) in self.wanted.iter().zip(&self.sources) {
            match whence {
                BlockSource::Remote(None) => missing.extend(page, numbers),
                BlockSource::Remote(Some(patch)) => {
                    let of_patch = numbers.iter().filter(|number| is_missing(**number, patch));
                    of_patch.for_each(|number| missing.add(page, *number));
                }
                BlockSource::Zeros | BlockSource::Page | BlockSource::Packed(_) => (),
            }
        }
        missing
    }
}

/// Blocks of a packed page.
fn cut(clear: &PlainPage, numbers: &[u8]) -> Vec<u8> {
    let mut bytes = ZEROS;
    clear.unpack(&mut bytes);
    let block = |number: &u8| {
        bytes
            .chunks_exact(BLOCK_BYTES)
            .nth(usize::from(*number))
            .unwrap_or_default()
    };
    numbers.iter().flat_map(block).copied().collect()
}
