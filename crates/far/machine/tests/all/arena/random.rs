//! Random programs under random schedules.

use netram_far_machine::arena::{ArenaSettings, ArenaTally, Page, Replacement};

use crate::arena::world::{ArenaWorld, PAGES, ThreadAction};

fn run(seed: u64, settings: ArenaSettings, loses: bool) -> ArenaWorld {
    const THREADS: usize = 5;
    let mut world = ArenaWorld::new(settings, THREADS, seed);
    // Some threads scan, others jump; each may change.
    let mut at: Vec<u32> = (0..THREADS as u32).map(|thread| 80 * thread).collect();
    for round in 0..20_000_u32 {
        let thread = world.any(THREADS as u32) as usize;
        if !world.is_blocked(thread) {
            at[thread] = match world.any(100) {
                0..90 if thread < 3 => (at[thread] + thread as u32 + 1) % PAGES,
                _ => world.any(PAGES),
            };
            let page = Page(at[thread]);
            let act = match world.any(21) {
                20 => ThreadAction::Soon(page),
                0 => ThreadAction::Discard(page),
                1..8 if world.has_words() => ThreadAction::Get(page),
                8..14 if world.has_words() => ThreadAction::Set(page),
                1..10 => ThreadAction::Read(page),
                _ => ThreadAction::Write(page),
            };
            world.act(thread, act);
        }
        if loses && round % 64 == 0 {
            let page = world.any(PAGES);
            world.lose_at_lenders(Page(page));
        }
        for _ in 0..world.any(6) {
            world.step();
        }
    }
    world.drain();
    world
}

fn settings(hidden: u32, replacement: Replacement) -> ArenaSettings {
    ArenaSettings {
        frames: 100,
        inactive: hidden,
        pack: 0,
        packs_always: false,
        looks_ahead: true,
        patched: 0,
        replacement,
        seed: 3,
    }
}

#[test]
fn a_reference_sees_the_last_write_under_any_schedule() {
    for seed in 0..24 {
        eprintln!("seed {seed}");
        let hidden = [0, 12, 50][seed as usize % 3];
        let replacement = [
            Replacement::Fifo,
            Replacement::Dueling,
            Replacement::Clock,
            Replacement::Random,
            Replacement::Lru,
        ][seed as usize % 4];
        let world = run(seed, settings(hidden, replacement), false);
        let tally = world.arena.tally();
        assert_eq!(world.bus_errors, 0);
        assert!(tally.fetched > 1000, "{tally:?}");
        assert!(tally.ahead > 100 && tally.proved > 10, "{tally:?}");
        assert!(hidden == 0 || tally.activated > 100, "{tally:?}");
    }
}

/// With a pack, from which half of the pages return.
#[test]
fn a_packed_page_keeps_the_last_write() {
    let mut all = ArenaTally::default();
    for seed in 200..224 {
        eprintln!("seed {seed}");
        let hidden = [0, 12, 30][seed as usize % 3];
        let pack = [8, 25, 45][seed as usize / 3 % 3];
        let settings = ArenaSettings {
            pack,
            ..settings(hidden, Replacement::Fifo)
        };
        let world = run(seed, settings, seed % 2 == 1);
        let tally = world.arena.tally();
        assert!(tally.packed > 500, "{tally:?}");
        all.unpacked += tally.unpacked;
        all.sent += tally.sent;
        assert!(world.bus_errors == 0 || seed % 2 == 1);
    }
    assert!(all.unpacked > 5000 && all.sent > 5000, "{all:?}");
}

/// With words read and written remotely, and patches that sometimes exceed their part of the cap.
#[test]
fn writes_to_remote_pages_are_merged_on_arrival() {
    let mut all = ArenaTally::default();
    let mut bus_errors = 0;
    for seed in 300..336 {
        eprintln!("seed {seed}");
        let hidden = [0, 12, 30][seed as usize % 3];
        let (patched, loses) = ([1, 2, 20][seed as usize / 3 % 3], seed % 4 == 3);
        let settings = ArenaSettings {
            patched,
            pack: [0, 25][seed as usize % 2],
            ..settings(hidden, Replacement::Fifo)
        };
        let world = run(seed, settings, loses);
        let tally = world.arena.tally();
        assert!(tally.written > 500, "{tally:?}");
        assert!(patched > 2 || tally.patch_fetches > 10, "{tally:?}");
        assert!(world.arena.patch_frames() <= patched + 2, "{tally:?}");
        all.patch_fetches += tally.patch_fetches;
        bus_errors += world.bus_errors;
        assert!(loses || world.bus_errors == 0);
    }
    assert!(
        all.patch_fetches > 2000 && bus_errors > 10,
        "{all:?}, {bus_errors} bus errors"
    );
}

#[test]
fn a_lost_page_is_a_bus_error_and_never_zeros() {
    let mut bus_errors = 0;
    for seed in 100..112 {
        eprintln!("seed {seed}");
        bus_errors += run(seed, settings(12, Replacement::Fifo), true).bus_errors;
    }
    assert!(bus_errors > 100, "{bus_errors}");
}
