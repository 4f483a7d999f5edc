//! Changes that other nodes make in a heap of a shared region, and the update of its lists.
//!
//! Records of other nodes change the heap's bytes but not its lists. The applier reports the changed bytes;
//! the next use under the heap's lock reads exactly those descriptors and states again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Heap, Inner, Lists, State};
use crate::block::descriptor;
use crate::class::RUN_HEADER_BYTES;
use crate::error::HeapDamage;
use crate::layout::{DESCRIPTOR_BYTES, HeapGeometry, PageDescriptor, descriptor_at, page_at};
use crate::limit::{PAGE_BYTES, RUN_SLOTS_MAX, TOUCHED_MAX};

/// End of a run's slot states in its first page.
const STATES_END: u64 = RUN_HEADER_BYTES as u64 + RUN_SLOTS_MAX as u64;

/// Changes of other nodes that the lists do not reflect yet.
#[derive(Debug, Default)]
pub(super) struct RemoteChanges {
    any: AtomicBool,
    changed: Mutex<ChangedPages>,
}

/// Changed pages; a page may occur more than once.
#[derive(Debug, Default)]
struct ChangedPages {
    /// Pages whose descriptors have changed.
    descriptors: Vec<u32>,
    /// Pages in which slot states have changed, if a run begins there.
    states: Vec<u32>,
    /// More has changed than the lists hold, so everything is read again.
    all: bool,
}

impl RemoteChanges {
    /// Adds changed bytes of the heap.
    fn note(&self, geometry: HeapGeometry, ranges: impl Iterator<Item = (u64, u64)>) {
        let mut touched = None;
        for (from, to) in ranges {
            let touched = touched.get_or_insert_with(|| self.lock());
            touched.note(geometry, from, to);
        }
        if touched.is_some_and(|touched| touched.is_any()) {
            self.any.store(true, Ordering::Release);
        }
    }

    fn take(&self) -> ChangedPages {
        let mut touched = self.lock();
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut touched)
    }

    /// Marks everything as changed.
    fn forget(&self) {
        self.lock().all = true;
        self.any.store(true, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, ChangedPages> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChangedPages {
    fn is_any(&self) -> bool {
        self.all || !self.descriptors.is_empty() || !self.states.is_empty()
    }

    fn note(&mut self, geometry: HeapGeometry, from: u64, to: u64) {
        let table = (descriptor_at(geometry.first), descriptor_at(geometry.pages));
        let (first, last) = (from.max(table.0), to.min(table.1));
        if first < last {
            let page = |at: u64| ((at - PAGE_BYTES as u64) / DESCRIPTOR_BYTES as u64) as u32;
            let pages = page(first)..=page(last - 1);
            extend(&mut self.descriptors, pages, &mut self.all);
        }
        let (first, last) = (from.max(page_at(geometry.first)), to.min(geometry.bytes()));
        if first < last {
            let page = |at: u64| (at / PAGE_BYTES as u64) as u32;
            // Most changes are inside blocks, behind the states.
            let skipped = u32::from(first % PAGE_BYTES as u64 >= STATES_END);
            extend(
                &mut self.states,
                page(first) + skipped..=page(last - 1),
                &mut self.all,
            );
        }
    }
}

fn extend(list: &mut Vec<u32>, pages: std::ops::RangeInclusive<u32>, all: &mut bool) {
    let known = list.last().is_some_and(|last| pages.start() == last);
    let pages = pages.skip(usize::from(known));
    if list.len() + pages.clone().count() > TOUCHED_MAX {
        *all = true;
    }
    if !*all {
        list.extend(pages);
    }
}

impl Heap {
    /// Reports bytes of the region that another node has changed, as offset and length. The heap reads them
    /// again when it is used next. For heaps of shared regions: the applier of remote records calls this
    /// after each record, and before any transaction can get the heap's lock.
    pub fn note_remote(&self, ranges: impl Iterator<Item = (usize, usize)>) {
        let start = self.start() as u64;
        let end = start + self.inner.geometry.bytes();
        let inside = ranges.filter_map(|(offset, length)| {
            let from = (offset as u64).max(start);
            let to = (offset as u64).saturating_add(length as u64).min(end);
            (from < to).then(|| (from - start, to - start))
        });
        self.inner.remote_changes.note(self.inner.geometry, inside);
    }
}

impl Inner {
    /// Updates the lists. The caller's transaction keeps other nodes from changing the heap.
    #[inline]
    pub(super) fn reload(&self, state: &mut State) -> Result<(), HeapDamage> {
        match self.remote_changes.any.load(Ordering::Acquire) {
            false => Ok(()),
            true => self.reload_changed(state),
        }
    }

    #[cold]
    fn reload_changed(&self, state: &mut State) -> Result<(), HeapDamage> {
        let touched = self.remote_changes.take();
        let looked = match touched.all {
            true => Lists::scan(&self.slice, self.geometry).map(|lists| state.lists = lists),
            false => self.reload_pages(&mut state.lists, touched),
        };
        looked.inspect_err(|_| self.remote_changes.forget())
    }

    fn reload_pages(&self, lists: &mut Lists, touched: ChangedPages) -> Result<(), HeapDamage> {
        let ChangedPages {
            mut descriptors,
            states,
            ..
        } = touched;
        descriptors.sort_unstable();
        descriptors.dedup();
        let mut changed = Vec::with_capacity(descriptors.len());
        for page in descriptors {
            let (old, new) = (
                lists.descriptor(page),
                descriptor(&self.slice, self.geometry, page)?,
            );
            if old != new {
                changed.push((page, old, new));
            }
        }
        // Removed items make room for the added ones.
        for (page, old, _) in &changed {
            lists.remove(*page, *old);
        }
        for (page, _, new) in &changed {
            lists.add(*page, *new)?;
        }
        for page in states {
            lists.runs.unread(page);
        }
        Ok(())
    }
}

impl Lists {
    /// A page's descriptor according to the lists.
    fn descriptor(&self, page: u32) -> PageDescriptor {
        match (self.runs.class_of(page), self.lengths.get(page)) {
            (Some(class), _) => PageDescriptor::Run { class },
            (None, Some(pages)) => PageDescriptor::Extent { pages },
            (None, None) => PageDescriptor::Empty,
        }
    }

    /// Frees the pages that a descriptor covers.
    fn remove(&mut self, page: u32, descriptor: PageDescriptor) {
        match descriptor {
            PageDescriptor::Empty => return,
            PageDescriptor::Run { .. } => self.runs.forget(page),
            PageDescriptor::Extent { .. } => self.lengths.clear(page),
        }
        self.free.give(page, descriptor.pages());
    }

    /// Takes the pages that a descriptor covers.
    fn add(&mut self, page: u32, descriptor: PageDescriptor) -> Result<(), HeapDamage> {
        let pages = descriptor.pages();
        if pages > 0 && !self.free.take_at(page, pages) {
            return Err(HeapDamage::Overlap { page, by: page });
        }
        match descriptor {
            PageDescriptor::Empty => {}
            PageDescriptor::Run { class } => self.runs.add_scanned(page, class),
            PageDescriptor::Extent { pages } => self.lengths.set(page, pages),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_descriptors_and_states_are_listed() {
        // 1024 pages: header, two of table, then 1021 for blocks.
        let geometry = HeapGeometry::of(4 << 20).unwrap();
        assert_eq!(geometry.first, 3);
        let noted = |from: u64, length: u64| {
            let others = RemoteChanges::default();
            others.note(geometry, std::iter::once((from, from + length)));
            let any = others.any.load(Ordering::Relaxed);
            let touched = others.take();
            assert_eq!(any, touched.is_any());
            assert!(!touched.all);
            (touched.descriptors, touched.states)
        };
        // Header, roots, and descriptors of pages that hold no blocks.
        assert_eq!(noted(0, 4096 + 3 * 8), (vec![], vec![]));
        assert_eq!(noted(4096 + 3 * 8, 1), (vec![3], vec![]));
        assert_eq!(noted(4096 + 10 * 8 + 7, 2), (vec![10, 11], vec![]));
        assert_eq!(noted(5 * 4096 + 16, 1), (vec![], vec![5]));
        assert_eq!(noted(5 * 4096 + 271, 1), (vec![], vec![5]));
        assert_eq!(noted(5 * 4096 + 272, 3000), (vec![], vec![]));
        assert_eq!(noted(5 * 4096 + 272, 4096), (vec![], vec![6]));
        assert_eq!(noted(1023 * 4096, 4096), (vec![], vec![1023]));
        // From the table across its end into the first page.
        assert_eq!(noted(4096 + 1022 * 8, 4096), (vec![1022, 1023], vec![3]));
    }

    #[test]
    fn too_many_changes_mark_everything_as_changed() {
        let geometry = HeapGeometry::of(1 << 30).unwrap();
        let others = RemoteChanges::default();
        let pages = (geometry.first..).step_by(2).map(page_at);
        others.note(geometry, pages.take(TOUCHED_MAX + 1).map(|at| (at, at + 1)));
        let touched = others.take();
        assert!(touched.all);
        assert_eq!(touched.states.len(), TOUCHED_MAX);
    }
}
