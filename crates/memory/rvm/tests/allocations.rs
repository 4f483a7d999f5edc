//! A steady-state commit allocates nothing.

#[allow(dead_code, reason = "other test programs use the rest")]
#[path = "all/common/mod.rs"]
mod common;

use common::Machine;
use netram_alloc_counter::{AllocationCounter, allocations_of_thread};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;

#[global_allocator]
static ALLOCATOR: AllocationCounter = AllocationCounter;

#[test]
fn a_steady_commit_allocates_nothing() {
    let machine = Machine::new(16 * 1024 * 1024);
    let rvm = machine.open().unwrap();
    let mut regions = Vec::new();
    for path in ["a", "b", "c"] {
        rvm.create_segment(path, 1 << 16, Default::default()).unwrap();
        regions.push(rvm.map(path, 0, 0).unwrap());
    }
    let round = |mode: RestoreMode, durability: Durability| {
        let mut transaction = rvm.begin(mode);
        for at in 0..200usize {
            let region = &regions[at % 3];
            transaction.set_range(region, (at * 7919) % 65_000, 40).unwrap();
            transaction
                .set(region, (at * 104_729) % 65_000, &(at as u64))
                .unwrap();
            transaction
                .edit(region)
                .range_mut(at * 16, 16)
                .unwrap()
                .fill(at as u8);
        }
        transaction.commit(durability).unwrap();
        let mut aborted = rvm.begin(mode);
        aborted.write(&regions[0], 0, &[1; 500]).unwrap();
        aborted.abort();
    };
    // Spools that are compacted at times, and ones that fill up at times.
    for (mode, spool) in [
        (RestoreMode::Restore, 0),
        (RestoreMode::NoRestore, 0),
        (RestoreMode::Restore, 1 << 18),
        (RestoreMode::Restore, 1 << 15),
    ] {
        rvm.set_spool_bytes(spool);
        for durability in [Durability::Remote, Durability::Lazy] {
            // Enough commits to fill the larger spool once.
            for _ in 0..40 {
                round(mode, durability);
            }
            let before = allocations_of_thread();
            for _ in 0..50 {
                round(mode, durability);
            }
            let during = allocations_of_thread() - before;
            assert_eq!(during, 0, "{mode:?} {durability:?}, spool of {spool}");
        }
    }
    let statistics = rvm.statistics();
    assert!(statistics.spool_compactions > 0, "{statistics:?}");
    assert!(statistics.spool_records > 0, "{statistics:?}");
}
