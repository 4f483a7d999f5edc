//! A lender whose machine runs short of memory. Pages move to another lender while a program runs, none is
//! lost, the machine gets the memory, and afterwards it is lent again.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::content::{check, content};
use crate::common::{address, dir, lender, lender_config, until};
use netram_far::{Arena, ArenaConfig, ArenaError, FarVec, Page, RemotePages, RemotePagesConfig};
use netram_lender::{Lender, MemoryWatch};
use tempfile::TempDir;

const MEMORY: u64 = 8 << 20;
/// Enough to lend all, and so near the reserve that the lender looks often.
const PLENTY: u64 = 3 << 29;

/// A lender that reads its machine's memory from files of the test.
struct Watched {
    lender: Lender,
    proc: TempDir,
}

impl Watched {
    fn start(dir: &TempDir, index: usize) -> Watched {
        let proc = tempfile::tempdir().unwrap();
        available(&proc, PLENTY);
        let watch = MemoryWatch {
            keep_free: 1 << 30,
            calm: Duration::from_millis(50),
            proc: proc.path().to_owned(),
            ..MemoryWatch::default()
        };
        let config = netram_lender::LenderConfig {
            watch,
            ..lender_config(dir, index, MEMORY)
        };
        let lender = Lender::start(config).unwrap();
        Watched { lender, proc }
    }

    fn is_short(&self, short: bool) {
        available(&self.proc, if short { 0 } else { PLENTY });
    }

    fn slots(&self) -> u32 {
        let deposits = self.lender.report().deposits;
        deposits.iter().map(|one| one.slots).sum()
    }

    fn given_back(&self) -> u64 {
        self.lender.report().memory.given_back
    }
}

fn available(proc: &TempDir, bytes: u64) {
    let whole = proc.path().join("new");
    std::fs::write(&whole, format!("MemAvailable: {} kB\n", bytes / 1024)).unwrap();
    std::fs::rename(whole, proc.path().join("meminfo")).unwrap();
}

fn config(dir: &TempDir, lenders: usize) -> RemotePagesConfig {
    RemotePagesConfig {
        lenders: (0..lenders).map(|index| address(dir, index)).collect(),
        copies: 1,
        pages_max: 1024,
        grow: 128,
        ..RemotePagesConfig::default()
    }
}

fn open(dir: &TempDir, lenders: usize) -> RemotePages {
    let depot = RemotePages::open(config(dir, lenders)).unwrap();
    until("a lender is linked", || {
        depot.status().lenders.iter().any(|lender| lender.linked)
    });
    depot
}

#[test]
fn pages_move_away_under_pressure_and_back_afterwards() {
    let dir = dir();
    let pressed = Watched::start(&dir, 0);
    let other = lender(&dir, 1, MEMORY);
    let depot = open(&dir, 2);
    until("both are linked", || {
        depot.status().lenders.iter().all(|lender| lender.linked)
    });
    (0..600).for_each(|page| depot.put(Page(page), &content(page, 1)));
    assert!(depot.flush(crate::common::PATIENCE));
    assert!(depot.status().lenders.iter().all(|lender| lender.used > 0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (depot, over) = (&depot, &over);
        scope.spawn(move || {
            let mut round = 1;
            while !over.load(Ordering::Relaxed) {
                check(depot, 0..300, round);
                round += 1;
                (0..300).for_each(|page| depot.put(Page(page), &content(page, round)));
            }
            check(depot, 0..300, round);
        });
        pressed.is_short(true);
        until("its pages have moved away", || pressed.slots() == 0);
        until("the machine has the memory", || pressed.given_back() == MEMORY);
        assert_eq!(depot.status().lost, 0);
        over.store(true, Ordering::Relaxed);
    });
    check(&depot, 300..600, 1);
    assert_eq!(other.report().deposits[0].asked_back, 0);
    let status = depot.status();
    assert_eq!(
        (status.lenders[0].used, status.lenders[1].used, status.short),
        (0, 600, 0)
    );
    pressed.is_short(false);
    until("the memory is taken again", || pressed.given_back() == 0);
    until("it is lent again", || pressed.slots() > 0);
    (600..900).for_each(|page| depot.put(Page(page), &content(page, 1)));
    assert!(depot.flush(crate::common::PATIENCE));
    assert!(depot.status().lenders[0].used > 0);
    check(&depot, 300..900, 1);
}

#[test]
fn pages_without_another_place_stay_until_a_lender_comes() {
    let dir = dir();
    let pressed = Watched::start(&dir, 0);
    let depot = open(&dir, 2);
    (0..300).for_each(|page| depot.put(Page(page), &content(page, 1)));
    assert!(depot.flush(crate::common::PATIENCE));
    let slots = pressed.slots();
    pressed.is_short(true);
    until("it has asked", || depot.status().lenders[0].asked_back == slots);
    check(&depot, 0..300, 1);
    // The machine gets unused memory back.
    let rest = MEMORY - u64::from(slots) * 4096;
    until("the machine has what is left", || pressed.given_back() == rest);
    let status = depot.status();
    assert_eq!(
        (pressed.slots(), status.lenders[0].used, status.pending),
        (slots, 300, 0)
    );
    let _other = lender(&dir, 1, MEMORY);
    until("its pages have moved away", || pressed.slots() == 0);
    until("the machine has all", || pressed.given_back() == MEMORY);
    check(&depot, 0..300, 1);
}

/// A program that faults all the time, with a cap of a quarter of its memory.
#[test]
fn a_faulting_program_is_not_disturbed() {
    const WORDS: usize = 256 * 512;
    let dir = dir();
    let pressed = Watched::start(&dir, 0);
    let _other = lender(&dir, 1, MEMORY);
    let arena = match Arena::open(ArenaConfig {
        bytes: 16 << 20,
        local_bytes: 64 * 4096,
        packed_bytes: Some(0),
        remote_pages: config(&dir, 2),
        ..ArenaConfig::default()
    }) {
        Ok(arena) => arena,
        Err(error @ (ArenaError::Refused { .. } | ArenaError::Kernel { .. })) => {
            // If this cannot be written, there is no other way to report it.
            let _ = writeln!(
                std::io::stderr(),
                "\nSKIPPED a program that goes on faulting: {error}"
            );
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let word = |index: usize, round: u64| (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ round;
    let mut vec = FarVec::<u64>::zeros(&arena, WORDS).unwrap();
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // At least one more round after the pages have moved.
            let mut last = false;
            for round in 1.. {
                for (index, value) in vec.as_mut_slice().iter_mut().enumerate() {
                    *value = word(index, round);
                }
                for (index, value) in vec.iter().enumerate() {
                    assert_eq!(value, word(index, round), "value {index}");
                }
                rounds.store(round, Ordering::Relaxed);
                if last {
                    return;
                }
                last = over.load(Ordering::Relaxed);
            }
        });
        until("pages are there", || {
            pressed.slots() > 0 && rounds.load(Ordering::Relaxed) > 0
        });
        for _ in 0..2 {
            pressed.is_short(true);
            until("its pages have moved away", || pressed.slots() == 0);
            until("the machine has the memory", || pressed.given_back() == MEMORY);
            pressed.is_short(false);
            until("it is lent again", || pressed.slots() > 0);
        }
        over.store(true, Ordering::Relaxed);
    });
    let status = arena.remote_pages().status();
    assert_eq!((status.lost, pressed.given_back()), (0, 0));
}
