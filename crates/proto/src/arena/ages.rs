//! Pages with something of each, the oldest first: those that are packed, and those that are patched.

use alloc::collections::{BTreeMap, VecDeque};

use super::Page;

/// What of pages is kept, and in which order it came.
#[derive(Clone, Debug)]
pub(super) struct Ages<V> {
    /// When each came, and what it has.
    pages: BTreeMap<Page, (u64, V)>,
    /// The oldest first. What has been taken out since is passed over.
    order: VecDeque<(Page, u64)>,
    count: u64,
}

impl<V> Ages<V> {
    pub(super) fn new() -> Ages<V> {
        Ages {
            pages: BTreeMap::new(),
            order: VecDeque::new(),
            count: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    pub(super) fn has(&self, page: Page) -> bool {
        self.pages.contains_key(&page)
    }

    pub(super) fn get(&self, page: Page) -> Option<&V> {
        self.pages.get(&page).map(|(_, kept)| kept)
    }

    /// What is kept of the page. One of which nothing is becomes the youngest, with what `first` makes.
    pub(super) fn get_or_add(&mut self, page: Page, first: impl FnOnce() -> V) -> &mut V {
        if self.order.len() > 2 * self.pages.len() + 64 {
            let pages = &self.pages;
            let there = |(page, at): &(Page, u64)| pages.get(page).is_some_and(|known| known.0 == *at);
            self.order.retain(there);
        }
        let (order, count) = (&mut self.order, &mut self.count);
        let (_, kept) = self.pages.entry(page).or_insert_with(|| {
            *count += 1;
            order.push_back((page, *count));
            (*count, first())
        });
        kept
    }

    /// Nothing is kept of the page any more.
    pub(super) fn remove(&mut self, page: Page) -> Option<V> {
        self.pages.remove(&page).map(|(_, kept)| kept)
    }

    /// The oldest page. It stays until [`Ages::remove`], and is not named twice.
    pub(super) fn oldest(&mut self) -> Option<Page> {
        while let Some((page, at)) = self.order.pop_front() {
            if self.pages.get(&page).is_some_and(|known| known.0 == at) {
                return Some(page);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_taken_out_and_came_again_is_the_youngest() {
        let mut ages = Ages::new();
        for page in 0..3 {
            ages.get_or_add(Page(page), || page);
        }
        *ages.get_or_add(Page(0), || 9) += 7;
        assert_eq!(ages.remove(Page(0)), Some(7));
        ages.get_or_add(Page(0), || 8);
        assert_eq!(ages.oldest(), Some(Page(1)));
        assert!(ages.has(Page(1)), "it was named only");
        let rest = [(); 3].map(|()| ages.oldest());
        assert_eq!(rest, [Some(Page(2)), Some(Page(0)), None]);
        // What is taken out again and again leaves no trace.
        for _ in 0..10_000 {
            ages.get_or_add(Page(5), || 1);
            ages.remove(Page(5));
        }
        assert!(ages.order.len() < 100);
        assert_eq!((ages.get(Page(5)), ages.is_empty()), (None, false));
    }
}
