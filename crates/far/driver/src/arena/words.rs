//! Words of pages that are away.

use std::sync::PoisonError;
use std::time::Instant;

use netram_far_machine::arena::{Page, Patch, Reach};
use netram_far_machine::deposit::Wanted;
use netram_far_machine::limit::{BLOCK_BYTES, COUNTER_MIN, PAGE_BLOCKS};

use super::Arena;
use super::moves::{State, ZEROS};
use super::patches::{complete, is_missing};
use crate::depot::Words;
use crate::pack::Clear;

/// Whether values of pages that are away may come by themselves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WordAccess {
    /// Pages come whole, and proven.
    #[default]
    Never,
    /// A page comes when so many of its blocks of 16 bytes are wanted, 1 to 256; before that they come by themselves, and are proven when the page comes.
    Counted(u32),
    /// The same with a count that follows what pages and words cost as the program runs.
    Measured,
}

/// What was found of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found<'b> {
    /// They are zeros.
    Zeros,
    /// They stayed away, and this is in them, in their order.
    Blocks(&'b [u8]),
    /// They are in the page, and that is to be had.
    Page,
}

/// Where blocks are to be had.
enum Whence {
    Zeros,
    Page,
    /// In a page of the pack, which this is.
    Packed(Clear),
    /// In the depot, but for what was written of them since.
    Depot(Option<Patch>),
}

/// Blocks of some pages, and where they are to be had.
struct Sought<'w> {
    wanted: &'w Wanted,
    /// One a page.
    whences: Vec<Whence>,
}

/// The numbers of all blocks of a page: a part of this names blocks that stand one behind the other.
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
    /// Whether values may come by themselves.
    pub(crate) fn takes_words(&self) -> bool {
        self.0.words != WordAccess::Never
    }

    /// Blocks of one page: a look at where it is costs no allocation.
    pub(crate) fn word<R>(&self, page: Page, numbers: &[u8], tell: impl FnOnce(Found<'_>) -> R) -> R {
        let mut state = self.look();
        let initial = self.counter(&state, numbers.len());
        let whence = self.whence(&mut state, page, numbers, initial);
        drop(state);
        match whence {
            Whence::Zeros => tell(Found::Zeros),
            Whence::Page => tell(Found::Page),
            Whence::Packed(clear) => tell(Found::Blocks(&cut(&clear, numbers))),
            depot @ Whence::Depot(_) => {
                let mut wanted = Wanted::with_capacity(1, numbers.len());
                wanted.extend(page, numbers);
                let sought = Sought {
                    wanted: &wanted,
                    whences: vec![depot],
                };
                let mut tell = Some(tell);
                let mut told = None;
                self.fetch_words(sought, |found| told = tell.take().map(|tell| tell(found)));
                told.expect("one page is told of")
            }
        }
    }

    /// Blocks of pages: those that are away in one round trip a lender. Tells of each page, in order.
    pub(crate) fn words(&self, wanted: &Wanted, tell: impl FnMut(Found<'_>)) {
        let mut state = self.look();
        let initial = self.counter(&state, wanted.blocks());
        // All of it is true of one moment.
        let whence = |(page, numbers)| self.whence(&mut state, page, numbers, initial);
        let whences = wanted.iter().map(whence).collect();
        drop(state);
        self.fetch_words(Sought { wanted, whences }, tell);
    }

    /// The lock, for a look at where pages are.
    fn look(&self) -> std::sync::MutexGuard<'_, State> {
        let core = &self.0.core;
        // What the program has thrown away may have been heard and not be known yet; its words would still be given.
        let shape = core.shape.read().unwrap_or_else(PoisonError::into_inner);
        let state = core.hub.lock();
        drop(shape);
        state
    }

    fn whence(&self, state: &mut State, page: Page, numbers: &[u8], initial: u32) -> Whence {
        let count = numbers.len() as u32;
        match state.machine.reach(page, count, initial) {
            Reach::Zeros => Whence::Zeros,
            Reach::Page => Whence::Page,
            Reach::Words => Whence::Depot(state.machine.patched(page, numbers.iter().copied())),
            Reach::Packed => {
                state.machine.words_came(count);
                let packed = self.0.core.pack().get(&page).cloned();
                Whence::Packed(packed.expect("a page that is packed is in the pack"))
            }
        }
    }

    /// What a page's counter begins with, for so many blocks together.
    pub(super) fn counter(&self, state: &State, all: usize) -> u32 {
        match self.0.words {
            WordAccess::Never => COUNTER_MIN,
            WordAccess::Counted(initial) => initial,
            WordAccess::Measured => state.worth.initial(all),
        }
    }

    /// What a page is wanted for that nobody has any more is given where nothing of it is missing.
    fn fetch_words(&self, sought: Sought<'_>, mut tell: impl FnMut(Found<'_>)) {
        let missing = sought.missing();
        let came = self.fetch_missing(missing);
        let mut came = came.iter().flat_map(Words::pages);
        let mut words = 0;
        let mut completed = Vec::new();
        for ((_, numbers), whence) in sought.wanted.iter().zip(&sought.whences) {
            let found = match whence {
                Whence::Zeros => Found::Zeros,
                Whence::Page => Found::Page,
                Whence::Packed(clear) => {
                    completed = cut(clear, numbers);
                    Found::Blocks(&completed)
                }
                Whence::Depot(None) => came.next().flatten().map_or(Found::Page, Found::Blocks),
                Whence::Depot(Some(patch)) => {
                    let bytes = match { numbers.iter() }.any(|number| is_missing(*number, patch)) {
                        true => came.next().flatten(),
                        false => Some(&[][..]),
                    };
                    match bytes {
                        Some(bytes) => {
                            complete(numbers, patch, bytes, &mut completed);
                            Found::Blocks(&completed)
                        }
                        None => Found::Page,
                    }
                }
            };
            if let (Whence::Depot(_), Found::Blocks(_)) = (whence, found) {
                words += numbers.len() as u32;
            }
            tell(found);
        }
        if words > 0 {
            self.0.core.hub.lock().machine.words_came(words);
        }
    }

    /// `None`: nothing is to be had without its page.
    fn fetch_missing(&self, missing: Wanted) -> Option<Words> {
        let core = &self.0.core;
        if missing.is_empty() || !core.depot.may_gather() {
            return None;
        }
        let count = missing.blocks();
        let began = Instant::now();
        let words = core.depot.gather(missing);
        let ns = began.elapsed().as_nanos() as u64;
        if words.pages().all(|page| page.is_some()) {
            core.hub.lock().worth.words_took(count, ns);
        }
        Some(words)
    }
}

impl Sought<'_> {
    /// What is to be asked of lenders.
    fn missing(&self) -> Wanted {
        let mut missing = Wanted::with_capacity(self.wanted.len(), self.wanted.blocks());
        for ((page, numbers), whence) in self.wanted.iter().zip(&self.whences) {
            match whence {
                Whence::Depot(None) => missing.extend(page, numbers),
                Whence::Depot(Some(patch)) => {
                    let of_patch = numbers.iter().filter(|number| is_missing(**number, patch));
                    of_patch.for_each(|number| missing.add(page, *number));
                }
                Whence::Zeros | Whence::Page | Whence::Packed(_) => (),
            }
        }
        missing
    }
}

/// Blocks of a page that is here compressed.
fn cut(clear: &Clear, numbers: &[u8]) -> Vec<u8> {
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
