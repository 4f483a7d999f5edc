//! Values written to remote pages.

use std::time::Duration;

use netram_far::{Arena, ArenaConfig, FarAccessError, FarVec, PageGetError, WordAccess};

use super::{FRAMES, PAGE_WORDS, config, open, word};
use crate::common::{PATIENCE, dir, lender, until};

const PAGES: usize = 4 * FRAMES;
/// Number of pages none of which is local after all were written in order.
const COLD: usize = PAGES / 2;

fn counted(count: u32, settings: ArenaConfig) -> ArenaConfig {
    ArenaConfig {
        words: WordAccess::Counted(count),
        ..settings
    }
}

/// A vector that was written from beginning to end, with no page in flight.
fn written(arena: &Arena) -> FarVec<u64> {
    let mut vec = FarVec::<u64>::zeros(arena, PAGES * PAGE_WORDS).unwrap();
    for (index, value) in vec.as_mut_slice().iter_mut().enumerate() {
        *value = word(index, 1);
    }
    assert!(arena.remote_pages().flush(PATIENCE));
    // Without a free frame, a write would fetch its page.
    until("frames are free", || {
        let status = arena.status();
        status.used as usize + status.packed as usize + status.pending <= FRAMES - 8
    });
    vec
}

/// Pages that came from lenders for any reason.
fn came(arena: &Arena) -> u64 {
    let tally = arena.status().tally;
    tally.fetched + tally.ahead + tally.patch_fetches
}

#[test]
fn words_written_to_remote_pages_are_merged_on_arrival() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let Some(arena) = open(counted(8, config(&dir, 2, 2))) else {
        return;
    };
    let mut vec = written(&arena);
    let before = (came(&arena), arena.status().tally.faults);
    // A word in the middle of a block, both words of another block, and one of these again.
    let values = |round: u64| -> Vec<u64> { (0..COLD).map(|page| word(page, round)).collect() };
    for (at, round) in [(7, 2), (100, 3), (101, 4), (101, 5)] {
        vec.scatter_strided(at, PAGE_WORDS, &values(round)).unwrap();
    }
    vec.set(300, 6).unwrap();
    let tally = arena.status().tally;
    assert_eq!(tally.written, 4 * COLD as u64 + 1);
    assert_eq!(
        (came(&arena), tally.faults),
        before,
        "no page was fetched for the writes"
    );
    assert!(arena.status().patched > 0, "patches take a part of the cap");
    let expected = |index: usize| {
        let page = index / PAGE_WORDS;
        match index % PAGE_WORDS {
            300 if page == 0 => 6,
            7 if page < COLD => word(page, 2),
            100 if page < COLD => word(page, 3),
            101 if page < COLD => word(page, 5),
            _ => word(index, 1),
        }
    };
    // One block is only local, one only remote, and one in both places.
    let indices: Vec<usize> = [100, 101, 102, 6, 7].map(|at| 5 * PAGE_WORDS + at).into();
    let mut gathered = vec![0; indices.len()];
    vec.gather(&indices, &mut gathered).unwrap();
    for (index, value) in indices.iter().zip(gathered) {
        assert_eq!(value, expected(*index), "value {index}");
    }
    assert_eq!(vec.get(100), Ok(expected(100)));
    assert_eq!(came(&arena), before.0, "no page was fetched for the reads either");
    for round in 0..3 {
        for (index, value) in vec.iter().enumerate() {
            assert_eq!(value, expected(index), "value {index} in round {round}");
        }
    }
    assert_eq!(arena.status().patched, 0, "all patches are merged");
}

#[test]
fn writes_spend_the_counter_like_reads() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let Some(arena) = open(counted(4, config(&dir, 2, 2))) else {
        return;
    };
    let mut vec = written(&arena);
    let before = came(&arena);
    vec.set(0, 7).unwrap();
    assert_eq!(vec.get(10), Ok(word(10, 1)));
    vec.set(20, 8).unwrap();
    assert_eq!(came(&arena), before);
    vec.set(30, 9).unwrap();
    assert_eq!(came(&arena), before + 1);
    assert_eq!([0, 20, 30].map(|index| vec.get(index).unwrap()), [7, 8, 9]);
    assert_eq!(arena.status().patched, 0);
    // Four at a time exceed any page's counter.
    let page = 9 * PAGE_WORDS;
    let indices = [page, page + 100, page + 200, page + 300];
    vec.scatter(&indices, &[1, 2, 3, 4]).unwrap();
    assert_eq!(came(&arena), before + 2);
    assert_eq!(indices.map(|index| vec.get(index).unwrap()), [1, 2, 3, 4]);
}

#[test]
fn full_patches_fetch_the_first_pages_while_writing_continues() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let settings = ArenaConfig {
        patched_bytes: Some(2 * 4096),
        ..counted(250, config(&dir, 2, 2))
    };
    let Some(arena) = open(settings) else { return };
    let mut vec = written(&arena);
    for column in 0..40_usize {
        let values: Vec<u64> = (0..PAGES).map(|page| word(page, column as u64)).collect();
        vec.scatter_strided(column * 11, PAGE_WORDS, &values).unwrap();
        let patched = arena.status().patched;
        assert!(patched <= 2 + 2, "{patched} frames, but for one page's patch");
    }
    let tally = arena.status().tally;
    assert!(tally.patch_fetches > 100 && tally.written > 1000, "{tally:?}");
    for (index, value) in vec.iter().enumerate() {
        let (page, at) = (index / PAGE_WORDS, index % PAGE_WORDS);
        let expected = match at.is_multiple_of(11) && at / 11 < 40 {
            true => word(page, (at / 11) as u64),
            false => word(index, 1),
        };
        assert_eq!(value, expected, "value {index}");
    }
}

#[test]
fn discarding_a_page_discards_its_patch() {
    let dir = dir();
    let _lender = lender(&dir, 0, 8 << 20);
    let Some(arena) = open(counted(8, config(&dir, 1, 1))) else {
        return;
    };
    let mut vec = written(&arena);
    vec.scatter_strided(0, PAGE_WORDS, &[7; COLD]).unwrap();
    assert!(arena.status().patched > 0);
    vec.truncate(0);
    assert_eq!(arena.status().patched, 0);
    drop(vec);
    let vec = FarVec::<u64>::zeros(&arena, PAGES * PAGE_WORDS).unwrap();
    assert_eq!(vec.get(0), Ok(0));
    assert!(vec.iter().all(|value| value == 0));
}

#[test]
fn of_a_lost_page_only_whole_written_blocks_are_readable() {
    let dir = dir();
    let first = lender(&dir, 0, 8 << 20);
    let Some(arena) = open(counted(100, config(&dir, 1, 1))) else {
        return;
    };
    let mut vec = written(&arena);
    vec.scatter(&[0, 1, 10], &[7, 8, 9]).unwrap();
    first.stop_and_forget(Duration::ZERO);
    let _second = lender(&dir, 0, 8 << 20);
    assert_eq!(vec.get(0), Ok(7), "its whole block was written");
    for _ in 0..2 {
        let lost = vec.get(10);
        assert!(
            matches!(lost, Err(FarAccessError::Lost(PageGetError::Lost { .. }))),
            "half of its block is lost: {lost:?}"
        );
    }
    assert!(matches!(vec.get(0), Err(FarAccessError::Lost(_))));
    assert!(matches!(vec.set(0, 1), Err(FarAccessError::Lost(_))));
    assert_eq!(arena.status().patched, 0);
}

/// Twelve bytes, so that some values lie in two blocks and some in two pages.
type Value = [u32; 3];

/// A thread's vector, with a model of its content.
struct Modelled {
    vec: FarVec<Value>,
    model: Vec<Value>,
    state: u64,
}

impl Modelled {
    fn new(arena: &Arena, thread: u64) -> Modelled {
        let length = FRAMES * 4096 / 12;
        Modelled {
            vec: FarVec::zeros(arena, length).unwrap(),
            model: vec![[0; 3]; length],
            state: thread + 1,
        }
    }

    fn any(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) as usize % bound
    }

    fn value(&mut self) -> Value {
        [(); 3].map(|()| self.any(1 << 31) as u32)
    }

    /// Indices here and there, some adjacent, some repeated.
    fn indices(&mut self) -> Vec<usize> {
        let mut indices = Vec::new();
        for _ in 0..self.any(40) {
            let first = self.any(self.model.len());
            let run = [1, 1, 1, 6][self.any(4)];
            indices.extend(first..(first + run).min(self.model.len()));
        }
        let twice = indices.first().copied();
        indices.extend(twice);
        indices
    }

    /// Does one random operation and checks its result.
    fn step(&mut self) {
        match self.any(100) {
            0..20 => {
                let (index, value) = (self.any(self.model.len()), self.value());
                self.vec.set(index, value).unwrap();
                self.model[index] = value;
            }
            20..40 => {
                let indices = self.indices();
                let values: Vec<Value> = indices.iter().map(|_| self.value()).collect();
                self.vec.scatter(&indices, &values).unwrap();
                for (index, value) in indices.iter().zip(values) {
                    self.model[*index] = value;
                }
            }
            40..60 => {
                let index = self.any(self.model.len());
                assert_eq!(self.vec.get(index), Ok(self.model[index]), "value {index}");
            }
            60..75 => {
                let indices = self.indices();
                let mut values = vec![[1; 3]; indices.len()];
                self.vec.gather(&indices, &mut values).unwrap();
                for (index, value) in indices.iter().zip(values) {
                    assert_eq!(value, self.model[*index], "gathered value {index}");
                }
            }
            75..98 => self.walk(),
            _ => self.shrink_and_grow(),
        }
    }

    /// Faults that bring pages and evict others.
    fn walk(&mut self) {
        let (first, step) = (self.any(self.model.len()), [1, 100, 350][self.any(3)]);
        for index in (first..self.model.len()).step_by(step).take(60) {
            assert_eq!(
                self.vec.as_slice()[index],
                self.model[index],
                "seen value {index}"
            );
            if index.is_multiple_of(3) {
                let value = self.value();
                self.vec.as_mut_slice()[index] = value;
                self.model[index] = value;
            }
        }
    }

    fn shrink_and_grow(&mut self) {
        let length = self.model.len();
        let shorter = length - self.any(2000);
        self.vec.truncate(shorter);
        self.model.truncate(shorter);
        while self.model.len() < length {
            let value = self.value();
            self.vec.push(value).unwrap();
            self.model.push(value);
        }
    }

    fn check(&self) {
        for (index, value) in self.vec.iter().enumerate() {
            assert_eq!(value, self.model[index], "value {index} at the end");
        }
    }
}

#[test]
fn threads_read_their_writes_by_words_and_by_pages() {
    let dir = dir();
    let _lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    for (count, pack, patched) in [(6, 0, 1), (20, 8, 2), (200, 0, 20)] {
        let settings = ArenaConfig {
            packed_bytes: Some(pack * 4096),
            patched_bytes: Some(patched * 4096),
            ..counted(count, config(&dir, 2, 2))
        };
        let Some(arena) = open(settings) else { return };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let mut modelled = Modelled::new(&arena, thread);
                scope.spawn(move || {
                    (0..1500).for_each(|_| modelled.step());
                    modelled.check();
                });
            }
        });
        let status = arena.status();
        assert!(status.tally.written > 1000, "{status:?}");
        assert!(patched > 2 || status.tally.patch_fetches > 10, "{status:?}");
        assert_eq!(arena.remote_pages().status().lost, 0);
    }
}
