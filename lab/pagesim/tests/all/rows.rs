//! Counting references in rows is an optimisation with the same result as handling them one by one.

use netram_far_machine::paging::{
    FirstTouch, Page, PageAccess, PagingPolicy, PolicyConfig, PolicyKind, PolicyTally, Replacement,
};
use netram_pagesim::Study;

const PAGE_BYTES: u64 = 256;
/// More pages than the study counts at a time, so that rows displace each other.
const PAGES: u64 = 150;

fn configs(replacement: Replacement, keep_copies: bool) -> Vec<PolicyConfig> {
    let kinds = [
        PolicyKind::Disk,
        PolicyKind::RamDisk,
        PolicyKind::RemoteMain,
        PolicyKind::Counters { initial: 1 },
        PolicyKind::Counters { initial: 20 },
    ];
    let config = |(kind, local_pages)| PolicyConfig {
        kind,
        replacement,
        local_pages,
        remote_pages: 70,
        first_touch: FirstTouch::Zeros,
        keep_copies,
        seed: 3,
    };
    let sizes = [1, 40, 120].into_iter();
    sizes
        .flat_map(|local_pages| kinds.map(|kind| (kind, local_pages)))
        .map(config)
        .collect()
}

/// References with some locality: runs on one page, interrupted by another, then a random one.
fn references(seed: u64, count: usize) -> Vec<(u64, PageAccess)> {
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let (mut here, mut there) = (0, 1);
    let mut made = Vec::new();
    while made.len() < count {
        match below(40) {
            0 => here = below(PAGES),
            1 => there = below(PAGES),
            2 => (here, there) = (there, here),
            _ => {}
        }
        let page = if below(3) == 0 { there } else { here };
        let access = if below(4) == 0 {
            PageAccess::Write
        } else {
            PageAccess::Read
        };
        made.push((page, access));
    }
    made
}

fn one_by_one(references: &[(u64, PageAccess)], config: PolicyConfig) -> PolicyTally {
    let mut policy = PagingPolicy::new(config);
    let mut numbers = std::collections::HashMap::new();
    for (page, access) in references {
        let next = Page(numbers.len() as u32);
        policy.reference(*numbers.entry(*page).or_insert(next), *access);
    }
    *policy.tally()
}

#[test]
fn rows_count_the_same_as_one_by_one() {
    for seed in 1..=6 {
        let references = references(seed, 20_000);
        for replacement in [
            Replacement::Lru,
            Replacement::Clock,
            Replacement::Random,
            Replacement::Fifo,
            Replacement::Dueling,
        ] {
            let configs = configs(replacement, seed % 2 == 0);
            let mut study = Study::new(PAGE_BYTES, &configs);
            for (page, access) in &references {
                study.reference(page * PAGE_BYTES + 8, 8, *access);
            }
            let (tallies, _) = study.tallies();
            for (config, tally) in configs.iter().zip(tallies) {
                let expected = one_by_one(&references, *config);
                assert_eq!(tally, expected, "seed {seed}, {config:?}");
                assert!(expected.faults > 60, "{config:?} moves hardly anything");
            }
        }
    }
}

/// A reference that counted only its first and its last page was wrong.
#[test]
fn a_long_reference_counts_once_for_each_page() {
    let configs = configs(Replacement::Lru, false);
    let mut study = Study::new(PAGE_BYTES, &configs);
    study.reference(PAGE_BYTES - 1, 3 * PAGE_BYTES as u32 + 2, PageAccess::Write);
    assert_eq!(study.pages(), 5);
    let expected = one_by_one(&[0, 1, 2, 3, 4].map(|page| (page, PageAccess::Write)), configs[0]);
    assert_eq!(study.tallies().0[0], expected);
}
