//! Regions in adaptive mode, whose pages are recorded, compared or logged whole; and verified regions, whose
//! undeclared stores are found.

use std::os::unix::fs::FileExt;

use crate::common::{Machine, Random, TestDirectory};
use netram_proto::port::Durability;
use netram_rvm::{
    CaptureMode, DetectMethod, RangeError, Region, RestoreMode, Rvm, RvmCommitError, SegmentAllocation,
    SegmentStorage, UndeclaredStore, VerifyMode,
};

const LENGTH: usize = 6 * 4096 + 40;

/// Runs a sequence of transactions that update some pages hundreds of times. Returns the region's bytes
/// before and after a crash.
fn run(capture: CaptureMode, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let machine = Machine::new(1 << 20);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", LENGTH as u64, SegmentAllocation::Sparse)
        .unwrap();
    let mut region = rvm.map("a", 0, 0).unwrap();
    region.set_capture(capture).unwrap();
    let mut random = Random(seed);
    for round in 0..60u64 {
        let restores = random.below(3) > 0;
        let mode = if restores {
            RestoreMode::Restore
        } else {
            RestoreMode::NoRestore
        };
        let mut transaction = rvm.begin(mode);
        // Each page is updated often for a while, and the last ones change as a whole.
        let hot = (round / 20) as usize;
        for _ in 0..random.below(400) {
            let at = hot * 4096 + random.below(4096) as usize;
            let value = random.below(1 << 32);
            transaction.set(&region, at, &value).unwrap();
        }
        for _ in 0..random.below(4) {
            let at = random.below(LENGTH as u64 - 8) as usize;
            transaction.set(&region, at, &round).unwrap();
        }
        if random.below(2) == 0 {
            let bytes: Vec<u8> = (0..6000).map(|_| random.below(256) as u8).collect();
            for _ in 0..70 {
                transaction.write(&region, 12_000, &bytes[..3000]).unwrap();
                transaction.write(&region, 15_000, &bytes[3000..]).unwrap();
            }
        }
        // Without restoring, an abort leaves bytes that a crash loses, so such runs contain no abort.
        match restores && random.below(3) == 0 {
            true => transaction.abort(),
            false => drop(transaction.commit(Durability::Remote).unwrap()),
        }
        machine.log_syncs();
        rvm.truncate().unwrap();
    }
    let before = region.read().to_vec();
    drop((region, rvm));
    machine.crash(seed);
    let rvm = machine.open().unwrap();
    let after = rvm.map("a", 0, 0).unwrap().read().to_vec();
    (before, after)
}

#[test]
fn adaptive_regions_leave_the_same_bytes_as_declared_ones() {
    for seed in 0..10 {
        let recorded = run(CaptureMode::Declared, seed);
        assert!(recorded.0 == recorded.1, "seed {seed}");
        assert!(
            run(CaptureMode::Adaptive, seed) == recorded,
            "adaptive, seed {seed}"
        );
        assert!(
            run(CaptureMode::Verified(VerifyMode::Refuse), seed) == recorded,
            "verified, seed {seed}"
        );
    }
}

#[test]
fn a_page_with_many_updates_is_compared_and_one_with_few_is_recorded() {
    let machine = Machine::new(1 << 20);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", LENGTH as u64, SegmentAllocation::Sparse)
        .unwrap();
    let mut region = rvm.map("a", 0, 0).unwrap();
    region.set_capture(CaptureMode::Adaptive).unwrap();
    let mut logged = Vec::new();
    for round in 1..5u64 {
        let before = rvm.statistics().bytes_committed;
        let mut transaction = rvm.begin(RestoreMode::Restore);
        for update in 0..200 {
            // All are declared, but only one changes.
            let value = if update == 7 { round } else { 0 };
            transaction.set(&region, update * 16, &value).unwrap();
        }
        transaction.set(&region, 8192, &0u64).unwrap();
        transaction.commit(Durability::Remote).unwrap();
        logged.push(rvm.statistics().bytes_committed - before);
    }
    // Only the lowest byte of the changed number differs; the eight of the other page are recorded as
    // declared.
    assert_eq!(logged, [201 * 8, 201 * 8, 1 + 8, 1 + 8]);
    let mut first = rvm.begin(RestoreMode::Restore);
    first.set(&region, 0, &9u64).unwrap();
    let mut second = rvm.begin(RestoreMode::Restore);
    assert_eq!(second.set_range(&region, 9000, 8), Err(RangeError::Captured));
}

/// Offset and length in the region of each store found.
fn places(found: &[UndeclaredStore]) -> Vec<(usize, usize)> {
    found.iter().map(|one| (one.region_offset, one.length)).collect()
}

/// Stores without a declaration, past this library: through the system.
fn store(region: &Region, stores: &[(usize, usize)]) {
    let memory = std::fs::File::options()
        .write(true)
        .open("/proc/self/mem")
        .unwrap();
    for (at, length) in stores {
        let address = region.as_ptr().addr() + at;
        memory.write_all_at(&vec![0xee; *length], address as u64).unwrap();
    }
}

fn undeclared_stores_are_found<S: SegmentStorage>(rvm: &Rvm<Machine, S>, path: &str) {
    rvm.create_segment(path, 5 * 4096, SegmentAllocation::Sparse)
        .unwrap();
    let mut region = rvm.map(path, 4096, 0).unwrap();
    region
        .set_capture(CaptureMode::Verified(VerifyMode::Refuse))
        .unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&region, 100, &1u64).unwrap();
    let mut another = rvm.begin(RestoreMode::NoRestore);
    another.set(&region, 4090, &u64::MAX).unwrap();
    // Around the transaction's declared ranges, and beside those of another.
    let stores = [(99, 1), (108, 2), (4098, 1)];
    store(&region, &stores);
    let refused = transaction.try_commit(Durability::Remote);
    let Err(RvmCommitError::Undeclared {
        offset,
        length,
        address,
        count,
        ..
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((offset, length, count), (4096 + 99, 1, 3));
    assert_eq!(address, region.as_ptr().addr() + 99);
    assert_eq!(places(&region.take_undeclared()), stores);
    region.undo_undeclared().unwrap();
    let after = [region.get(96), region.get(104), region.get(112)];
    assert_eq!(after, [Ok(1u64 << 32), Ok(0), Ok(0)], "declared bytes stay");
    store(&region, &stores);
    for (at, length) in stores {
        transaction.set_range(&region, at, length).unwrap();
    }
    transaction.commit(Durability::Remote).unwrap();
    another.commit(Durability::Remote).unwrap();
    assert_eq!(region.take_undeclared(), []);

    region
        .set_capture(CaptureMode::Verified(VerifyMode::Report))
        .unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&region, 0, &1u64).unwrap();
    store(&region, &[(8000, 3)]);
    region.put_back(50, b"by the library").unwrap();
    transaction.commit(Durability::Remote).unwrap();
    let mut later = rvm.begin(RestoreMode::Restore);
    later.set(&region, 8, &1u64).unwrap();
    later.abort();
    let mut last = rvm.begin(RestoreMode::Restore);
    last.set_range(&region, 16, 8).unwrap();
    last.commit(Durability::Remote).unwrap();
    let found = region.take_undeclared();
    assert_eq!(places(&found), [(8000, 3)], "said once");
    assert_eq!(
        (found[0].offset, &found[0].segment[..]),
        (4096 + 8000, region.segment_path())
    );
}

#[test]
fn undeclared_stores_are_found_in_mapped_pages_and_on_the_heap() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let probe = directory.path("probe");
    rvm.create_segment(&probe, 4096, SegmentAllocation::Sparse)
        .unwrap();
    let mut probe = rvm.map(&probe, 0, 0).unwrap();
    match probe.set_capture(CaptureMode::Twins(DetectMethod::Watch)) {
        Ok(()) => undeclared_stores_are_found(&rvm, &directory.path("a")),
        // Page protection cannot find stores that the system makes for the program, as here.
        Err(refused) => crate::common::skipped(refused),
    }
    undeclared_stores_are_found(&Machine::new(1 << 20).open().unwrap(), "a");
}
