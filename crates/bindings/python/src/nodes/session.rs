//! The state of a node shared by its Python objects, until it leaves.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use netram_shared::Node;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use super::error;
use crate::fork::Generation;
use crate::locks::shared;
use crate::sys::{BufferSource, BufferView};
use crate::window::looking;

/// A node that has joined. Dropping the last object that refers to it, which may be an array, ends it like a
/// crash.
pub(crate) struct NodeSession {
    generation: Generation,
    /// `None` after it has left.
    node: RwLock<Option<Arc<Node>>>,
    /// Number of views. Incremented under the shared lock, so that a holder of the exclusive lock that finds
    /// none may leave.
    views: AtomicUsize,
    pub(super) address: usize,
    pub(super) length: usize,
    /// Stores need no declaration.
    pub(super) finds_stores: bool,
}

/// Why a node has not left, and still exists.
enum CannotLeave {
    Views(usize),
    Used,
}

impl NodeSession {
    pub(super) fn new(node: Node, finds_stores: bool) -> Arc<NodeSession> {
        let (address, length) = (node.region().as_ptr().addr(), node.region().len());
        Arc::new(NodeSession {
            generation: Generation::now(),
            node: RwLock::new(Some(Arc::new(node))),
            views: AtomicUsize::new(0),
            address,
            length,
            finds_stores,
        })
    }

    /// Whether this process is a fork of the one that joined, and so must not use the node.
    pub(super) fn is_inherited(&self) -> bool {
        self.generation.is_past()
    }

    pub(super) fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        match self.is_inherited() {
            false => Ok(()),
            true => Err(crate::error::closed(
                py,
                "the node was joined by the parent process; a forked child cannot use it (join again, in a directory of \
                 its own, or use the start method \"spawn\")",
            )),
        }
    }

    /// The node, for a call. It cannot leave during the call.
    pub(super) fn node(&self, py: Python<'_>) -> PyResult<Arc<Node>> {
        self.check_process(py)?;
        let node = shared(py, &self.node);
        node.clone().ok_or_else(|| closed(py))
    }

    pub(super) fn has_left(&self, py: Python<'_>) -> bool {
        self.is_inherited() || shared(py, &self.node).is_none()
    }

    /// Leaves, or with `at_once` ends like a crash. After an error everything is unchanged.
    pub(super) fn end(&self, py: Python<'_>, at_once: bool) -> PyResult<()> {
        self.check_process(py)?;
        let taken = py.detach(|| self.take());
        let node = taken.map_err(|why| match why {
            CannotLeave::Views(views) => PyBufferError::new_err(format!(
                "the node cannot leave: {}; delete those that are no longer used first",
                looking(views)
            )),
            CannotLeave::Used => crate::error::busy(
                py,
                "transactions or readers of the node are open, or threads are in its calls",
            ),
        })?;
        let left = py.detach(|| match node {
            Some(node) if at_once => {
                drop(node);
                Ok(())
            }
            Some(node) => node.leave(),
            None => Ok(()),
        });
        left.map_err(|cause| error::leave(py, &cause))
    }

    /// Takes the node if it is not in use. Returns `None` if it had left.
    fn take(&self) -> Result<Option<Node>, CannotLeave> {
        let mut slot = self.node.write().unwrap_or_else(PoisonError::into_inner);
        match self.views.load(Ordering::Acquire) {
            0 => {}
            views => return Err(CannotLeave::Views(views)),
        }
        match slot.take().map(Arc::try_unwrap) {
            None => Ok(None),
            Some(Ok(node)) => Ok(Some(node)),
            Some(Err(used)) => {
                *slot = Some(used);
                Err(CannotLeave::Used)
            }
        }
    }
}

impl Drop for NodeSession {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The library's threads exist only in the parent, so joining them would hang.
            let node = self.node.get_mut().unwrap_or_else(PoisonError::into_inner).take();
            let _never_dropped = std::mem::ManuallyDrop::new(node);
        }
    }
}

/// A part of a node's memory that can be viewed.
pub(super) struct NodeMemoryPart {
    pub(super) session: Arc<NodeSession>,
    pub(super) offset: usize,
    pub(super) length: usize,
    pub(super) readonly: bool,
}

impl NodeMemoryPart {
    /// A copy of some of its bytes, in the state between two records.
    pub(super) fn copy(&self, py: Python<'_>, start: usize, length: usize) -> PyResult<Vec<u8>> {
        let node = self.session.node(py)?;
        let mut bytes = vec![0; length];
        let offset = self.offset + start;
        let copied = py.detach(|| node.region().read_into(offset, &mut bytes));
        copied.map_err(|cause| crate::error::range(py, &cause))?;
        Ok(bytes)
    }
}

impl BufferSource for NodeMemoryPart {
    fn view(&self, py: Python<'_>) -> PyResult<BufferView> {
        self.session.check_process(py)?;
        let node = shared(py, &self.session.node);
        let node = node.as_ref().ok_or_else(|| closed(py))?;
        self.session.views.fetch_add(1, Ordering::AcqRel);
        Ok(BufferView {
            address: node.region().as_ptr().wrapping_add(self.offset),
            length: self.length,
            readonly: self.readonly,
        })
    }

    fn end_view(&self) {
        let before = self.session.views.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a view is released once");
    }
}

fn closed(py: Python<'_>) -> PyErr {
    crate::error::closed(py, "the node has left; join again")
}
