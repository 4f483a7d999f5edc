//! Random histories. `NETRAM_SHARED_SEEDS` sets their number; `NETRAM_SHARED_SEED` runs one alone.

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
fn the_rules_hold_in_random_histories() {
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
    // A world in which nothing happens would break no rule.
    assert!(
        one.is_some() || (commits > 10_000 && gone > 100 && aborted > 5 && views > 50 && hints > 5000),
        "{commits} {gone} {aborted} {views} {hints}"
    );
}

/// Checks that each planted bug is found by the rule that it breaks, or by a consequence.
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
fn the_rules_find_locks_granted_before_a_dead_nodes_journal_is_read() {
    finds(
        WorldBug::GrantBeforeRead,
        &[RegionRule::Survives, RegionRule::Granted],
    );
}

#[test]
fn the_rules_find_members_that_accept_a_fenced_nodes_records() {
    finds(WorldBug::NoFence, &[RegionRule::Survives]);
}

/// The node has trimmed what the server lost. A lock that the node claims at that version waits for it for
/// ever.
#[test]
fn the_rules_find_a_server_that_reports_unflushed_records_as_durable() {
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
fn the_rules_find_records_applied_out_of_order() {
    finds(
        WorldBug::WaitingReversed,
        &[RegionRule::Applied, RegionRule::Readers, RegionRule::Granted],
    );
}

/// A token that comes before the records made under it has no effect: its lock waits for them, and their node
/// is fenced.
#[test]
fn a_node_that_gives_a_token_back_before_its_records_is_fenced() {
    let worlds = (0..60).map(|seed| story(seed, WorldBug::ReleaseBeforeTail));
    let unlocked: u64 = worlds.map(|world| world.history.unlocked).sum();
    assert!(unlocked > 5, "{unlocked}");
}

/// A record that had read the data that a hint overwrites precedes it in the server's order, and has to be
/// applied first.
#[test]
fn the_rules_find_hints_without_needs() {
    finds(WorldBug::HintWithoutNeeds, &[RegionRule::Readers]);
}

#[test]
fn the_rules_find_hints_of_unsafe_records() {
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
