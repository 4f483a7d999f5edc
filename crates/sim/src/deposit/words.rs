//! A program that wants some blocks of a page, and leaves the page where it is.

use netram_proto::deposit::{Blocks, Page, Picked, Ticket, Words};
use netram_proto::limit::BLOCK_BYTES;

use super::World;
use super::owner::PAGE;

/// The numbers of blocks that were asked for.
pub(super) type Asked = Vec<u8>;

const WHOLE_BLOCKS: u64 = (PAGE / BLOCK_BYTES) as u64;

impl World {
    /// The program wants blocks of a page that is not here.
    pub(super) fn pick(&mut self, arena: usize, page: Page) {
        let blocks = match self.rng.below(3) {
            0 => Blocks::spaced(0, 1, WHOLE_BLOCKS as usize),
            _ => Blocks::listed(vec![self.rng.below(WHOLE_BLOCKS) as u8]),
        };
        let Some(blocks) = blocks else {
            unreachable!("a page has these blocks")
        };
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let numbers = blocks.numbers().collect();
        match owner.shelf.gather(page, blocks) {
            Picked::Never if owner.has(page) => {
                self.fail(format!("{page:?} was put, and blocks of it are said to be zeros"))
            }
            Picked::Never => self.coverage.hit("far: blocks of pages forgotten meanwhile"),
            Picked::Here => self.coverage.hit("far: blocks found here"),
            Picked::Spilled => self.coverage.hit("far: blocks of pages in a spill file"),
            Picked::Lost(lenders) => self.lost(arena, page, lenders),
            Picked::Asked(ticket) => {
                owner.picking.insert(ticket, (page, numbers));
            }
        }
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
            let Some((page, asked)) = owner.picking.remove(&ticket) else {
                continue;
            };
            match owner.shelf.take_words(ticket) {
                Some(Words::Given(version, bytes)) => self.given(arena, page, version, &asked, &bytes),
                Some(Words::Lost(lenders)) => self.lost(arena, page, lenders),
                Some(Words::Again) => {
                    self.coverage.hit("far: blocks looked for again");
                    self.pick(arena, page);
                }
                None => self.fail(format!("blocks of {page:?} are said to have come, and have not")),
            }
        }
    }

    /// What honest lenders give must be what the program put last. What liars gave must be found when the page comes home.
    fn given(&mut self, arena: usize, page: Page, version: u64, asked: &[u8], bytes: &[u8]) {
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let rests = owner.rests(page, version);
        let block = |number: &u8| {
            let at = usize::from(*number) * BLOCK_BYTES;
            rests[at..at + BLOCK_BYTES].to_vec()
        };
        let should: Vec<u8> = asked.iter().flat_map(block).collect();
        if owner.depot().version(page) != Some(version) {
            self.fail(format!(
                "blocks of {page:?} came of version {version}, which is old"
            ));
        }
        if should == bytes {
            return;
        }
        if self.nature.hostile.is_none() {
            self.fail(format!(
                "blocks of {page:?} should be {should:x?}, and are {bytes:x?}"
            ));
        }
        owner.deceived.insert(page);
        self.coverage.hit("far: words that were lies");
    }

    /// Pages have come home, and `lies` were said to be other than they are.
    pub(super) fn proven(&mut self, arena: usize, lies: &[Page]) {
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        for page in lies {
            if !owner.deceived.remove(page) {
                self.fail(format!(
                    "words of {page:?} were true, and are said to have been lies"
                ));
            }
        }
    }

    /// A page has come home from a lender.
    pub(super) fn looks_for_lies(&self, arena: usize, page: Page) {
        let deceived = |owner: &super::Arena| owner.deceived.contains(&page);
        if self.arenas[arena].as_ref().is_some_and(deceived) {
            self.fail(format!(
                "words of {page:?} were lies, and that was not found when it came home"
            ));
        }
    }
}
