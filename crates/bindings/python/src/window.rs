//! A region's memory, and Python's views of it.
//!
//! While a view (an array, a `memoryview`) exists, the memory is not unmapped: `unmap` and `close` fail, like
//! `mmap.close`. Dropping every other object leaves the memory mapped until the last view is released.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use netram_heap::Heap;
use pyo3::prelude::*;

use crate::error;
use crate::locks::shared;
use crate::open_log::StoreLog;
use crate::sys::{BufferSource, BufferView};

/// A region that Python can view.
pub(crate) struct RegionWindow {
    pub(crate) log: Arc<StoreLog>,
    mapped: RwLock<Option<MappedWindow>>,
    /// Number of views. Incremented under the shared lock, so that a holder of the exclusive lock that finds
    /// none may unmap.
    views: AtomicUsize,
    address: usize,
    length: usize,
}

/// State of a window while it is mapped.
pub(crate) struct MappedWindow {
    pub(crate) region: Arc<netram_rvm::Region>,
    /// The region's heap after its first use: one for all users, because only it knows what is free.
    pub(crate) heap: Option<Heap>,
}

/// The lock on a window, held exclusively.
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

    /// Whether the region is mapped. False in a forked child, where a lock may be held forever by a thread of
    /// the parent.
    pub(crate) fn is_mapped(&self, py: Python<'_>) -> bool {
        !self.log.is_inherited() && shared(py, &self.mapped).is_some()
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<MappedWindow>> {
        self.mapped.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `then` with the region, which stays mapped during the call. Release the interpreter first,
    /// because this waits for unmapping and formatting. Returns `None` if the region is unmapped.
    pub(crate) fn with<R>(&self, then: impl FnOnce(&netram_rvm::Region) -> R) -> Option<R> {
        debug_assert!(!self.log.is_inherited(), "checked before");
        self.read().as_ref().map(|mapped| then(&mapped.region))
    }

    /// Calls `then` with the region's heap, like [`RegionWindow::with`]. Returns `None` if the region is
    /// unmapped, or its heap was not opened.
    pub(crate) fn with_heap<R>(&self, then: impl FnOnce(&Heap) -> R) -> Option<R> {
        self.read().as_ref()?.heap.as_ref().map(then)
    }

    /// Calls `then` like [`RegionWindow::with`]; raises an exception for an unmapped region, or one of a
    /// parent process.
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

    /// Prevents new views and unmapping until the guard is dropped.
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
        debug_assert!(before > 0, "a view is released once");
    }
}

impl WindowGuard<'_> {
    /// Number of views.
    pub(crate) fn views(&self) -> usize {
        self.window.views.load(Ordering::Acquire)
    }

    /// Takes the mapped state out. Put it back with [`WindowGuard::put`] to keep the region mapped.
    pub(crate) fn take(&mut self) -> Option<MappedWindow> {
        assert_eq!(self.views(), 0, "memory is unmapped only when it has no views");
        self.mapped.take()
    }

    pub(crate) fn put(&mut self, mapped: MappedWindow) {
        *self.mapped = Some(mapped);
    }

    /// The mapped state.
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

/// The exception for every use of an unmapped region.
pub(crate) fn unmapped(py: Python<'_>) -> PyErr {
    error::closed(py, "the region is unmapped")
}

/// Clause of a message with the number of views that prevent unmapping.
pub(crate) fn looking(views: usize) -> String {
    match views {
        1 => "1 view (array, memoryview) of its memory exists".to_owned(),
        views => format!("{views} views (arrays, memoryviews) of its memory exist"),
    }
}
