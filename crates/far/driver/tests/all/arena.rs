//! An arena with real lenders, faults and threads, and a cap of a quarter of the memory in use.
//!
//! Without access to `userfaultfd` these tests report that and pass.

mod patches;
mod words;

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{PATIENCE, address, dir, lender, until};
use netram_far::{
    Arena, ArenaConfig, ArenaError, FarAccessError, FarVec, FarVecError, PageGetError, RemotePagesConfig,
};
use netram_lender::Lender;
use tempfile::TempDir;

const PAGE_WORDS: usize = 512;
/// The cap of most tests, in pages: the minimum.
const FRAMES: usize = 64;

fn config(dir: &TempDir, lenders: usize, copies: usize) -> ArenaConfig {
    ArenaConfig {
        bytes: 16 << 20,
        local_bytes: (FRAMES * 4096) as u64,
        // No packing, so that evicted pages go to lenders.
        packed_bytes: Some(0),
        remote_pages: RemotePagesConfig {
            lenders: (0..lenders).map(|index| address(dir, index)).collect(),
            copies,
            grow: 128,
            ..RemotePagesConfig::default()
        },
        ..ArenaConfig::default()
    }
}

/// Opens an arena. `None`: this process lacks the privilege, which is reported.
fn open(config: ArenaConfig) -> Option<Arena> {
    let lenders = config.remote_pages.lenders.len();
    let arena = match Arena::open(config) {
        Ok(arena) => arena,
        Err(error @ (ArenaError::Refused { .. } | ArenaError::Kernel { .. })) => {
            skipped(&error);
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    until("all lenders are linked", || {
        let status = arena.remote_pages().status();
        status.lenders.iter().filter(|lender| lender.linked).count() == lenders
    });
    Some(arena)
}

/// Reports that a test cannot run here. Written directly, because output of a passing test is not shown.
fn skipped(missing: &ArenaError) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // If this cannot be written, there is no other way to report it.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}

fn word(index: usize, round: u64) -> u64 {
    (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (round << 48)
}

#[test]
fn a_vector_four_times_the_cap_keeps_its_content() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let Some(arena) = open(config(&dir, 2, 2)) else {
        return;
    };
    let count = 4 * FRAMES * PAGE_WORDS;
    let mut vec = FarVec::<u64>::zeros(&arena, count).unwrap();
    assert!(vec.iter().all(|value| value == 0), "unwritten values are zeros");
    for round in 1..4 {
        for (index, value) in vec.as_mut_slice().iter_mut().enumerate() {
            *value = word(index, round);
        }
        for (index, value) in vec.iter().enumerate() {
            assert_eq!(value, word(index, round), "value {index}");
        }
    }
    let status = arena.status();
    assert!(status.used as usize <= FRAMES, "{status:?}");
    assert!(status.tally.fetched > 0 && status.tally.ahead > 0, "{status:?}");
}

#[test]
fn single_values_are_read_and_stored_local_or_remote() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let Some(arena) = open(config(&dir, 2, 2)) else {
        return;
    };
    // Twelve bytes, so that some values lie in two pages.
    let count = 4 * FRAMES * 4096 / 12;
    let mut vec = FarVec::<[u32; 3]>::with_capacity(&arena, count).unwrap();
    let value = |index: usize| [index as u32, !index as u32, 7];
    (0..count).for_each(|index| vec.push(value(index)).unwrap());
    assert_eq!(vec.push([0; 3]), Err(FarVecError::Full { capacity: count }));
    for index in (0..count).step_by(97) {
        assert_eq!(vec.get(index), Ok(value(index)));
        vec.set(index, [1, 2, index as u32]).unwrap();
    }
    let indices: Vec<usize> = (0..count).step_by(97).rev().collect();
    let mut gathered = vec![[0; 3]; indices.len()];
    vec.gather(&indices, &mut gathered).unwrap();
    assert!(
        indices
            .iter()
            .zip(&gathered)
            .all(|(index, value)| *value == [1, 2, *index as u32])
    );
    vec.scatter(
        &indices,
        &indices.iter().map(|index| value(*index)).collect::<Vec<_>>(),
    )
    .unwrap();
    assert!(vec.iter().enumerate().all(|(index, found)| found == value(index)));
    vec.truncate(1000);
    assert_eq!((vec.len(), vec.get(999)), (1000, Ok(value(999))));
}

/// Content of a thread's words of a page: one value, or in every third page incompressible data.
fn filling(page: usize, value: u64) -> impl Fn(usize) -> u64 {
    let noisy = page.is_multiple_of(3);
    move |index| match noisy {
        true => value
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_mul(2 * index as u64 + 1),
        false => value,
    }
}

/// Threads that each write their own words of every page, and check what they wrote before.
fn stress(vec: &mut FarVec<u64>, threads: usize, rounds: u64, done: &AtomicU64) {
    let part = PAGE_WORDS / threads;
    let mut shares: Vec<Vec<&mut [u64]>> = (0..threads).map(|_| Vec::new()).collect();
    for page in vec.as_mut_slice().chunks_exact_mut(PAGE_WORDS) {
        for (share, words) in shares.iter_mut().zip(page.chunks_exact_mut(part)) {
            share.push(words);
        }
    }
    std::thread::scope(|scope| {
        for (thread, mut share) in shares.into_iter().enumerate() {
            scope.spawn(move || {
                let mut written = vec![0; share.len()];
                let mut state = thread as u64 + 1;
                for round in 1..=rounds {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    // One thread scans, the others jump.
                    let at = if thread == 0 {
                        round as usize
                    } else {
                        (state >> 33) as usize
                    } % share.len();
                    let words = &mut *share[at];
                    let was = filling(at, written[at]);
                    assert!(
                        words.iter().enumerate().all(|(index, word)| *word == was(index)),
                        "page {at}: {words:x?}, and not {:x}",
                        written[at]
                    );
                    if state >> 62 > 0 {
                        written[at] = (thread as u64) << 56 | round;
                        let new = filling(at, written[at]);
                        (0..part).for_each(|index| words[index] = new(index));
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                for (at, words) in share.iter().enumerate() {
                    let was = filling(at, written[at]);
                    assert!(
                        words.iter().enumerate().all(|(index, word)| *word == was(index)),
                        "page {at} at the end"
                    );
                }
            });
        }
    });
}

#[test]
fn threads_read_their_writes_while_pages_move() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let Some(arena) = open(config(&dir, 2, 2)) else {
        return;
    };
    let mut vec = FarVec::zeros(&arena, 4 * FRAMES * PAGE_WORDS).unwrap();
    stress(&mut vec, 4, 4000, &AtomicU64::new(0));
    let status = arena.status();
    assert!(
        status.tally.fetched > 1000 && status.tally.activated > 100,
        "{status:?}"
    );
}

#[test]
fn threads_read_their_writes_while_pages_are_packed() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    for pack in [2, 16] {
        let settings = ArenaConfig {
            packed_bytes: Some(pack * 4096),
            ..config(&dir, 2, 2)
        };
        let Some(arena) = open(settings) else {
            return;
        };
        let mut vec = FarVec::zeros(&arena, 4 * FRAMES * PAGE_WORDS).unwrap();
        stress(&mut vec, 4, 4000, &AtomicU64::new(0));
        let tally = arena.status().tally;
        assert!(
            tally.packed > 1000 && tally.unpacked > 100 && tally.fetched > 500,
            "{tally:?}"
        );
    }
}

#[test]
fn compressible_pages_need_no_lender_and_others_use_no_pack() {
    let dir = dir();
    let _lender = lender(&dir, 0, 8 << 20);
    let settings = ArenaConfig {
        packed_bytes: Some(FRAMES as u64 / 4 * 4096),
        ..config(&dir, 1, 1)
    };
    let Some(arena) = open(settings) else {
        return;
    };
    let count = 4 * FRAMES * PAGE_WORDS;
    let mut vec = FarVec::<u64>::zeros(&arena, count).unwrap();
    for round in 1..4 {
        vec.as_mut_slice().fill(round);
        assert!(vec.iter().all(|value| value == round));
    }
    let status = arena.status();
    assert!(status.tally.unpacked > 500 && status.packed > 0, "{status:?}");
    assert_eq!(
        (
            status.tally.fetched,
            arena.remote_pages().status().lenders[0].used
        ),
        (0, 0)
    );
    for (index, value) in vec.as_mut_slice().iter_mut().enumerate() {
        *value = word(index, 1);
    }
    assert!(
        vec.iter()
            .enumerate()
            .all(|(index, value)| value == word(index, 1))
    );
    let status = arena.status();
    assert_eq!(status.packed, 0, "{status:?}");
    vec.truncate(0);
    (0..count).for_each(|_| vec.push(7).unwrap());
    vec.truncate(0);
    until("discarded pages take no memory", || arena.status().packed == 0);
}

#[test]
fn a_lender_that_dies_under_load_loses_no_page() {
    let dir = dir();
    let mut lenders: Vec<Lender> = (0..3).map(|index| lender(&dir, index, 8 << 20)).collect();
    let Some(arena) = open(config(&dir, 3, 2)) else {
        return;
    };
    let mut vec = FarVec::zeros(&arena, 4 * FRAMES * PAGE_WORDS).unwrap();
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (done, over) = (&done, &over);
        let victim = lenders.remove(1);
        scope.spawn(move || {
            until("threads are at work", || {
                done.load(Ordering::Relaxed) > 4000 || over.load(Ordering::Relaxed)
            });
            victim.stop_and_forget(Duration::ZERO);
        });
        stress(&mut vec, 4, 4000, done);
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(arena.remote_pages().status().lost, 0);
}

#[test]
fn a_lost_page_is_an_error_that_names_it_and_others_remain() {
    let dir = dir();
    let first = lender(&dir, 0, 8 << 20);
    let Some(arena) = open(config(&dir, 1, 1)) else {
        return;
    };
    let count = 4 * FRAMES * PAGE_WORDS;
    let mut vec = FarVec::<u64>::zeros(&arena, count).unwrap();
    (0..count).for_each(|index| vec.set(index, word(index, 1)).unwrap());
    assert!(arena.remote_pages().flush(PATIENCE));
    first.stop_and_forget(Duration::ZERO);
    let _second = lender(&dir, 0, 8 << 20);
    let mut lost = 0;
    for index in (0..count).step_by(PAGE_WORDS) {
        match vec.get(index) {
            Ok(value) => assert_eq!(value, word(index, 1), "never zeros"),
            Err(FarAccessError::Lost(PageGetError::Lost { page, lenders, .. })) => {
                assert_eq!(
                    (page.0 as usize, lenders),
                    (index / PAGE_WORDS, vec![address(&dir, 0)])
                );
                lost += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(lost > FRAMES, "{lost} pages are lost");
    // Discarded pages can be used again.
    vec.truncate(0);
    (0..count).for_each(|index| vec.push(word(index, 2)).unwrap());
    assert!(
        vec.iter()
            .enumerate()
            .all(|(index, value)| value == word(index, 2))
    );
}

/// Runs this test again in a process of its own, with `ROLE` set.
fn child(test: &str) -> std::process::ExitStatus {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(ROLE, test)
        .status()
        .unwrap()
}

const ROLE: &str = "NETRAM_TEST_CHILD";
const SIGBUS: i32 = 7;

#[test]
fn a_reference_to_a_lost_page_is_a_bus_error() {
    use std::os::unix::process::ExitStatusExt;
    let dir = dir();
    let first = lender(&dir, 0, 8 << 20);
    let Some(arena) = open(config(&dir, 1, 1)) else {
        return;
    };
    if std::env::var_os(ROLE).is_none() {
        let ended = child("arena::a_reference_to_a_lost_page_is_a_bus_error");
        assert_eq!(ended.signal(), Some(SIGBUS), "{ended}");
        return;
    }
    let mut vec = FarVec::<u64>::zeros(&arena, 4 * FRAMES * PAGE_WORDS).unwrap();
    vec.as_mut_slice().fill(1);
    assert!(arena.remote_pages().flush(PATIENCE));
    first.stop_and_forget(Duration::ZERO);
    let _second = lender(&dir, 0, 8 << 20);
    assert!(vec.iter().all(|value| value == 1), "never zeros");
}

#[test]
fn without_room_at_lenders_growth_is_refused_and_local_values_are_readable() {
    let dir = dir();
    let _lender = lender(&dir, 0, 64 * 4096);
    let settings = ArenaConfig {
        patience: Duration::from_millis(200),
        ..config(&dir, 1, 1)
    };
    let Some(arena) = open(settings) else { return };
    let mut vec = FarVec::<u64>::with_capacity(&arena, 4 * FRAMES * PAGE_WORDS).unwrap();
    let refused = loop {
        if let Err(error) = vec.push(word(vec.len(), 1)) {
            break error;
        }
    };
    assert!(
        matches!(refused, FarVecError::Access(FarAccessError::NoRoom { .. })),
        "{refused}"
    );
    let last = vec.len() - 1;
    assert_eq!(vec.get(last), Ok(word(last, 1)));
    // After this some frames are free, which before was chance.
    vec.truncate(vec.len() / 2);
    assert_eq!(
        vec.get(0),
        Ok(word(0, 1)),
        "an evicted page comes back while a frame is free"
    );
}

#[test]
fn discarded_pages_are_zeros_wherever_they_were() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let Some(arena) = open(config(&dir, 2, 2)) else {
        return;
    };
    for _ in 0..20 {
        let mut vec = FarVec::<u64>::zeros(&arena, 4 * FRAMES * PAGE_WORDS).unwrap();
        assert!(
            vec.iter().all(|value| value == 0),
            "content of another vector remains"
        );
        vec.as_mut_slice().fill(u64::MAX);
    }
    until("lenders store nothing", || {
        arena
            .remote_pages()
            .status()
            .lenders
            .iter()
            .all(|lender| lender.used == 0)
    });
}

#[test]
fn a_setting_out_of_bounds_is_named() {
    let dir = dir();
    let refuse = |change: &dyn Fn(&mut ArenaConfig)| {
        let mut settings = config(&dir, 1, 1);
        change(&mut settings);
        let error = Arena::open(settings).unwrap_err();
        assert!(matches!(error, ArenaError::BadConfig { .. }), "{error}");
        error.to_string()
    };
    let cap = refuse(&|settings| settings.local_bytes = 255 << 10);
    assert_eq!(cap, "the cap of local memory; it must be 256 KiB at least");
    refuse(&|settings| settings.bytes = 0);
    refuse(&|settings| settings.bytes = 2 << 40);
    refuse(&|settings| settings.inactive_bytes = Some(settings.local_bytes));
    refuse(&|settings| settings.packed_bytes = Some(settings.local_bytes));
    refuse(&|settings| settings.handlers = 1);
}
