//! Operations of a program on its arena, and kernels with fewer features.

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
    /// State shared by the arena's threads.
    pub(super) fn core(&self) -> &ArenaCore {
        &self.arena.0.core
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }
}

/// Makes an arena with a cap of a quarter of `PAGES`, as if the kernel lacked some features. `None`: this
/// process lacks the privilege, which is reported.
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

/// Reports that a test cannot run here. Written directly, because output of a passing test is not shown.
pub(super) fn skipped(missing: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // If this cannot be written, there is no other way to report it.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}

pub(super) fn fill(vec: &mut FarVec<u64>, round: u64) {
    for (index, value) in vec.as_mut_slice().iter_mut().enumerate() {
        *value = index as u64 | round << 40;
    }
}

pub(super) fn check(vec: &FarVec<u64>, round: u64) {
    for (index, value) in vec.iter().enumerate() {
        assert_eq!(value, index as u64 | round << 40, "value {index}");
    }
}

#[test]
fn without_moves_pages_are_copied() {
    let Some(setup) = setup(UffdFeatures::MOVE, |_| ()) else {
        return;
    };
    assert!(setup.arena.0.core.move_uffd.is_none());
    let mut vec = FarVec::zeros(&setup.arena, PAGES * WORDS).unwrap();
    for round in 1..4 {
        fill(&mut vec, round);
        check(&vec, round);
    }
    // A thread writes pages that other threads cause to be evicted.
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
fn an_unprivileged_arena_serves_user_mode_faults() {
    let Some(setup) = setup(UffdFeatures::NONE, |config| config.user_faults_only = true) else {
        return;
    };
    let mut vec = FarVec::zeros(&setup.arena, PAGES * WORDS).unwrap();
    fill(&mut vec, 1);
    check(&vec, 1);
}

#[test]
fn a_kernel_without_discard_events_is_refused() {
    let config = ArenaConfig::default();
    let refused = Arena::open_without(config, UffdFeatures::REMOVE).unwrap_err();
    assert!(
        matches!(refused, ArenaError::Kernel { .. } | ArenaError::Refused { .. }),
        "{refused}"
    );
}

#[test]
fn locked_pages_are_unlocked_so_that_the_cap_holds() {
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
fn unmapped_pages_are_forgotten_and_the_others_stay() {
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
        assert!(Instant::now() < deadline, "lenders still store unmapped pages");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_waiting_fault_gets_the_frame_of_an_unpinned_page() {
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
        // The evictor has found no evictable page, and sleeps.
        std::thread::sleep(Duration::from_millis(300));
        assert!(starved() && came.try_recv().is_err());
        (0..frames).for_each(|page| arena.unpin(Page(page)));
        let served = came.recv_timeout(Duration::from_secs(60));
        // Notify the evictor now if it was not before: the thread must end.
        arena.0.core.monitor.evict.notify_one();
        assert!(
            served.is_ok(),
            "a frame was free, but the evictor was not notified"
        );
        arena.unpin(Page(frames));
    });
}

#[test]
fn a_discard_is_recorded_when_the_call_returns() {
    // Sleeping handlers would wait for the monitor before they read the message.
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
        assert!(early.is_err(), "the discard cannot have been recorded yet");
        thrown.recv().unwrap();
    });
    assert_eq!(vec.get(0), Ok(0));
}

#[test]
fn words_of_a_discarded_page_are_not_returned() {
    // The kernel lets the program continue when a handler has read the discard, before it is recorded. Until
    // then the page still counted as remote.
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
        assert!(early.is_err(), "these words were discarded");
        assert_eq!(found.recv(), Ok(true));
    });
}
