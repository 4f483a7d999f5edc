//! Memory of the program's own that it made known as a place for regions.

use std::sync::Mutex;

use crate::lock;

/// Bytes of a page: regions begin and end at multiples of it.
pub(crate) const PAGE: usize = netram_rvm::limit::PAGE_BYTES as usize;

/// Ranges of addresses, none overlapping another. A handful: programs that know their addresses load
/// segments.
#[derive(Debug, Default)]
pub(crate) struct RegisteredPages(Mutex<Vec<(usize, usize)>>);

/// Memory of which the program said that regions may replace it. Only [`RegisteredPages::hold`] makes one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisteredSpan {
    start: usize,
}

impl RegisteredSpan {
    pub(crate) fn start(self) -> usize {
        self.start
    }
}

impl RegisteredPages {
    pub(crate) const fn new() -> RegisteredPages {
        RegisteredPages(Mutex::new(Vec::new()))
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

    /// Makes new memory known. What was known there before was unmapped behind the library's back, or the
    /// memory would not be new.
    pub(crate) fn renew(&self, start: usize, length: usize) -> bool {
        self.forget(start, length);
        self.register(start, length)
    }

    /// Forgets every page that has some of `start..start + length`; `false`: none was known. What was known
    /// beside them stays so: a place that were kept whole would let a region replace what others have there
    /// meanwhile.
    pub(crate) fn forget(&self, start: usize, length: usize) -> bool {
        let end = start.saturating_add(length);
        let end = end.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
        let start = start / PAGE * PAGE;
        let mut places = lock(&self.0);
        let met = |(first, behind): (usize, usize)| length > 0 && first < end && start < behind;
        let rest: Vec<_> = places
            .iter()
            .filter(|place| met(**place))
            .flat_map(|&(first, behind)| [(first, start), (end, behind)])
            .filter(|(first, behind)| first < behind)
            .collect();
        let before = places.len();
        places.retain(|place| !met(*place));
        let found = places.len() < before;
        places.extend(rest);
        found
    }

    /// The proof that all of `start..start + length` is in one place.
    pub(crate) fn hold(&self, start: usize, length: usize) -> Option<RegisteredSpan> {
        let end = start.checked_add(length)?;
        lock(&self.0)
            .iter()
            .any(|(first, behind)| *first <= start && end <= *behind)
            .then_some(RegisteredSpan { start })
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
        let places = RegisteredPages::new();
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

    /// Four pages were registered and the last three given back: the whole place stayed, and the next region
    /// there replaced what the system had put into them.
    #[test]
    fn a_place_is_forgotten_in_part() {
        let places = RegisteredPages::new();
        assert!(places.register(4 * PAGE, 4 * PAGE));
        assert!(places.forget(5 * PAGE, 3 * PAGE));
        assert!(places.hold(4 * PAGE, PAGE).is_some(), "it was not forgotten");
        assert!(places.hold(4 * PAGE, 2 * PAGE).is_none());
        assert!(places.hold(5 * PAGE, PAGE).is_none());
        assert!(places.register(5 * PAGE, 3 * PAGE));
        assert!(places.register(8 * PAGE, 3 * PAGE));
        // The middle of one, over two, and a byte of a page.
        assert!(places.forget(9 * PAGE, PAGE));
        assert!(places.hold(8 * PAGE, PAGE).is_some() && places.hold(10 * PAGE, PAGE).is_some());
        assert!(places.hold(9 * PAGE, PAGE).is_none());
        assert!(places.forget(7 * PAGE + 1, PAGE));
        assert!(places.hold(6 * PAGE, PAGE).is_some());
        assert!(places.hold(7 * PAGE, PAGE).is_none() && places.hold(8 * PAGE, PAGE).is_none());
        assert!(!places.forget(6 * PAGE, 0));
        assert!(places.forget(0, usize::MAX));
        assert!(!places.forget(0, usize::MAX));
    }

    #[test]
    fn only_whole_pages_are_a_place() {
        let places = RegisteredPages::new();
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
