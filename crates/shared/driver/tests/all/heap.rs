//! Persistent heaps in a shared region, used by several nodes at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::lists::{HEAP, Item, begin, carry, format, numbers, pop_in, push, push_in};
use crate::common::world::TestPaths;
use crate::common::{TestRng, until};
use netram_heap::{AllocError, BlockAccessError, Ptr};
use netram_proto::port::Durability;
use netram_rvm::{RangeError, RestoreMode};
use netram_shared::Node;
use netram_shared::node::HeapError;
use netram_shared_machine::{LockId, LockMode};

fn place() -> (tempfile::TempDir, TestPaths) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    (directory, place)
}

/// Waits until all nodes have the same bytes.
fn equal(nodes: &[Node]) {
    for node in nodes {
        until("the nodes have the same bytes", || {
            let bytes = nodes[0].region().read().to_vec();
            *node.region().read() == bytes[..]
        });
    }
}

/// Nodes, each with two threads, push, pop and move numbers between the lists of these heaps.
fn play(nodes: &[Node], heaps: u32, turns: u64, first: u64) {
    std::thread::scope(|scope| {
        for (index, node) in nodes.iter().chain(nodes).enumerate() {
            scope.spawn(move || {
                let mut random = TestRng(index as u64 + 1);
                for turn in 0..turns {
                    let number = first + index as u64 * turns + turn;
                    let lock = random.below(heaps.into()) as u32;
                    let other = (lock + 1) % heaps;
                    match random.below(8) {
                        0..4 => drop(push(node, lock, number).expect("it commits")),
                        4 if heaps > 1 => drop(carry(node, lock, other).expect("it commits")),
                        kind => {
                            let mut txn = begin(node, &[lock]).expect("there is a node");
                            for _ in 0..=random.below(2) {
                                pop_in(&mut txn, lock);
                            }
                            push_in(&mut txn, lock, number);
                            match kind {
                                // The abort restores the popped number, and removes the pushed one.
                                7 => txn.abort(),
                                _ => drop(txn.commit(Durability::Remote).expect("it commits")),
                            }
                        }
                    }
                }
            });
        }
    });
}

/// Checks that every node finds the same numbers, each once, in valid heaps with the same free space.
fn check(nodes: &[Node], heaps: u32) {
    equal(nodes);
    let mut all = BTreeSet::new();
    for lock in 0..heaps {
        let (_, expected) = numbers(&nodes[0], lock);
        let fresh = expected.iter().all(|number| all.insert(*number));
        assert!(fresh, "no number is there twice");
        let mut free = BTreeSet::new();
        for node in nodes {
            assert_eq!(numbers(node, lock).1, expected);
            let mut txn = begin(node, &[lock]).expect("there is a node");
            let heap = txn.heap(LockId(lock)).expect("a heap");
            heap.catch_up(&txn).expect("the heap is whole");
            let found = heap.statistics().expect("the heap is whole");
            free.insert((found.bytes_free_pages, found.bytes_free_slots, found.bytes_taken));
            // The heap allocates again, without touching used blocks.
            push_in(&mut txn, lock, 7);
        }
        assert_eq!(free.len(), 1, "all know the same of what is free");
    }
}

#[test]
fn three_nodes_allocate_link_and_free_in_one_heap() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create_of(1, HEAP, &["a"]);
    let _serving = place.serve();
    let nodes = ["one", "two", "three"].map(|name| place.join(name));
    format(&nodes[1], 1);
    play(&nodes, 1, 40, 0);
    check(&nodes, 1);
    for node in nodes {
        node.leave().expect("it leaves");
    }
}

#[test]
fn blocks_move_between_the_heaps_of_several_locks() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create_of(3, HEAP, &["a"]);
    let _serving = place.serve();
    let mut nodes = vec![place.join("one"), place.join("two")];
    format(&nodes[0], 3);
    play(&nodes, 3, 60, 0);
    // A node that joins later has the heaps in its pages.
    nodes.push(place.join("three"));
    check(&nodes, 3);
    play(&nodes, 3, 20, 1000);
    check(&nodes, 3);
}

#[test]
fn a_heap_is_usable_only_under_its_own_lock() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create_of(2, HEAP, &["a"]);
    let _serving = place.serve();
    let node = place.join("one");
    let mut txn = begin(&node, &[0]).unwrap();
    assert_eq!(txn.format_heap(LockId(1)), Err(HeapError::NotHeld(LockId(1))));
    assert!(matches!(txn.heap(LockId(0)), Err(HeapError::Open(_))));
    txn.format_heap(LockId(0)).unwrap();
    assert_eq!(txn.heap(LockId(0)).err(), Some(HeapError::Written(LockId(0))));
    txn.commit(Durability::Remote).unwrap();

    push(&node, 0, 3).unwrap();
    let (heap, _) = numbers(&node, 0);
    let mut reading = node.begin(RestoreMode::Restore).unwrap();
    reading.acquire(LockId(0), LockMode::Shared).unwrap();
    let not_held = |error: &RangeError| matches!(error, RangeError::NotHeld { lock: Some(0), .. });
    let refused = heap.allocate(&mut reading, 8);
    assert!(
        matches!(&refused, Err(AllocError::Range(error)) if not_held(error)),
        "{refused:?}"
    );
    let first: Ptr<Item> = heap.root(0).unwrap();
    let item = heap.get(first).unwrap();
    let refused = heap.set(&mut reading, first, &item);
    assert!(
        matches!(&refused, Err(BlockAccessError::Range(error)) if not_held(error)),
        "{refused:?}"
    );
    let mut edit = heap.edit(&mut reading);
    assert!(edit.get(first).is_ok());
    let refused = edit.get_mut(first).map(|item| item.number);
    assert!(
        matches!(&refused, Err(BlockAccessError::Range(error)) if not_held(error)),
        "{refused:?}"
    );
    drop(edit);
    drop(reading);

    let mut txn = begin(&node, &[0]).unwrap();
    assert!(
        Arc::ptr_eq(&heap, &txn.heap(LockId(0)).unwrap()),
        "one value for a heap"
    );
    assert_eq!(txn.format_heap(LockId(0)), Err(HeapError::InUse(LockId(0))));
    heap.edit(&mut txn).get_mut(first).unwrap().number = 13;
    txn.commit(Durability::Remote).unwrap();
    let other = place.join("two");
    assert_eq!(other.region().get::<u64>(first.offset() as usize).unwrap(), 13);
    // The value outlives its node, and only reads.
    node.leave().unwrap();
    assert_eq!(heap.get(first).unwrap().number, 13);
}

#[test]
fn a_pointer_of_one_heap_may_lead_into_another() {
    let (_directory, place) = place();
    let _lender = place.lender("a");
    place.create_of(2, HEAP, &["a"]);
    let _serving = place.serve();
    let (one, other) = (place.join("one"), place.join("two"));
    format(&one, 2);
    let mut txn = begin(&one, &[0, 1]).unwrap();
    let heaps = [0, 1].map(|lock| txn.heap(LockId(lock)).unwrap());
    let number = heaps[1].alloc(&mut txn, &41_u64).unwrap();
    let pointer = heaps[0].alloc(&mut txn, &number).unwrap();
    heaps[0].set_root(&mut txn, 1, pointer).unwrap();
    txn.commit(Durability::Remote).unwrap();

    let mut txn = begin(&other, &[0, 1]).unwrap();
    let heaps = [0, 1].map(|lock| txn.heap(LockId(lock)).unwrap());
    let pointer: Ptr<Ptr<u64>> = heaps[0].root(1).unwrap();
    let number = heaps[0].get(pointer).unwrap();
    assert!(heaps[0].get(number).is_err(), "it is no block of this heap");
    assert_eq!(heaps[1].get(number).unwrap(), 41);
    heaps[1].set(&mut txn, number, &42).unwrap();
    txn.commit(Durability::Remote).unwrap();
    let mut txn = begin(&one, &[1]).unwrap();
    assert_eq!(txn.heap(LockId(1)).unwrap().get(number).unwrap(), 42);
    txn.acquire(LockId(1), LockMode::Shared).unwrap();
}
