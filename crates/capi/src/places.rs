//! Memory of the program's own that it made known as a place for regions.

use std::sync::Mutex;

use crate::lock;

/// Bytes of a page: regions begin and end at multiples of it.
pub(crate) const PAGE: usize = netram_rvm::limit::PAGE_BYTES as usize;

/// Ranges of addresses, none overlapping another. A handful: programs that know their addresses load segments.
#[derive(Debug, Default)]
pub(crate) struct Places(Mutex<Vec<(usize, usize)>>);

/// Memory of which the program said that regions may replace it. Only [`Places::hold`] makes one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    start: usize,
}

impl Held {
    pub(crate) fn start(self) -> usize {
        self.start
    }
}

impl Places {
    pub(crate) const fn new() -> Places {
        Places(Mutex::new(Vec::new()))
    }

    /// Makes `start..start + length` known. `false`: not whole pages, or some of it is known already.
    pub(crate) fn register(&self, start: usize, length: usize) -> bool {
        let Some(end) = end_of_pages(start, length) else {
            return false;
        };
        let mut places = lock(&self.0);
        let free = places
            .iter()
            .all(|(first, behind)| end <= *first || *behind <= start);
        if free {
            places.push((start, end));
        }
        free
    }

    /// Makes new memory known. What was known there before was unmapped behind the library's back, or the memory would
    /// not be new.
    pub(crate) fn renew(&self, start: usize, length: usize) -> bool {
        self.forget(start, length);
        self.register(start, length)
    }

    /// Forgets every place that begins in `start..start + length`; `false`: there was none.
    pub(crate) fn forget(&self, start: usize, length: usize) -> bool {
        let end = start.saturating_add(length);
        let mut places = lock(&self.0);
        let before = places.len();
        places.retain(|(first, _)| !(start..end).contains(first));
        places.len() < before
    }

    /// The proof that all of `start..start + length` is in one place.
    pub(crate) fn hold(&self, start: usize, length: usize) -> Option<Held> {
        let end = start.checked_add(length)?;
        lock(&self.0)
            .iter()
            .any(|(first, behind)| *first <= start && end <= *behind)
            .then_some(Held { start })
    }
}

/// Where whole pages end; `None` when they are none.
pub(crate) fn end_of_pages(start: usize, length: usize) -> Option<usize> {
    let whole = start != 0 && length != 0 && start.is_multiple_of(PAGE) && length.is_multiple_of(PAGE);
    start.checked_add(length).filter(|_| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_once_and_holds_what_lies_in_it() {
        let places = Places::new();
        assert!(places.register(4 * PAGE, 4 * PAGE));
        assert!(!places.register(7 * PAGE, 4 * PAGE), "an overlap");
        assert!(places.register(8 * PAGE, PAGE), "a neighbour");
        assert!(places.hold(5 * PAGE, 3 * PAGE).is_some());
        assert!(places.hold(5 * PAGE, 4 * PAGE).is_none(), "over two places");
        assert!(places.hold(usize::MAX, 2).is_none());
        assert!(places.forget(4 * PAGE, 4 * PAGE));
        assert!(!places.forget(4 * PAGE, 4 * PAGE));
        assert!(places.hold(5 * PAGE, PAGE).is_none());
        assert!(places.hold(8 * PAGE, PAGE).is_some());
    }

    #[test]
    fn only_whole_pages_are_a_place() {
        let places = Places::new();
        for (start, length) in [
            (0, PAGE),
            (PAGE, 0),
            (PAGE + 1, PAGE),
            (PAGE, 100),
            (usize::MAX - PAGE + 1, PAGE),
        ] {
            assert!(!places.register(start, length), "{start:#x} {length}");
        }
    }
}
