//! Words of pages that are away.

use std::sync::PoisonError;
use std::time::Instant;

use netram_proto::arena::{Page, Reach};
use netram_proto::deposit::Blocks;
use netram_proto::limit::{BLOCK_BYTES, COUNTER_MIN};

use super::Arena;
use super::moves::ZEROS;
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
    Depot,
}

impl Arena {
    /// Whether values may come by themselves.
    pub(crate) fn takes_words(&self) -> bool {
        self.0.words != WordAccess::Never
    }

    /// Blocks of one page: a look at where it is costs no allocation.
    pub(crate) fn word(&self, page: Page, blocks: Blocks) -> Found {
        let mut whence = Whence::Page;
        let want = [(page, blocks)];
        self.look(&want, |_, found| whence = found);
        let [(_, blocks)] = &want;
        match whence {
            Whence::Zeros => Found::Zeros,
            Whence::Page => Found::Page,
            Whence::Packed(clear) => Found::Blocks(cut(&clear, blocks)),
            Whence::Depot => self.fetch_words(&want).pop().unwrap_or(Found::Page),
        }
    }

    /// Blocks of pages: those that are away in one round trip a lender.
    pub(crate) fn words(&self, wants: &[(Page, Blocks)]) -> Vec<Found> {
        let mut whence = Vec::with_capacity(wants.len());
        self.look(wants, |_, found| whence.push(found));
        let pairs = || whence.iter().zip(wants);
        let away = pairs().filter(|(whence, _)| matches!(whence, Whence::Depot));
        let away: Vec<(Page, Blocks)> = away.map(|(_, want)| want.clone()).collect();
        let mut came = self.fetch_words(&away).into_iter();
        let found = pairs().map(|(whence, (_, blocks))| match whence {
            Whence::Zeros => Found::Zeros,
            Whence::Page => Found::Page,
            Whence::Packed(clear) => Found::Blocks(cut(clear, blocks)),
            Whence::Depot => came.next().unwrap_or(Found::Page),
        });
        found.collect()
    }

    /// Tells of each, in order, where it is to be had. All of it is true of one moment.
    fn look(&self, wants: &[(Page, Blocks)], mut tell: impl FnMut(&(Page, Blocks), Whence)) {
        let core = &self.0.core;
        let all = wants.iter().map(|(_, blocks)| blocks.count()).sum();
        // What the program has thrown away may have been heard and not be known yet; its words would still be given.
        let shape = core.shape.read().unwrap_or_else(PoisonError::into_inner);
        let mut state = core.hub.lock();
        drop(shape);
        let initial = match self.0.words {
            WordAccess::Never => COUNTER_MIN,
            WordAccess::Counted(initial) => initial,
            WordAccess::Measured => state.worth.initial(all),
        };
        for want in wants {
            let (page, count) = (want.0, want.1.count() as u32);
            let whence = match state.machine.reach(page, count, initial) {
                Reach::Zeros => Whence::Zeros,
                Reach::Page => Whence::Page,
                Reach::Words => Whence::Depot,
                Reach::Packed => {
                    state.machine.words_came(count);
                    let packed = core.pack().get(&page).cloned();
                    Whence::Packed(packed.expect("a page that is packed is in the pack"))
                }
            };
            tell(want, whence);
        }
    }

    fn fetch_words(&self, wants: &[(Page, Blocks)]) -> Vec<Found> {
        if wants.is_empty() {
            return Vec::new();
        }
        let core = &self.0.core;
        let began = Instant::now();
        let given = core.depot.gather(wants);
        let ns = began.elapsed().as_nanos() as u64;
        let (mut asked, mut came) = (0, 0);
        for ((_, blocks), given) in wants.iter().zip(&given) {
            asked += blocks.count();
            came += given.as_ref().map_or(0, |_| blocks.count());
        }
        let mut state = core.hub.lock();
        state.machine.words_came(came as u32);
        if came == asked {
            state.worth.words_took(came, ns);
        }
        drop(state);
        let found = given
            .into_iter()
            .map(|bytes| bytes.map_or(Found::Page, Found::Blocks));
        found.collect()
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
