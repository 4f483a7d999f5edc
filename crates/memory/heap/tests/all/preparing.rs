//! Preparing blocks: up to the free pages, and without later work for allocations.

use crate::common::world;
use netram_heap::AllocError;
use netram_heap::limit::EMPTY_RUNS_KEPT;

#[test]
fn allocations_after_preparing_carve_no_run() {
    let world = world(1000);
    let mut open = world.begin();
    // Far more empty runs than are otherwise kept.
    world.heap.prepare(&mut open, 100, 5000).unwrap();
    let counts = || world.heap.statistics().unwrap().counts;
    let prepared = counts();
    assert!(prepared.runs_carved > 2 * EMPTY_RUNS_KEPT as u64);
    for _ in 0..5000 {
        world.heap.allocate(&mut open, 100).unwrap();
    }
    assert_eq!(
        (counts().runs_carved, counts().runs_given_back),
        (prepared.runs_carved, 0)
    );
}

#[test]
fn preparing_is_refused_only_if_no_pages_are_left() {
    let world = world(200);
    let mut open = world.begin();
    // Empty runs of another class, which may be given back.
    world.heap.prepare(&mut open, 1000, 300).unwrap();
    let refused = world.heap.prepare(&mut open, 100, 100_000);
    assert!(
        matches!(refused, Err(AllocError::NoRoom { asked: 100, .. })),
        "{refused:?}"
    );
    let statistics = world.heap.statistics().unwrap();
    let [class] = statistics.classes[..] else {
        panic!("{:?}", statistics.classes)
    };
    assert!(statistics.bytes_free_pages < statistics.bytes_usable / 20);
    assert_eq!(statistics.bytes_taken, 0);
    for _ in 0..class.slots {
        world.heap.allocate(&mut open, 100).unwrap();
    }
    assert_eq!(
        world.heap.statistics().unwrap().classes[0].runs,
        class.runs,
        "prepared runs are used"
    );
}
