//! The spool: lazy commits kept in memory and merged. Tests of its promises, and of two defects of the
//! original that must not return.

use crate::common::{Machine, Random, TestRvm};
use netram_proto::port::{Durability, IoError, LogState, RecordLog};
use netram_rvm::{
    FlushError, Region, RestoreMode, Rvm, RvmCommitError, RvmOptions, SegmentError, TruncateError,
};

const LOG_BYTES: u64 = 64 * 1024;
const SEGMENT_BYTES: usize = 64 * 1024;

fn spooling(log_bytes: u64, spool_bytes: usize) -> (Machine, TestRvm, Region) {
    let machine = Machine::new(log_bytes);
    let options = RvmOptions {
        spool_bytes,
        ..Machine::options()
    };
    let rvm = Rvm::open(machine.clone(), machine.storage(), options).unwrap();
    rvm.create_segment("a", SEGMENT_BYTES as u64, Default::default())
        .unwrap();
    let region = rvm.map("a", 0, 0).unwrap();
    (machine, rvm, region)
}

fn commit(rvm: &TestRvm, region: &Region, offset: usize, bytes: &[u8], durability: Durability) {
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.write(region, offset, bytes).unwrap();
    transaction.commit(durability).unwrap();
}

fn lazy(rvm: &TestRvm, region: &Region, offset: usize, value: u64) {
    commit(rvm, region, offset, &value.to_le_bytes(), Durability::Lazy);
}

fn log(machine: &Machine) -> LogState {
    RecordLog::state(machine)
}

/// Recovers and maps after a power loss.
fn reopened(machine: &Machine, memory: (TestRvm, Region)) -> (TestRvm, Region) {
    drop((memory.1, memory.0));
    machine.crash(1);
    let rvm = machine.open().unwrap();
    let region = rvm.map("a", 0, 0).unwrap();
    (rvm, region)
}

#[test]
fn a_replaced_value_is_never_logged() {
    let (machine, rvm, a) = spooling(LOG_BYTES, 8192);
    let before = log(&machine).tail;
    (1..=100).for_each(|value| lazy(&rvm, &a, 64, value));
    lazy(&rvm, &a, 72, 5);
    assert_eq!(log(&machine).tail, before, "nothing is logged yet");
    let query = rvm.query();
    assert_eq!((query.spooled_commits, query.spooled_bytes > 0), (101, true));
    rvm.flush(Durability::Remote).unwrap();
    // One range of 16 bytes: two neighbours were merged.
    assert_eq!(log(&machine).tail.since(before), 40 + 1 + 4 + 16);
    let statistics = rvm.statistics();
    assert_eq!((statistics.lazy_commits, statistics.spooled_commits), (101, 101));
    assert_eq!((statistics.spool_records, statistics.commits_merged), (1, 100));
    assert_eq!((statistics.ranges_logged, statistics.bytes_logged), (1, 21));
    assert_eq!(statistics.ranges_dropped, 100);
    assert_eq!(statistics.bytes_saved_between, 101 * 13 - 21);
    assert_eq!(statistics.record_commits, [0, 0, 0, 0, 0, 1]);
    assert_eq!(rvm.query().spooled_commits, 0);
    let (_rvm, a) = reopened(&machine, (rvm, a));
    assert_eq!((a.get(64), a.get(72)), (Ok(100u64), Ok(5u64)));
}

#[test]
fn a_crash_loses_the_whole_spool_and_nothing_else() {
    let (machine, rvm, a) = spooling(LOG_BYTES, 8192);
    commit(&rvm, &a, 0, &[1; 8], Durability::Remote);
    lazy(&rvm, &a, 8, 2);
    lazy(&rvm, &a, 16, 3);
    // The machine dies: dropping the `Rvm` can log nothing any more.
    machine.crash_after(0);
    let (_rvm, a) = reopened(&machine, (rvm, a));
    assert_eq!(
        (a.get(0), a.get(8), a.get(16)),
        (Ok([1u8; 8]), Ok(0u64), Ok(0u64))
    );
}

#[test]
fn a_commit_that_waits_logs_the_lazy_ones_before_it() {
    for durability in [Durability::Remote, Durability::Disk, Durability::Both] {
        let (machine, rvm, a) = spooling(LOG_BYTES, 8192);
        lazy(&rvm, &a, 0, 1);
        lazy(&rvm, &a, 8, 2);
        commit(&rvm, &a, 8, &3u64.to_le_bytes(), durability);
        lazy(&rvm, &a, 16, 4);
        machine.crash_after(0);
        let (rvm, a) = reopened(&machine, (rvm, a));
        assert_eq!(
            rvm.recovery().transactions,
            2,
            "one record of the spool, one of the commit"
        );
        assert_eq!((a.get(0), a.get(8), a.get(16)), (Ok(1u64), Ok(3u64), Ok(0u64)));
    }
}

#[test]
fn every_documented_event_logs_the_spool() {
    type Moment = fn(TestRvm, Region) -> Option<(TestRvm, Region)>;
    let moments: [(&str, Moment); 6] = [
        ("flush", |rvm, a| {
            rvm.flush(Durability::Remote).unwrap();
            Some((rvm, a))
        }),
        ("truncate", |rvm, a| {
            rvm.truncate().unwrap();
            Some((rvm, a))
        }),
        ("map", |rvm, a| {
            a.unmap().unwrap();
            let a = rvm.map("a", 0, 0).unwrap();
            assert_eq!(
                a.get(0),
                Ok(7u64),
                "a region mapped again shows what was committed"
            );
            Some((rvm, a))
        }),
        ("forget", |rvm, a| {
            a.unmap().unwrap();
            rvm.forget_segment("a").unwrap();
            None
        }),
        ("turning it off", |rvm, a| {
            rvm.set_spool_bytes(0);
            rvm.flush(Durability::Remote).unwrap();
            Some((rvm, a))
        }),
        ("close", |rvm, a| {
            drop(a);
            assert!(rvm.close().is_ok());
            None
        }),
    ];
    for (name, moment) in moments {
        let (machine, rvm, a) = spooling(LOG_BYTES, 8192);
        lazy(&rvm, &a, 0, 7);
        let logged = log(&machine).tail;
        let left = moment(rvm, a);
        assert!(log(&machine).tail > logged, "{name}");
        machine.crash_after(0);
        drop(left);
        machine.crash(1);
        let rvm = machine.open().unwrap();
        assert_eq!(rvm.map("a", 0, 0).unwrap().get(0), Ok(7u64), "{name}");
    }
}

#[test]
fn the_truncation_thread_logs_the_spool_by_itself() {
    let (machine, rvm, a) = spooling(LOG_BYTES, 0);
    rvm.start_truncation().unwrap();
    rvm.set_spool_bytes(8192);
    let before = log(&machine).tail;
    lazy(&rvm, &a, 0, 7);
    assert_eq!(log(&machine).tail, before);
    // No time limit: only the thread can end this loop.
    while log(&machine).tail == before {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(rvm.statistics().spool_records, 1);
    assert_eq!(rvm.statistics().background_truncations, 0);
}

#[test]
fn a_commit_after_the_last_handle_is_logged_at_once() {
    let (machine, rvm, a) = spooling(LOG_BYTES, 8192);
    lazy(&rvm, &a, 0, 1);
    let mut late = rvm.begin(RestoreMode::Restore);
    let before = log(&machine).tail;
    drop(rvm);
    let dropped = log(&machine).tail;
    assert!(dropped > before, "the drop has logged the spool");
    late.set(&a, 8, &2u64).unwrap();
    assert!(late.commit(Durability::Lazy).unwrap().ticket.is_some());
    assert!(log(&machine).tail > dropped);
}

#[test]
fn a_full_log_keeps_the_spool_and_fails_the_commit() {
    let (machine, rvm, a) = spooling(4096, 1000);
    // Truncation cannot help: the segment's disk is full.
    machine.fail_segment_writes(Some(IoError::ENOSPC));
    let attempt = |offset: usize, value: u8| {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        transaction.write(&a, offset, &[value; 500]).unwrap();
        transaction.commit(Durability::Remote)
    };
    let refused = loop {
        if let Err(error) = attempt(4096, 1) {
            break error;
        }
    };
    assert!(is_full(&refused), "{refused}");
    let tail = log(&machine).tail;
    commit(&rvm, &a, 0, &[7; 900], Durability::Lazy);
    let refused = attempt(4096, 2).unwrap_err();
    assert!(is_full(&refused), "{refused}");
    let flushed = rvm.flush(Durability::Remote);
    assert!(matches!(flushed, Err(FlushError::Full { .. })), "{flushed:?}");
    let truncated = rvm.truncate();
    assert!(
        matches!(truncated, Err(TruncateError::Segment(_))),
        "{truncated:?}"
    );
    // A lazy commit that finds the spool full has to log it too.
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.write(&a, 2000, &[8; 100]).unwrap();
    let refused = transaction.commit(Durability::Lazy).unwrap_err();
    assert!(is_full(&refused), "{refused}");
    assert_eq!(log(&machine).tail, tail);
    assert_eq!(rvm.query().spooled_commits, 1);

    machine.fail_segment_writes(None);
    attempt(4096, 3).unwrap();
    let (_rvm, a) = reopened(&machine, (rvm, a));
    assert_eq!(
        (a.get(0), a.get(892)),
        (Ok([7u8; 8]), Ok([7u8; 8])),
        "nothing was lost"
    );
    assert_eq!((a.get(2000), a.get(4096)), (Ok(0u64), Ok([3u8; 8])));
}

fn is_full(error: &RvmCommitError) -> bool {
    let RvmCommitError::Full { cause, .. } = error else {
        return false;
    };
    matches!(cause, Some(TruncateError::Segment(SegmentError::Io { .. })))
}

#[test]
fn a_log_that_accepts_no_more_records_refuses_lazy_commits_too() {
    let (machine, rvm, a) = spooling(LOG_BYTES, 8192);
    lazy(&rvm, &a, 0, 7);
    machine.crash_after(0);
    assert!(matches!(
        rvm.flush(Durability::Remote),
        Err(FlushError::Refused(_))
    ));
    let mut transaction = rvm.begin(RestoreMode::Restore);
    transaction.set(&a, 0, &8u64).unwrap();
    let refused = transaction.commit(Durability::Lazy);
    assert!(matches!(refused, Err(RvmCommitError::Refused(_))), "{refused:?}");
    assert_eq!(a.get(0), Ok(7u64));
}

#[test]
fn a_commit_larger_than_the_spool_is_logged_directly() {
    let (machine, rvm, a) = spooling(LOG_BYTES, 1000);
    let mut random = Random(3);
    for _ in 0..2000 {
        let length = random.below(1200) as usize + 1;
        let offset = random.below((SEGMENT_BYTES - length) as u64) as usize;
        commit(&rvm, &a, offset, &vec![length as u8; length], Durability::Lazy);
        assert!(rvm.query().spooled_bytes <= 1000);
    }
    let statistics = rvm.statistics();
    assert!(statistics.spooled_commits > 500, "{statistics:?}");
    assert!(
        statistics.spooled_commits < 2000,
        "the longest commit bypassed the spool"
    );
    let memory = a.read().to_vec();
    rvm.flush(Durability::Remote).unwrap();
    let (_rvm, a) = reopened(&machine, (rvm, a));
    assert!(a.read()[..] == memory[..]);
}

#[test]
fn neighbouring_commits_merge_in_n_log_n_and_never_exceed_the_log() {
    // The original was quadratic here, slower than flushing each commit, and aborted near the log's size.
    let (machine, rvm, a) = spooling(LOG_BYTES, usize::MAX);
    let (rounds, length) = (40u64, 32);
    for round in 0..rounds {
        for at in (0..SEGMENT_BYTES).step_by(length) {
            commit(&rvm, &a, at, &[round as u8 + 1; 32], Durability::Lazy);
        }
    }
    let statistics = rvm.statistics();
    let commits = rounds * (SEGMENT_BYTES / length) as u64;
    assert_eq!(statistics.spooled_commits, commits);
    // A full spool is a quarter of the log: 16 KiB, at most 292 commits. Each compaction makes room for half
    // of them or is followed by logging. So a commit is sorted at most twice, and the log wraps many times.
    let half = LOG_BYTES / 4 / 2 / (24 + length as u64);
    let sorted_at_most = commits / half + 1;
    assert!(statistics.spool_compactions <= sorted_at_most, "{statistics:?}");
    assert!(statistics.spool_records <= sorted_at_most, "{statistics:?}");
    assert!(statistics.spool_records * 100 < commits);
    rvm.flush(Durability::Remote).unwrap();
    let (_rvm, a) = reopened(&machine, (rvm, a));
    assert!(a.read().iter().all(|byte| *byte == rounds as u8));
}

#[test]
fn rewriting_a_few_values_for_long_logs_little() {
    let (machine, rvm, a) = spooling(LOG_BYTES, 4096);
    let before = log(&machine).tail;
    for value in 0..100_000u64 {
        lazy(&rvm, &a, (value % 20) as usize * 8, value);
    }
    assert_eq!(log(&machine).tail, before, "compaction always made room");
    let statistics = rvm.statistics();
    // The spool of 4096 bytes holds 128 commits; after a compaction one range remains.
    assert!(statistics.spool_compactions < 100_000 / 100, "{statistics:?}");
    rvm.flush(Durability::Remote).unwrap();
    assert_eq!(log(&machine).tail.since(before), 40 + 1 + 4 + 160);
    let (_rvm, a) = reopened(&machine, (rvm, a));
    assert_eq!((a.get(0), a.get(152)), (Ok(99_980u64), Ok(99_999u64)));
}

#[test]
fn an_earlier_commit_is_recovered_whenever_a_later_one_is() {
    // Two threads pass a number back and forth. Each sets its own word to it, lazily or not. Whatever a crash
    // keeps, no word may be ahead of the one it answered.
    for seed in 0..60 {
        let (machine, rvm, a) = spooling(LOG_BYTES, 600);
        let mut random = Random(seed);
        let crash_after = random.below(120);
        let (to_second, from_first) = std::sync::mpsc::channel::<u64>();
        let (to_first, from_second) = std::sync::mpsc::channel::<u64>();
        let turn = |word: usize, number: u64, random: &mut Random| {
            let mut transaction = rvm.begin(RestoreMode::NoRestore);
            transaction.set(&a, word * 8, &number).unwrap();
            let noise = vec![number as u8; random.below(200) as usize];
            transaction.write(&a, 4096 + word * 4096, &noise).unwrap();
            let durability = match random.below(4) {
                0 => Durability::Remote,
                _ => Durability::Lazy,
            };
            transaction.commit(durability).is_ok()
        };
        machine.crash_after(crash_after);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut random = Random(seed + 1000);
                for number in from_first {
                    if !turn(1, number, &mut random) || to_first.send(number).is_err() {
                        return;
                    }
                }
                drop(to_first);
            });
            for number in 1..=200 {
                if !turn(0, number, &mut random) || to_second.send(number).is_err() {
                    break;
                }
                if from_second.recv().is_err() {
                    break;
                }
            }
            drop(to_second);
        });
        drop((a, rvm));
        machine.crash(seed);
        let rvm = machine.open().unwrap();
        let Ok(a) = rvm.map("a", 0, 0) else { continue };
        let (first, second): (u64, u64) = (a.get(0).unwrap(), a.get(8).unwrap());
        assert!(
            first == second || first == second + 1,
            "seed {seed}: {first} and {second}"
        );
    }
}

#[test]
fn threads_that_spool_and_flush_lose_no_acknowledged_commit() {
    let (machine, rvm, a) = spooling(LOG_BYTES, 2000);
    rvm.start_truncation().unwrap();
    let (rvm_ref, region) = (&rvm, &a);
    std::thread::scope(|scope| {
        for worker in 0..4usize {
            scope.spawn(move || {
                let mut random = Random(worker as u64);
                for number in 1..=2000u64 {
                    let mut transaction = rvm_ref.begin(RestoreMode::Restore);
                    transaction.set(region, worker * 8, &number).unwrap();
                    let noise = vec![number as u8; random.below(100) as usize];
                    let offset = 4096 + worker * 4096 + random.below(3000) as usize;
                    transaction.write(region, offset, &noise).unwrap();
                    let durability = match random.below(10) {
                        0 => Durability::Remote,
                        _ => Durability::Lazy,
                    };
                    transaction.commit(durability).unwrap();
                }
            });
        }
        scope.spawn(|| {
            for bytes in [0, 500, 0, 4000, 1000, 0, 2000].into_iter().cycle().take(200) {
                rvm_ref.set_spool_bytes(bytes);
                std::thread::yield_now();
            }
            rvm_ref.set_spool_bytes(2000);
        });
    });
    rvm.flush(Durability::Remote).unwrap();
    let memory = a.read().to_vec();
    let (_rvm, a) = reopened(&machine, (rvm, a));
    assert!(a.read()[..] == memory[..]);
    for worker in 0..4 {
        assert_eq!(a.get(worker * 8), Ok(2000u64));
    }
}
