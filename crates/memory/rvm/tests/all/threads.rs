//! Many threads on one small log, with the truncation thread running.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::Machine;
use netram_proto::port::{Durability, IoError};
use netram_rvm::{Region, RestoreMode, Rvm, RvmCommitError, RvmOptions, TruncateError};

const ACCOUNTS: usize = 64;

fn sum(accounts: &Region) -> i64 {
    let bytes = accounts.read();
    let balance = |at: usize| i64::from_le_bytes(bytes[at * 8..at * 8 + 8].try_into().unwrap());
    (0..ACCOUNTS).map(balance).sum()
}

#[test]
fn the_sum_of_accounts_survives_threads_and_a_crash() {
    let machine = Machine::new(8 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("accounts", 4096, Default::default()).unwrap();
    rvm.create_segment("audit", 4 * 4096, Default::default()).unwrap();
    rvm.start_truncation().unwrap();
    let accounts = rvm.map("accounts", 0, 0).unwrap();
    let audits: Vec<Region> = (0..4)
        .map(|part| rvm.map("audit", part * 4096, 4096).unwrap())
        .collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|worker| {
                let (rvm, accounts, audit) = (&rvm, &accounts, &audits[worker as usize]);
                scope.spawn(move || {
                    let mut random = crate::common::Random(worker);
                    for number in 1..=1500u64 {
                        // Each thread uses its own accounts: RVM detects no conflicts, so programs divide the
                        // data.
                        let account =
                            |random: &mut crate::common::Random| (worker + 4 * random.below(16)) as usize * 8;
                        let (from, to) = (account(&mut random), account(&mut random));
                        let mut transfer = rvm.begin(RestoreMode::Restore);
                        {
                            let mut edit = transfer.edit(accounts);
                            for (at, change) in [(from, -1i64), (to, 1)] {
                                let bytes = edit.range_mut(at, 8).unwrap();
                                let balance = i64::from_le_bytes((&*bytes).try_into().unwrap()) + change;
                                bytes.copy_from_slice(&balance.to_le_bytes());
                            }
                        }
                        transfer.set(audit, 0, &number).unwrap();
                        match random.below(5) {
                            0 => transfer.abort(),
                            1 => drop(transfer.commit(Durability::Lazy).unwrap()),
                            _ => drop(transfer.commit(Durability::Remote).unwrap()),
                        }
                    }
                })
            })
            .collect();
        let reader = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(sum(&accounts), 0, "readers see whole edits");
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    let statistics = rvm.statistics();
    assert!(
        statistics.rounds > 10,
        "the log wrapped many times: {statistics:?}"
    );
    rvm.flush(Durability::Remote).unwrap();
    let before = accounts.read().to_vec();
    let audited: Vec<u64> = audits.iter().map(|audit| audit.get(0).unwrap()).collect();
    drop((accounts, audits, rvm));
    machine.crash(3);
    let rvm = machine.open().unwrap();
    let accounts = rvm.map("accounts", 0, 0).unwrap();
    assert_eq!(sum(&accounts), 0);
    assert!(accounts.read()[..] == before[..]);
    let audit = rvm.map("audit", 0, 0).unwrap();
    let recovered: Vec<u64> = (0..4).map(|part| audit.get(part * 4096).unwrap()).collect();
    assert_eq!(recovered, audited);
}

#[test]
fn commits_that_touch_regions_in_opposite_order_do_not_deadlock() {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 2 * 4096, Default::default()).unwrap();
    rvm.start_truncation().unwrap();
    let (a, b) = (rvm.map("a", 0, 4096).unwrap(), rvm.map("a", 4096, 4096).unwrap());
    let (rvm, a, b) = (&rvm, &a, &b);
    std::thread::scope(|scope| {
        for (at, first, second) in [(0, a, b), (8, b, a)] {
            scope.spawn(move || {
                for number in 0..20_000u64 {
                    let mut transaction = rvm.begin(RestoreMode::NoRestore);
                    transaction.set_range(first, at, 8).unwrap();
                    transaction.set_range(second, at, 8).unwrap();
                    transaction.commit(Durability::Lazy).unwrap();
                    // Waiting writers make readers wait; without them shared locks never block.
                    let mut writer = rvm.begin(RestoreMode::NoRestore);
                    writer.set(second, at, &number).unwrap();
                }
            });
        }
    });
}

#[test]
fn committers_truncate_a_full_log_when_no_thread_runs() {
    // Regression: between the trim and its publication another committer found nothing to apply and reported
    // the log as full.
    let machine = Machine::new(8 * 1024);
    // One batch per round: after it nothing is left to apply.
    let rvm = Rvm::open(
        machine.clone(),
        machine.storage(),
        RvmOptions::new(crate::common::JOURNAL),
    )
    .unwrap();
    rvm.create_segment("a", 4 * 4096, Default::default()).unwrap();
    let regions: Vec<Region> = (0..4)
        .map(|part| rvm.map("a", part * 4096, 4096).unwrap())
        .collect();
    std::thread::scope(|scope| {
        for region in &regions {
            let rvm = &rvm;
            scope.spawn(move || {
                for number in 0..16_000u64 {
                    let mut transaction = rvm.begin(RestoreMode::NoRestore);
                    transaction.write(region, 8, &[number as u8; 700]).unwrap();
                    transaction.set(region, 0, &number).unwrap();
                    transaction.commit(Durability::Remote).unwrap();
                }
            });
        }
    });
    drop((regions, rvm));
    machine.crash(1);
    let rvm = machine.open().unwrap();
    let a = rvm.map("a", 0, 0).unwrap();
    assert!((0..4).all(|part| a.get(part * 4096) == Ok(15_999u64)));
}

#[test]
fn the_thread_truncates_before_the_log_is_full() {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 4096, Default::default()).unwrap();
    rvm.start_truncation().unwrap();
    rvm.start_truncation().unwrap();
    let a = rvm.map("a", 0, 0).unwrap();
    while !rvm.wants_truncation() {
        let mut transaction = rvm.begin(RestoreMode::NoRestore);
        transaction.write(&a, 0, &[1; 500]).unwrap();
        transaction.commit(Durability::Disk).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while rvm.statistics().rounds == 0 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert_eq!(rvm.statistics().full_stalls, 0);
}

#[test]
fn the_threshold_can_be_changed_and_disabled() {
    let machine = Machine::new(64 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 4096, Default::default()).unwrap();
    let a = rvm.map("a", 0, 0).unwrap();
    rvm.set_truncation_threshold(100);
    for _ in 0..80 {
        let mut transaction = rvm.begin(RestoreMode::NoRestore);
        transaction.write(&a, 0, &[1; 500]).unwrap();
        transaction.commit(Durability::Disk).unwrap();
        assert!(!rvm.wants_truncation());
    }
    rvm.set_truncation_threshold(95);
    assert!(!rvm.wants_truncation(), "about 60 % are in use");
    rvm.set_truncation_threshold(10);
    assert!(rvm.wants_truncation());
}

#[test]
fn a_failing_segment_stops_commits_until_it_works_again() {
    for threaded in [false, true] {
        let machine = Machine::new(8 * 1024);
        let rvm = machine.open().unwrap();
        rvm.create_segment("a", 4096, Default::default()).unwrap();
        if threaded {
            rvm.start_truncation().unwrap();
        }
        let a = rvm.map("a", 0, 0).unwrap();
        machine.fail_segment_writes(Some(IoError::ENOSPC));
        let mut committed = 0u64;
        let refused = loop {
            let mut transaction = rvm.begin(RestoreMode::Restore);
            transaction.write(&a, 8, &[committed as u8; 400]).unwrap();
            transaction.set(&a, 0, &(committed + 1)).unwrap();
            match transaction.try_commit(Durability::Remote) {
                Ok(_) => committed += 1,
                Err(error) => break (error, transaction),
            }
            assert!(committed < 1000);
        };
        let (error, mut transaction) = refused;
        let RvmCommitError::Full {
            cause: Some(TruncateError::Segment(_)),
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert!(
            error.to_string().contains("segment a failed: no space left"),
            "{error}"
        );
        assert_eq!(a.get::<u64>(0), Ok(committed + 1), "memory stays as it was");
        machine.fail_segment_writes(None);
        // The same transaction commits once there is space.
        transaction.try_commit(Durability::Remote).unwrap();
        drop((transaction, a, rvm));
        machine.crash(1);
        let rvm = machine.open().unwrap();
        assert_eq!(rvm.map("a", 0, 0).unwrap().get::<u64>(0), Ok(committed + 1));
    }
}

#[test]
fn regions_and_transactions_may_outlive_the_rvm() {
    let machine = Machine::new(4 * 1024);
    let rvm = machine.open().unwrap();
    rvm.create_segment("a", 4096, Default::default()).unwrap();
    rvm.start_truncation().unwrap();
    let a = rvm.map("a", 0, 0).unwrap();
    let mut late: Vec<_> = (0..20).map(|_| rvm.begin(RestoreMode::Restore)).collect();
    drop(rvm);
    for (number, transaction) in late.iter_mut().enumerate() {
        transaction.write(&a, 0, &[number as u8; 900]).unwrap();
        transaction.try_commit(Durability::Remote).unwrap();
    }
    drop((late, a));
    machine.crash(1);
    let rvm = machine.open().unwrap();
    assert!(
        rvm.map("a", 0, 0).unwrap().read()[..900]
            .iter()
            .all(|byte| *byte == 19)
    );
}
