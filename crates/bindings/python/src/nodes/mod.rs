//! Shared regions: joining, and the resulting node.
//!
//! | module | has |
//! |---|---|
//! | `session` | the state of a node shared by its Python objects |
//! | `memory` | a node's memory as a buffer |
//! | `transaction` | locks, ranges, commit |
//! | `joining` | joining, and its options |
//! | `heap` | persistent heaps, each under a lock |
//! | `reader` | pinned readers |
//! | `report` | progress and counters of a node |
//! | `error` | errors as Python's exceptions |

mod error;
mod heap;
mod joining;
mod memory;
mod reader;
mod report;
mod session;
mod transaction;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_shared::Node as Joining;
use netram_shared::server::Span;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::{LockId, LockVersion, NodeId, RecordNumber};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

pub(crate) use self::heap::NodeHeap;
pub(crate) use self::joining::join;
pub(crate) use self::memory::NodeMemory;
pub(crate) use self::reader::Reader;
pub(crate) use self::report::{NodeProgress, NodeStraight};
use self::session::NodeSession;
pub(crate) use self::transaction::{NodeCommit, NodeTransaction};
use crate::region::OffsetArgument;

/// Interval at which a wait checks for Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// A node: this process as a member of a shared region, with the whole region in its memory.
///
/// Returned by netram.shared.join. Threads may share it. As a context manager it leaves at the end. A node
/// that is dropped without leaving counts as crashed: its commits are safe, and its locks are released when
/// the server notices.
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct Node {
    joined: Arc<NodeSession>,
}

/// A number of seconds from Python; a number out of range counts as forever.
pub(crate) fn seconds(count: f64) -> PyResult<Duration> {
    const FOR_EVER: f64 = 1e9;
    Duration::try_from_secs_f64(count.min(FOR_EVER))
        .map_err(|_| PyValueError::new_err(format!("{count} is not a number of seconds")))
}

impl Node {
    /// Calls `look` repeatedly with a time to wait, until it returns something or the time is over, and
    /// checks for Ctrl-C in between.
    fn wait<R: Send>(
        &self,
        py: Python<'_>,
        timeout: f64,
        look: impl Fn(&Joining, Duration) -> Result<Option<R>, netram_shared::node::NodeGone> + Sync,
    ) -> PyResult<Option<R>> {
        let until = Instant::now() + seconds(timeout)?;
        loop {
            let node = self.joined.node(py)?;
            let left = until.saturating_duration_since(Instant::now());
            let found = py.detach(|| {
                let found = look(&node, left.min(SIGNALS_EVERY));
                // Released before the interpreter is reacquired.
                drop(node);
                found
            });
            match found.map_err(|why| error::gone(py, &why))? {
                None if !left.is_zero() => py.check_signals()?,
                found => return Ok(found),
            }
        }
    }

    fn tell(&self, py: Python<'_>, span: Option<&Span>, lock: u32) -> PyResult<(u32, u64, u64)> {
        let span = span.ok_or_else(|| error::no_lock(py, lock))?;
        Ok((span.lock.0, span.offset, span.length))
    }
}

#[pymethods]
impl Node {
    /// Begin a transaction. With restore=False no old values are kept: locks must be acquired in ascending
    /// order, and an abort after a declaration ends the node. Raises Gone.
    #[pyo3(signature = (restore = true))]
    fn begin(&self, py: Python<'_>, restore: bool) -> PyResult<NodeTransaction> {
        NodeTransaction::begin(py, &self.joined, restore)
    }

    /// Pin the memory in its present state, for reading without locks. Raises Gone.
    fn reader(&self, py: Python<'_>) -> PyResult<Reader> {
        Reader::begin(py, &self.joined)
    }

    /// The region's memory, for reading; if stores are found by page ("twins", "pages"), also for writing
    /// under locks held exclusively. Bytes covered by a held lock are current and do not change.
    #[getter]
    fn memory(&self, py: Python<'_>) -> PyResult<Py<NodeMemory>> {
        NodeMemory::all(py, &self.joined)
    }

    /// Id of the node, which is never reused.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.joined.node(py)?.id().0)
    }

    /// Why the node has ended; None while it is running.
    #[getter]
    fn gone(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let node = self.joined.node(py)?;
        Ok(node.gone().map(|why| why.to_string()))
    }

    /// Whether the node has left.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.joined.has_left(py)
    }

    /// Journals of earlier processes that are being offered to the server: directory, and why the last
    /// attempt failed (None during the first attempt).
    #[getter]
    fn left_behind(&self, py: Python<'_>) -> PyResult<Vec<(OsString, Option<String>)>> {
        let left = self.joined.node(py)?.orphans();
        let told = left.into_iter();
        Ok(told
            .map(|left| (left.path.into_os_string(), left.failed))
            .collect())
    }

    /// Why commits wait for the server's disk, and why each lender does not acknowledge; None if lenders do.
    #[getter]
    fn blocked(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let why = self.joined.node(py)?.uncounted();
        Ok(why.map(|why| why.to_string()))
    }

    /// Progress of this node's own records.
    #[getter]
    fn progress(&self, py: Python<'_>) -> PyResult<NodeProgress> {
        Ok(NodeProgress::of(self.joined.node(py)?.progress()))
    }

    /// Counters of records sent and received directly between nodes.
    #[getter]
    fn straight(&self, py: Python<'_>) -> PyResult<NodeStraight> {
        Ok(NodeStraight::of(self.joined.node(py)?.direct_counts()))
    }

    /// Take the undeclared stores that commits have found with capture "verified" or "reported": offset and
    /// length of each.
    fn undeclared(&self, py: Python<'_>) -> PyResult<Vec<(usize, usize)>> {
        let node = self.joined.node(py)?;
        let found = py.detach(|| {
            let found = node.region().take_undeclared();
            drop(node);
            found
        });
        Ok(found
            .into_iter()
            .map(|run| (run.region_offset, run.length))
            .collect())
    }

    /// Save this node's copy of the region in a new directory. If the server is permanently lost, `netram
    /// shared rescue` rebuilds the region from the copies of the surviving nodes. Raises Served while a
    /// server may exist: try again after the lease has expired. Raises BusyError while a transaction holds
    /// locks exclusively; SaveError, Gone.
    fn save_copy(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let node = self.joined.node(py)?;
        let saved = py.detach(move || node.save_copy(&path));
        saved.map_err(|cause| error::save(py, &cause))
    }

    /// All locks in the order of their spans: lock, offset and length of its span.
    #[getter]
    fn spans(&self, py: Python<'_>) -> PyResult<Vec<(u32, u64, u64)>> {
        let node = self.joined.node(py)?;
        let spans = node.spans().iter();
        Ok(spans
            .map(|span| (span.lock.0, span.offset, span.length))
            .collect())
    }

    /// Number of locks of the region.
    #[getter]
    fn locks(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.joined.node(py)?.spans().len())
    }

    /// The span that a lock covers: lock, offset and length. Raises LockError.
    fn span(&self, py: Python<'_>, lock: u32) -> PyResult<(u32, u64, u64)> {
        let node = self.joined.node(py)?;
        let place = node.spans().find(LockId(lock));
        self.tell(py, place.map(|place| node.spans().at(place)), lock)
    }

    /// The lock that covers the byte at offset, with its span's offset and length; None if no lock does.
    fn span_at(&self, py: Python<'_>, offset: OffsetArgument) -> PyResult<Option<(u32, u64, u64)>> {
        let node = self.joined.node(py)?;
        let span = node.span_at(offset.0 as u64);
        Ok(span.map(|span| (span.lock.0, span.offset, span.length)))
    }

    /// Number of writes to the span of a lock, in this copy or received for it.
    fn version(&self, py: Python<'_>, lock: u32) -> PyResult<u64> {
        Ok(self.joined.node(py)?.version(LockId(lock)).0)
    }

    /// Wait until the memory here has this version of a lock, written by any node. Returns False after the
    /// timeout. Raises Gone.
    #[pyo3(signature = (lock, version, timeout = 10.0))]
    fn wait_version(&self, py: Python<'_>, lock: u32, version: u64, timeout: f64) -> PyResult<bool> {
        let come = self.wait(py, timeout, |node, slice| {
            let come = node.wait_version(LockId(lock), LockVersion(version), slice)?;
            Ok(come.then_some(()))
        })?;
        Ok(come.is_some())
    }

    /// Outcome of a record of any node, as named by Unknown: "committed", "aborted", "forgotten" if too many
    /// nodes have come and gone since, or "open" if it was not known in time. Raises Gone.
    #[pyo3(signature = (node, number, timeout = 10.0))]
    fn outcome(&self, py: Python<'_>, node: u64, number: u64, timeout: f64) -> PyResult<&'static str> {
        let known = self.wait(py, timeout, |joined, slice| {
            let fate = joined.outcome(NodeId(node), RecordNumber(number), slice)?;
            Ok((fate != RecordOutcome::Open).then_some(fate))
        })?;
        Ok(match known {
            Some(RecordOutcome::Committed) => "committed",
            Some(RecordOutcome::Aborted) => "aborted",
            Some(RecordOutcome::Forgotten) => "forgotten",
            Some(RecordOutcome::Open) | None => "open",
        })
    }

    /// Request pending commits from the server, for a lazy node.
    fn pull(&self, py: Python<'_>) -> PyResult<()> {
        let node = self.joined.node(py)?;
        py.detach(move || node.pull());
        Ok(())
    }

    /// Leave: all commits are durable at the server, and the node's files are removed. Leaving twice has no
    /// effect.
    ///
    /// Raises BufferError while views (arrays, memoryviews) of its memory exist, and BusyError while
    /// transactions or readers are open; the node then stays. Raises Gone if it could not leave cleanly; it
    /// has ended then.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.joined.end(py, false)
    }

    /// End the node at once, like a crash. Raises BufferError and BusyError like leave.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        self.joined.end(py, true)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (exception_type, exception = None, traceback = None))]
    fn __exit__(
        &self,
        py: Python<'_>,
        exception_type: Option<&Bound<'_, PyAny>>,
        exception: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = (exception, traceback);
        match (self.joined.end(py, false), exception_type) {
            // The exception in progress is more important.
            (Err(_), Some(_)) => Ok(()),
            (left, _) => left,
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match self.joined.node(py) {
            Ok(node) if node.gone().is_some() => format!("<netram.shared.Node {}, gone>", node.id()),
            Ok(node) => format!("<netram.shared.Node {}>", node.id()),
            Err(_) => "<netram.shared.Node, left>".to_owned(),
        }
    }
}
