//! A region's memory, and the views that Python has into it.
//!
//! While there is a view (an array, a `memoryview`), the memory is not unmapped: `unmap` and `close` refuse,
//! as `mmap.close` does, and dropping every other object leaves it mapped until the last view is gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use netram_heap::Heap;
use pyo3::prelude::*;

use crate::error;
use crate::locks::shared;
use crate::open_log::StoreLog;
use crate::sys::{BufferSource, BufferView};

/// A region that Python may look into.
pub(crate) struct RegionWindow {
    pub(crate) log: Arc<StoreLog>,
    mapped: RwLock<Option<MappedWindow>>,
    /// Views that are not given back. Counted up under the lock shared, so that whoever has it exclusively
    /// and finds none may unmap.
    views: AtomicUsize,
    address: usize,
    length: usize,
}

/// What a window shows while it is mapped.
pub(crate) struct MappedWindow {
    pub(crate) region: Arc<netram_rvm::Region>,
    /// The heap in it, once somebody asked: one for all, since what is free is known to it alone.
    pub(crate) heap: Option<Heap>,
}

/// A region's place, held exclusively.
pub(crate) struct WindowGuard<'w> {
    window: &'w RegionWindow,
    mapped: RwLockWriteGuard<'w, Option<MappedWindow>>,
}

impl RegionWindow {
    pub(crate) fn new(log: Arc<StoreLog>, region: netram_rvm::Region) -> RegionWindow {
        let (address, length) = (region.as_ptr().addr(), region.len());
        RegionWindow {
            log,
            mapped: RwLock::new(Some(MappedWindow {
                region: Arc::new(region),
                heap: None,
            })),
            views: AtomicUsize::new(0),
            address,
            length,
        }
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Whether there is something to be seen. Not in a forked child, where a lock of a thread that it has not
    /// may be held for ever.
    pub(crate) fn is_mapped(&self, py: Python<'_>) -> bool {
        !self.log.is_inherited() && shared(py, &self.mapped).is_some()
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<MappedWindow>> {
        self.mapped.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the region, which stays mapped meanwhile; to be called with the interpreter free,
    /// since it waits while the region is unmapped or formatted. `None`: it is unmapped already.
    pub(crate) fn with<R>(&self, then: impl FnOnce(&netram_rvm::Region) -> R) -> Option<R> {
        debug_assert!(!self.log.is_inherited(), "checked before");
        self.read().as_ref().map(|mapped| then(&mapped.region))
    }

    /// Does something with the region's heap, in the same way. `None`: the region is unmapped already, or its
    /// heap was not opened.
    pub(crate) fn with_heap<R>(&self, then: impl FnOnce(&Heap) -> R) -> Option<R> {
        self.read().as_ref()?.heap.as_ref().map(then)
    }

    /// Like [`RegionWindow::with`], for Python: an unmapped region, or one of a parent process, is an
    /// exception.
    pub(crate) fn use_region<R>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&netram_rvm::Region) -> R,
    ) -> PyResult<R> {
        self.log.check_process(py)?;
        let mapped = shared(py, &self.mapped);
        let done = mapped.as_ref().map(|mapped| then(&mapped.region));
        done.ok_or_else(|| unmapped(py))
    }

    /// Keeps views from being taken, and the region from being unmapped, until the answer is dropped.
    pub(crate) fn hold(&self) -> WindowGuard<'_> {
        WindowGuard {
            window: self,
            mapped: self.mapped.write().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl BufferSource for RegionWindow {
    fn view(&self, py: Python<'_>) -> PyResult<BufferView> {
        self.use_region(py, |region| {
            self.views.fetch_add(1, Ordering::AcqRel);
            BufferView {
                address: region.as_ptr(),
                length: region.len(),
                readonly: false,
            }
        })
    }

    fn end_view(&self) {
        let before = self.views.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a view is given back once");
    }
}

impl WindowGuard<'_> {
    /// Views that are not given back.
    pub(crate) fn views(&self) -> usize {
        self.window.views.load(Ordering::Acquire)
    }

    /// What is mapped, taken out; to be put back with [`WindowGuard::put`] if it is to stay.
    pub(crate) fn take(&mut self) -> Option<MappedWindow> {
        assert_eq!(
            self.views(),
            0,
            "memory is unmapped only when nobody looks into it"
        );
        self.mapped.take()
    }

    pub(crate) fn put(&mut self, mapped: MappedWindow) {
        *self.mapped = Some(mapped);
    }

    /// What is mapped.
    pub(crate) fn mapped(&mut self) -> Option<&mut MappedWindow> {
        self.mapped.as_mut()
    }
}

impl Drop for RegionWindow {
    fn drop(&mut self) {
        if !self.log.is_inherited() {
            self.log.forget_window(self);
        }
    }
}

/// What every use of an unmapped region is answered with.
pub(crate) fn unmapped(py: Python<'_>) -> PyErr {
    error::closed(py, "the region is unmapped")
}

/// How many views are in the way, as the middle of a sentence.
pub(crate) fn looking(views: usize) -> String {
    match views {
        1 => "1 view (array, memoryview) looks".to_owned(),
        views => format!("{views} views (arrays, memoryviews) look"),
    }
}
