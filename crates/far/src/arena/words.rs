//! Words of pages that are away.

use std::sync::PoisonError;
use std::time::Instant;

use netram_proto::arena::{Page, Patch, Reach};
use netram_proto::deposit::Blocks;
use netram_proto::limit::{BLOCK_BYTES, COUNTER_MIN};

use super::Arena;
use super::moves::{State, ZEROS};
use super::patches::{complete, missing};
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// They are zeros.
    Zeros,
    /// They stayed away, and this is in them, in their order.
    Blocks(Vec<u8>),
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

/// Blocks of a page that is away, and what was written of them since.
type Away<'a> = (&'a (Page, Blocks), Option<Patch>);

impl Arena {
    /// Whether values may come by themselves.
    pub(crate) fn takes_words(&self) -> bool {
        self.0.words != WordAccess::Never
    }

    /// Blocks of one page: a look at where it is costs no allocation.
    pub(crate) fn word(&self, page: Page, blocks: Blocks) -> Found {
        let mut whence = Whence::Page;
        let want = (page, blocks);
        self.look(std::slice::from_ref(&want), |_, found| whence = found);
        match whence {
            Whence::Zeros => Found::Zeros,
            Whence::Page => Found::Page,
            Whence::Packed(clear) => Found::Blocks(cut(&clear, &want.1)),
            Whence::Depot(patch) => {
                let mut came = self.fetch_words(&[(&want, patch)]);
                came.pop().unwrap_or(Found::Page)
            }
        }
    }

    /// Blocks of pages: those that are away in one round trip a lender.
    pub(crate) fn words(&self, wants: &[(Page, Blocks)]) -> Vec<Found> {
        let (mut found, mut away) = (Vec::with_capacity(wants.len()), Vec::new());
        // Packed pages are uncompressed when the lock is free again.
        let mut packed = Vec::new();
        self.look(wants, |want, whence| {
            found.push(match whence {
                Whence::Zeros => Found::Zeros,
                Whence::Page | Whence::Packed(_) | Whence::Depot(_) => Found::Page,
            });
            match whence {
                Whence::Zeros | Whence::Page => (),
                Whence::Packed(clear) => packed.push((found.len() - 1, clear)),
                Whence::Depot(patch) => away.push((found.len() - 1, (want, patch))),
            }
        });
        for (index, clear) in packed {
            found[index] = Found::Blocks(cut(&clear, &wants[index].1));
        }
        let (places, away): (Vec<usize>, Vec<Away<'_>>) = away.into_iter().unzip();
        for (index, came) in places.into_iter().zip(self.fetch_words(&away)) {
            found[index] = came;
        }
        found
    }

    /// Tells of each, in order, where it is to be had. All of it is true of one moment.
    fn look<'a>(&self, wants: &'a [(Page, Blocks)], mut tell: impl FnMut(&'a (Page, Blocks), Whence)) {
        let core = &self.0.core;
        let all = wants.iter().map(|(_, blocks)| blocks.count()).sum();
        // What the program has thrown away may have been heard and not be known yet; its words would still be given.
        let shape = core.shape.read().unwrap_or_else(PoisonError::into_inner);
        let mut state = core.hub.lock();
        drop(shape);
        let initial = self.counter(&state, all);
        for want in wants {
            let (page, count) = (want.0, want.1.count() as u32);
            let whence = match state.machine.reach(page, count, initial) {
                Reach::Zeros => Whence::Zeros,
                Reach::Page => Whence::Page,
                Reach::Words => Whence::Depot(state.machine.patched(page, want.1.numbers())),
                Reach::Packed => {
                    state.machine.words_came(count);
                    let packed = core.pack().get(&page).cloned();
                    Whence::Packed(packed.expect("a page that is packed is in the pack"))
                }
            };
            tell(want, whence);
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
    fn fetch_words(&self, away: &[Away<'_>]) -> Vec<Found> {
        if away.is_empty() {
            return Vec::new();
        }
        let missing: Vec<Option<Blocks>> = away
            .iter()
            .map(|((_, blocks), patch)| missing(blocks, patch.as_ref()))
            .collect();
        let pages = away.iter().map(|((page, _), _)| *page);
        let wants: Vec<(Page, Blocks)> = pages
            .zip(&missing)
            .filter_map(|(page, blocks)| Some((page, blocks.clone()?)))
            .collect();
        let mut given = self.fetch_missing(&wants).into_iter();
        let mut words = 0;
        let found = away.iter().zip(missing).map(|(((_, blocks), patch), missing)| {
            let came = match missing {
                Some(_) => given.next().flatten(),
                None => Some(Vec::new()),
            };
            let Some(came) = came else { return Found::Page };
            words += blocks.count() as u32;
            Found::Blocks(complete(blocks, patch.as_ref(), came))
        });
        let found = found.collect();
        self.0.core.hub.lock().machine.words_came(words);
        found
    }

    fn fetch_missing(&self, wants: &[(Page, Blocks)]) -> Vec<Option<Vec<u8>>> {
        if wants.is_empty() {
            return Vec::new();
        }
        let core = &self.0.core;
        let began = Instant::now();
        let given = core.depot.gather(wants);
        let ns = began.elapsed().as_nanos() as u64;
        if given.iter().all(Option::is_some) {
            let count = wants.iter().map(|(_, blocks)| blocks.count()).sum();
            core.hub.lock().worth.words_took(count, ns);
        }
        given
    }
}

/// Blocks of a page that is here compressed.
fn cut(clear: &Clear, blocks: &Blocks) -> Vec<u8> {
    let mut bytes = ZEROS;
    clear.unpack(&mut bytes);
    let block = |number: u8| {
        bytes
            .chunks_exact(BLOCK_BYTES)
            .nth(number.into())
            .unwrap_or_default()
    };
    blocks.numbers().flat_map(block).copied().collect()
}
