//! A map of pages in order of insertion, for packed and for patched pages.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::Page;

/// Marks a page without an entry.
const NONE: u32 = u32::MAX;

/// Values by page, in order of insertion. A look-up takes two memory accesses, because words are read and
/// written by the thousand.
#[derive(Clone, Debug)]
pub(super) struct InsertionOrder<V> {
    /// Index into `values`, by page.
    slots: Vec<u32>,
    /// Insertion number and value; `None` for a free slot.
    values: Vec<Option<(u64, V)>>,
    free: Vec<u32>,
    /// Pages with their insertion numbers, oldest first. Entries of removed pages are skipped.
    order: VecDeque<(Page, u64)>,
    count: u64,
}

impl<V> InsertionOrder<V> {
    pub(super) fn new() -> InsertionOrder<V> {
        InsertionOrder {
            slots: Vec::new(),
            values: Vec::new(),
            free: Vec::new(),
            order: VecDeque::new(),
            count: 0,
        }
    }

    fn len(&self) -> usize {
        self.values.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn has(&self, page: Page) -> bool {
        self.entry(page).is_some()
    }

    pub(super) fn get(&self, page: Page) -> Option<&V> {
        self.entry(page).map(|(_, kept)| kept)
    }

    fn entry(&self, page: Page) -> Option<&(u64, V)> {
        let place = self.slots.get(page.0 as usize)?;
        self.values.get(*place as usize)?.as_ref()
    }

    /// The value of a page; if there is none, `first` makes one and the page becomes the youngest.
    pub(super) fn get_or_add(&mut self, page: Page, first: impl FnOnce() -> V) -> &mut V {
        if !self.has(page) {
            self.add(page, first());
        }
        let place = self.slots[page.0 as usize] as usize;
        let (_, kept) = self.values[place]
            .as_mut()
            .expect("the page was present or was just added");
        kept
    }

    fn add(&mut self, page: Page, value: V) {
        if self.order.len() > 2 * self.len() + 64 {
            let mut order = core::mem::take(&mut self.order);
            order.retain(|(page, at)| self.entry(*page).is_some_and(|known| known.0 == *at));
            self.order = order;
        }
        self.count += 1;
        self.order.push_back((page, self.count));
        let place = self.free.pop().unwrap_or_else(|| {
            self.values.push(None);
            (self.values.len() - 1) as u32
        });
        self.values[place as usize] = Some((self.count, value));
        let index = page.0 as usize;
        if index >= self.slots.len() {
            self.slots.resize(index + 1, NONE);
        }
        self.slots[index] = place;
    }

    /// Removes the value of a page.
    pub(super) fn remove(&mut self, page: Page) -> Option<V> {
        let place = core::mem::replace(self.slots.get_mut(page.0 as usize)?, NONE);
        let (_, kept) = self.values.get_mut(place as usize)?.take()?;
        self.free.push(place);
        Some(kept)
    }

    /// The oldest page. It stays until [`InsertionOrder::remove`] and is not returned twice.
    pub(super) fn oldest(&mut self) -> Option<Page> {
        while let Some((page, at)) = self.order.pop_front() {
            if self.entry(page).is_some_and(|known| known.0 == at) {
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
    fn a_reinserted_page_is_the_youngest() {
        let mut ages = InsertionOrder::new();
        for page in 0..3 {
            ages.get_or_add(Page(page), || page);
        }
        *ages.get_or_add(Page(0), || 9) += 7;
        assert_eq!(ages.remove(Page(0)), Some(7));
        ages.get_or_add(Page(0), || 8);
        assert_eq!(ages.oldest(), Some(Page(1)));
        assert!(ages.has(Page(1)), "`oldest` does not remove it");
        let rest = [(); 3].map(|()| ages.oldest());
        assert_eq!(rest, [Some(Page(2)), Some(Page(0)), None]);
        // Repeated insertion and removal leaves no trace.
        for _ in 0..10_000 {
            ages.get_or_add(Page(5), || 1);
            ages.remove(Page(5));
        }
        assert!(ages.order.len() < 100 && ages.values.len() < 10);
        assert_eq!((ages.get(Page(5)), ages.is_empty()), (None, false));
    }
}
