//! A log whose records another program applies: segments are not written here, and the log is trimmed only on
//! request.

use std::time::Duration;

use crate::common::{Machine, TestRvm};
use netram_proto::id::Lsn;
use netram_proto::port::{Durability, RecordLog};
use netram_rvm::{
    ForgetError, Region, RestoreMode, Rvm, RvmCommitError, RvmOpenError, RvmOptions, TruncateError,
    TruncationPolicy,
};

/// Longer than any test runs: a commit that waits this long was not woken.
const LONG: Duration = Duration::from_secs(100);

fn open(machine: &Machine, patience: Duration) -> Result<TestRvm, RvmOpenError> {
    let options = RvmOptions {
        truncation: TruncationPolicy::Elsewhere { patience },
        ..Machine::options()
    };
    Rvm::open(machine.clone(), machine.storage(), options)
}

fn mapped(patience: Duration) -> (Machine, TestRvm, Region) {
    let machine = Machine::new(8 * 1024);
    let rvm = open(&machine, patience).unwrap();
    rvm.create_segment("a", 8192, Default::default()).unwrap();
    let a = rvm.map("a", 0, 0).unwrap();
    (machine, rvm, a)
}

fn commit(rvm: &TestRvm, region: &Region, value: u64) -> Result<Lsn, RvmCommitError> {
    let mut transaction = rvm.begin(RestoreMode::NoRestore);
    transaction.set(region, 64, &[value; 64]).unwrap();
    let commit = transaction.commit(Durability::Both)?;
    Ok(commit.ticket.unwrap().end)
}

#[test]
fn no_record_is_applied_and_the_log_is_trimmed_only_on_request() {
    let (machine, rvm, a) = mapped(Duration::ZERO);
    rvm.start_truncation().unwrap();
    let ends: Vec<Lsn> = (1..=10).map(|value| commit(&rvm, &a, value).unwrap()).collect();
    assert!(rvm.wants_truncation());
    assert_eq!(rvm.truncate(), Err(TruncateError::Elsewhere));
    drop((a, rvm));
    let before = RecordLog::state(&machine);
    let rvm = open(&machine, Duration::ZERO).unwrap();
    assert_eq!(RecordLog::state(&machine), before);
    assert_eq!(
        (rvm.recovery().start, rvm.recovery().end),
        (before.head, before.tail)
    );
    assert_eq!(rvm.recovery().transactions, 0);
    let a = rvm.map("a", 0, 0).unwrap();
    assert_eq!(a.get(64), Ok(0u64), "the segment is unchanged");
    assert!(machine.file("a").iter().all(|byte| *byte == 0));
    assert_eq!(rvm.trim(ends[3]), Ok(ends[3]));
    assert_eq!(
        rvm.trim(ends[1]),
        Ok(ends[3]),
        "a lower `end` does not move the head back"
    );
    assert_eq!(RecordLog::state(&machine).head, ends[3]);
    assert!(machine.file("a").iter().all(|byte| *byte == 0));
    drop(a);
    let refused = rvm.forget_segment("a");
    assert_eq!(refused, Err(ForgetError::Truncate(TruncateError::Elsewhere)));
    rvm.trim(ends[9]).unwrap();
    rvm.forget_segment("a").unwrap();
}

#[test]
fn a_log_is_trimmed_only_as_far_as_its_disk_has_it() {
    let (machine, rvm, a) = mapped(Duration::ZERO);
    let first = commit(&rvm, &a, 1).unwrap();
    let mut transaction = rvm.begin(RestoreMode::NoRestore);
    transaction.set(&a, 64, &2u64).unwrap();
    let second = transaction
        .commit(Durability::Remote)
        .unwrap()
        .ticket
        .unwrap()
        .end;
    assert_eq!(rvm.trim(second), Ok(first));
    machine.log_syncs();
    assert_eq!(rvm.trim(second), Ok(second));
}

#[test]
fn a_full_log_is_an_error_that_names_the_missing_trim() {
    let (_, rvm, a) = mapped(Duration::ZERO);
    let mut last = None;
    let refused = loop {
        match commit(&rvm, &a, 1) {
            Ok(end) => last = Some(end),
            Err(error) => break error,
        }
    };
    let RvmCommitError::Full { cause, .. } = &refused else {
        panic!("{refused}")
    };
    assert_eq!(*cause, Some(TruncateError::NotTrimmed { patience_ms: 0 }));
    rvm.trim(last.unwrap()).unwrap();
    commit(&rvm, &a, 2).unwrap();
}

#[test]
fn a_commit_that_finds_the_log_full_waits_for_a_trim() {
    let (_, rvm, a) = mapped(LONG);
    let (kept, keep) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let rvm = &rvm;
        scope.spawn(move || {
            let mut asked = 0;
            for end in keep {
                // The log is full at least once before any of it is trimmed.
                asked += 1;
                if asked % 20 == 0 {
                    rvm.trim(end).unwrap();
                }
            }
        });
        let a = &a;
        scope.spawn(move || {
            for value in 0..200 {
                // Of 14 records in the log the 12th may already be trimmed.
                let end = commit(rvm, a, value).unwrap();
                (0..20).for_each(|_| kept.send(end).unwrap());
            }
        });
    });
    let statistics = rvm.statistics();
    assert_eq!((statistics.flush_commits, statistics.rounds), (200, 0));
}

#[test]
fn a_log_applied_here_refuses_trim() {
    let machine = Machine::new(8 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 8192, Default::default()).unwrap();
    let a = rvm.map("a", 0, 0).unwrap();
    let end = commit(&rvm, &a, 1).unwrap();
    assert_eq!(rvm.trim(end), Err(TruncateError::Here));
    rvm.truncate().unwrap();
    assert_eq!(machine.file("a")[64], 1);
}
