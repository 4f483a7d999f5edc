//! Stores that are found, not declared. After a crash and after an abort memory is the same as with
//! declarations, in every capture mode.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Machine, Random, TestDirectory};
use netram_proto::port::Durability;
use netram_rvm::{
    CaptureError, CaptureMode, DetectMethod, RangeError, RealStorage, Region, RestoreMode, Rvm,
    RvmCommitError, SegmentAllocation,
};

const LENGTH: usize = 10 * 4096 + 100;

type DirectoryRvm = Rvm<Machine, RealStorage>;

/// The capture modes that this machine supports; reports those it does not.
fn ways() -> Vec<CaptureMode> {
    let directory = TestDirectory::new();
    let (_rvm, mut region) = opened(&directory, &Machine::new(1 << 20));
    let mut ways = vec![
        CaptureMode::Twins(DetectMethod::Trap),
        CaptureMode::Pages(DetectMethod::Trap),
        CaptureMode::Twins(DetectMethod::Watch),
        CaptureMode::Pages(DetectMethod::Watch),
    ];
    if let Err(refused) = region.set_capture(CaptureMode::Twins(DetectMethod::Watch)) {
        assert!(matches!(refused, CaptureError::NoWatch { .. }), "{refused}");
        crate::common::skipped(refused);
        ways.truncate(2);
    }
    ways
}

fn opened(directory: &TestDirectory, machine: &Machine) -> (DirectoryRvm, Region) {
    let rvm = directory.open(machine).unwrap();
    let path = directory.path("a");
    if !std::path::Path::new(&path).exists() {
        rvm.create_segment(&path, LENGTH as u64, SegmentAllocation::Sparse)
            .unwrap();
    }
    let region = rvm.map(&path, 0, 0).unwrap();
    (rvm, region)
}

/// Runs a sequence of transactions, stores and aborts. Returns the region's bytes after a crash, and before
/// it.
fn run(capture: CaptureMode, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let (rvm, mut region) = opened(&directory, &machine);
    region.set_capture(capture).unwrap();
    let declared = capture == CaptureMode::Declared;
    let mut random = Random(seed);
    for round in 0..40 {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        if !declared {
            transaction.capture(&region).unwrap();
        }
        for _ in 0..random.below(12) {
            let at = random.below(LENGTH as u64 - 300) as usize;
            let bytes = vec![random.below(4) as u8; random.below(300) as usize];
            match declared || random.below(4) == 0 {
                true => transaction.write(&region, at, &bytes).unwrap(),
                false => region.put_back(at, &bytes).unwrap(),
            }
            // The other modes draw one random number more.
            if declared {
                random.below(4);
            }
        }
        match random.below(4) {
            0 => transaction.abort(),
            _ => drop(transaction.commit(Durability::Remote).unwrap()),
        }
        if round % 7 == 0 {
            rvm.truncate_step().unwrap();
        }
    }
    let before = region.read().to_vec();
    drop((region, rvm));
    machine.crash(seed);
    let (_rvm, region) = opened(&directory, &machine);
    let after = region.read().to_vec();
    (before, after)
}

#[test]
fn found_stores_leave_the_same_bytes_as_declared_ones() {
    let ways = ways();
    for seed in 0..12 {
        let (before, after) = run(CaptureMode::Declared, seed);
        assert!(before == after, "seed {seed}");
        for way in &ways {
            let found = run(*way, seed);
            assert!(found.0 == before, "memory, {way:?}, seed {seed}");
            assert!(found.1 == after, "after the crash, {way:?}, seed {seed}");
        }
    }
}

#[test]
fn twins_log_only_differing_bytes_and_pages_log_whole_pages() {
    for way in ways() {
        let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
        let (rvm, mut region) = opened(&directory, &machine);
        region.set_capture(way).unwrap();
        for round in 1..3u8 {
            let before = rvm.statistics().bytes_committed;
            let mut transaction = rvm.begin(RestoreMode::NoRestore);
            transaction.capture(&region).unwrap();
            region.put_back(4095, &[round, round]).unwrap();
            region.put_back(9000, &[round, 0, round]).unwrap();
            transaction.commit(Durability::Remote).unwrap();
            let logged = rvm.statistics().bytes_committed - before;
            match way {
                // The middle of the three bytes stays 0.
                CaptureMode::Twins(_) => assert_eq!(logged, 4, "{way:?}"),
                _ => assert_eq!(logged, 3 * 4096, "{way:?}"),
            }
        }
        let mut nothing = rvm.begin(RestoreMode::Restore);
        nothing.capture(&region).unwrap();
        assert_eq!(
            nothing.commit(Durability::Remote).unwrap().ticket,
            None,
            "{way:?}"
        );
    }
}

#[test]
fn only_one_transaction_at_a_time_uses_a_region_captured_by_page() {
    for way in ways() {
        let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
        let (rvm, mut region) = opened(&directory, &machine);
        region.set_capture(way).unwrap();
        let mut first = rvm.begin(RestoreMode::Restore);
        let mut second = rvm.begin(RestoreMode::Restore);
        first.set_range(&region, 0, 8).unwrap();
        assert_eq!(second.set_range(&region, 8, 8), Err(RangeError::Captured));
        assert_eq!(
            second.edit(&region).range_mut(8, 8).err(),
            Some(RangeError::Captured)
        );
        assert_eq!(
            region.set_capture(CaptureMode::Declared),
            Err(CaptureError::Uncommitted { transactions: 1 })
        );
        region.put_back(0, b"first").unwrap();
        first.abort();
        second.set_range(&region, 8, 8).unwrap();
        region.put_back(100, b"second").unwrap();
        second.commit(Durability::Remote).unwrap();
        assert_eq!(&region.read()[..5], [0; 5], "{way:?}");
        region.set_capture(CaptureMode::Declared).unwrap();
        assert_eq!(&region.read()[100..106], b"second");
    }
}

#[test]
fn a_refused_commit_keeps_the_transaction_open_with_its_stores() {
    for way in ways() {
        let (directory, machine) = (TestDirectory::new(), Machine::new(30_000));
        let (rvm, mut region) = opened(&directory, &machine);
        region.set_capture(way).unwrap();
        let mut transaction = rvm.begin(RestoreMode::Restore);
        transaction.capture(&region).unwrap();
        region.put_back(0, &vec![7; LENGTH]).unwrap();
        let refused = transaction.try_commit(Durability::Remote);
        assert!(matches!(refused, Err(RvmCommitError::TooLarge { .. })), "{way:?}");
        // The program undoes part of its stores, on pages that were found already.
        region.put_back(4096, &vec![0; LENGTH - 4096]).unwrap();
        match way {
            CaptureMode::Twins(_) => drop(transaction.commit(Durability::Remote).unwrap()),
            _ => transaction.abort(),
        }
        let first = if matches!(way, CaptureMode::Twins(_)) {
            7
        } else {
            0
        };
        drop((region, rvm));
        machine.crash(1);
        let (_rvm, region) = opened(&directory, &machine);
        assert!(region.read()[..4096].iter().all(|byte| *byte == first), "{way:?}");
        assert!(region.read()[4096..].iter().all(|byte| *byte == 0), "{way:?}");
    }
}

#[test]
fn an_abort_without_restoring_leaves_bytes_that_are_never_logged() {
    for way in ways() {
        let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
        let (rvm, mut region) = opened(&directory, &machine);
        region.set_capture(way).unwrap();
        let mut left = rvm.begin(RestoreMode::NoRestore);
        left.capture(&region).unwrap();
        region.put_back(50, b"left").unwrap();
        left.abort();
        assert_eq!(&region.read()[50..54], b"left");
        let mut kept = rvm.begin(RestoreMode::Restore);
        kept.capture(&region).unwrap();
        region.put_back(8192, b"kept").unwrap();
        kept.commit(Durability::Remote).unwrap();
        drop((region, rvm));
        machine.crash(1);
        let (_rvm, region) = opened(&directory, &machine);
        assert_eq!(
            (&region.read()[50..54], &region.read()[8192..8196]),
            (&[0; 4][..], &b"kept"[..])
        );
    }
}

#[test]
fn a_store_during_a_commit_is_logged_by_it_or_by_the_next() {
    for way in ways() {
        let (directory, machine) = (TestDirectory::new(), Machine::new(8 << 20));
        let (rvm, mut region) = opened(&directory, &machine);
        region.set_capture(way).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let (region, done) = (&region, &done);
            threads.spawn(move || {
                for round in 0..400u32 {
                    let at = (round as usize * 37) % (LENGTH / 8) * 8 + 4;
                    region.put_back(at, &(round + 1).to_le_bytes()).unwrap();
                }
                done.store(true, Ordering::SeqCst);
            });
            let mut round = 0u32;
            while !done.load(Ordering::SeqCst) {
                let mut transaction = rvm.begin(RestoreMode::NoRestore);
                transaction.capture(region).unwrap();
                let at = (round as usize * 53) % (LENGTH / 8) * 8;
                region.put_back(at, &round.to_le_bytes()).unwrap();
                transaction.commit(Durability::Lazy).unwrap();
                round += 1;
                machine.log_syncs();
                rvm.truncate().unwrap();
            }
        });
        let mut last = rvm.begin(RestoreMode::NoRestore);
        last.capture(&region).unwrap();
        last.commit(Durability::Remote).unwrap();
        let before = region.read().to_vec();
        drop((region, rvm));
        machine.crash(1);
        let (_rvm, region) = opened(&directory, &machine);
        assert!(region.read()[..] == before[..], "{way:?}");
    }
}

#[test]
fn memory_that_is_not_pages_cannot_be_captured_by_page() {
    let machine = Machine::new(1 << 16);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 4096, SegmentAllocation::Sparse).unwrap();
    let mut region = rvm.map("a", 0, 0).unwrap();
    let refused = region.set_capture(CaptureMode::Twins(DetectMethod::Trap));
    assert_eq!(refused, Err(CaptureError::NotPages));
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&region, 0, &1u64).unwrap();
    transaction.commit(Durability::Remote).unwrap();
}

#[test]
fn a_region_kept_unmapped_can_be_stored_to() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 16));
    let (_rvm, mut region) = opened(&directory, &machine);
    region
        .set_capture(CaptureMode::Twins(DetectMethod::Trap))
        .unwrap();
    region.keep_unmapped().unwrap();
    // Its slot is free again, and no handler waits for it, so another region can use it.
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 16));
    let (_rvm, mut region) = opened(&directory, &machine);
    region
        .set_capture(CaptureMode::Pages(DetectMethod::Trap))
        .unwrap();
    region.put_back(0, b"x").unwrap();
}
