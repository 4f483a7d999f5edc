//! Memory of the program that it registered as a place for regions.

use std::sync::Mutex;

use crate::lock;

/// Bytes of a page: regions begin and end at multiples of it.
pub(crate) const PAGE: usize = netram_rvm::limit::PAGE_BYTES as usize;

/// Ranges of addresses without overlaps. There are only a few: programs with fixed addresses load segments
/// instead.
#[derive(Debug, Default)]
pub(crate) struct RegisteredPages(Mutex<Vec<(usize, usize)>>);

/// Memory that the program registered to be replaced by regions. Only [`RegisteredPages::hold`] creates one.
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

    /// Registers `start..start + length`. Returns `false` unless these are whole pages, none of them
    /// registered.
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

    /// Registers new memory. Pages registered there before were unmapped without the library, or the memory
    /// would not be new.
    pub(crate) fn renew(&self, start: usize, length: usize) -> bool {
        self.forget(start, length);
        self.register(start, length)
    }

    /// Unregisters every page that overlaps `start..start + length`; returns `false` if none was registered.
    /// The rest of a registered range stays registered, but no more than that: a region must not replace
    /// later mappings of others.
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

    /// Proof that all of `start..start + length` lies in one registered range.
    pub(crate) fn hold(&self, start: usize, length: usize) -> Option<RegisteredSpan> {
        let end = start.checked_add(length)?;
        lock(&self.0)
            .iter()
            .any(|(first, behind)| *first <= start && end <= *behind)
            .then_some(RegisteredSpan { start })
    }
}

/// The end of a range; `None` unless it consists of whole pages.
pub(crate) fn end_of_pages(start: usize, length: usize) -> Option<usize> {
    let whole = start != 0 && length != 0 && start.is_multiple_of(PAGE) && length.is_multiple_of(PAGE);
    start.checked_add(length).filter(|_| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_registered_once_and_hold_their_parts() {
        let places = RegisteredPages::new();
        assert!(places.register(4 * PAGE, 4 * PAGE));
        assert!(!places.register(7 * PAGE, 4 * PAGE), "an overlap");
        assert!(places.register(8 * PAGE, PAGE), "a neighbour");
        assert!(places.hold(5 * PAGE, 3 * PAGE).is_some());
        assert!(places.hold(5 * PAGE, 4 * PAGE).is_none(), "across two ranges");
        assert!(places.hold(usize::MAX, 2).is_none());
        assert!(places.forget(4 * PAGE, 4 * PAGE));
        assert!(!places.forget(4 * PAGE, 4 * PAGE));
        assert!(places.hold(5 * PAGE, PAGE).is_none());
        assert!(places.hold(8 * PAGE, PAGE).is_some());
    }

    /// Regression: of four registered pages the last three were released, but all stayed registered, and the
    /// next region replaced other mappings there.
    #[test]
    fn a_part_of_a_range_can_be_unregistered() {
        let places = RegisteredPages::new();
        assert!(places.register(4 * PAGE, 4 * PAGE));
        assert!(places.forget(5 * PAGE, 3 * PAGE));
        assert!(places.hold(4 * PAGE, PAGE).is_some(), "the page stays registered");
        assert!(places.hold(4 * PAGE, 2 * PAGE).is_none());
        assert!(places.hold(5 * PAGE, PAGE).is_none());
        assert!(places.register(5 * PAGE, 3 * PAGE));
        assert!(places.register(8 * PAGE, 3 * PAGE));
        // The middle of one range, across two, and a byte of a page.
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
    fn only_whole_pages_can_be_registered() {
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
