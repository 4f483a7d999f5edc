//! Logs of older programs, and the order of ranges in records.

use crate::common::Machine;
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_rvm::record::{KIND_COMPACT, KIND_TRANSACTION, decode};
use netram_rvm::{RestoreMode, RvmOpenError, TruncateError};

/// Appends a record of one range in the wide form of older programs.
fn wide(machine: &Machine, segment: u32, offset: u64, bytes: &[u8]) {
    let mut payload = 1u64.to_le_bytes().to_vec();
    payload.extend_from_slice(&u64::from(segment).to_le_bytes());
    payload.extend_from_slice(&offset.to_le_bytes());
    payload.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    payload.extend_from_slice(bytes);
    payload.resize(payload.len().next_multiple_of(8), 0);
    let mut fill = |into: &mut [u8]| into.copy_from_slice(&payload);
    let ticket = machine
        .append(KIND_TRANSACTION, payload.len(), &mut fill)
        .unwrap();
    machine.wait(ticket, Durability::Both).unwrap();
}

#[test]
fn a_log_of_an_older_program_is_recovered_and_continued() {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    for name in ["a", "b"] {
        rvm.create_segment(name, 8192, Default::default()).unwrap();
        drop(rvm.map(name, 0, 0).unwrap());
    }
    drop(rvm);
    wide(&machine, 1, 16, &[1; 11]);
    wide(&machine, 0, 8, &[2; 8]);
    wide(&machine, 1, 20, &[3]);
    let rvm = machine.open().unwrap();
    assert_eq!((rvm.recovery().transactions, rvm.recovery().bytes), (3, 20));
    let b = rvm.map("b", 0, 0).unwrap();
    assert_eq!(b.read()[15..28], [0, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 1, 0]);
    // Both forms in one log.
    wide(&machine, 1, 32, &[4; 8]);
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&b, 36, &[5u8; 2]).unwrap();
    transaction.commit(Durability::Remote).unwrap();
    drop((b, rvm));
    machine.crash(1);
    let rvm = machine.open().unwrap();
    assert_eq!(rvm.recovery().transactions, 2);
    let b = rvm.map("b", 0, 0).unwrap();
    assert_eq!(b.read()[32..40], [4, 4, 4, 4, 5, 5, 4, 4]);
}

#[test]
fn a_record_of_another_kind_of_user_stops_the_opening() {
    let machine = Machine::new(64 * 1024);
    drop(machine.open().unwrap());
    let ticket = machine
        .append(RecordKind(18), 1, &mut |into| into.fill(0))
        .unwrap();
    machine.wait(ticket, Durability::Both).unwrap();
    let refused = machine.open().err();
    assert!(
        matches!(
            refused,
            Some(RvmOpenError::Recovery(TruncateError::ForeignKind {
                kind: RecordKind(18),
                ..
            }))
        ),
        "{refused:?}"
    );
}

#[test]
fn ranges_in_a_record_ascend_however_regions_were_used() {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    for name in ["a", "b"] {
        rvm.create_segment(name, 16384, Default::default()).unwrap();
    }
    // Segments are numbered in the order of mapping, and each has two regions.
    let regions = [("a", 4096), ("b", 4096), ("b", 0), ("a", 0)]
        .map(|(name, offset)| rvm.map(name, offset, 4096).unwrap());
    let mut transaction = rvm.begin(RestoreMode::Restore);
    for (at, region) in regions.iter().enumerate().rev() {
        transaction.set(region, 4088, &(at as u64)).unwrap();
        transaction.set(region, 0, &(at as u64)).unwrap();
    }
    transaction.commit(Durability::Both).unwrap();
    let mut seen = Vec::new();
    let mut each = |record: netram_proto::port::Record<'_>| {
        let changes = decode(KIND_COMPACT, record.payload).unwrap();
        seen.extend(
            changes
                .ranges()
                .map(|range| (range.segment, range.offset, range.bytes[0])),
        );
        true
    };
    machine.read(RecordLog::state(&machine).head, &mut each).unwrap();
    assert_eq!(
        seen,
        [
            (0, 0, 3),
            (0, 4088, 3),
            (0, 4096, 0),
            (0, 8184, 0),
            (1, 0, 2),
            (1, 4088, 2),
            (1, 4096, 1),
            (1, 8184, 1),
        ]
    );
    drop((regions, rvm));
    let rvm = machine.open().unwrap();
    let a = rvm.map("a", 0, 0).unwrap();
    assert_eq!((a.get(4088), a.get(8184)), (Ok(3u64), Ok(0u64)));
}
