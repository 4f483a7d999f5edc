//! Problems that users of the original reported. Some have files of their own: `lazy_opening.rs` (start-up
//! time), `stalls.rs` (truncation), `descriptors.rs` (many regions), `spool.rs` (quadratic merging),
//! `behaviour.rs` (stale bytes after mapping again, a refused commit).

use std::sync::Barrier;

use crate::common::{Machine, TestDirectory};
use netram_proto::port::Durability;
use netram_rvm::{RestoreMode, RvmCommitError, SegmentAllocation};

const GIB: u64 = 1 << 30;

#[test]
fn a_region_of_five_gigabytes_keeps_bytes_above_four() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("a");
    rvm.create_segment(&path, 5 * GIB, SegmentAllocation::Sparse)
        .unwrap();
    let whole = rvm.map(&path, 0, 0).unwrap();
    assert_eq!(whole.len() as u64, 5 * GIB);
    // Both sides of each offset at which 31 or 32 bits end, and the end of the segment.
    let places = [2 * GIB - 4, 4 * GIB - 4, 4 * GIB + 8, 5 * GIB - 8].map(|place| place as usize);
    for (round, rounds) in [(1u64, 2), (2, 2)] {
        for place in places {
            let mut transaction = rvm.begin(RestoreMode::Restore);
            transaction.set(&whole, place, &(place as u64 + round)).unwrap();
            transaction.commit(Durability::Remote).unwrap();
        }
        if round < rounds {
            rvm.truncate().unwrap();
        }
    }
    // The values of the second round are only in the log.
    drop((whole, rvm));
    machine.crash(1);
    let rvm = directory.open(&machine).unwrap();
    assert_eq!(rvm.recovery().transactions, places.len() as u64);
    let whole = rvm.map(&path, 0, 0).unwrap();
    for place in places {
        assert_eq!(whole.get(place), Ok(place as u64 + 2));
    }
    whole.unmap().unwrap();
    let above = rvm.map(&path, 4 * GIB, 0).unwrap();
    assert_eq!(above.get(8), Ok(4 * GIB + 8 + 2));
    assert_eq!(above.get(GIB as usize - 8), Ok(5 * GIB - 8 + 2));
}

/// Mappings of the file in this process.
fn mappings(path: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.ends_with(path)).count()
}

#[test]
fn repeated_mapping_leaks_no_addresses_and_shows_no_stale_bytes() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("a");
    rvm.create_segment(&path, 16 * 4096, SegmentAllocation::Sparse)
        .unwrap();
    for round in 0..1000u64 {
        let region = rvm.map(&path, 0, 0).unwrap();
        assert_eq!(region.get(8), Ok(round));
        assert_eq!(mappings(&path), 1);
        let mut transaction = rvm.begin(RestoreMode::Restore);
        transaction.set(&region, 8, &(round + 1)).unwrap();
        transaction.commit(Durability::Remote).unwrap();
        region.unmap().unwrap();
        assert_eq!(mappings(&path), 0);
    }
    assert_eq!(rvm.query().regions, []);
    // Only `keep_unmapped` leaves a mapping behind.
    rvm.map(&path, 0, 0).unwrap().keep_unmapped().unwrap();
    assert_eq!(mappings(&path), 1);
}

#[test]
fn several_threads_have_transactions_open_at_once() {
    const THREADS: usize = 8;
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("a");
    rvm.create_segment(&path, 4096 * THREADS as u64, SegmentAllocation::Sparse)
        .unwrap();
    let region = rvm.map(&path, 0, 0).unwrap();
    let all = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (rvm, region, all) = (&rvm, &region, &all);
            scope.spawn(move || {
                for round in 1..=50u64 {
                    let mut transaction = rvm.begin(RestoreMode::Restore);
                    transaction.set(region, thread * 4096, &round).unwrap();
                    all.wait();
                    assert_eq!(rvm.query().open_transactions, THREADS);
                    all.wait();
                    // A third of them abort, the others commit, all at once.
                    match (thread as u64 + round) % 3 {
                        0 => transaction.abort(),
                        _ => drop(transaction.commit(Durability::Remote).unwrap()),
                    }
                    all.wait();
                }
            });
        }
    });
    let last = |thread: u64| {
        (1..=50)
            .rev()
            .find(|round| !(thread + round).is_multiple_of(3))
            .unwrap()
    };
    drop((region, rvm));
    machine.crash(1);
    let rvm = directory.open(&machine).unwrap();
    let region = rvm.map(&path, 0, 0).unwrap();
    for thread in 0..THREADS {
        assert_eq!(region.get(thread * 4096), Ok(last(thread as u64)));
    }
}

#[test]
fn a_transaction_larger_than_the_log_is_refused_and_its_region_can_be_unmapped() {
    // In the original such a transaction was half ended: an abort killed the process, and the region stayed
    // mapped.
    let (directory, machine) = (TestDirectory::new(), Machine::new(64 * 1024));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("a");
    rvm.create_segment(&path, 1 << 20, SegmentAllocation::Sparse)
        .unwrap();
    let region = rvm.map(&path, 0, 0).unwrap();
    for keep_open in [false, true] {
        for durability in [Durability::Remote, Durability::Lazy] {
            let mut transaction = rvm.begin(RestoreMode::Restore);
            for part in 0..20 {
                transaction.write(&region, part * 50_000, &[9; 5000]).unwrap();
            }
            match keep_open {
                false => {
                    let refused = transaction.commit(durability);
                    assert!(
                        matches!(refused, Err(RvmCommitError::TooLarge { .. })),
                        "{refused:?}"
                    );
                }
                true => {
                    let refused = transaction.try_commit(durability);
                    assert!(
                        matches!(refused, Err(RvmCommitError::TooLarge { .. })),
                        "{refused:?}"
                    );
                    assert_eq!(region.get(0), Ok([9u8; 8]), "still open");
                    transaction.abort();
                }
            }
            assert!(region.read().iter().all(|byte| *byte == 0));
        }
    }
    assert_eq!(rvm.query().regions[0].transactions, 0);
    region.unmap().unwrap();
    let region = rvm.map(&path, 0, 0).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.write(&region, 0, &[1; 5000]).unwrap();
    transaction.commit(Durability::Remote).unwrap();
}
