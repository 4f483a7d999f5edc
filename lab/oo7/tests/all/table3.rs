//! Table 3 of OSDI'94: exact where it follows from the benchmark, within 2 % where it depends on the index's
//! code.

use crate::common::{HeapTestbed, plain, run};
use netram_oo7::{DateIndex, LogCounts, Oo7Parameters, Oo7Store, Oo7Transaction, Operation, audit};

/// Declared ranges and logged counts of one operation in one transaction.
fn counted(
    world: &HeapTestbed,
    store: &impl Oo7Store,
    operation: Operation,
    parameters: &Oo7Parameters,
) -> (u64, LogCounts) {
    let before = world.rvm.statistics().ranges_declared;
    world.rvm.log().start();
    run(store, operation, parameters);
    let tallies = world.rvm.log().stop();
    (world.rvm.statistics().ranges_declared - before, tallies)
}

/// Number of composites with a private use: the d of the formulas.
fn distinct(parameters: &Oo7Parameters) -> u64 {
    let store = plain(parameters);
    let mut open = store.begin().unwrap();
    let found = audit(&mut open, parameters, true).unwrap();
    open.commit().unwrap();
    found.used
}

#[test]
fn updates_bytes_and_ranges_of_t2_and_t12_are_exact() {
    let parameters: Oo7Parameters = "small-3".parse().unwrap();
    let d = distinct(&parameters);
    let world = HeapTestbed::new(&parameters);
    let store = world.build(&parameters, DateIndex::All);
    for (operation, updates, ranges) in [
        (Operation::T12a, 2_187, d),
        (Operation::T12c, 8_748, d),
        (Operation::T2a, 2_187, d),
        (Operation::T2b, 43_740, 20 * d),
        (Operation::T2c, 174_960, 20 * d),
    ] {
        let (declared, tallies) = counted(&world, &store, operation, &parameters);
        assert_eq!(declared, updates, "{operation}");
        assert_eq!(
            (tallies.ranges, tallies.bytes),
            (ranges, 8 * ranges),
            "{operation}"
        );
        assert_eq!(tallies.small_header_bytes, 12 * ranges, "{operation}");
        assert_eq!(tallies.records, 1, "{operation}");
        // Properties of the layout: parts of a composite lie together, those of two composites mostly apart.
        let (lowest, highest) = if ranges == d {
            (d * 9 / 10, d)
        } else {
            (d, d * 23 / 10)
        };
        assert!(
            (lowest..=highest).contains(&tallies.pages_4k),
            "{operation}: {tallies:?}"
        );
        assert!(tallies.pages_8k <= tallies.pages_4k, "{operation}: {tallies:?}");
    }
}

#[test]
fn t3_with_the_index_of_1994_is_within_two_percent() {
    let parameters: Oo7Parameters = "small-3".parse().unwrap();
    let world = HeapTestbed::new(&parameters);
    let store = world.build(&parameters, DateIndex::One);
    for (operation, published) in [
        (Operation::T3a, 16_924),
        (Operation::T3b, 248_632),
        (Operation::T3c, 1_502_708),
    ] {
        let (declared, tallies) = counted(&world, &store, operation, &parameters);
        let away = declared as f64 / f64::from(published) - 1.0;
        assert!(
            away.abs() < 0.02,
            "{operation}: {declared}, published {published}"
        );
        assert_eq!(tallies.records, 1, "{operation}");
    }
}

/// Blocks freed to the heap stay taken until the transaction ends: an index that freed and allocated a node
/// for each change filled the heap within one t3c.
#[test]
fn moving_every_part_in_the_index_repeatedly_takes_no_room() {
    let parameters: Oo7Parameters = "tiny-3".parse().unwrap();
    let world = HeapTestbed::new(&parameters);
    let store = world.build(&parameters, DateIndex::All);
    let taken = world.heap.statistics().unwrap().bytes_taken;
    let mut open = store.begin().unwrap();
    for _ in 0..4 {
        Operation::T3c.run(&mut open, &parameters, 1).unwrap();
    }
    open.commit().unwrap();
    assert_eq!(world.heap.statistics().unwrap().bytes_taken, taken);
}
