//! Values read without their pages.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use netram_far::{Arena, ArenaConfig, ArenaError, FarVec, WordAccess};
use netram_lender::Lender;

use super::{FRAMES, PAGE_WORDS, config, open, word};
use crate::common::{PATIENCE, dir, lender, until};

const PAGES: usize = 4 * FRAMES;

fn counted(count: u32) -> impl Fn(ArenaConfig) -> ArenaConfig {
    move |settings| ArenaConfig {
        words: WordAccess::Counted(count),
        ..settings
    }
}

/// A vector that was written from beginning to end. At most the last quarter of its pages is local, and none
/// is in flight.
fn written(arena: &Arena, round: u64) -> FarVec<u64> {
    written_with(arena, |index| word(index, round))
}

fn written_with(arena: &Arena, content: impl Fn(usize) -> u64) -> FarVec<u64> {
    let mut vec = FarVec::<u64>::zeros(arena, PAGES * PAGE_WORDS).unwrap();
    for (index, value) in vec.as_mut_slice().iter_mut().enumerate() {
        *value = content(index);
    }
    assert!(arena.remote_pages().flush(PATIENCE));
    vec
}

#[test]
fn words_are_fetched_singly_until_the_counter_is_spent() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let Some(arena) = open(counted(4)(config(&dir, 2, 2))) else {
        return;
    };
    let vec = written(&arena, 1);
    let before = arena.status().tally;
    let mut values = vec![0; PAGES / 2];
    vec.gather_strided(7, PAGE_WORDS, &mut values).unwrap();
    for (page, value) in values.iter().enumerate() {
        assert_eq!(*value, word(7 + page * PAGE_WORDS, 1), "page {page}");
    }
    let after = arena.status().tally;
    assert_eq!(after.words - before.words, PAGES as u64 / 2);
    assert_eq!((after.fetched, after.faults), (before.fetched, before.faults));
    // The second and third word of the first page, and then the page itself.
    for index in [8, 511, 300, 301, 302] {
        assert_eq!(vec.get(index), Ok(word(index, 1)));
    }
    let last = arena.status().tally;
    assert_eq!(last.words - after.words, 2);
    assert_eq!(last.fetched - after.fetched, 1);
}

#[test]
fn values_are_gathered_in_any_order_and_repeatedly() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    for words in [
        WordAccess::Measured,
        WordAccess::Counted(1),
        WordAccess::Counted(256),
    ] {
        let settings = ArenaConfig {
            words,
            ..config(&dir, 2, 2)
        };
        let Some(arena) = open(settings) else { return };
        // Twelve bytes, so that some values lie in two blocks and some in two pages. The last quarter was
        // never written.
        let count = PAGES * 4096 / 12;
        let mut vec = FarVec::<[u32; 3]>::zeros(&arena, count).unwrap();
        let value = |index: usize| match index < count / 4 * 3 {
            true => [index as u32, !index as u32, 7],
            false => [0; 3],
        };
        for (index, place) in vec.as_mut_slice()[..count / 4 * 3].iter_mut().enumerate() {
            *place = value(index);
        }
        let mut state = 1_u64;
        let mut any = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % count
        };
        for _ in 0..20 {
            let mut indices: Vec<usize> = (0..500).map(|_| any()).collect();
            indices.extend([indices[0], 0, 1, 2, 3, count - 1]);
            let mut values = vec![[1; 3]; indices.len()];
            vec.gather(&indices, &mut values).unwrap();
            for (index, found) in indices.iter().zip(values) {
                assert_eq!(found, value(*index), "value {index}");
            }
            let index = any();
            assert_eq!(vec.get(index), Ok(value(index)));
        }
    }
}

/// Threads that gather, while another scans and so moves pages.
fn stress(vec: &FarVec<u64>, value: impl Fn(usize) -> u64 + Sync, rounds: u64, done: &AtomicU64) {
    let expected = &value;
    let walks = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let gatherers: Vec<_> = (0..3_u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut state = thread + 1;
                    for _ in 0..rounds {
                        let mut any = || {
                            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            (state >> 33) as usize % vec.len()
                        };
                        let indices: Vec<usize> = (0..100).map(|_| any()).collect();
                        let mut values = vec![0; indices.len()];
                        vec.gather(&indices, &mut values).unwrap();
                        for (index, value) in indices.iter().zip(values) {
                            assert_eq!(value, expected(*index), "value {index}");
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while walks.load(Ordering::Relaxed) {
                for index in (0..vec.len()).step_by(PAGE_WORDS / 2) {
                    assert_eq!(vec.as_slice()[index], expected(index), "value {index}");
                }
            }
        });
        until("all have gathered", || {
            gatherers.iter().all(|thread| thread.is_finished())
        });
        walks.store(false, Ordering::Relaxed);
    });
}

#[test]
fn threads_gather_correctly_while_a_lender_dies() {
    let dir = dir();
    let mut lenders: Vec<Lender> = (0..3).map(|index| lender(&dir, index, 8 << 20)).collect();
    let Some(arena) = open(counted(6)(config(&dir, 3, 2))) else {
        return;
    };
    let vec = written(&arena, 1);
    let (done, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (done, over) = (&done, &over);
        let victim = lenders.remove(1);
        scope.spawn(move || {
            until("threads are at work", || {
                done.load(Ordering::Relaxed) > 50 || over.load(Ordering::Relaxed)
            });
            victim.stop_and_forget(Duration::ZERO);
        });
        stress(&vec, |index| word(index, 1), 100, done);
        over.store(true, Ordering::Relaxed);
    });
    let status = arena.status();
    assert!(
        status.tally.words > 1000 && status.tally.fetched > 100,
        "{status:?}"
    );
    assert_eq!(arena.remote_pages().status().lost, 0);
}

#[test]
fn a_counter_out_of_bounds_is_refused() {
    let dir = dir();
    for count in [0, 257] {
        let error = Arena::open(counted(count)(config(&dir, 1, 1))).unwrap_err();
        assert!(matches!(error, ArenaError::BadConfig { .. }), "{error}");
    }
}

/// Content of pages that compress to less than a half.
fn repeated(index: usize) -> u64 {
    word(index / 4, 1)
}

#[test]
fn words_of_compressible_pages_are_read_from_lenders_too() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let Some(arena) = open(counted(256)(config(&dir, 2, 2))) else {
        return;
    };
    let vec = written_with(&arena, repeated);
    let mut values = vec![0; PAGES / 2];
    for at in [0, 3, PAGE_WORDS / 2, PAGE_WORDS - 1] {
        vec.gather_strided(at, PAGE_WORDS, &mut values).unwrap();
        for (page, value) in values.iter().enumerate() {
            assert_eq!(*value, repeated(at + page * PAGE_WORDS), "page {page}");
        }
    }
    assert_eq!(arena.status().tally.words, 4 * PAGES as u64 / 2);
    assert_eq!(arena.remote_pages().status().short, 0);
    for (index, value) in vec.iter().enumerate() {
        assert_eq!(value, repeated(index), "value {index}");
    }
}

#[test]
fn words_of_packed_pages_are_read_locally_until_the_counter_is_spent() {
    let dir = dir();
    let _lender = lender(&dir, 0, 8 << 20);
    let settings = ArenaConfig {
        packed_bytes: Some(FRAMES as u64 / 4 * 4096),
        ..counted(3)(config(&dir, 1, 1))
    };
    let Some(arena) = open(settings) else { return };
    let content = |index: usize| (index / PAGE_WORDS + 1) as u64;
    let vec = written_with(&arena, content);
    let before = arena.status().tally;
    let mut values = vec![0; PAGES / 2];
    for at in [1, 500] {
        vec.gather_strided(at, PAGE_WORDS, &mut values).unwrap();
        for (page, value) in values.iter().enumerate() {
            assert_eq!(*value, content(page * PAGE_WORDS), "page {page}");
        }
    }
    let after = arena.status().tally;
    assert_eq!(after.words - before.words, PAGES as u64);
    assert_eq!((after.unpacked, after.faults), (before.unpacked, before.faults));
    assert_eq!(vec.get(7), Ok(1));
    let last = arena.status().tally;
    assert_eq!((last.words, last.unpacked), (after.words, after.unpacked + 1));
    assert_eq!(
        arena.remote_pages().status().lenders[0].used,
        0,
        "no lender was needed"
    );
}

#[test]
fn threads_gather_correctly_while_pages_are_packed() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let settings = ArenaConfig {
        packed_bytes: Some(8 * 4096),
        ..counted(6)(config(&dir, 2, 2))
    };
    let Some(arena) = open(settings) else { return };
    let vec = written_with(&arena, repeated);
    stress(&vec, repeated, 100, &AtomicU64::new(0));
    let tally = arena.status().tally;
    assert!(
        tally.words > 1000 && tally.unpacked > 10 && tally.fetched > 100,
        "{tally:?}"
    );
    let depot = arena.remote_pages().status();
    assert_eq!((depot.lost, depot.short), (0, 0));
}

#[test]
fn words_in_the_spill_file_are_fetched_with_their_pages() {
    let dir = dir();
    let mut settings = counted(200)(config(&dir, 0, 1));
    settings.remote_pages.spill = Some(dir.path().to_owned());
    let Some(arena) = open(settings) else { return };
    let vec = written(&arena, 1);
    let before = arena.status().tally;
    let mut values = vec![0; PAGES / 2];
    vec.gather_strided(7, PAGE_WORDS, &mut values).unwrap();
    for (page, value) in values.iter().enumerate() {
        assert_eq!(*value, word(7 + page * PAGE_WORDS, 1), "page {page}");
    }
    let after = arena.status().tally;
    assert_eq!(after.words, before.words);
    // Most of them by prefetch, since the columns are a stream.
    let came = |tally: &netram_far::ArenaTally| tally.fetched + tally.ahead;
    assert!(came(&after) - came(&before) > PAGES as u64 / 4, "{after:?}");
}
