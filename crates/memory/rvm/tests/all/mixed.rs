//! Foreign records in regions whose stores are found by page. Pages contain spans that the program may change
//! and spans that others change. Stores in the program's spans are logged; stores outside them are refused.

use std::ops::Range;

use crate::common::{Machine, Random, TestDirectory};
use netram_proto::port::{Durability, RecordLog};
use netram_rvm::record::{KIND_COMPACT, decode, encode};
use netram_rvm::{
    CaptureError, CaptureMode, DetectMethod, RangeView, RealStorage, Region, RestoreMode, Rvm,
    RvmCommitError, SegmentAllocation,
};

const PAGE: usize = 4096;
const LENGTH: usize = 6 * PAGE + 100;

type DirectoryRvm = Rvm<Machine, RealStorage>;

struct MixedFixture {
    machine: Machine,
    rvm: DirectoryRvm,
    region: Region,
    _directory: TestDirectory,
}

impl MixedFixture {
    fn new(capture: CaptureMode) -> MixedFixture {
        let (directory, machine) = (TestDirectory::new(), Machine::new(4 << 20));
        let rvm = directory.open(&machine).unwrap();
        let path = directory.path("a");
        rvm.create_segment(&path, LENGTH as u64, SegmentAllocation::Sparse)
            .unwrap();
        let mut region = rvm.map(&path, 0, 0).unwrap();
        region.set_capture(capture).unwrap();
        MixedFixture {
            machine,
            rvm,
            region,
            _directory: directory,
        }
    }

    fn apply(&self, offset: usize, bytes: &[u8]) {
        let range = RangeView {
            segment: self.region.segment_number(),
            offset: offset as u64,
            bytes,
        };
        let payload = encode(b"", &[range]);
        let changes = decode(KIND_COMPACT, &payload).unwrap();
        self.region.apply(&changes).unwrap();
    }

    /// The ranges of all records in the log, with their bytes.
    fn logged(&self) -> Vec<(usize, Vec<u8>)> {
        self.machine.log_syncs();
        let mut logged = Vec::new();
        let mut each = |record: netram_proto::port::Record<'_>| {
            let changes = decode(KIND_COMPACT, record.payload).unwrap();
            logged.extend(
                changes
                    .ranges()
                    .map(|range| (range.offset as usize, range.bytes.to_vec())),
            );
            true
        };
        self.machine
            .read(RecordLog::state(&self.machine).head, &mut each)
            .unwrap();
        logged
    }
}

/// The capture modes that this machine supports; reports those it does not.
fn ways() -> Vec<CaptureMode> {
    let mut ways = vec![
        CaptureMode::Adaptive,
        CaptureMode::Twins(DetectMethod::Trap),
        CaptureMode::Pages(DetectMethod::Trap),
        CaptureMode::Twins(DetectMethod::Watch),
        CaptureMode::Pages(DetectMethod::Watch),
    ];
    let mut world = MixedFixture::new(CaptureMode::Declared);
    if let Err(refused) = world.region.set_capture(CaptureMode::Twins(DetectMethod::Watch)) {
        assert!(matches!(refused, CaptureError::NoWatch { .. }), "{refused}");
        crate::common::skipped(refused);
        ways.truncate(3);
    }
    ways
}

/// Divides the region into spans, often several per page, sometimes several pages long.
fn spans(random: &mut Random, aligned: bool) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    let mut at = 0;
    while at < LENGTH {
        let length = match aligned {
            true => PAGE * (1 + random.below(2) as usize),
            false => {
                let most = [20, 300, 1200][random.below(3) as usize];
                8 * (1 + random.below(most) as usize)
            }
        };
        spans.push(at..LENGTH.min(at + length));
        at += length;
    }
    spans
}

/// A random offset and bytes inside a span.
fn random_place(random: &mut Random, span: &Range<usize>) -> (usize, Vec<u8>) {
    let at = span.start + random.below(span.len() as u64) as usize;
    let length = 1 + random.below(80) as usize;
    (at, vec![random.below(5) as u8; length.min(span.end - at)])
}

/// Random transactions under random spans, while foreign records arrive at any time. After every transaction,
/// the log and the foreign records together must produce the region's bytes.
fn run(capture: CaptureMode, mode: RestoreMode, aligned: bool, seed: u64) {
    let world = MixedFixture::new(capture);
    let mut random = Random(seed);
    let spans = spans(&mut random, aligned);
    let mut expected = vec![0; LENGTH];
    let mut done = 0;
    for round in 0..40 {
        let context = format!("{capture:?}, {mode:?}, aligned {aligned}, seed {seed}, round {round}");
        let mine: Vec<Range<usize>> = spans.iter().filter(|_| random.below(3) == 0).cloned().collect();
        let theirs: Vec<_> = spans.iter().filter(|span| !mine.contains(span)).collect();
        let foreign = |random: &mut Random, expected: &mut Vec<u8>| {
            for _ in 0..random.below(4) {
                let Some(span) = theirs.get(random.below(theirs.len().max(1) as u64) as usize) else {
                    return;
                };
                let (at, bytes) = random_place(random, span);
                world.apply(at, &bytes);
                expected[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        };
        foreign(&mut random, &mut expected);
        let mut transaction = world.rvm.begin(mode);
        transaction.confine(&world.region, &mine).unwrap();
        foreign(&mut random, &mut expected);
        for _ in 0..random.below(40) {
            let Some(span) = mine.get(random.below(mine.len().max(1) as u64) as usize) else {
                break;
            };
            let (at, bytes) = random_place(&mut random, span);
            if capture == CaptureMode::Adaptive {
                transaction.write(&world.region, at, &bytes).unwrap();
            } else {
                world.region.put_back(at, &bytes).unwrap();
            }
            if random.below(8) == 0 {
                foreign(&mut random, &mut expected);
            }
        }
        if random.below(3) == 0 {
            // A refused commit does the same as `gather`.
            transaction.gather().unwrap();
            foreign(&mut random, &mut expected);
        }
        if mode == RestoreMode::Restore && random.below(4) == 0 {
            transaction.abort();
        } else {
            transaction.gather().unwrap();
            for found in transaction.gathered(&world.region) {
                for at in found {
                    assert!(mine.iter().any(|span| span.contains(&at)), "{at}: {context}");
                }
            }
            foreign(&mut random, &mut expected);
            transaction.commit_gathered(Durability::Remote).unwrap();
        }
        let logged = world.logged();
        for (at, bytes) in &logged[done..] {
            expected[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        done = logged.len();
        let region = world.region.read();
        let wrong = (0..LENGTH).find(|at| region[*at] != expected[*at]);
        assert_eq!(wrong, None, "{context}");
    }
}

#[test]
fn the_log_and_foreign_records_together_produce_the_regions_bytes() {
    for capture in ways() {
        for seed in 0..5 {
            run(capture, RestoreMode::Restore, false, seed);
            run(capture, RestoreMode::Restore, true, seed);
            // In this mode whole pages have no twins unless foreign bytes were stored.
            run(capture, RestoreMode::NoRestore, true, seed);
            let partly_whole = matches!(capture, CaptureMode::Pages(_));
            if !partly_whole {
                run(capture, RestoreMode::NoRestore, false, seed);
            }
        }
    }
}

#[test]
fn foreign_bytes_alone_are_not_logged() {
    for capture in ways() {
        let world = MixedFixture::new(capture);
        world.apply(100, &[7; 5000]);
        let mut transaction = world.rvm.begin(RestoreMode::Restore);
        transaction
            .confine(&world.region, std::slice::from_ref(&(0..LENGTH)))
            .unwrap();
        world.apply(4000, &[8; 2000]);
        transaction.commit(Durability::Remote).unwrap();
        assert_eq!(world.logged(), [], "{capture:?}");
        assert_eq!(world.region.get(5000), Ok(8u8));
    }
}

#[test]
fn a_store_outside_the_allowed_bytes_is_reported_and_undone() {
    for capture in ways().into_iter().filter(|way| *way != CaptureMode::Adaptive) {
        for foreign in [false, true] {
            let world = MixedFixture::new(capture);
            if foreign {
                world.apply(0, &[9; 2 * PAGE]);
            }
            let before = world.region.read().to_vec();
            let mut transaction = world.rvm.begin(RestoreMode::Restore);
            transaction
                .confine(&world.region, std::slice::from_ref(&(0..1000)))
                .unwrap();
            world.region.put_back(500, &[1; 8]).unwrap();
            // Beside the allowed bytes, and on a page without any.
            world.region.put_back(1001, &[2; 3]).unwrap();
            world.region.put_back(PAGE + 5, &[3; 1]).unwrap();
            for _ in 0..2 {
                let refused = transaction.try_commit(Durability::Remote);
                let Err(RvmCommitError::Outside { first, count }) = refused else {
                    panic!("{capture:?}: {refused:?}");
                };
                assert_eq!(
                    (first.region_offset, first.length, count),
                    (1001, 3, 2),
                    "{capture:?}"
                );
                assert_eq!(first.address, world.region.as_ptr().addr() + 1001);
            }
            transaction.abort();
            assert!(*world.region.read() == *before, "{capture:?}");
            assert_eq!(world.logged(), [], "{capture:?}");
            // The next transaction is not affected.
            let mut transaction = world.rvm.begin(RestoreMode::Restore);
            transaction
                .confine(&world.region, std::slice::from_ref(&(0..1000)))
                .unwrap();
            world.region.put_back(500, &[1; 8]).unwrap();
            transaction.commit(Durability::Remote).unwrap();
            assert!(!world.logged().is_empty(), "{capture:?}");
        }
    }
}
