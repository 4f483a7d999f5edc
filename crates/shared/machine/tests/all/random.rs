//! Histories of chance. `NETRAM_SHARED_SEEDS` says how many, `NETRAM_SHARED_SEED` which one alone.

use super::world::{FaultRates, RegionRule, World, WorldBug};

const SEEDS: u64 = 600;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn story(seed: u64, planted: WorldBug) -> World {
    let mut world = World::new(seed, 2 + (seed % 3) as usize);
    world.planted = planted;
    world.start_server();
    world.fault_rates = match seed % 4 {
        0 => FaultRates::NONE,
        _ => FaultRates::ALL,
    };
    world.run(600);
    world.quiesce();
    world
}

#[test]
fn whatever_happens_the_rules_hold() {
    let one = number("NETRAM_SHARED_SEED");
    let seeds = one.map_or(0..number("NETRAM_SHARED_SEEDS").unwrap_or(SEEDS), |seed| {
        seed..seed + 1
    });
    let (mut commits, mut gone, mut aborted, mut views, mut hints) = (0, 0, 0, 0, 0);
    for seed in seeds {
        let world = story(seed, WorldBug::Nothing);
        commits += world.history.commits;
        gone += world.history.gone;
        aborted += world.history.aborted;
        views += world.history.views;
        hints += world.history.hints_taken;
    }
    // A world in which nothing happens breaks no rule.
    assert!(
        one.is_some() || (commits > 10_000 && gone > 100 && aborted > 5 && views > 50 && hints > 5000),
        "{commits} {gone} {aborted} {views} {hints}"
    );
}

/// Each fault is found by the rule that it breaks, or by one that it makes to be broken.
fn finds(planted: WorldBug, rules: &[RegionRule]) {
    let found = (0..2000).find_map(|seed| {
        let told = std::panic::catch_unwind(|| story(seed, planted)).err()?;
        Some(told.downcast_ref::<String>().cloned().unwrap_or_default())
    });
    let found = found.unwrap_or_else(|| panic!("{planted:?} is not found"));
    let expected = rules
        .iter()
        .any(|rule| found.starts_with(&format!("{rule:?} broken")));
    assert!(expected, "{planted:?}: {found}");
}

#[test]
fn a_dead_node_s_locks_given_on_before_its_journal_is_read_are_found() {
    finds(
        WorldBug::GrantBeforeRead,
        &[RegionRule::Survives, RegionRule::Granted],
    );
}

#[test]
fn members_that_go_on_taking_what_a_fenced_node_appends_are_found() {
    finds(WorldBug::NoFence, &[RegionRule::Survives]);
}

/// What it has lost its node has trimmed: a lock that the node claims at that version waits for it for ever.
#[test]
fn a_server_that_keeps_what_it_has_not_flushed_is_found() {
    finds(
        WorldBug::AckBeforeDurable,
        &[
            RegionRule::Survives,
            RegionRule::Outcome,
            RegionRule::Versions,
            RegionRule::Granted,
            RegionRule::Ends,
        ],
    );
}

#[test]
fn records_applied_in_another_order_than_they_came_are_found() {
    finds(
        WorldBug::WaitingReversed,
        &[RegionRule::Applied, RegionRule::Readers, RegionRule::Granted],
    );
}

/// A token that comes before the records made under it opens nothing: its lock waits for them, and their node
/// is fenced.
#[test]
fn a_node_that_gives_a_token_back_before_its_records_is_fenced() {
    let worlds = (0..60).map(|seed| story(seed, WorldBug::ReleaseBeforeTail));
    let unlocked: u64 = worlds.map(|world| world.history.unlocked).sum();
    assert!(unlocked > 5, "{unlocked}");
}

/// One that had read what a hint overwrites comes before it in the server's order, and has to be there first.
#[test]
fn hints_that_do_not_say_what_comes_before_them_are_found() {
    finds(WorldBug::HintWithoutNeeds, &[RegionRule::Readers]);
}

#[test]
fn hints_of_records_that_are_not_safe_are_found() {
    finds(
        WorldBug::HintBeforeSafe,
        &[
            RegionRule::Survives,
            RegionRule::Granted,
            RegionRule::Applied,
            RegionRule::Readers,
            RegionRule::Equal,
        ],
    );
}
