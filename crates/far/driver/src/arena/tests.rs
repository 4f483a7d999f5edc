//! What a program may do to its arena, and kernels that offer less.

use std::io::Write;
use std::time::{Duration, Instant};

use netram_far_machine::arena::Page;
use netram_lender::Lender;
use netram_transport::{NetAddress, WaitPolicy};
use tempfile::TempDir;

use super::moves::ArenaCore;
use super::{Arena, ArenaConfig, ArenaError, BlockValues, WordAccess};
use crate::sys::UffdFeatures;
use crate::{FarVec, RemotePagesConfig};

const PAGES: usize = 256;
const WORDS: usize = 512;

pub(super) struct Setup {
    arena: Arena,
    _lender: Lender,
    _dir: TempDir,
}

impl Setup {
    /// What its threads share.
    pub(super) fn core(&self) -> &ArenaCore {
        &self.arena.0.core
    }
}

/// An arena at a quarter of `PAGES`, as if the kernel lacked something. `None`: this process has no right to
/// one, and that was said.
pub(super) fn setup(lacking: UffdFeatures, change: impl FnOnce(&mut ArenaConfig)) -> Option<Setup> {
    let dir = tempfile::Builder::new()
        .prefix("netram-test-")
        .tempdir_in("/dev/shm")
        .unwrap();
    let address = NetAddress::Unix(dir.path().join("socket"));
    let lender = Lender::start(netram_lender::LenderConfig {
        name: "lender".to_owned(),
        listen: vec![address.clone()],
        memory: 8 << 20,
        deposits: Some(8 << 20),
        chunk_bytes: 16 * 1024,
        journals_max: 4,
        store: Some(dir.path().join("store")),
        ..netram_lender::LenderConfig::default()
    })
    .unwrap();
    let mut config = ArenaConfig {
        bytes: (2 * PAGES * 4096) as u64,
        local_bytes: (PAGES / 4 * 4096) as u64,
        remote_pages: RemotePagesConfig {
            lenders: vec![address],
            copies: 1,
            grow: 128,
            ..RemotePagesConfig::default()
        },
        ..ArenaConfig::default()
    };
    change(&mut config);
    let arena = match Arena::open_without(config, lacking) {
        Ok(arena) => arena,
        Err(error @ (ArenaError::Refused { .. } | ArenaError::Kernel { .. })) => {
            skipped(&error.to_string());
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    Some(Setup {
        arena,
        _lender: lender,
        _dir: dir,
    })
}

/// Says aloud that a test cannot be run here: what is merely printed is kept back while a test passes.
pub(super) fn skipped(missing: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // Nobody is left to be told if this cannot be written.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}

fn fill(vec: &mut FarVec<u64>, round: u64) {
    for (index, value) in vec.as_mut_slice().iter_mut().enumerate() {
        *value = index as u64 | round << 40;
    }
}

fn check(vec: &FarVec<u64>, round: u64) {
    for (index, value) in vec.iter().enumerate() {
        assert_eq!(value, index as u64 | round << 40, "value {index}");
    }
}

#[test]
fn where_pages_cannot_be_moved_they_are_copied() {
    let Some(setup) = setup(UffdFeatures::MOVE, |_| ()) else {
        return;
    };
    assert!(setup.arena.0.core.move_uffd.is_none());
    let mut vec = FarVec::zeros(&setup.arena, PAGES * WORDS).unwrap();
    for round in 1..4 {
        fill(&mut vec, round);
        check(&vec, round);
    }
    // A thread writes what others make leave.
    let (left, right) = vec.as_mut_slice().split_at_mut(WORDS);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for value in 1..200_000_u64 {
                let word = &mut left[value as usize % WORDS];
                assert!(
                    *word == 0 || *word >> 40 == 3 || *word + WORDS as u64 == value,
                    "{word:x}"
                );
                *word = value;
            }
        });
        for round in 0..8 {
            right.iter_mut().step_by(WORDS).for_each(|word| *word = round);
        }
    });
    drop(vec);
    let again = FarVec::<u64>::zeros(&setup.arena, PAGES * WORDS).unwrap();
    assert!(again.iter().all(|value| value == 0));
}

#[test]
fn an_arena_without_the_right_to_faults_of_system_calls_serves_the_programs_own() {
    let Some(setup) = setup(UffdFeatures::NONE, |config| config.user_faults_only = true) else {
        return;
    };
    let mut vec = FarVec::zeros(&setup.arena, PAGES * WORDS).unwrap();
    fill(&mut vec, 1);
    check(&vec, 1);
}

#[test]
fn a_kernel_that_does_not_tell_what_is_thrown_away_is_refused() {
    let config = ArenaConfig::default();
    let refused = Arena::open_without(config, UffdFeatures::REMOVE).unwrap_err();
    assert!(
        matches!(refused, ArenaError::Kernel { .. } | ArenaError::Refused { .. }),
        "{refused}"
    );
}

#[test]
fn a_lock_on_an_arena_is_taken_off_and_the_cap_holds() {
    let Some(setup) = setup(UffdFeatures::NONE, |_| ()) else {
        return;
    };
    let mut vec = FarVec::zeros(&setup.arena, PAGES * WORDS).unwrap();
    fill(&mut vec, 1);
    if let Err(error) = setup.arena.0.core.memory.lock() {
        skipped(&format!("this process may not lock memory: {error}"));
        return;
    }
    check(&vec, 1);
    let status = setup.arena.status();
    assert!(status.used <= status.frames, "{status:?}");
}

#[test]
fn what_is_unmapped_is_given_up_and_the_rest_stays() {
    let Some(setup) = setup(UffdFeatures::NONE, |_| ()) else {
        return;
    };
    let mut kept = FarVec::zeros(&setup.arena, PAGES * WORDS).unwrap();
    let mut gone = FarVec::zeros(&setup.arena, PAGES * WORDS).unwrap();
    fill(&mut kept, 1);
    fill(&mut gone, 2);
    setup.arena.0.core.memory.unmap(PAGES, PAGES).unwrap();
    check(&kept, 1);
    let deadline = Instant::now() + Duration::from_secs(60);
    while setup.arena.remote_pages().status().lenders[0].used as usize > PAGES {
        assert!(
            Instant::now() < deadline,
            "lenders keep what nobody can reference"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn who_waits_for_a_frame_gets_it_when_a_page_is_let_go() {
    let Some(setup) = setup(UffdFeatures::NONE, |_| ()) else {
        return;
    };
    let (arena, frames) = (&setup.arena, PAGES as u32 / 4);
    let _vec = FarVec::<u64>::zeros(arena, PAGES * WORDS).unwrap();
    (0..frames).for_each(|page| arena.pin(Page(page)).unwrap());
    std::thread::scope(|scope| {
        let (sender, came) = std::sync::mpsc::channel();
        scope.spawn(move || {
            arena.pin(Page(frames)).unwrap();
            sender.send(()).unwrap();
        });
        let starved = || arena.0.core.monitor.lock().machine.has_starved();
        while !starved() {
            std::thread::sleep(Duration::from_millis(2));
        }
        // The evictor has found that no page may leave, and sleeps.
        std::thread::sleep(Duration::from_millis(300));
        assert!(starved() && came.try_recv().is_err());
        (0..frames).for_each(|page| arena.unpin(Page(page)));
        let served = came.recv_timeout(Duration::from_secs(60));
        // Who was not called is called now: the thread has to end.
        arena.0.core.monitor.evict.notify_one();
        assert!(served.is_ok(), "a frame is free, and nobody looked");
        arena.unpin(Page(frames));
    });
}

#[test]
fn what_was_thrown_away_is_known_to_be_when_that_returns() {
    // Handlers that sleep would wait for the hub before they hear.
    let Some(setup) = setup(UffdFeatures::NONE, |config| config.wait = WaitPolicy::Spin) else {
        return;
    };
    let arena = &setup.arena;
    let mut vec = FarVec::<u64>::zeros(arena, WORDS).unwrap();
    vec.set(0, 1).unwrap();
    std::thread::scope(|scope| {
        let hub = arena.0.core.monitor.lock();
        let (sender, thrown) = std::sync::mpsc::channel();
        scope.spawn(move || {
            arena.empty(0..1);
            sender.send(()).unwrap();
        });
        let early = thrown.recv_timeout(Duration::from_millis(300));
        drop(hub);
        assert!(early.is_err(), "nobody can have been told of it");
        thrown.recv().unwrap();
    });
    assert_eq!(vec.get(0), Ok(0));
}

#[test]
fn words_of_a_page_that_is_thrown_away_are_not_given_once_that_was_heard() {
    // The kernel lets the program go on when a handler has heard, which has not told the arena then: its page
    // was there still, and at lenders.
    let Some(setup) = setup(UffdFeatures::NONE, |config| {
        config.words = WordAccess::Counted(256)
    }) else {
        return;
    };
    let arena = &setup.arena;
    let mut vec = FarVec::<u64>::zeros(arena, PAGES * WORDS).unwrap();
    for (index, value) in vec.as_mut_slice().iter_mut().enumerate() {
        *value = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    assert!(arena.remote_pages().flush(Duration::from_secs(60)));
    let page = Page(3);
    assert!(arena.word(page, &[0], |found| matches!(found, BlockValues::Blocks(_))));
    let core = &arena.0.core;
    std::thread::scope(|scope| {
        let heard = core.layout_lock.write().unwrap();
        let (sender, found) = std::sync::mpsc::channel();
        scope.spawn(move || {
            arena.word(page, &[0], |found| {
                sender.send(found == BlockValues::Zeros).unwrap()
            })
        });
        let early = found.recv_timeout(Duration::from_millis(300));
        assert_eq!(core.discard(&mut core.monitor.lock(), page), None);
        drop(heard);
        assert!(early.is_err(), "these words are of nobody any more");
        assert_eq!(found.recv(), Ok(true));
    });
}
