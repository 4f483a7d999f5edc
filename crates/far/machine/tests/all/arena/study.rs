//! Rule 7: the pager has as many faults as the study predicts for the same references and replacement policy.

use netram_far_machine::arena::{
    ArenaMachine, ArenaSettings, EvictionWork, FaultAction, MoveFollowUp, Page, Replacement, WordSource,
};
use netram_far_machine::paging::{FirstTouch, PageAccess, PagingPolicy, PolicyConfig, PolicyKind};

const FRAMES: u32 = 1024;
/// Eviction keeps between a 32nd and a 16th of the cap free.
const FREE: u32 = FRAMES / 32 * 3 / 2;

fn policy(kind: PolicyKind, replacement: Replacement, frames: u32) -> PagingPolicy {
    PagingPolicy::new(PolicyConfig {
        kind,
        replacement,
        local_pages: frames - FREE,
        remote_pages: u32::MAX,
        first_touch: FirstTouch::Zeros,
        keep_copies: false,
        seed: 1,
    })
}

fn predicted(references: &[u32], replacement: Replacement) -> u64 {
    let mut policy = policy(PolicyKind::RamDisk, replacement, FRAMES);
    for page in references {
        policy.reference(Page(*page), PageAccess::Write);
    }
    policy.tally().faults
}

fn settings(replacement: Replacement, hidden: u32) -> ArenaSettings {
    ArenaSettings {
        frames: FRAMES,
        inactive: hidden,
        pack: 0,
        packs_always: false,
        looks_ahead: true,
        patched: 0,
        replacement,
        seed: 1,
    }
}

fn arena(replacement: Replacement, hidden: u32) -> ArenaMachine {
    ArenaMachine::new(settings(replacement, hidden))
}

/// References a page; every move is done at once.
fn reference(arena: &mut ArenaMachine, page: Page) {
    match arena.want(page) {
        FaultAction::Resident => return,
        FaultAction::Zero | FaultAction::Fetch | FaultAction::Activate(_) => {
            arena.take_patch(page);
            arena.arrive(page);
            assert_eq!(arena.came(page), MoveFollowUp::Done);
        }
        serve => panic!("{serve:?} with no page in flight"),
    }
    while let Some(work) = arena.work() {
        evict(arena, work);
    }
}

/// Number of faults that need a lender or zeros.
fn paged(references: &[u32], replacement: Replacement, hidden: u32) -> u64 {
    let mut arena = arena(replacement, hidden);
    for page in references {
        reference(&mut arena, Page(*page));
    }
    arena.tally().fetched + arena.tally().zeros
}

fn evict(arena: &mut ArenaMachine, work: EvictionWork) {
    match work {
        EvictionWork::Deactivate(pages) => pages.into_iter().for_each(|(page, _)| {
            assert_eq!(arena.deactivated(page, true), MoveFollowUp::Done);
        }),
        EvictionWork::Pass(pages) => panic!("nothing is packed: {pages:?}"),
        EvictionWork::Send(pages) => pages.into_iter().for_each(|(page, berth)| {
            assert_eq!(arena.sent(page, true), MoveFollowUp::Drop(berth));
            arena.dropped(berth);
        }),
    }
}

/// Column by column over a matrix of 1,500 rows, with three columns in one page of each row.
fn columns() -> Vec<u32> {
    (0..12).flat_map(|_| 0..1500).collect()
}

/// Gaussian elimination: each row from the pivot on, alternating with the pivot row.
fn elimination() -> Vec<u32> {
    let rows = |pivot: u32| (pivot..1500).flat_map(move |row| [pivot, row]);
    (0..20).flat_map(rows).collect()
}

/// Look-ups of which some are frequent.
fn lookups() -> Vec<u32> {
    let mut state = 7_u64;
    let mut any = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32
    };
    (0..100_000)
        .map(|_| if any() % 4 == 0 { any() % 4000 } else { any() % 900 })
        .collect()
}

/// Within 2 %; within 5 % for dueling, which learns from batches.
fn near(paged: u64, predicted: u64, replacement: Replacement) -> bool {
    let within = if replacement == Replacement::Dueling { 5 } else { 2 };
    paged.abs_diff(predicted) * 100 <= predicted * within
}

#[test]
fn faults_match_the_study() {
    for references in [columns(), elimination(), lookups()] {
        for replacement in [Replacement::Fifo, Replacement::Random, Replacement::Dueling] {
            let (paged, predicted) = (
                paged(&references, replacement, 0),
                predicted(&references, replacement),
            );
            assert!(
                near(paged, predicted, replacement),
                "{replacement:?}: {paged}, predicted {predicted}"
            );
        }
    }
}

#[test]
fn inactive_pages_make_fifo_nearly_as_good_as_exact_lru() {
    let references = lookups();
    let hidden = paged(&references, Replacement::Fifo, FRAMES / 4);
    let (fifo, lru) = (
        predicted(&references, Replacement::Fifo),
        predicted(&references, Replacement::Lru),
    );
    assert!(lru <= hidden && hidden < fifo, "{lru} {hidden} {fifo}");
    assert!(2 * (hidden - lru) < fifo - lru, "{lru} {hidden} {fifo}");
}

#[test]
fn a_duel_retains_part_of_a_large_scan_at_little_cost() {
    let [round, rows, others] = [columns(), elimination(), lookups()].map(|references| {
        [Replacement::Dueling, Replacement::Fifo].map(|way| paged(&references, way, FRAMES / 8))
    });
    assert!(3 * round[0] < 2 * round[1], "{round:?}");
    assert!(3 * rows[0] < 2 * rows[1], "{rows:?}");
    assert!(20 * others[0] < 21 * others[1], "{others:?}");
}

/// One reference in `every` writes; 0: none.
fn access(at: usize, every: usize) -> PageAccess {
    match every > 0 && at.is_multiple_of(every) {
        true => PageAccess::Write,
        false => PageAccess::Read,
    }
}

/// Number of pages fetched in the second half because their counters were spent, and the maximum of the cap
/// that patches took.
fn paged_by_counters(references: &[u32], initial: u32, every: usize) -> (u64, u32) {
    let mut arena = ArenaMachine::new(ArenaSettings {
        patched: FRAMES / 4,
        ..settings(Replacement::Fifo, 0)
    });
    let (mut before, mut patches) = (0, 0);
    for (at, page) in references.iter().copied().map(Page).enumerate() {
        if at == references.len() / 2 {
            before = arena.tally().fetched;
        }
        let stays = match access(at, every) {
            PageAccess::Write if arena.may_patch(page, 1, initial) => {
                arena.patch(page, at % 512 * 8, &[1; 8]);
                true
            }
            PageAccess::Write => false,
            PageAccess::Read => arena.word_source(page, 1, initial) == WordSource::Words,
        };
        if !stays {
            reference(&mut arena, page);
        }
        patches = patches.max(arena.patch_frames());
    }
    assert_eq!(arena.tally().patch_fetches, 0, "all patches fit");
    assert_eq!(arena.tally().written > 0, initial > 1 && every > 0);
    (arena.tally().fetched - before, patches)
}

/// The same by the study, with `less` frames fewer.
fn predicted_by_counters(references: &[u32], initial: u32, every: usize, less: u32) -> u64 {
    let mut policy = policy(PolicyKind::Counters { initial }, Replacement::Fifo, FRAMES - less);
    let mut before = 0;
    for (at, page) in references.iter().copied().map(Page).enumerate() {
        if at == references.len() / 2 {
            before = policy.tally().fetched;
        }
        policy.reference(page, access(at, every));
    }
    policy.tally().fetched - before
}

/// Counted in the second half of the look-ups: the first depends on where pages are at their first reference,
/// which the paper's policy decides otherwise. The study does not model patches and gets fewer frames
/// instead.
#[test]
fn counters_fetch_the_pages_that_the_study_predicts() {
    let references: Vec<u32> = (0..4000).chain(lookups()).chain(lookups()).collect();
    for initial in [1, 2, 4, 8] {
        for every in [0, 1, 2, 5] {
            let (paged, patches) = paged_by_counters(&references, initial, every);
            let predicted = predicted_by_counters(&references, initial, every, patches);
            assert!(predicted > 0, "counters of {initial} bring pages");
            assert!(
                paged.abs_diff(predicted) * 10 <= predicted,
                "counters of {initial}, one in {every} writes: {paged}, predicted {predicted}"
            );
        }
    }
}

#[test]
fn a_counter_starts_anew_when_its_page_is_evicted() {
    let mut arena = arena(Replacement::Fifo, 0);
    (0..2 * FRAMES).for_each(|page| reference(&mut arena, Page(page)));
    let cold = Page(0);
    assert_eq!(arena.word_source(Page(2 * FRAMES), 1, 4), WordSource::Zeros);
    assert_eq!(
        arena.word_source(Page(2 * FRAMES - 1), 1, 4),
        WordSource::Page,
        "it is here"
    );
    for _ in 0..2 {
        assert_eq!(arena.word_source(cold, 3, 4), WordSource::Words);
        assert_eq!(arena.word_source(cold, 1, 4), WordSource::Page);
        assert_eq!(
            arena.word_source(cold, 2, 6),
            WordSource::Words,
            "the counter is unchanged"
        );
        reference(&mut arena, cold);
        assert_eq!(arena.word_source(cold, 1, 4), WordSource::Page, "it is here");
        (1..2 * FRAMES).for_each(|page| reference(&mut arena, Page(page)));
    }
    assert_eq!(arena.word_source(cold, u32::MAX, 1000), WordSource::Page);
}
