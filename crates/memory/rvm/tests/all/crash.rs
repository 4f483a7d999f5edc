//! One history, crashed at every single operation, with its recovery crashed at every operation again.

use crate::common::{Machine, TestRvm};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;

const WORDS: usize = 64;

/// Each transaction sets one word in both segments to its number. Returns the number of acknowledged commits.
fn history(rvm: &TestRvm) -> Result<u64, Box<dyn std::error::Error>> {
    for path in ["a", "b"] {
        let _ = rvm.create_segment(path, 4096, Default::default());
    }
    let (a, b) = (rvm.map("a", 0, 0)?, rvm.map("b", 0, 0)?);
    let mut acked = 0;
    for number in 1..=30u64 {
        let mut transaction = rvm.begin(RestoreMode::Restore);
        let at = (number as usize % WORDS) * 8;
        transaction.set(&a, 0, &number)?;
        transaction.set(&b, at, &number)?;
        transaction.set(&b, 4088, &number)?;
        if transaction.commit(Durability::Remote).is_err() {
            return Ok(acked);
        }
        acked = number;
        if number % 7 == 0 && rvm.truncate().is_err() {
            return Ok(acked);
        }
        if number % 5 == 0 {
            for _ in 0..3 {
                let _ = rvm.truncate_step();
            }
        }
    }
    Ok(acked)
}

fn check(rvm: &TestRvm, acked: u64, crash: u64) {
    let (Ok(a), Ok(b)) = (rvm.map("a", 0, 0), rvm.map("b", 0, 0)) else {
        assert_eq!(
            acked, 0,
            "crash at {crash}: the segments were created before any commit"
        );
        return;
    };
    let last: u64 = a.get(0).unwrap();
    assert!(
        last >= acked,
        "crash at {crash}: {acked} acknowledged, {last} found"
    );
    assert_eq!(
        b.get::<u64>(4088).unwrap(),
        last,
        "crash at {crash}: torn transaction"
    );
    for number in 1..=last {
        let at = (number as usize % WORDS) * 8;
        assert_eq!(b.get::<u64>(at).unwrap(), number, "crash at {crash}");
    }
}

#[test]
fn every_crash_point_recovers_every_acknowledged_commit() {
    let whole = Machine::new(16 * 1024);
    assert_eq!(history(&whole.open().unwrap()).unwrap(), 30);
    for crash in 0..=whole.operations() {
        for seed in 0..3 {
            let machine = Machine::new(16 * 1024);
            machine.crash_after(crash);
            let acked = machine
                .open()
                .ok()
                .and_then(|rvm| history(&rvm).ok())
                .unwrap_or(0);
            machine.crash(seed * 1000 + crash);
            // Recovery itself crashes at its first operation, its second, and so on until it succeeds.
            let rvm = (0..).find_map(|operations| {
                machine.crash_after(operations);
                let opened = machine.open();
                if machine.has_crashed() {
                    machine.crash(seed + operations);
                    return None;
                }
                Some(opened.unwrap())
            });
            let rvm = rvm.expect("recovery ends");
            machine.crash_after(u64::MAX / 2);
            check(&rvm, acked, crash);
        }
    }
}

#[test]
fn a_full_log_is_truncated_inline_at_every_crash_point_too() {
    let run = |machine: &Machine| -> u64 {
        let Ok(rvm) = machine.open() else { return 0 };
        let _ = rvm.create_segment("a", 8192, Default::default());
        let Ok(a) = rvm.map("a", 0, 0) else { return 0 };
        for number in 1..=40u64 {
            let mut transaction = rvm.begin(RestoreMode::NoRestore);
            transaction.set(&a, 0, &number).unwrap();
            transaction.write(&a, 4096, &[number as u8; 600]).unwrap();
            if transaction.commit(Durability::Remote).is_err() {
                return number - 1;
            }
        }
        40
    };
    let whole = Machine::new(4096);
    assert_eq!(run(&whole), 40);
    for crash in 0..=whole.operations() {
        let machine = Machine::new(4096);
        machine.crash_after(crash);
        let acked = run(&machine);
        machine.crash(crash);
        let rvm = machine.open().unwrap();
        let Ok(a) = rvm.map("a", 0, 0) else { continue };
        let last: u64 = a.get(0).unwrap();
        assert!(last >= acked, "crash at {crash}");
        assert!(
            a.read()[4096..4696].iter().all(|byte| *byte == last as u8),
            "crash at {crash}: torn"
        );
    }
}
