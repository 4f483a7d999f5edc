//! State shared by the store, segments, regions and transactions of one log, and the closing of the log.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use netram_proto::port::Durability;
use netram_rvm::{FlushError, RvmCloseError, TruncateError};
use netram_store::JournaledRvm;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::error;
use crate::fork::Generation;
use crate::locks::{lock, shared};
use crate::window::{RegionWindow, looking};

/// One open log. Dropping the last object that refers to it, which may be an array, closes it.
pub(crate) struct StoreLog {
    path: PathBuf,
    generation: Generation,
    /// `None` once closed. Calls lock it shared, closing locks it exclusively. Locked before any region.
    memory: RwLock<Option<JournaledRvm>>,
    /// Regions by the address of their first byte.
    windows: Mutex<BTreeMap<usize, Weak<RegionWindow>>>,
}

/// All logs open in this process, for [`close_all`].
static OPEN: Mutex<Vec<Weak<StoreLog>>> = Mutex::new(Vec::new());

/// Why a store was not closed, or not cleanly.
enum CloseFailure {
    /// Views of its memory exist.
    Views(usize),
    /// Transactions are open, or a full log has no room for lazy commits.
    Memory(RvmCloseError),
    /// The store is closed, but its log was not: the next opening recovers it.
    Unclean(FlushError),
    /// The store is closed and its commits are safe, but they were not applied to the segments.
    Unapplied(TruncateError),
}

impl StoreLog {
    pub(crate) fn new(path: PathBuf, memory: JournaledRvm) -> Arc<StoreLog> {
        let log = Arc::new(StoreLog {
            path,
            generation: Generation::now(),
            memory: RwLock::new(Some(memory)),
            windows: Mutex::new(BTreeMap::new()),
        });
        let mut open = lock(&OPEN);
        open.retain(|log| log.strong_count() > 0);
        open.push(Arc::downgrade(&log));
        log
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn read(&self) -> RwLockReadGuard<'_, Option<JournaledRvm>> {
        self.memory.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Option<JournaledRvm>> {
        self.memory.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the store can no longer be used: it is closed, or belongs to another process.
    pub(crate) fn is_closed(&self, py: Python<'_>) -> bool {
        self.is_inherited() || shared(py, &self.memory).is_none()
    }

    /// Whether this process is a fork of the one that opened the log, and so must not use it.
    pub(crate) fn is_inherited(&self) -> bool {
        self.generation.is_past()
    }

    pub(crate) fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        match self.is_inherited() {
            false => Ok(()),
            true => Err(error::closed(
                py,
                "the store was opened by the parent process; a forked child cannot use it (open another log, or use \
                 the start method \"spawn\")",
            )),
        }
    }

    /// Calls `then`, which does not wait. If a close is in progress, waits for it with the interpreter
    /// released.
    pub(crate) fn quickly<R>(&self, py: Python<'_>, then: impl FnOnce(&JournaledRvm) -> R) -> PyResult<R> {
        self.check_process(py)?;
        let memory = shared(py, &self.memory);
        memory.as_ref().map(then).ok_or_else(|| closed(py))
    }

    /// Calls `then`, which may wait, with the interpreter released.
    pub(crate) fn waiting<R: Send>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&JournaledRvm) -> R + Send,
    ) -> PyResult<R> {
        self.check_process(py)?;
        // The guard is dropped before the interpreter is reacquired: a close waits for the guard with the
        // interpreter released, so neither waits for the other.
        let done = py.detach(|| self.read().as_ref().map(then));
        done.ok_or_else(|| closed(py))
    }

    /// Registers a new region, so that arrays can be found by address.
    pub(crate) fn add_window(self: &Arc<StoreLog>, region: netram_rvm::Region) -> Arc<RegionWindow> {
        let window = Arc::new(RegionWindow::new(self.clone(), region));
        lock(&self.windows).insert(window.address(), Arc::downgrade(&window));
        window
    }

    /// Unregisters a region.
    pub(crate) fn forget_window(&self, window: &RegionWindow) {
        let mut windows = lock(&self.windows);
        // A region mapped later may have the same address.
        let known = windows.get(&window.address());
        if known.is_some_and(|known| std::ptr::eq(known.as_ptr(), window)) {
            windows.remove(&window.address());
        }
    }

    /// The region that contains all `length` bytes at `address`, and their offset in it.
    pub(crate) fn find(&self, address: usize, length: usize) -> Option<(Arc<RegionWindow>, usize)> {
        let (start, window) = {
            let windows = lock(&self.windows);
            let (start, window) = windows.range(..=address).next_back()?;
            (*start, window.upgrade()?)
        };
        let offset = address - start;
        let inside = offset <= window.len() && length <= window.len() - offset;
        inside.then_some((window, offset))
    }

    /// Closes the log and unmaps its regions. After an error everything is unchanged.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.check_process(py)?;
        match py.detach(|| self.shut()) {
            Ok(()) => Ok(()),
            Err(CloseFailure::Views(views)) => Err(PyBufferError::new_err(format!(
                "cannot close {}: {}; delete those that are no longer used first",
                self.path.display(),
                looking(views)
            ))),
            Err(CloseFailure::Memory(cause @ RvmCloseError::Uncommitted { .. })) => {
                Err(error::busy(py, cause))
            }
            Err(CloseFailure::Memory(cause)) => Err(error::log_error(py, cause)),
            Err(CloseFailure::Unclean(cause)) => Err(error::flush(py, &cause)),
            Err(CloseFailure::Unapplied(cause)) => Err(error::truncate(py, &cause)),
        }
    }

    fn shut(&self) -> Result<(), CloseFailure> {
        let mut slot = self.write();
        if slot.is_none() {
            return Ok(());
        }
        // All regions mapped so far: mapping locks the memory shared.
        let windows: Vec<_> = lock(&self.windows).values().filter_map(Weak::upgrade).collect();
        let mut held: Vec<_> = windows.iter().map(|window| window.hold()).collect();
        let views = held.iter().map(|held| held.views()).sum();
        if views > 0 {
            return Err(CloseFailure::Views(views));
        }
        let Some(memory) = slot.take() else { return Ok(()) };
        let closed = match memory.close() {
            Ok(journal) => journal.close().map_err(FlushError::Unknown),
            // The log accepts no more records, however often it is asked.
            Err((
                RvmCloseError::Flush(cause @ (FlushError::Refused(_) | FlushError::Unknown(_))),
                memory,
            )) => {
                drop(memory);
                Err(cause)
            }
            Err((
                RvmCloseError::Apply(
                    cause @ (TruncateError::Wait(_) | TruncateError::Log(_) | TruncateError::Append(_)),
                ),
                memory,
            )) => {
                drop(memory);
                return Err(CloseFailure::Unapplied(cause));
            }
            Err((cause, memory)) => {
                *slot = Some(memory);
                return Err(CloseFailure::Memory(cause));
            }
        };
        for held in &mut held {
            drop(held.take());
        }
        closed.map_err(CloseFailure::Unclean)
    }

    /// At the end of the process: writes everything to the disk and releases the lenders. Memory stays
    /// mapped, because arrays may outlive this object.
    fn finish(&self) {
        if self.is_inherited() {
            return;
        }
        let mut slot = self.write();
        let Some(memory) = slot.take() else { return };
        match memory.close() {
            // Errors can no longer be reported; the next opening recovers what is missing.
            Ok(journal) => drop(journal.close()),
            Err((_, memory)) => {
                let _ = memory.flush(Durability::Disk);
                *slot = Some(memory);
            }
        }
    }
}

impl Drop for StoreLog {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The library's threads exist only in the parent, so joining them would hang, and they may hold
            // its locks.
            let memory = self
                .memory
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            let _never_dropped = std::mem::ManuallyDrop::new(memory);
        } else {
            self.finish();
        }
    }
}

/// Closes every log of this process as far as possible without its users; called at exit.
#[pyfunction]
#[pyo3(name = "_close_all")]
pub(crate) fn close_all(py: Python<'_>) {
    py.detach(|| {
        let open = std::mem::take(&mut *lock(&OPEN));
        for log in open.iter().filter_map(Weak::upgrade) {
            log.finish();
        }
    });
}

fn closed(py: Python<'_>) -> PyErr {
    error::closed(py, "the store is closed")
}
