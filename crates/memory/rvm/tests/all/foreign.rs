//! Records of other logs: applied to mapped memory, and committed to the own log. And preambles.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Machine, Random, TestRvm};
use netram_proto::port::{Durability, RecordLog};
use netram_rvm::record::{KIND_COMPACT, decode, encode};
use netram_rvm::{
    CaptureMode, ForeignError, PreambleError, RangeView, Region, RestoreMode, Rvm, RvmCommitError,
    RvmOptions, VerifyMode, limit::PREAMBLE_BYTES_MAX,
};

const LENGTH: u64 = 8192;

/// A machine with segments of these names, numbered from zero, each mapped.
fn mapped(names: &[&str]) -> (Machine, TestRvm, Vec<Region>) {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    let mut regions = Vec::new();
    for name in names {
        rvm.create_segment(name, LENGTH, Default::default()).unwrap();
        regions.push(rvm.map(name, 0, 0).unwrap());
    }
    (machine, rvm, regions)
}

/// Payloads of all records in the log.
fn payloads(machine: &Machine) -> Vec<Vec<u8>> {
    machine.log_syncs();
    let mut payloads = Vec::new();
    let mut each = |record: netram_proto::port::Record<'_>| {
        assert_eq!(record.kind, KIND_COMPACT);
        payloads.push(record.payload.to_vec());
        true
    };
    machine.read(RecordLog::state(machine).head, &mut each).unwrap();
    payloads
}

fn payload(ranges: &[(u32, u64, &[u8])]) -> Vec<u8> {
    let ranges: Vec<RangeView<'_>> = ranges
        .iter()
        .map(|(segment, offset, bytes)| RangeView {
            segment: *segment,
            offset: *offset,
            bytes,
        })
        .collect();
    encode(b"a stamp", &ranges)
}

fn bytes(region: &Region) -> Vec<u8> {
    region.read().to_vec()
}

#[test]
fn a_record_of_one_log_is_applied_by_another() {
    let (node, rvm, regions) = mapped(&["a", "b"]);
    let mut random = Random(3);
    for round in 0..50 {
        let mut transaction = rvm.begin(RestoreMode::NoRestore);
        for _ in 0..random.below(30) + 1 {
            let region = &regions[random.below(2) as usize];
            let length = random.below(64) as usize + 1;
            let offset = random.below(LENGTH - 64) as usize;
            transaction
                .write(region, offset, &vec![round as u8 + 1; length])
                .unwrap();
        }
        transaction.commit(Durability::Remote).unwrap();
    }
    let (_, other, theirs) = mapped(&["a", "b"]);
    for payload in payloads(&node) {
        other.apply(&decode(KIND_COMPACT, &payload).unwrap()).unwrap();
    }
    assert_eq!(bytes(&theirs[0]), bytes(&regions[0]));
    assert_eq!(bytes(&theirs[1]), bytes(&regions[1]));
}

#[test]
fn a_record_that_does_not_fit_changes_nothing() {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", LENGTH, Default::default()).unwrap();
    rvm.create_segment("b", LENGTH, Default::default()).unwrap();
    let a = rvm.map("a", 0, 4096).unwrap();
    let b = rvm.map("b", 4096, 0).unwrap();
    let end = LENGTH - 1;
    for (what, at_region, ranges) in [
        (
            "one byte too far",
            true,
            &[(0, 8, &[1][..]), (0, 4095, &[1, 1][..])][..],
        ),
        ("far behind", true, &[(0, 8, &[1]), (0, u64::MAX - 8, &[1])]),
        ("before the region", false, &[(0, 8, &[1]), (1, 4095, &[1])]),
        ("no such segment", false, &[(0, 8, &[1]), (7, 8, &[1])]),
        ("behind the segment", false, &[(0, 8, &[1]), (1, end, &[1, 1])]),
        ("another segment", true, &[(1, 4096, &[1])]),
        ("two segments", true, &[(0, 8, &[1]), (1, 4096, &[1])]),
    ] {
        let payload = payload(ranges);
        let changes = decode(KIND_COMPACT, &payload).unwrap();
        assert!(a.apply(&changes).is_err(), "{what}");
        if !at_region || ranges[0].0 == ranges[ranges.len() - 1].0 && ranges[0].0 == 0 {
            assert!(rvm.apply(&changes).is_err(), "{what}");
        }
        assert!(
            bytes(&a).iter().chain(&bytes(&b)).all(|byte| *byte == 0),
            "{what}"
        );
    }
    let whole = payload(&[(0, 8, &[1]), (1, 4096, &[2])]);
    rvm.apply(&decode(KIND_COMPACT, &whole).unwrap()).unwrap();
    assert_eq!((a.get(8), b.get(0)), (Ok(1u8), Ok(2u8)));
}

#[test]
fn a_foreign_record_survives_together_with_its_transaction_or_not_at_all() {
    for seed in 0..60 {
        let (machine, rvm, regions) = mapped(&["region", "versions"]);
        let mut random = Random(seed);
        let mut states = vec![vec![0; LENGTH as usize]];
        for number in 1..=20u64 {
            let mut state = states[states.len() - 1].clone();
            let (mut ranges, mut end) = (Vec::new(), 0);
            for _ in 0..random.below(9) {
                let offset = end + random.below(600);
                let length = random.below(40) + 1;
                end = offset + length;
                state[offset as usize..end as usize].fill(number as u8);
                ranges.push((0, offset, vec![number as u8; length as usize]));
            }
            let views: Vec<_> = ranges
                .iter()
                .map(|(segment, at, bytes)| (*segment, *at, &bytes[..]))
                .collect();
            let payload = payload(&views);
            let mut transaction = rvm.begin(RestoreMode::NoRestore);
            transaction.set(&regions[1], 512, &number).unwrap();
            let durability = [Durability::Lazy, Durability::Remote][random.below(2) as usize];
            let changes = decode(KIND_COMPACT, &payload).unwrap();
            let commit = transaction
                .commit_foreign(&regions[0], changes, durability)
                .unwrap();
            assert!(commit.ticket.is_some() && !transaction.is_open());
            assert_eq!(bytes(&regions[0]), state);
            states.push(state);
            if random.below(10) == 0 {
                rvm.truncate().unwrap();
            }
        }
        drop((regions, rvm));
        machine.crash(seed);
        let rvm = machine.open().unwrap();
        let number: u64 = rvm.map("versions", 0, 0).unwrap().get(512).unwrap();
        let region = rvm.map("region", 0, 0).unwrap();
        assert_eq!(
            bytes(&region),
            states[number as usize],
            "seed {seed}, number {number}"
        );
    }
}

#[test]
fn a_foreign_record_is_logged_with_its_original_encoding() {
    // Its segment comes before, between and behind those of the declared ranges.
    for number in 0..3 {
        let (machine, rvm, regions) = mapped(&["a", "b", "c"]);
        let theirs = payload(&[(number, 16, &[1, 2]), (number, 4000, &[3; 100])]);
        let mut transaction = rvm.begin(RestoreMode::NoRestore);
        for other in [2, 1, 0].into_iter().filter(|other| *other != number as usize) {
            transaction.set(&regions[other], 24, &[9u8, 9]).unwrap();
        }
        transaction.set_preamble(b"mine").unwrap();
        let changes = decode(KIND_COMPACT, &theirs).unwrap();
        transaction
            .commit_foreign(&regions[number as usize], changes, Durability::Remote)
            .unwrap();
        let [logged] = &payloads(&machine)[..] else {
            panic!("one record")
        };
        let logged = decode(KIND_COMPACT, logged).unwrap();
        assert_eq!(logged.preamble(), b"mine");
        let (mine, foreign): (Vec<_>, Vec<_>) = logged.ranges().partition(|range| range.segment != number);
        assert_eq!(foreign, changes.ranges().collect::<Vec<_>>());
        assert_eq!(mine.len(), 2);
        assert!(
            mine.iter()
                .all(|range| range.offset == 24 && range.bytes == [9, 9])
        );
    }
}

#[test]
fn a_refused_record_leaves_the_transaction_open_and_memory_as_it_was() {
    let (_, rvm, regions) = mapped(&["region", "versions"]);
    let (_, _elsewhere, foreign) = mapped(&["region"]);
    let small = payload(&[(0, 8, &[1])]);
    let large = payload(&[(0, 0, &[1; 5000])]);
    let changes = |payload| decode(KIND_COMPACT, payload).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&regions[1], 0, &[2u8; 100]).unwrap();
    let other_log = transaction.commit_foreign(&foreign[0], changes(&small), Durability::Remote);
    assert_eq!(other_log, Err(ForeignError::Region));
    let other_segment = transaction.commit_foreign(&regions[1], changes(&small), Durability::Remote);
    assert_eq!(other_segment, Err(ForeignError::Segment { segment: 0 }));
    transaction.set(&regions[0], 4000, &3u8).unwrap();
    let declared = transaction.commit_foreign(&regions[0], changes(&small), Durability::Remote);
    assert_eq!(declared, Err(ForeignError::Declared));
    transaction.abort();

    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.write(&regions[1], 0, &[2; 8000]).unwrap();
    transaction.write(&regions[1], 0, &[2; 8192]).unwrap();
    let mut filling = large.clone();
    filling.truncate(large.len());
    // Together at least 13,192 bytes: below the limit of a record here (16 KiB), but above it with the
    // preamble.
    transaction.set_preamble(&[7; 4000]).unwrap();
    let refused = transaction.commit_foreign(&regions[0], changes(&filling), Durability::Remote);
    assert!(
        matches!(
            refused,
            Err(ForeignError::Commit(RvmCommitError::TooLarge { .. }))
        ),
        "{refused:?}"
    );
    assert!(transaction.is_open());
    assert_eq!(regions[0].get(0), Ok(0u64));
    transaction.set_preamble(&[]).unwrap();
    transaction
        .commit_foreign(&regions[0], changes(&filling), Durability::Remote)
        .unwrap();
    assert_eq!(regions[0].get(0), Ok(0x0101_0101_0101_0101u64));
    let ended = transaction.commit_foreign(&regions[0], changes(&small), Durability::Remote);
    assert_eq!(ended, Err(ForeignError::Commit(RvmCommitError::Ended)));
    assert_eq!(transaction.set_preamble(&[]), Err(PreambleError::Ended));
}

#[test]
fn readers_never_see_a_part_of_an_applied_record() {
    let (_, rvm, regions) = mapped(&["region", "versions"]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for value in 0..400u64 {
                let value = value.to_le_bytes();
                let ranges: Vec<(u32, u64, &[u8])> = (0..200).map(|at| (0, at * 40, &value[..])).collect();
                let payload = payload(&ranges);
                let changes = decode(KIND_COMPACT, &payload).unwrap();
                match value[0] % 2 {
                    0 => regions[0].apply(&changes).unwrap(),
                    _ => {
                        let mut transaction = rvm.begin(RestoreMode::NoRestore);
                        transaction.set(&regions[1], 0, &value).unwrap();
                        transaction
                            .commit_foreign(&regions[0], changes, Durability::Lazy)
                            .map(drop)
                            .or_else(|error| match error {
                                ForeignError::Commit(RvmCommitError::Full { .. }) => {
                                    rvm.truncate().map_err(drop)
                                }
                                _ => Err(()),
                            })
                            .unwrap();
                    }
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            let seen = regions[0].read();
            assert!((1..200).all(|at| seen[at * 40..at * 40 + 8] == seen[..8]));
        }
    });
}

#[test]
fn a_preamble_is_read_back_and_bounded() {
    let (machine, rvm, regions) = mapped(&["a"]);
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&regions[0], 8, &7u64).unwrap();
    transaction.set_preamble(b"forgotten").unwrap();
    transaction.set_preamble(&vec![5; PREAMBLE_BYTES_MAX]).unwrap();
    let refused = transaction.set_preamble(&vec![6; PREAMBLE_BYTES_MAX + 1]);
    assert!(matches!(refused, Err(PreambleError::TooLong { .. })));
    let refused = transaction.try_commit(Durability::Remote);
    assert!(
        matches!(refused, Err(RvmCommitError::TooLarge { .. })),
        "a record carries 16 KiB here"
    );
    transaction.set_preamble(&[5; 300]).unwrap();
    transaction.commit(Durability::Remote).unwrap();
    let plain = rvm.begin(RestoreMode::Restore);
    drop(plain);
    let mut next = rvm.begin(RestoreMode::Restore);
    next.set(&regions[0], 8, &8u64).unwrap();
    next.commit(Durability::Remote).unwrap();
    let logged = payloads(&machine);
    let preambles: Vec<_> = logged
        .iter()
        .map(|payload| decode(KIND_COMPACT, payload).unwrap().preamble().to_vec())
        .collect();
    assert_eq!(preambles, [vec![5; 300], vec![]], "the next record has none");
}

#[test]
fn a_transaction_without_ranges_is_logged_only_with_log_always() {
    let (machine, rvm, _regions) = mapped(&["a"]);
    let mut silent = rvm.begin(RestoreMode::Restore);
    silent.set_preamble(b"nothing").unwrap();
    assert_eq!(silent.commit(Durability::Remote).unwrap().ticket, None);
    let mut asked = rvm.begin(RestoreMode::Restore);
    asked.set_preamble(b"I was here").unwrap();
    asked.log_always();
    assert!(asked.commit(Durability::Remote).unwrap().ticket.is_some());
    let silent = rvm.begin(RestoreMode::Restore);
    assert_eq!(
        silent.commit(Durability::Remote).unwrap().ticket,
        None,
        "`log_always` was set on another transaction"
    );
    let logged = payloads(&machine);
    let [only] = &logged[..] else { panic!("one record") };
    let changes = decode(KIND_COMPACT, only).unwrap();
    assert_eq!((changes.preamble(), changes.count()), (&b"I was here"[..], 0));
    drop(rvm);
    machine.open().unwrap();
}

#[test]
fn a_record_with_a_preamble_is_never_spooled_or_reordered() {
    let machine = Machine::new(64 * 1024);
    let options = RvmOptions {
        spool_bytes: 8192,
        ..Machine::options()
    };
    let rvm = Rvm::open(machine.clone(), machine.storage(), options).unwrap();
    rvm.create_segment("a", LENGTH, Default::default()).unwrap();
    let a = rvm.map("a", 0, 0).unwrap();
    let set = |value: u64, preamble: &[u8]| {
        let mut transaction = rvm.begin(RestoreMode::NoRestore);
        transaction.set(&a, 0, &value).unwrap();
        transaction.set_preamble(preamble).unwrap();
        transaction.commit(Durability::Lazy).unwrap().ticket
    };
    assert_eq!(set(1, b""), None);
    assert!(set(2, b"stamp").is_some());
    assert_eq!(set(3, b""), None);
    rvm.flush(Durability::Remote).unwrap();
    let logged = payloads(&machine);
    let values: Vec<_> = logged
        .iter()
        .map(|payload| {
            let changes = decode(KIND_COMPACT, payload).unwrap();
            (changes.preamble(), changes.ranges().next().unwrap().bytes[0])
        })
        .collect();
    assert_eq!(values, [(&b""[..], 1), (b"stamp", 2), (b"", 3)]);
}

#[test]
fn foreign_records_do_not_count_as_undeclared_stores() {
    let (machine, rvm, mut regions) = mapped(&["region", "versions"]);
    let theirs = payload(&[(0, 100, &[5; 50])]);
    let changes = decode(KIND_COMPACT, &theirs).unwrap();
    // A verified region knows the stores of the library.
    regions[0]
        .set_capture(CaptureMode::Verified(VerifyMode::Refuse))
        .unwrap();
    regions[0].apply(&changes).unwrap();
    let mut transaction = rvm.begin(RestoreMode::NoRestore);
    transaction.set(&regions[0], 4000, &1u8).unwrap();
    transaction.commit(Durability::Remote).unwrap();
    let mut transaction = rvm.begin(RestoreMode::NoRestore);
    transaction.set(&regions[1], 0, &1u8).unwrap();
    transaction
        .commit_foreign(&regions[0], changes, Durability::Remote)
        .unwrap();
    let mut transaction = rvm.begin(RestoreMode::NoRestore);
    transaction.set(&regions[0], 4000, &2u8).unwrap();
    transaction.commit(Durability::Remote).unwrap();
    assert_eq!(regions[0].take_undeclared(), []);
    let logged = payloads(&machine);
    let counts = logged
        .iter()
        .map(|payload| decode(KIND_COMPACT, payload).unwrap().count());
    assert_eq!(counts.collect::<Vec<_>>(), [1, 2, 1]);
    // Where pages are compared, only found stores can be logged.
    regions[0].set_capture(CaptureMode::Adaptive).unwrap();
    let before = bytes(&regions[0]);
    let other = payload(&[(0, 100, &[6; 50])]);
    let changes = decode(KIND_COMPACT, &other).unwrap();
    let mut transaction = rvm.begin(RestoreMode::NoRestore);
    let refused = transaction.commit_foreign(&regions[0], changes, Durability::Remote);
    assert_eq!(refused, Err(ForeignError::Captured));
    assert_eq!(bytes(&regions[0]), before);
}

#[test]
fn try_apply_stores_nothing_while_a_guard_is_held() {
    let (_machine, _rvm, regions) = mapped(&["a"]);
    let record = payload(&[(0, 100, &[7; 50])]);
    let changes = decode(KIND_COMPACT, &record).unwrap();
    let guard = regions[0].read();
    assert_eq!(regions[0].try_apply(&changes), Ok(false));
    assert_eq!(guard[100..150], [0; 50]);
    drop(guard);
    assert_eq!(regions[0].try_apply(&changes), Ok(true));
    assert_eq!(bytes(&regions[0])[99..151], [&[0][..], &[7; 50], &[0]].concat());
    // A record outside the region is refused even while a guard is held.
    let other = payload(&[(9, 100, &[7; 50])]);
    let alien = decode(KIND_COMPACT, &other).unwrap();
    let _guard = regions[0].read();
    assert_eq!(
        regions[0].try_apply(&alien),
        Err(ForeignError::Segment { segment: 9 })
    );
}
