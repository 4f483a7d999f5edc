//! A program that reads some blocks of remote pages without fetching the pages.

use std::collections::BTreeSet;

use netram_far_machine::deposit::{BlockRequest, GatherOutcome, GatherResult, GatherTicket, Page};
use netram_far_machine::limit::BLOCK_BYTES;

use super::check::fail;
use super::owner::{DepositOwner, PAGE};
use super::program::on_page_lost;
use super::world::World;

/// Blocks that were requested together, and the history of their pages since.
#[derive(Clone, Debug)]
pub(super) struct PendingGather {
    request: BlockRequest,
    /// Pages that were evicted again with new contents.
    rewritten: BTreeSet<Page>,
    /// Fetched pages with false blocks of which this request has seen none yet.
    new_lies: BTreeSet<Page>,
    /// Fetched pages with false blocks of which this request has seen one before.
    known_lies: BTreeSet<Page>,
}

/// Certainty that undetected false blocks of a page were delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LieCertainty {
    Certain,
    /// The false blocks may have been detected together with others.
    Possible,
}

const WHOLE_BLOCKS: u64 = (PAGE / BLOCK_BYTES) as u64;
/// Maximum number of pages in one request.
const PAGES_MAX: u64 = 8;

impl PendingGather {
    /// Whether the request has blocks of the page.
    pub(super) fn has(&self, page: Page) -> bool {
        self.request.iter().any(|(of, _)| of == page)
    }

    /// Records that the page was evicted again with new contents.
    pub(super) fn renew(&mut self, page: Page) {
        self.rewritten.insert(page);
        self.new_lies.remove(&page);
        self.known_lies.remove(&page);
    }
}

/// Requests blocks of a remote page, and perhaps of other remote pages.
pub(super) fn gather_block(world: &mut World, arena: usize, page: Page) {
    let others = match world.kernel.rng.below(2) {
        0 => world.kernel.rng.below(PAGES_MAX) as usize,
        _ => 0,
    };
    let Some(owner) = &world.owners[arena] else {
        return;
    };
    let away = |other: &Page| *other != page && !owner.is_resident(*other) && !owner.is_waited_for(*other);
    let mut pages: Vec<Page> = owner.pages().into_iter().filter(away).take(others).collect();
    pages.push(page);
    pages.sort_unstable();
    gather_blocks(world, arena, &pages);
}

fn gather_blocks(world: &mut World, arena: usize, pages: &[Page]) {
    let mut wanted = BlockRequest::default();
    for page in pages {
        match world.kernel.rng.below(3) {
            0 => (0..WHOLE_BLOCKS).for_each(|block| wanted.add(*page, block as u8)),
            _ => wanted.add(*page, world.kernel.rng.below(WHOLE_BLOCKS) as u8),
        }
    }
    let Some(owner) = &mut world.owners[arena] else {
        return;
    };
    if pages.len() > 1 {
        world
            .kernel
            .hit("far: blocks of several pages asked for together");
    }
    let ticket = owner.page_client.gather(wanted.clone());
    let asked = PendingGather {
        request: wanted,
        rewritten: BTreeSet::new(),
        new_lies: BTreeSet::new(),
        known_lies: BTreeSet::new(),
    };
    owner.gathers.insert(ticket, asked);
}

/// Collects the blocks that have arrived.
pub(super) fn collect_blocks(world: &mut World, arena: usize) {
    let Some(owner) = &world.owners[arena] else {
        return;
    };
    let here = |ticket: &GatherTicket| owner.page_client.has_words(*ticket);
    let here: Vec<GatherTicket> = owner.gathers.keys().copied().filter(here).collect();
    for ticket in here {
        let Some(owner) = &mut world.owners[arena] else {
            return;
        };
        let Some(asked) = owner.gathers.remove(&ticket) else {
            continue;
        };
        match owner.page_client.take_words(ticket) {
            Some(gathered) => check_gathered(world, arena, &asked, &gathered),
            None => fail(format!("{asked:?} is reported as arrived, but is not there")),
        }
    }
}

fn check_gathered(world: &mut World, arena: usize, asked: &PendingGather, gathered: &GatherResult) {
    if asked.request != *gathered.wanted() {
        fail(format!("{asked:?} was asked for, and {gathered:?} came"));
    }
    for (index, (page, numbers)) in asked.request.iter().enumerate() {
        let renewed = asked.rewritten.contains(&page);
        match gathered.outcome(index) {
            GatherOutcome::Arrived(version) => {
                let bytes = &gathered.bytes[asked.request.bytes(index)];
                check_blocks(world, arena, (page, version), asked, numbers, bytes);
            }
            GatherOutcome::Never => fail(format!(
                "{page:?} was evicted, but blocks of it are reported as zeros"
            )),
            GatherOutcome::Local => world.kernel.hit("far: blocks found here"),
            GatherOutcome::Spilled => world.kernel.hit("far: blocks of pages in a spill file"),
            GatherOutcome::Lost(_) if renewed => world
                .kernel
                .hit("far: pages lost and put anew before that was told"),
            GatherOutcome::Lost(lenders) => on_page_lost(world, arena, page, lenders),
            GatherOutcome::Retry => {
                world.kernel.hit("far: blocks looked for again");
                gather_blocks(world, arena, &[page]);
            }
        }
    }
}

/// Checks delivered blocks. Honest lenders return the newest contents; a liar's false block must be
/// detected when the page is fetched.
fn check_blocks(
    world: &mut World,
    arena: usize,
    (page, version): (Page, u64),
    asked: &PendingGather,
    numbers: &[u8],
    bytes: &[u8],
) {
    let Some(owner) = &mut world.owners[arena] else {
        return;
    };
    if owner.directory().version(page) != Some(version) {
        match asked.rewritten.contains(&page) {
            true => world.kernel.hit("far: blocks of pages put anew since they came"),
            false => fail(format!(
                "blocks of {page:?} came of version {version}, which is old"
            )),
        }
        return;
    }
    let rests = owner.sealed_page(page, version);
    let block = |number: &u8| {
        let at = usize::from(*number) * BLOCK_BYTES;
        rests[at..at + BLOCK_BYTES].to_vec()
    };
    let should: Vec<u8> = numbers.iter().flat_map(block).collect();
    if should == bytes {
        if asked.new_lies.contains(&page) {
            fail_true_words(page);
        }
        return;
    }
    if world.kernel.profile.hostile.is_none() {
        fail(format!(
            "blocks of {page:?} should be {should:x?}, and are {bytes:x?}"
        ));
    }
    if !asked.new_lies.contains(&page) {
        let sure = match asked.known_lies.contains(&page) {
            true => LieCertainty::Possible,
            false => LieCertainty::Certain,
        };
        owner.undetected_lies.insert(page, sure);
    }
    world.kernel.hit("far: words that were lies");
}

/// Handles fetched pages that differ from the blocks delivered before; `lies` names them.
pub(super) fn on_lies_proven(world: &mut World, arena: usize, lies: &[Page]) {
    let Some(owner) = &mut world.owners[arena] else {
        return;
    };
    let mut wrongly = None;
    for page in lies {
        let known = owner.undetected_lies.remove(page).is_some();
        match owner.gathers.values_mut().find(|asked| asked.has(*page)) {
            Some(asked) if known => drop(asked.known_lies.insert(*page)),
            Some(asked) => drop(asked.new_lies.insert(*page)),
            None if known => (),
            None => wrongly = Some(*page),
        }
    }
    if let Some(page) = wrongly {
        fail_true_words(page);
    }
}

fn fail_true_words(page: Page) -> ! {
    fail(format!("blocks of {page:?} were true, but are reported as false"));
}

/// Checks that false blocks of a page are detected when it is fetched from a lender.
pub(super) fn check_lies_detected(world: &World, arena: usize, page: Page) {
    let deceived = |owner: &DepositOwner| owner.undetected_lies.get(&page) == Some(&LieCertainty::Certain);
    if world.owners[arena].as_ref().is_some_and(deceived) {
        fail(format!(
            "false blocks of {page:?} were not detected when it was fetched"
        ));
    }
}
