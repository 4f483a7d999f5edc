//! Copies of logs and segments: an older log never overwrites newer bytes.
//!
//! Regression: a log was applied to any file with the segment's name. A copied log directory, opened beside
//! its original or after it, overwrote commits that the original had acknowledged and applied. So did an
//! older log of another program with the same segment.

use std::fs;
use std::process::Command;

use netram_proto::id::JournalId;
use netram_proto::port::Durability;
use netram_rvm::{
    MapError, RealStorage, RestoreMode, Rvm, RvmOpenError, RvmOptions, SegmentAllocation, SegmentError,
    TruncateError,
};

use crate::common::{JOURNAL, Machine, Random, TestDirectory, TestRvm};

const WORDS: usize = 64;
/// More operations than either log performs before and after the other.
const OPERATIONS: u64 = 600;

type RealRvm = Rvm<Machine, RealStorage>;

/// Each transaction puts its number into a word of both segments. Returns the last acknowledged number.
fn history(rvm: &TestRvm, numbers: std::ops::Range<u64>) -> Result<u64, Box<dyn std::error::Error>> {
    for path in ["a", "b"] {
        let _ = rvm.create_segment(path, 4096, SegmentAllocation::Preallocated);
    }
    let (a, b) = (rvm.map("a", 0, 0)?, rvm.map("b", 0, 0)?);
    let mut acked = 0;
    for number in numbers {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        transaction.set(&a, 0, &number)?;
        transaction.set(&b, (number as usize % WORDS) * 8, &number)?;
        transaction.set(&b, 4088, &number)?;
        if transaction.commit(Durability::Remote).is_err() {
            return Ok(acked);
        }
        acked = number;
        if number % 6 == 0 {
            let _ = rvm.truncate();
        }
        if number % 4 == 0 {
            for _ in 0..3 {
                let _ = rvm.truncate_step();
            }
        }
    }
    Ok(acked)
}

/// The words of both segments on the disk.
fn words(machine: &Machine) -> Vec<u64> {
    let bytes = [machine.file("a"), machine.file("b")].concat();
    let words = bytes.chunks_exact(8);
    words
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

/// The number of the last transaction, after checking that none is there in part.
fn whole(rvm: &TestRvm) -> u64 {
    let (a, b) = (rvm.map("a", 0, 0).unwrap(), rvm.map("b", 0, 0).unwrap());
    let last: u64 = a.get(0).unwrap();
    assert_eq!(b.get::<u64>(4088).unwrap(), last, "a torn transaction");
    for number in (1..=last).rev().take(WORDS - 1) {
        assert_eq!(b.get::<u64>((number as usize % WORDS) * 8).unwrap(), number);
    }
    last
}

fn has_both(machine: &Machine) -> bool {
    std::panic::catch_unwind(|| words(machine)).is_ok()
}

/// The original is copied during its work, continues, and loses power during that. Then the copy is opened
/// over the same segments.
#[test]
fn a_copied_log_is_refused_or_leaves_no_older_bytes() {
    let (mut refused, mut taken, mut originals_refused) = (0, 0, 0);
    let mut random = Random(7);
    for at in (0..OPERATIONS).step_by(4) {
        let seed = random.below(1 << 30);
        let original = Machine::new(20_000);
        original.copy_after(at);
        original.crash_after(at + 1 + random.below(OPERATIONS / 3));
        let rvm = original.open().unwrap();
        let acked = history(&rvm, 1..60).unwrap_or(0);
        drop(rvm);
        original.crash(seed);
        let Some(copy) = original.copied(seed ^ 1) else {
            continue;
        };
        if !has_both(&original) {
            continue;
        }
        let before = words(&original);
        copy.share_segments_of(&original);
        match copy.open() {
            Ok(rvm) => {
                taken += 1;
                let after = words(&copy);
                let older = before
                    .iter()
                    .zip(&after)
                    .position(|(before, after)| after < before);
                assert_eq!(older, None, "copied at {at}: {before:?} became {after:?}");
                // A segment that it can map is now its own; another one is refused.
                if rvm.map("a", 0, 0).is_ok() && rvm.map("b", 0, 0).is_ok() {
                    whole(&rvm);
                    history(&rvm, 100..110).unwrap();
                }
            }
            Err(RvmOpenError::Recovery(TruncateError::Segment(
                SegmentError::Overtaken { .. }
                | SegmentError::OwnedByOtherLog { .. }
                | SegmentError::Older { .. },
            ))) => {
                refused += 1;
                assert_eq!(words(&copy), before, "copied at {at}");
            }
            Err(other) => panic!("copied at {at}: {other}"),
        }
        copy.crash(seed ^ 2);
        let before = words(&copy);
        original.share_segments_of(&copy);
        match original.open() {
            // No other log has changed the segments.
            Ok(rvm) if before.iter().all(|word| *word < 100) => {
                assert!(whole(&rvm) >= acked, "copied at {at}: a commit is lost");
            }
            Ok(_) => {
                let after = words(&original);
                assert!(before.iter().zip(after).all(|(before, after)| after >= *before));
            }
            Err(_) => {
                originals_refused += 1;
                assert_eq!(words(&original), before, "copied at {at}");
            }
        }
    }
    assert!(
        refused > 20 && taken > 5 && originals_refused > 2,
        "{refused} {taken} {originals_refused}: each outcome must occur at least once"
    );
}

/// After any crash the owner of the log can open it again. [`crate::crash`] tests that for one life, this for
/// several, with failing syncs of the table.
#[test]
fn the_owner_of_a_segment_is_never_refused() {
    let mut random = Random(11);
    for round in 0..60 {
        let machine = Machine::new(20_000);
        let (mut acked, mut next) = (0, 1);
        for _ in 0..5 {
            machine.crash_after(random.below(OPERATIONS));
            machine.fail_table_sync(random.below(12) as u32);
            if let Ok(rvm) = machine.open() {
                acked = history(&rvm, next..next + 40).unwrap_or(0).max(acked);
                next += 40;
                if random.below(2) == 0 {
                    let _ = rvm.close();
                }
            }
            machine.crash(random.below(1 << 30));
            machine.fail_table_sync(0);
            let rvm = machine
                .open()
                .unwrap_or_else(|error| panic!("round {round}: {error}"));
            if acked > 0 {
                let (a, b) = (rvm.map("a", 0, 0).unwrap(), rvm.map("b", 0, 0).unwrap());
                let last: u64 = a.get(0).unwrap();
                assert!(last >= acked, "round {round}: {acked} acknowledged, {last} found");
                assert_eq!(
                    b.get::<u64>(4088).unwrap(),
                    last,
                    "round {round}: a torn transaction"
                );
            }
        }
    }
}

/// Opens the log whose segment table is `table`. The table of `b` belongs to another journal.
fn open(directory: &TestDirectory, table: &str, log: &Machine, adopt: bool) -> Result<RealRvm, RvmOpenError> {
    let journal = match table.starts_with('b') && !table.starts_with("backup") {
        true => JournalId(0x5678),
        false => JOURNAL,
    };
    let table = directory.path(table);
    let storage = RealStorage::open(&table)
        .or_else(|_| RealStorage::create(&table))
        .unwrap();
    let options = RvmOptions {
        adopt_segments: adopt,
        ..RvmOptions::new(journal)
    };
    Rvm::open(log.clone(), storage, options)
}

fn put(rvm: &RealRvm, path: &str, value: u64) {
    let region = rvm.map(path, 0, 0).unwrap();
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&region, 0, &value).unwrap();
    transaction.commit(Durability::Disk).unwrap();
}

fn got(rvm: &RealRvm, path: &str) -> u64 {
    rvm.map(path, 0, 0).unwrap().get(0).unwrap()
}

fn on_disk(path: &str) -> u64 {
    u64::from_le_bytes(fs::read(path).unwrap()[..8].try_into().unwrap())
}

/// A directory with the segment `d`, and two logs.
fn two_logs() -> (TestDirectory, String, Machine, Machine) {
    let directory = TestDirectory::new();
    let path = directory.path("d");
    let (a, b) = (Machine::new(1 << 20), Machine::new(1 << 20));
    let rvm = open(&directory, "a.segments", &a, false).unwrap();
    rvm.create_segment(&path, 4096, SegmentAllocation::Preallocated)
        .unwrap();
    (directory, path, a, b)
}

#[test]
fn a_segment_of_a_closed_log_can_be_used_by_another() {
    let (directory, path, a, b) = two_logs();
    let rvm = open(&directory, "a.segments", &a, false).unwrap();
    put(&rvm, &path, 1);
    drop(rvm.close().map_err(|(error, _)| error).unwrap());
    assert_eq!(on_disk(&path), 1, "closing applies the log");
    let rvm = open(&directory, "b.segments", &b, false).unwrap();
    assert_eq!(got(&rvm, &path), 1);
    put(&rvm, &path, 2);
    drop(rvm.close().map_err(|(error, _)| error).unwrap());
    let rvm = open(&directory, "a.segments", &a, false).unwrap();
    assert_eq!(got(&rvm, &path), 2);
    put(&rvm, &path, 3);
    drop(rvm);
    assert_eq!(got(&open(&directory, "a.segments", &a, false).unwrap(), &path), 3);
}

#[test]
fn a_segment_of_a_log_that_was_not_closed_is_refused_to_others() {
    let (directory, path, a, b) = two_logs();
    let rvm = open(&directory, "a.segments", &a, false).unwrap();
    put(&rvm, &path, 1);
    drop(rvm);
    let rvm = open(&directory, "b.segments", &b, false).unwrap();
    match rvm.map(&path, 0, 0) {
        Err(MapError::Segment(SegmentError::OwnedByOtherLog { log, .. })) => {
            assert_eq!(log, directory.real("a"))
        }
        other => panic!("{other:?}"),
    }
    assert!(rvm.segments().is_empty(), "the table has no entry");
    drop(rvm);
    // The remedy that the message names.
    let closed = open(&directory, "a.segments", &a, false).unwrap().close();
    drop(closed.map_err(|(error, _)| error).unwrap());
    let rvm = open(&directory, "b.segments", &b, false).unwrap();
    assert_eq!(got(&rvm, &path), 1);
}

#[test]
fn an_error_names_the_log_that_has_taken_the_segment() {
    let (directory, path, a, b) = two_logs();
    let rvm = open(&directory, "a.segments", &a, false).unwrap();
    put(&rvm, &path, 1);
    drop(rvm);
    let rvm = open(&directory, "b.segments", &b, true).unwrap();
    put(&rvm, &path, 2);
    drop(rvm.close().map_err(|(error, _)| error).unwrap());
    match open(&directory, "a.segments", &a, false).map(drop) {
        Err(RvmOpenError::Recovery(TruncateError::Segment(SegmentError::Overtaken { log, .. }))) => {
            assert_eq!(log, directory.real("b"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(on_disk(&path), 2);
    // With `adopt_segments`.
    let rvm = open(&directory, "a.segments", &a, true).unwrap();
    assert_eq!(got(&rvm, &path), 1);
}

#[test]
fn a_segment_restored_from_a_backup_is_refused() {
    let (directory, path, a, _) = two_logs();
    let rvm = open(&directory, "a.segments", &a, false).unwrap();
    put(&rvm, &path, 1);
    drop(rvm.close().map_err(|(error, _)| error).unwrap());
    copy(&path, &directory.path("backup"));
    let rvm = open(&directory, "a.segments", &a, false).unwrap();
    put(&rvm, &path, 2);
    drop(rvm.close().map_err(|(error, _)| error).unwrap());
    fs::rename(directory.path("backup"), &path).unwrap();
    let rvm = open(&directory, "a.segments", &a, false).unwrap();
    let refused = rvm.map(&path, 0, 0);
    let older = matches!(refused, Err(MapError::Segment(SegmentError::Older { .. })));
    assert!(older, "{refused:?}");
    drop(rvm);
    let rvm = open(&directory, "a.segments", &a, true).unwrap();
    assert_eq!(got(&rvm, &path), 1);
    drop(rvm.close().map_err(|(error, _)| error).unwrap());
    let rvm = open(&directory, "a.segments", &a, false).unwrap();
    assert_eq!(got(&rvm, &path), 1, "once is enough");
}

#[test]
fn a_copied_directory_has_its_own_segments() {
    let (directory, log) = (TestDirectory::new(), Machine::new(1 << 20));
    fs::create_dir(directory.path("store")).unwrap();
    let path = directory.path("store/d");
    let rvm = open(&directory, "store/segments", &log, false).unwrap();
    rvm.create_segment(&path, 4096, SegmentAllocation::Preallocated)
        .unwrap();
    put(&rvm, &path, 1);
    drop(rvm);
    copy(&directory.path("store"), &directory.path("backup"));
    let copied = log.fork();
    let rvm = open(&directory, "store/segments", &log, false).unwrap();
    put(&rvm, &path, 2);
    drop(rvm.close().map_err(|(error, _)| error).unwrap());
    let rvm = open(&directory, "backup/segments", &copied, false).unwrap();
    assert_eq!(rvm.segments()[0].path, directory.real("backup/d"));
    assert_eq!(on_disk(&directory.path("backup/d")), 1);
    put(&rvm, &directory.path("backup/d"), 7);
    drop(rvm);
    assert_eq!(on_disk(&path), 2);
    assert_eq!(
        got(&open(&directory, "store/segments", &log, false).unwrap(), &path),
        2
    );
}

#[test]
fn a_copied_log_is_refused_while_its_original_exists() {
    let (directory, path, log, _) = two_logs();
    fs::create_dir(directory.path("store")).unwrap();
    let rvm = open(&directory, "store/segments", &log, false).unwrap();
    put(&rvm, &path, 1);
    drop(rvm);
    copy(&directory.path("store"), &directory.path("copy"));
    let copied = log.fork();
    match open(&directory, "copy/segments", &copied, false).map(drop) {
        Err(RvmOpenError::Recovery(TruncateError::Segment(SegmentError::Copy { log, .. }))) => {
            assert_eq!(log, directory.real("store"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(on_disk(&path), 0, "no record was applied");
    // Moved instead of copied.
    fs::remove_dir_all(directory.path("store")).unwrap();
    let rvm = open(&directory, "copy/segments", &copied, false).unwrap();
    assert_eq!(got(&rvm, &path), 1);
}

#[test]
fn a_renamed_segment_keeps_its_stamp() {
    let (directory, path, a, b) = two_logs();
    let rvm = open(&directory, "a.segments", &a, false).unwrap();
    put(&rvm, &path, 1);
    drop(rvm);
    fs::hard_link(&path, directory.path("hard")).unwrap();
    std::os::unix::fs::symlink(&path, directory.path("soft")).unwrap();
    let rvm = open(&directory, "b.segments", &b, false).unwrap();
    for name in ["hard", "soft"] {
        let refused = rvm.map(&directory.path(name), 0, 0);
        let held = matches!(
            refused,
            Err(MapError::Segment(SegmentError::OwnedByOtherLog { .. }))
        );
        assert!(held, "{name}: {refused:?}");
    }
}

/// `cp -a` also copies extended attributes.
fn copy(from: &str, to: &str) {
    let copied = Command::new("cp").args(["-a", from, to]).status().unwrap();
    assert!(copied.success());
}
