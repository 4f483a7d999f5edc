//! Promises of the interface, one test each; several are defects of the original that must not return.

use crate::common::{Machine, TestRvm};
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_rvm::record::{KIND_COMPACT, encode};
use netram_rvm::{
    ForgetError, MapError, RangeError, RangeView, RestoreMode, Rvm, RvmCommitError, RvmOpenError,
    SegmentError, SegmentTableError, TruncateError, UnmapError,
};

fn machine() -> (Machine, TestRvm) {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 8192, Default::default()).unwrap();
    rvm.create_segment("b", 8192, Default::default()).unwrap();
    (machine, rvm)
}

fn commit(rvm: &TestRvm, region: &netram_rvm::Region, offset: usize, value: u64) {
    let mut transaction = rvm.begin(RestoreMode::NoRestore);
    transaction.set(region, offset, &value).unwrap();
    transaction.commit(Durability::Remote).unwrap();
}

#[test]
fn a_region_mapped_again_shows_committed_bytes() {
    // The original showed old bytes: its mark for unapplied records was never set.
    let (_, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    commit(&rvm, &a, 16, 7);
    let mut lazy = rvm.begin(RestoreMode::NoRestore);
    lazy.set(&a, 24, &8u64).unwrap();
    lazy.commit(Durability::Lazy).unwrap();
    a.unmap().unwrap();
    let a = rvm.map("a", 0, 0).unwrap();
    assert_eq!((a.get(16), a.get(24)), (Ok(7u64), Ok(8u64)));
}

#[test]
fn a_refused_commit_can_be_aborted_and_the_region_unmapped() {
    // In the original the transaction was already unlinked: an abort killed the process.
    let (_, rvm) = machine();
    rvm.create_segment("large", 64 * 1024, Default::default())
        .unwrap();
    let large = rvm.map("large", 0, 0).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    for at in 0..4 {
        transaction.write(&large, at * 8192, &[9; 8000]).unwrap();
    }
    let refused = transaction.try_commit(Durability::Remote);
    assert!(
        matches!(refused, Err(RvmCommitError::TooLarge { .. })),
        "{refused:?}"
    );
    assert!(transaction.is_open());
    transaction.abort();
    assert!(large.read().iter().all(|byte| *byte == 0));
    large.unmap().unwrap();
}

#[test]
fn a_failed_commit_restores_memory() {
    let (machine, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    machine.crash_after(0);
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&a, 0, &7u64).unwrap();
    assert!(matches!(
        transaction.commit(Durability::Remote),
        Err(RvmCommitError::Refused(_))
    ));
    assert_eq!(a.get(0), Ok(0u64));
}

#[test]
fn an_interrupted_commit_is_unknown_and_keeps_its_memory() {
    let (machine, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    machine.crash_after(1);
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&a, 0, &7u64).unwrap();
    assert!(matches!(
        transaction.commit(Durability::Remote),
        Err(RvmCommitError::Unknown { .. })
    ));
    assert_eq!(a.get(0), Ok(7u64));
    assert_eq!(rvm.statistics().unknown_commits, 1);
}

#[test]
fn drop_and_abort_restore_in_reverse_order() {
    let (_, rvm) = machine();
    let (a, b) = (rvm.map("a", 0, 0).unwrap(), rvm.map("b", 0, 0).unwrap());
    commit(&rvm, &a, 0, 1);
    for explicit in [true, false] {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        transaction.set(&a, 0, &2u64).unwrap();
        transaction.set(&b, 0, &2u64).unwrap();
        transaction.set(&a, 4, &3u64).unwrap();
        transaction.set(&a, 0, &4u64).unwrap();
        if explicit {
            transaction.abort();
        }
    }
    assert_eq!((a.get(0), a.get(8), b.get(0)), (Ok(1u64), Ok(0u64), Ok(0u64)));
    let mut kept = rvm.begin(RestoreMode::NoRestore);
    kept.set(&a, 0, &5u64).unwrap();
    kept.abort();
    assert_eq!(a.get(0), Ok(5u64));
}

#[test]
fn ranges_outside_are_refused_and_change_nothing() {
    let (_, rvm) = machine();
    let a = rvm.map("a", 0, 4096).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    for (offset, length) in [(4096, 1), (0, 4097), (usize::MAX, 1), (1, usize::MAX)] {
        let refused = transaction.set_range(&a, offset, length);
        assert_eq!(
            refused,
            Err(RangeError::OutOfRegion {
                offset,
                length,
                region: 4096
            })
        );
    }
    assert!(transaction.edit(&a).range_mut(4090, 7).is_err());
    assert!(transaction.write_in(&mut a.exclusive(), 4090, &[1; 7]).is_err());
    assert!(a.get::<u64>(4089).is_err());
    transaction.set_range(&a, 4096, 0).unwrap();
    assert_eq!(transaction.ranges(), 0);
    a.unmap().unwrap();
    assert_eq!(
        transaction.commit(Durability::Remote).unwrap().ticket,
        None,
        "nothing to log"
    );
}

#[test]
fn a_range_larger_than_a_record_is_refused_at_once() {
    let (machine, rvm) = machine();
    rvm.create_segment("large", 64 * 1024, Default::default())
        .unwrap();
    let large = rvm.map("large", 0, 0).unwrap();
    // One byte for the missing preamble, and at most 16 for the range's header.
    let max = RecordLog::state(&machine).payload_max - 17;
    let mut transaction = rvm.begin(RestoreMode::Restore);
    let refused = transaction.set_range(&large, 0, max + 1);
    assert_eq!(refused, Err(RangeError::TooLarge { length: max + 1, max }));
    transaction.write(&large, 0, &vec![1; max]).unwrap();
    transaction.commit(Durability::Remote).unwrap();
}

#[test]
fn an_ended_transaction_refuses_every_call() {
    let (_, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&a, 0, &1u64).unwrap();
    transaction.try_commit(Durability::Remote).unwrap();
    assert_eq!(transaction.set(&a, 0, &2u64), Err(RangeError::Ended));
    assert_eq!(
        transaction.try_commit(Durability::Remote),
        Err(RvmCommitError::Ended)
    );
    assert_eq!(a.get(0), Ok(1u64));
}

#[test]
fn regions_of_another_log_are_refused() {
    let ((_, rvm), (_, other)) = (machine(), machine());
    let a = other.map("a", 0, 0).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    assert_eq!(transaction.set_range(&a, 0, 1), Err(RangeError::ForeignRegion));
}

#[test]
fn mappings_must_be_page_aligned_inside_the_segment_and_disjoint() {
    let (_, rvm) = machine();
    assert!(matches!(rvm.map("a", 100, 0), Err(MapError::Unaligned { .. })));
    assert!(matches!(
        rvm.map("a", 8192, 0),
        Err(MapError::OutOfSegment { .. })
    ));
    assert!(matches!(
        rvm.map("a", 4096, 4097),
        Err(MapError::OutOfSegment { .. })
    ));
    assert!(matches!(
        rvm.map("a", 4096, u64::MAX),
        Err(MapError::OutOfSegment { .. })
    ));
    let missing = rvm.map("nowhere", 0, 0).unwrap_err();
    assert!(
        matches!(missing, MapError::Segment(SegmentError::Missing { .. })),
        "{missing}"
    );
    let first = rvm.map("a", 0, 100).unwrap();
    assert!(matches!(rvm.map("a", 0, 0), Err(MapError::Overlap { .. })));
    let second = rvm.map("a", 4096, 0).unwrap();
    assert_eq!((first.len(), second.len()), (100, 4096));
    drop(first);
    rvm.map("a", 0, 4096).unwrap();
}

#[test]
fn a_region_with_open_ranges_stays_mapped() {
    let (_, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set_range(&a, 0, 8).unwrap();
    let (error, a) = a.unmap().unwrap_err();
    assert_eq!(error, UnmapError::Uncommitted { transactions: 1 });
    // Dropping the handle instead keeps the memory until the transaction ends.
    drop(a);
    assert!(matches!(rvm.map("a", 0, 0), Err(MapError::Overlap { .. })));
    transaction.commit(Durability::Remote).unwrap();
    rvm.map("a", 0, 0).unwrap();
}

#[test]
fn overlapping_transactions_log_the_values_at_their_commit() {
    let (machine, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    let (mut first, mut second) = (rvm.begin(RestoreMode::Restore), rvm.begin(RestoreMode::Restore));
    first.set(&a, 0, &1u64).unwrap();
    second.set(&a, 0, &2u64).unwrap();
    second.commit(Durability::Remote).unwrap();
    first.commit(Durability::Remote).unwrap();
    drop((a, rvm));
    machine.crash(1);
    let rvm = machine.open().unwrap();
    assert_eq!(rvm.recovery().transactions, 2);
    assert_eq!(rvm.map("a", 0, 0).unwrap().get(0), Ok(2u64));
}

#[test]
fn truncation_does_not_apply_unstable_records() {
    let (machine, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    commit(&rvm, &a, 0, 1);
    for _ in 0..10 {
        rvm.truncate_step().unwrap();
    }
    assert_eq!(machine.file("a")[0], 0, "acknowledged is not stable");
    machine.log_syncs();
    while rvm.truncate_step().unwrap() != netram_rvm::TruncateProgress::Idle {}
    assert_eq!(machine.file("a")[0], 1);
}

#[test]
fn truncation_writes_no_uncommitted_byte() {
    let (machine, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    commit(&rvm, &a, 0, 1);
    let mut open = rvm.begin(RestoreMode::Restore);
    open.set(&a, 0, &2u64).unwrap();
    rvm.truncate().unwrap();
    assert_eq!(machine.file("a")[0], 1);
    open.abort();
    assert_eq!(a.get(0), Ok(1u64));
}

#[test]
fn truncation_writes_each_byte_once_per_round() {
    let (_, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    (1..=100).for_each(|value| commit(&rvm, &a, 0, value));
    rvm.truncate().unwrap();
    let statistics = rvm.statistics();
    assert_eq!((statistics.bytes_read, statistics.bytes_applied), (800, 8));
    assert_eq!((statistics.rounds, statistics.transactions_applied), (1, 100));
}

#[test]
fn bytes_written_before_a_failed_sync_are_written_again() {
    let (machine, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    commit(&rvm, &a, 0, 7);
    machine.fail_syncs(1);
    assert!(matches!(
        rvm.truncate(),
        Err(TruncateError::Segment(SegmentError::Io { .. }))
    ));
    rvm.truncate().unwrap();
    drop((a, rvm));
    machine.crash(1);
    let rvm = machine.open().unwrap();
    assert_eq!(rvm.map("a", 0, 0).unwrap().get(0), Ok(7u64));
}

/// Leaves a record for segment "a" in the log of a crashed machine.
fn crashed() -> Machine {
    let (machine, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    commit(&rvm, &a, 4096, 7);
    drop((a, rvm));
    machine.crash(1);
    machine
}

fn segment_error(machine: &Machine) -> SegmentError {
    match machine.open() {
        Err(RvmOpenError::Recovery(TruncateError::Segment(error))) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn recovery_refuses_missing_short_and_foreign_segments() {
    let lost = crashed();
    lost.remove_file("a");
    assert!(matches!(segment_error(&lost), SegmentError::Missing { path } if path == "a"));
    let short = crashed();
    short.change_file("a", |bytes| bytes.truncate(4096));
    assert!(matches!(
        segment_error(&short),
        SegmentError::Short {
            found: 4096,
            needed: 8192,
            ..
        }
    ));
    let foreign = crashed();
    foreign.replace_file("a");
    assert!(
        segment_error(&foreign)
            .to_string()
            .starts_with("this log belongs to another segment at a")
    );
    let mut options = Machine::options();
    options.adopt_segments = true;
    Rvm::open(foreign.clone(), foreign.storage(), options).unwrap();
}

#[test]
fn recovery_refuses_damaged_and_foreign_records() {
    let damaged = crashed();
    damaged.change_log(|bytes| bytes[0] ^= 64);
    let error = damaged.open().unwrap_err();
    assert!(
        matches!(error, RvmOpenError::Recovery(TruncateError::Damaged { .. })),
        "{error}"
    );
    let unknown = crashed();
    let range = RangeView {
        segment: 9,
        offset: 0,
        bytes: &[1],
    };
    let payload = encode(&[], &[range]);
    let ticket = unknown.append(KIND_COMPACT, payload.len(), &mut |into| {
        into.copy_from_slice(&payload)
    });
    unknown.wait(ticket.unwrap(), Durability::Disk).unwrap();
    let error = unknown.open().unwrap_err();
    assert!(matches!(
        error,
        RvmOpenError::Recovery(TruncateError::UnknownSegment { segment: 9, .. })
    ));
    let volume = Machine::new(4096);
    let ticket = volume
        .append(RecordKind(32), 8, &mut |bytes| bytes.fill(1))
        .unwrap();
    volume.wait(ticket, Durability::Disk).unwrap();
    let error = volume.open().unwrap_err();
    assert!(matches!(
        error,
        RvmOpenError::Recovery(TruncateError::ForeignKind {
            kind: RecordKind(32),
            ..
        })
    ));
    assert_eq!(
        RecordLog::state(&volume).head,
        ticket.lsn,
        "no record was trimmed"
    );
}

#[test]
fn records_of_the_journal_itself_are_skipped() {
    let machine = Machine::new(4096);
    let ticket = machine
        .append(RecordKind(1), 8, &mut |bytes| bytes.fill(1))
        .unwrap();
    let rvm = machine.open().unwrap();
    assert_eq!(rvm.recovery().end, ticket.end);
    assert_eq!(rvm.recovery().transactions, 0);
}

#[test]
fn a_table_of_another_journal_is_refused() {
    let machine = crashed();
    let options = netram_rvm::RvmOptions::new(netram_proto::id::JournalId(1));
    let opened = Rvm::open(machine.clone(), machine.storage(), options);
    assert!(matches!(
        opened,
        Err(RvmOpenError::Table(SegmentTableError::Foreign { .. }))
    ));
}

#[test]
fn a_segment_can_grow_and_be_removed_from_the_table() {
    let (machine, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    commit(&rvm, &a, 0, 7);
    assert!(matches!(rvm.forget_segment("a"), Err(ForgetError::Mapped { .. })));
    a.unmap().unwrap();
    machine.change_file("a", |bytes| bytes.resize(3 * 4096, 0));
    let a = rvm.map("a", 0, 0).unwrap();
    assert_eq!((a.len(), a.get(0)), (3 * 4096, Ok(7u64)));
    commit(&rvm, &a, 8192, 9);
    a.unmap().unwrap();
    rvm.forget_segment("a").unwrap();
    assert!(matches!(
        rvm.forget_segment("a"),
        Err(ForgetError::Unknown { .. })
    ));
    assert_eq!(machine.file("a")[8192], 9, "committed bytes are applied first");
    assert_eq!(rvm.query().segments, []);
    // The number is free for another segment.
    let b = rvm.map("b", 0, 0).unwrap();
    commit(&rvm, &b, 0, 5);
    drop((b, rvm));
    machine.crash(1);
    let rvm = machine.open().unwrap();
    assert_eq!(rvm.map("b", 0, 0).unwrap().get(0), Ok(5u64));
    assert_eq!(machine.file("a")[0], 7);
}

#[test]
fn a_segment_whose_removal_failed_is_in_the_table_before_its_next_record() {
    // The first of the two writes marks the segment as complete, the second removes it from the table.
    for write in 1..=2 {
        let (machine, rvm) = machine();
        commit(&rvm, &rvm.map("a", 0, 0).unwrap(), 0, 7);
        rvm.truncate().unwrap();
        // The disk takes the bytes although the sync fails.
        machine.fail_table_sync(write);
        let refused = rvm.forget_segment("a");
        assert!(
            matches!(refused, Err(ForgetError::Table(_))),
            "{write}: {refused:?}"
        );
        let a = rvm.map("a", 0, 0).unwrap();
        commit(&rvm, &a, 8, 9);
        drop((a, rvm));
        machine.crash(1);
        let a = machine.open().unwrap().map("a", 0, 0).unwrap();
        assert_eq!((a.get(0), a.get(8)), (Ok(7u64), Ok(9u64)), "{write}");
    }
}

#[test]
fn a_query_lists_regions_and_open_transactions() {
    let (_, rvm) = machine();
    let a = rvm.map("a", 4096, 0).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set_range(&a, 0, 8).unwrap();
    let query = rvm.query();
    assert_eq!(query.open_transactions, 1);
    assert_eq!(query.regions.len(), 1);
    assert_eq!(
        (query.regions[0].offset, query.regions[0].transactions),
        (4096, 1)
    );
    assert_eq!(query.segments, [("a".to_owned(), 8192)]);
    drop(transaction);
    assert_eq!(rvm.query().open_transactions, 0);
}

#[test]
fn a_panic_inside_an_edit_is_undone() {
    let (_, rvm) = machine();
    let a = rvm.map("a", 0, 0).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        let mut edit = transaction.edit(&a);
        edit.range_mut(0, 8).unwrap().fill(9);
        panic!("in the middle");
    }));
    assert!(panicked.is_err());
    assert_eq!(a.get(0), Ok(0u64));
}
