//! The set of pages of a region that were stored to: one bit each, set by any thread and from a signal
//! handler, taken by one.

use std::sync::atomic::{AtomicU64, Ordering};

const BITS: usize = u64::BITS as usize;

/// A set of pages. A bit in `groups` says that the word below it may have bits set, so that taking a few of
/// many pages reads few words.
#[derive(Debug)]
pub(crate) struct DirtyPages {
    words: Box<[AtomicU64]>,
    groups: Box<[AtomicU64]>,
}

fn zeros(bits: usize) -> Box<[AtomicU64]> {
    (0..bits.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect()
}

impl DirtyPages {
    pub(crate) fn new(pages: usize) -> DirtyPages {
        DirtyPages {
            words: zeros(pages),
            groups: zeros(pages.div_ceil(BITS)),
        }
    }

    /// Adds a page. Uses only atomic operations, because a signal handler calls it.
    pub(crate) fn set(&self, page: usize) {
        let word = page / BITS;
        self.words[word].fetch_or(1 << (page % BITS), Ordering::SeqCst);
        // Set after the page's bit, so that a taker of the group's bit finds the page's bit.
        self.groups[word / BITS].fetch_or(1 << (word % BITS), Ordering::SeqCst);
    }

    pub(crate) fn has(&self, page: usize) -> bool {
        self.words[page / BITS].load(Ordering::SeqCst) & 1 << (page % BITS) != 0
    }

    /// Passes each page to `each`, in order, after removing it.
    pub(crate) fn take(&self, mut each: impl FnMut(usize)) {
        for (index, group) in self.groups.iter().enumerate() {
            bits(group.swap(0, Ordering::SeqCst), |word| {
                let word = index * BITS + word;
                let taken = self.words[word].swap(0, Ordering::SeqCst);
                bits(taken, |bit| each(word * BITS + bit));
            });
        }
    }

    /// Passes each page to `each`, in order, and keeps it.
    pub(crate) fn look(&self, mut each: impl FnMut(usize)) {
        for (index, group) in self.groups.iter().enumerate() {
            bits(group.load(Ordering::SeqCst), |word| {
                let word = index * BITS + word;
                bits(self.words[word].load(Ordering::SeqCst), |bit| {
                    each(word * BITS + bit)
                });
            });
        }
    }
}

/// Positions of the set bits.
fn bits(mut word: u64, mut each: impl FnMut(usize)) {
    while word != 0 {
        each(word.trailing_zeros() as usize);
        word &= word - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_set_is_taken_once_in_order() {
        let dirty = DirtyPages::new(10_000);
        for page in [9_999, 0, 63, 64, 4_095, 4_096, 64] {
            dirty.set(page);
        }
        let (mut seen, mut taken) = (Vec::new(), Vec::new());
        dirty.look(|page| seen.push(page));
        dirty.take(|page| taken.push(page));
        assert_eq!(taken, [0, 63, 64, 4_095, 4_096, 9_999]);
        assert_eq!(seen, taken);
        assert!(!dirty.has(64));
        dirty.take(|page| panic!("{page} was taken"));
    }

    #[test]
    fn no_page_set_by_a_thread_is_lost() {
        let dirty = DirtyPages::new(1 << 14);
        let mut taken = vec![0u32; 1 << 14];
        std::thread::scope(|threads| {
            for thread in 0..2 {
                let dirty = &dirty;
                threads.spawn(move || (thread..1 << 14).step_by(2).for_each(|page| dirty.set(page)));
            }
            for _ in 0..100 {
                dirty.take(|page| taken[page] += 1);
            }
        });
        dirty.take(|page| taken[page] += 1);
        assert!(taken.iter().all(|times| *times == 1));
    }
}
