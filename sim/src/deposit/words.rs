//! A program that wants some blocks of pages, and leaves the pages where they are.

use std::collections::BTreeSet;

use netram_far_machine::deposit::{Gathered, Outcome, Page, Ticket, Wanted};
use netram_far_machine::limit::BLOCK_BYTES;

use super::World;
use super::owner::PAGE;

/// Blocks that were asked for together, and what happened to their pages since.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    wanted: Wanted,
    /// Pages that were put anew.
    renewed: BTreeSet<Page>,
    /// Pages that came home, and of which words were lies that this program has not seen yet.
    found: BTreeSet<Page>,
    /// The same, and it had seen one before.
    proven: BTreeSet<Page>,
}

/// How sure it is that words of a page were lies that are not found yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deceived {
    Surely,
    /// They may have been found with others.
    Perhaps,
}

const WHOLE_BLOCKS: u64 = (PAGE / BLOCK_BYTES) as u64;
/// Pages that are asked for together, at most.
const PAGES_MAX: u64 = 8;

impl Asked {
    /// Whether blocks of the page are among them.
    pub(super) fn has(&self, page: Page) -> bool {
        self.wanted.iter().any(|(of, _)| of == page)
    }

    /// The page is put anew.
    pub(super) fn renew(&mut self, page: Page) {
        self.renewed.insert(page);
        self.found.remove(&page);
        self.proven.remove(&page);
    }
}

impl World {
    /// The program wants blocks of a page that is not here, and perhaps of others of the like.
    pub(super) fn pick(&mut self, arena: usize, page: Page) {
        let others = match self.rng.below(2) {
            0 => self.rng.below(PAGES_MAX) as usize,
            _ => 0,
        };
        let Some(owner) = &self.arenas[arena] else {
            return;
        };
        let away = |other: &Page| *other != page && !owner.is_hot(*other) && !owner.is_awaited(*other);
        let mut pages: Vec<Page> = owner.pages().into_iter().filter(away).take(others).collect();
        pages.push(page);
        pages.sort_unstable();
        self.pick_all(arena, &pages);
    }

    fn pick_all(&mut self, arena: usize, pages: &[Page]) {
        let mut wanted = Wanted::default();
        for page in pages {
            match self.rng.below(3) {
                0 => (0..WHOLE_BLOCKS).for_each(|block| wanted.add(*page, block as u8)),
                _ => wanted.add(*page, self.rng.below(WHOLE_BLOCKS) as u8),
            }
        }
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        if pages.len() > 1 {
            self.coverage
                .hit("far: blocks of several pages asked for together");
        }
        let ticket = owner.shelf.gather(wanted.clone());
        let asked = Asked {
            wanted,
            renewed: BTreeSet::new(),
            found: BTreeSet::new(),
            proven: BTreeSet::new(),
        };
        owner.picking.insert(ticket, asked);
    }

    /// The program takes what has come of blocks.
    pub(super) fn collect_words(&mut self, arena: usize) {
        let Some(owner) = &self.arenas[arena] else {
            return;
        };
        let here = |ticket: &Ticket| owner.shelf.has_words(*ticket);
        let here: Vec<Ticket> = owner.picking.keys().copied().filter(here).collect();
        for ticket in here {
            let Some(owner) = &mut self.arenas[arena] else {
                return;
            };
            let Some(asked) = owner.picking.remove(&ticket) else {
                continue;
            };
            match owner.shelf.take_words(ticket) {
                Some(gathered) => self.gathered(arena, &asked, &gathered),
                None => self.fail(format!("{asked:?} is said to have come, and has not")),
            }
        }
    }

    fn gathered(&mut self, arena: usize, asked: &Asked, gathered: &Gathered) {
        if asked.wanted != *gathered.wanted() {
            self.fail(format!("{asked:?} was asked for, and {gathered:?} came"));
        }
        for (index, (page, numbers)) in asked.wanted.iter().enumerate() {
            let renewed = asked.renewed.contains(&page);
            match gathered.outcome(index) {
                Outcome::Given(version) => {
                    let bytes = &gathered.bytes[asked.wanted.bytes(index)];
                    self.given(arena, (page, version), asked, numbers, bytes);
                }
                Outcome::Never => {
                    self.fail(format!("{page:?} was put, and blocks of it are said to be zeros"))
                }
                Outcome::Here => self.coverage.hit("far: blocks found here"),
                Outcome::Spilled => self.coverage.hit("far: blocks of pages in a spill file"),
                Outcome::Lost(_) if renewed => self
                    .coverage
                    .hit("far: pages lost and put anew before that was told"),
                Outcome::Lost(lenders) => self.lost(arena, page, lenders),
                Outcome::Again => {
                    self.coverage.hit("far: blocks looked for again");
                    self.pick_all(arena, &[page]);
                }
            }
        }
    }

    /// What honest lenders give must be what the program put last. What liars gave must be found when the page comes home.
    fn given(
        &mut self,
        arena: usize,
        (page, version): (Page, u64),
        asked: &Asked,
        numbers: &[u8],
        bytes: &[u8],
    ) {
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        if owner.depot().version(page) != Some(version) {
            match asked.renewed.contains(&page) {
                true => self.coverage.hit("far: blocks of pages put anew since they came"),
                false => self.fail(format!(
                    "blocks of {page:?} came of version {version}, which is old"
                )),
            }
            return;
        }
        let rests = owner.rests(page, version);
        let block = |number: &u8| {
            let at = usize::from(*number) * BLOCK_BYTES;
            rests[at..at + BLOCK_BYTES].to_vec()
        };
        let should: Vec<u8> = numbers.iter().flat_map(block).collect();
        if should == bytes {
            if asked.found.contains(&page) {
                self.true_words(page);
            }
            return;
        }
        if self.nature.hostile.is_none() {
            self.fail(format!(
                "blocks of {page:?} should be {should:x?}, and are {bytes:x?}"
            ));
        }
        if !asked.found.contains(&page) {
            let sure = match asked.proven.contains(&page) {
                true => Deceived::Perhaps,
                false => Deceived::Surely,
            };
            owner.deceived.insert(page, sure);
        }
        self.coverage.hit("far: words that were lies");
    }

    /// Pages have come home, and `lies` were said to be other than they are.
    pub(super) fn proven(&mut self, arena: usize, lies: &[Page]) {
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let mut wrongly = None;
        for page in lies {
            let known = owner.deceived.remove(page).is_some();
            match owner.picking.values_mut().find(|asked| asked.has(*page)) {
                Some(asked) if known => drop(asked.proven.insert(*page)),
                Some(asked) => drop(asked.found.insert(*page)),
                None if known => (),
                None => wrongly = Some(*page),
            }
        }
        wrongly.into_iter().for_each(|page| self.true_words(page));
    }

    fn true_words(&self, page: Page) {
        self.fail(format!(
            "words of {page:?} were true, and are said to have been lies"
        ));
    }

    /// A page has come home from a lender.
    pub(super) fn looks_for_lies(&self, arena: usize, page: Page) {
        let deceived = |owner: &super::Arena| owner.deceived.get(&page) == Some(&Deceived::Surely);
        if self.arenas[arena].as_ref().is_some_and(deceived) {
            self.fail(format!(
                "words of {page:?} were lies, and that was not found when it came home"
            ));
        }
    }
}
