//! The hazards of the paper's protocol, one story each. (The third log that depends on the first is in
//! `merge.rs`.)

use netram_proto::time::Nanos;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::node::NodePhase;
use netram_shared_machine::server::NodeState;
use netram_shared_machine::{LockId, LockMode, LockVersion, RecordNumber};

use super::world::bytes;
use super::world::{FaultRates, World, WorldBug};

const A: LockId = LockId(0);
const B: LockId = LockId(1);

/// A world without faults in which programs only do what the test asks, after all nodes have joined.
fn world(seed: u64, nodes: usize) -> World {
    begin(World::new(seed, nodes), nodes)
}

fn begin(mut world: World, nodes: usize) -> World {
    world.script = true;
    world.start_server();
    for slot in 0..nodes {
        world.start_process(slot);
    }
    world.until("all have the region", |world| {
        let mut processes = world.slots.iter().map(|slot| slot.process.as_ref());
        processes.all(|process| process.is_some_and(|process| process.is_whole()))
    });
    world
}

fn idle(world: &World, slot: usize) -> bool {
    let process = world.slots[slot].process.as_ref();
    process.is_some_and(|process| process.txns.is_empty())
}

/// Runs a whole transaction of one node.
fn run(world: &mut World, slot: usize, locks: &[(LockId, LockMode)]) {
    world.begin_with(slot, locks.to_vec());
    world.until("the transaction ends", |world| idle(world, slot));
}

fn write(world: &mut World, slot: usize, lock: LockId) {
    run(world, slot, &[(lock, LockMode::Exclusive)]);
}

fn version(world: &World, slot: usize, lock: LockId) -> LockVersion {
    let process = world.slots[slot].process.as_ref();
    process.map_or(LockVersion(0), |process| {
        LockVersion(process.region[bytes::span(lock).start])
    })
}

/// Starts a write, and stops when the record is appended and not acknowledged. Returns the record's number.
fn begin_commit(world: &mut World, slot: usize, lock: LockId) -> RecordNumber {
    world.begin_with(slot, vec![(lock, LockMode::Exclusive)]);
    let mut number = None;
    world.until("the record is appended", |world| {
        world.hold_acks(slot, true);
        number = world.committing(slot);
        number.is_some()
    });
    number.expect("the transaction commits")
}

/// Hazard 1, test (1): a reader makes no version, and no node waits for one.
#[test]
fn a_reader_between_two_writers_leaves_no_gap() {
    for seed in 0..20 {
        let mut world = world(seed, 3);
        write(&mut world, 0, A);
        run(&mut world, 1, &[(A, LockMode::Shared)]);
        write(&mut world, 2, A);
        assert_eq!(version(&world, 2, A), LockVersion(2));
        world.quiesce();
        assert_eq!(version(&world, 0, A), LockVersion(2));
    }
}

/// Tests (2) and (8): a writer dies, or is fenced, when some of its members have its record. The record
/// counts for all nodes or for none, whichever asks.
#[test]
fn a_dead_writers_record_at_some_members_counts_for_all_nodes_or_none() {
    let (mut committed, mut aborted) = (0, 0);
    for seed in 0..60 {
        let mut world = world(seed, 3);
        write(&mut world, 0, A);
        let number = begin_commit(&mut world, 0, A);
        let process = world.slots[0].process.as_ref();
        let node = process.and_then(|process| process.node.id()).expect("a node");
        match seed % 2 {
            0 => world.kill_process(0),
            _ => world.sleep_process(0, Nanos::from_ms(400)),
        }
        write(&mut world, 1, A);
        world.slots[1].unknown.push((node, number));
        if seed % 3 == 0 {
            world.kill_server();
        }
        world.slots[2].unknown.push((node, number));
        world.quiesce();
        let fate = world.history.outcomes[&(node, number)];
        let expected = if fate == RecordOutcome::Committed { 3 } else { 2 };
        assert_eq!(version(&world, 2, A), LockVersion(expected), "seed {seed}");
        committed += u64::from(fate == RecordOutcome::Committed);
        aborted += u64::from(fate == RecordOutcome::Aborted);
    }
    assert!(committed > 3 && aborted > 3, "{committed} {aborted}");
}

/// Hazard 6, test (3): the writer sent a hint to one peer, and died before it sent anything else.
#[test]
fn a_record_that_reached_one_peer_reaches_all() {
    for seed in 0..20 {
        let mut world = world(seed, 3);
        write(&mut world, 0, A);
        world.until("all have it", |world| {
            world.pull_all();
            (0..3).all(|slot| version(world, slot, A) == LockVersion(1))
        });
        // All messages from the writer to the server are lost, and all hints arrive.
        world.fault_rates = FaultRates {
            hints: 100,
            ..FaultRates::NONE
        };
        let number = begin_commit(&mut world, 0, A);
        world.kill_server();
        world.hold_acks(0, false);
        world.until("it is acknowledged", |world| idle(world, 0));
        world.kill_process(0);
        assert_eq!(number, RecordNumber(2));
        world.quiesce();
        for slot in 0..3 {
            assert_eq!(version(&world, slot, A), LockVersion(2), "seed {seed}");
        }
    }
}

/// Hazard 16, test (4): a node that slept beyond its lease finds its journal fenced. The commit is refused,
/// and its outcome can be asked.
#[test]
fn a_commit_after_a_sleep_longer_than_the_lease_is_refused() {
    for seed in 0..20 {
        let mut world = world(seed, 2);
        world.begin_with(0, vec![(A, LockMode::Exclusive)]);
        world.until("it has the lock", |world| world.has_lock(0, A));
        world.sleep_process(0, Nanos::from_ms(300));
        let before = version(&world, 1, A);
        write(&mut world, 1, A);
        assert!(version(&world, 1, A) > before);
        world.quiesce();
        // In every case no version was written twice, and all copies are equal.
        assert!(version(&world, 1, A) >= LockVersion(1), "seed {seed}");
    }
}

/// Hazard 12, test (5): adjacent spans under different locks, written at once.
#[test]
fn two_writers_on_neighbouring_bytes_keep_both() {
    for seed in 0..20 {
        let mut world = world(seed, 2);
        for _ in 0..5 {
            world.begin_with(0, vec![(A, LockMode::Exclusive)]);
            world.begin_with(1, vec![(B, LockMode::Exclusive)]);
            world.until("both end", |world| idle(world, 0) && idle(world, 1));
        }
        world.quiesce();
        assert_eq!(bytes::span(A).end, bytes::span(B).start);
        for slot in 0..2 {
            assert_eq!(version(&world, slot, A), LockVersion(5));
            assert_eq!(version(&world, slot, B), LockVersion(5));
        }
    }
}

/// Hazard 14, test (7): a reader is pinned, and far more records come than may be held back for it. Until it
/// is told, its view does not change.
#[test]
fn a_pinned_readers_view_changes_only_after_it_is_told() {
    for seed in 0..20 {
        let mut world = world(seed, 2);
        write(&mut world, 0, A);
        world.until("both have it", |world| {
            world.pull_all();
            version(world, 1, A) == LockVersion(1)
        });
        world.pin(1);
        for _ in 0..40 {
            write(&mut world, 0, A);
            world.pull_all();
            match world.is_pinned(1) {
                true => assert_eq!(version(&world, 1, A), LockVersion(1), "seed {seed}"),
                false => break,
            }
        }
        assert!(!world.is_pinned(1), "what waits for a reader is bounded");
        world.quiesce();
    }
}

/// Hazard 8: versions and numbers continue across all restarts.
#[test]
fn versions_continue_across_server_restarts() {
    for seed in 0..20 {
        let mut world = world(seed, 2);
        for round in 1..=4 {
            write(&mut world, round % 2, A);
            world.kill_server();
            world.start_server();
        }
        world.quiesce();
        assert_eq!(version(&world, 0, A), LockVersion(4), "seed {seed}");
    }
}

/// Hazard 3: a dead node's token is unavailable for its lease at most.
#[test]
fn a_dead_holders_token_is_granted_after_its_lease() {
    for seed in 0..20 {
        let mut world = world(seed, 2);
        write(&mut world, 0, A);
        world.kill_process(0);
        let died = world.now;
        write(&mut world, 1, A);
        assert_eq!(version(&world, 1, A), LockVersion(2));
        let took = world.now.since(died);
        // One lease, and the time that reading the journal and the disk take in this world.
        assert!(took < Nanos::from_ms(400), "seed {seed}: {took:?}");
        world.quiesce();
    }
}

/// Hazard 15: a node that does not read falls behind the kept records, rejoins, and delays no other.
#[test]
fn a_node_that_falls_behind_rejoins() {
    let mut anew = 0;
    for seed in 0..20 {
        let mut world = begin(World::with_recent(seed, 2, 60), 2);
        world.sleep_process(1, Nanos::from_ms(60));
        for _ in 0..30 {
            write(&mut world, 0, A);
        }
        world.quiesce();
        let process = world.slots[1].process.as_ref().expect("it is there");
        assert_eq!(process.node.state(), NodePhase::Whole);
        anew += world.history.rejoined;
    }
    assert!(anew > 3, "{anew}");
}

/// A node that sent more records at once than the server keeps was declared behind because of its own
/// records.
#[test]
fn a_nodes_own_records_do_not_make_it_fall_behind() {
    for seed in 0..20 {
        // Only the newest record is kept.
        let mut world = begin(World::with_recent(seed, 1, 1), 1);
        write(&mut world, 0, A);
        world.kill_server();
        // Within its lease, and unknown to the server.
        for _ in 0..8 {
            world.begin_with(0, vec![(A, LockMode::Exclusive)]);
            world.until("it ends", |world| idle(world, 0));
        }
        if world.server().is_none() {
            world.start_server();
        }
        world.quiesce();
        assert_eq!(version(&world, 0, A), LockVersion(9), "seed {seed}");
        assert_eq!(world.history.rejoined, 0, "seed {seed}");
    }
}

/// A dead node's unacknowledged record could be lost before it is read again. So no node sees it before it is
/// on the server's disk. A server that does not wait for that is found.
#[test]
fn a_dead_nodes_recovered_records_are_hidden_until_durable() {
    let mut early = 0;
    for seed in 0..40 {
        let planted = seed % 2 == 1;
        let mut world = world(seed, 2);
        if planted {
            world.planted = WorldBug::ReadIsDurable;
        }
        write(&mut world, 0, A);
        let number = begin_commit(&mut world, 0, A);
        let process = world.slots[0].process.as_ref();
        let node = process.and_then(|process| process.node.id()).expect("a node");
        world.kill_process(0);
        world.begin_with(1, vec![(A, LockMode::Exclusive)]);
        world.until("its journal is to be read", |world| {
            let standings = world.server().into_iter().flat_map(|server| server.node_states());
            let reads = |standing| matches!(standing, NodeState::Reading | NodeState::Going);
            standings
                .into_iter()
                .any(|(its, standing)| its == node && reads(standing))
        });
        world.hold_flush = true;
        world.slots[1].unknown.push((node, number));
        world.run(100);
        let seen = world.has_lock(1, A) || version(&world, 1, A) > LockVersion(1);
        let told = world.history.outcomes.contains_key(&(node, number));
        assert!(planted || !(seen || told), "seed {seed}");
        early += u64::from(planted && seen);
        if !planted {
            world.quiesce();
        }
    }
    assert!(early > 3, "{early}");
}
