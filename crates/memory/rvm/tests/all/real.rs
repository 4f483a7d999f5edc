//! Real files and private mappings, with the in-memory log.

use crate::common::{Machine, TestDirectory};
use netram_proto::port::Durability;
use netram_rvm::{
    MapError, RealStorage, RestoreMode, Rvm, RvmOpenError, RvmOptions, SegmentAllocation, SegmentError,
    TruncateError,
};

#[test]
fn committed_bytes_survive_and_uncommitted_ones_do_not() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("a");
    rvm.create_segment(&path, 1 << 20, SegmentAllocation::Preallocated)
        .unwrap();
    let refused = rvm.create_segment(&path, 1 << 20, SegmentAllocation::Preallocated);
    assert_eq!(refused, Err(SegmentError::Exists { path: path.clone() }));
    let a = rvm.map(&path, 0, 0).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.write(&a, 500_000, b"kept").unwrap();
    transaction.commit(Durability::Remote).unwrap();
    let mut open = rvm.begin(RestoreMode::NoRestore);
    open.write(&a, 500_004, b"lost").unwrap();
    drop((open, a, rvm));
    machine.crash(1);
    let rvm = directory.open(&machine).unwrap();
    assert_eq!(rvm.recovery().bytes, 4);
    let a = rvm.map(&path, 0, 0).unwrap();
    assert_eq!(&a.read()[499_999..500_008], b"\0kept\0\0\0\0");
}

#[test]
fn an_error_names_the_reason_why_a_segment_cannot_be_created() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    for (name, length, cause) in [
        ("nowhere/a", 4096, "directory"),
        ("a\0b", 4096, "zero byte"),
        ("a", 1 << 63, "smaller size"),
    ] {
        let refused = rvm.create_segment(&directory.path(name), length, SegmentAllocation::Preallocated);
        let said = refused.unwrap_err().to_string();
        assert!(said.contains(cause) && !said.contains('\0'), "{said}");
    }
    let said = rvm.map("a\0b", 0, 0).unwrap_err().to_string();
    assert!(said.contains("zero byte"), "{said}");
    // The next attempt succeeds.
    rvm.create_segment(&directory.path("a"), 4096, SegmentAllocation::Preallocated)
        .unwrap();
}

#[test]
fn truncation_does_not_change_mapped_bytes() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("a");
    rvm.create_segment(&path, 64 * 4096, SegmentAllocation::Sparse)
        .unwrap();
    let a = rvm.map(&path, 0, 0).unwrap();
    let mut model = vec![0u8; 64 * 4096];
    let mut random = crate::common::Random(5);
    for round in 0..300u64 {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        for _ in 0..4 {
            let (at, length) = (random.below(63 * 4096) as usize, random.below(3000) as usize);
            let bytes = vec![round as u8; length];
            transaction.write(&a, at, &bytes).unwrap();
            if round % 3 != 0 {
                model[at..at + length].copy_from_slice(&bytes);
            }
        }
        // Declared but never stored to: the commit logs the bytes of the untouched page.
        transaction.set_range(&a, 0, 10).unwrap();
        match round % 3 {
            0 => transaction.abort(),
            _ => drop(transaction.commit(Durability::Disk).unwrap()),
        }
        rvm.truncate_step().unwrap();
        assert!(a.read()[..] == model[..], "round {round}");
    }
    a.unmap().unwrap();
    assert!(rvm.map(&path, 0, 0).unwrap().read()[..] == model[..]);
    rvm.truncate().unwrap();
    assert!(std::fs::read(&path).unwrap() == model);
}

#[test]
fn opening_a_huge_segment_costs_nothing() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("huge");
    // Far more than the machine's memory, and beyond 4 GiB, where the original failed.
    let length = 1u64 << 40;
    if rvm
        .create_segment(&path, length, SegmentAllocation::Sparse)
        .is_err()
    {
        crate::common::skipped("this file system holds no sparse file of 1 TiB");
        return;
    }
    let huge = rvm.map(&path, 0, 0).unwrap();
    let at = length as usize - 8;
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&huge, at, &7u64).unwrap();
    transaction.commit(Durability::Remote).unwrap();
    huge.unmap().unwrap();
    assert_eq!(rvm.map(&path, length - 4096, 0).unwrap().get(4088), Ok(7u64));
}

#[test]
fn two_names_of_one_file_are_one_segment() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let (path, link) = (directory.path("a"), directory.path("link"));
    rvm.create_segment(&path, 4096, SegmentAllocation::Sparse)
        .unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let _a = rvm.map(&path, 0, 0).unwrap();
    assert!(matches!(rvm.map(&link, 0, 0), Err(MapError::Overlap { .. })));
}

#[test]
fn a_segment_of_another_log_is_in_use() {
    let (first, second) = (TestDirectory::new(), TestDirectory::new());
    let (one, two) = (Machine::new(1 << 20), Machine::new(1 << 20));
    let (one, two) = (first.open(&one).unwrap(), second.open(&two).unwrap());
    let path = first.path("a");
    one.create_segment(&path, 4096, SegmentAllocation::Sparse)
        .unwrap();
    let _a = one.map(&path, 0, 0).unwrap();
    let refused = two.map(&path, 0, 0).unwrap_err();
    assert!(
        matches!(refused, MapError::Segment(SegmentError::InUse { .. })),
        "{refused}"
    );
}

#[test]
fn a_segment_replaced_while_open_is_neither_mapped_nor_written() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let (path, aside) = (directory.path("a"), directory.path("aside"));
    rvm.create_segment(&path, 8192, SegmentAllocation::Sparse)
        .unwrap();
    let a = rvm.map(&path, 0, 4096).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&a, 0, &7u64).unwrap();
    transaction.commit(Durability::Disk).unwrap();

    std::fs::rename(&path, &aside).unwrap();
    let missing = SegmentError::Missing { path: path.clone() };
    assert_eq!(rvm.truncate(), Err(TruncateError::Segment(missing)));
    std::fs::write(&path, [0; 8192]).unwrap();
    let foreign = SegmentError::Foreign { path: path.clone() };
    assert_eq!(rvm.truncate(), Err(TruncateError::Segment(foreign.clone())));
    assert!(
        std::fs::read(&aside).unwrap() == [0; 8192],
        "the log still has the value"
    );

    std::fs::rename(&aside, &path).unwrap();
    rvm.truncate().unwrap();
    assert_eq!(std::fs::read(&path).unwrap()[0], 7);

    // No write to it is pending, but the next mapping would commit to the removed file.
    drop(a);
    std::fs::rename(&path, &aside).unwrap();
    std::fs::write(&path, [0; 8192]).unwrap();
    assert_eq!(rvm.map(&path, 0, 0).unwrap_err(), MapError::Segment(foreign));
    rvm.forget_segment(&path).unwrap();
    assert_eq!(rvm.map(&path, 0, 0).unwrap().get(0), Ok(0u64));
}

#[test]
fn a_replaced_segment_is_refused_until_adopted() {
    let (directory, machine) = (TestDirectory::new(), Machine::new(1 << 20));
    let rvm = directory.open(&machine).unwrap();
    let path = directory.path("a");
    rvm.create_segment(&path, 4096, SegmentAllocation::Sparse)
        .unwrap();
    let a = rvm.map(&path, 0, 0).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&a, 0, &7u64).unwrap();
    transaction.commit(Durability::Remote).unwrap();
    drop((a, rvm));
    machine.crash(1);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    match directory.open(&machine) {
        Err(RvmOpenError::Recovery(TruncateError::Segment(SegmentError::Foreign { .. }))) => {}
        Ok(_) => crate::common::skipped("this file system keeps no extended attributes"),
        other => panic!("{other:?}"),
    }
    let storage = RealStorage::open(&directory.path("table")).unwrap();
    let mut options = RvmOptions::new(crate::common::JOURNAL);
    options.adopt_segments = true;
    let rvm = Rvm::open(machine, storage, options).unwrap();
    assert_eq!(rvm.map(&path, 0, 0).unwrap().get(0), Ok(7u64));
}
