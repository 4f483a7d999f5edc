//! Transactions over the maximum number of regions.

use crate::common::Machine;
use netram_proto::port::Durability;
use netram_rvm::limit::TRANSACTION_REGIONS_MAX;
use netram_rvm::{RangeError, Region, RestoreMode};

const PAGE: u64 = 4096;
/// A small stack, such as threads have on some systems.
const STACK_BYTES: usize = 128 * 1024;

#[test]
fn a_transaction_over_as_many_regions_as_allowed_fits_a_small_stack() {
    let machine = Machine::new(1 << 20);
    let rvm = machine.open().unwrap();
    let count = TRANSACTION_REGIONS_MAX + 1;
    rvm.create_segment("a", count as u64 * PAGE, Default::default())
        .unwrap();
    let mapped = (0..count as u64).map(|page| rvm.map("a", page * PAGE, PAGE).unwrap());
    let regions: Vec<Region> = mapped.collect();
    let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
    let commit = || {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        // Back and forth, so that no access is to the region used last.
        for round in 0..3u64 {
            for (number, region) in regions[..count - 1].iter().enumerate() {
                let value = number as u64 * 10 + round;
                transaction.set(region, 8, &value).unwrap();
            }
        }
        let refused = transaction.set_range(&regions[count - 1], 0, 1);
        let (what, max) = ("regions", TRANSACTION_REGIONS_MAX);
        assert_eq!(refused, Err(RangeError::TooMany { what, max }));
        transaction.commit(Durability::Remote).unwrap();
    };
    std::thread::scope(|scope| {
        thread.spawn_scoped(scope, commit).unwrap().join().unwrap();
    });
    drop((regions, rvm));
    machine.crash(1);
    let rvm = machine.open().unwrap();
    let whole = rvm.map("a", 0, 0).unwrap();
    for number in 0..count - 1 {
        let found: u64 = whole.get(number * PAGE as usize + 8).unwrap();
        assert_eq!(found, number as u64 * 10 + 2);
    }
}
