//! Shared regions: joining, and the node that is had then.
//!
//! | module | idea |
//! |---|---|
//! | `joined` | a node as its Python objects share it |
//! | `memory` | its memory as a buffer |
//! | `transaction` | locks, ranges, commit |
//! | `joining` | what a node joins with |
//! | `heap` | persistent heaps, each under a lock |
//! | `reader` | pinned readers |
//! | `report` | what a node tells of itself |
//! | `error` | what can go wrong |

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

pub(crate) use self::error::not_held;
pub(crate) use self::heap::NodeHeap;
pub(crate) use self::joining::join;
pub(crate) use self::memory::NodeMemory;
pub(crate) use self::reader::Reader;
pub(crate) use self::report::{NodeProgress, NodeStraight};
use self::session::NodeSession;
pub(crate) use self::transaction::{NodeCommit, NodeTransaction};
use crate::region::OffsetArgument;

/// How often a wait looks for Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// A node: one joining of a shared region by this process, with all of the region in its memory.
///
/// Made by netram.shared.join. Threads may share it. As a context manager it leaves at the end. Dropped
/// without leaving it is as good as crashed: what it committed is safe, and its locks go on when the server
/// has noticed.
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct Node {
    joined: Arc<NodeSession>,
}

/// Seconds from Python. An absurd number of them is as good as for ever.
pub(crate) fn seconds(count: f64) -> PyResult<Duration> {
    const FOR_EVER: f64 = 1e9;
    Duration::try_from_secs_f64(count.min(FOR_EVER))
        .map_err(|_| PyValueError::new_err(format!("{count} is no number of seconds")))
}

impl Node {
    /// Calls `look` with a time to wait, again and again, until it has found something or the time is over;
    /// between them Ctrl-C is heard.
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
                // Given back before the interpreter is asked for again.
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

    /// Pin the memory as it is, to be read without locks. Raises Gone.
    fn reader(&self, py: Python<'_>) -> PyResult<Reader> {
        Reader::begin(py, &self.joined)
    }

    /// The region's memory, to be read; where stores are found by page ("twins", "pages"), to be written
    /// under locks held exclusively. What is read there is current, and stands still, under a lock that
    /// covers it.
    #[getter]
    fn memory(&self, py: Python<'_>) -> PyResult<Py<NodeMemory>> {
        NodeMemory::all(py, &self.joined)
    }

    /// The node's id, in this joining. None is used twice.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.joined.node(py)?.id().0)
    }

    /// Why there is no node any more; None: there is.
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

    /// Journals that earlier processes left, which are being offered to the server: directory, and why the
    /// last attempt failed; None: the first one goes on.
    #[getter]
    fn left_behind(&self, py: Python<'_>) -> PyResult<Vec<(OsString, Option<String>)>> {
        let left = self.joined.node(py)?.orphans();
        let told = left.into_iter();
        Ok(told
            .map(|left| (left.path.into_os_string(), left.failed))
            .collect())
    }

    /// Why commits wait for the server's disk, and why each lender does not count; None: lenders acknowledge
    /// them.
    #[getter]
    fn blocked(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let why = self.joined.node(py)?.uncounted();
        Ok(why.map(|why| why.to_string()))
    }

    /// How far this node's own records have come.
    #[getter]
    fn progress(&self, py: Python<'_>) -> PyResult<NodeProgress> {
        Ok(NodeProgress::of(self.joined.node(py)?.progress()))
    }

    /// What became of records that went, or came, straight from node to node.
    #[getter]
    fn straight(&self, py: Python<'_>) -> PyResult<NodeStraight> {
        Ok(NodeStraight::of(self.joined.node(py)?.direct_counts()))
    }

    /// Take the undeclared stores that commits have found where capture is "verified" or "reported": offset
    /// and length of each.
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

    /// Save this node's copy of the region in a new directory: when the server is lost for good, `netram
    /// shared rescue` makes the region anew of the copies of those nodes that live. Raises Served while there
    /// may be a server: try again when the lease is over; BusyError while a transaction holds locks
    /// exclusively; SaveError, Gone.
    fn save_copy(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let node = self.joined.node(py)?;
        let saved = py.detach(move || node.save_copy(&path));
        saved.map_err(|cause| error::save(py, &cause))
    }

    /// Every lock, by where it is: lock, offset and length of what it covers.
    #[getter]
    fn spans(&self, py: Python<'_>) -> PyResult<Vec<(u32, u64, u64)>> {
        let node = self.joined.node(py)?;
        let spans = node.spans().iter();
        Ok(spans
            .map(|span| (span.lock.0, span.offset, span.length))
            .collect())
    }

    /// How many locks the region has.
    #[getter]
    fn locks(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.joined.node(py)?.spans().len())
    }

    /// What a lock covers: lock, offset and length. Raises LockError.
    fn span(&self, py: Python<'_>, lock: u32) -> PyResult<(u32, u64, u64)> {
        let node = self.joined.node(py)?;
        let place = node.spans().find(LockId(lock));
        self.tell(py, place.map(|place| node.spans().at(place)), lock)
    }

    /// The lock that covers the byte at offset, with its span's offset and length; None: no lock does.
    fn span_at(&self, py: Python<'_>, offset: OffsetArgument) -> PyResult<Option<(u32, u64, u64)>> {
        let node = self.joined.node(py)?;
        let span = node.span_at(offset.0 as u64);
        Ok(span.map(|span| (span.lock.0, span.offset, span.length)))
    }

    /// How often what a lock covers has been written, in this copy or on its way there.
    fn version(&self, py: Python<'_>, lock: u32) -> PyResult<u64> {
        Ok(self.joined.node(py)?.version(LockId(lock)).0)
    }

    /// Wait until the memory here has this version of a lock, whoever wrote it. False: it did not come in
    /// time. Raises Gone.
    #[pyo3(signature = (lock, version, timeout = 10.0))]
    fn wait_version(&self, py: Python<'_>, lock: u32, version: u64, timeout: f64) -> PyResult<bool> {
        let come = self.wait(py, timeout, |node, slice| {
            let come = node.wait_version(LockId(lock), LockVersion(version), slice)?;
            Ok(come.then_some(()))
        })?;
        Ok(come.is_some())
    }

    /// What became of a record, of any node, that Unknown has named: "committed", "aborted"; "forgotten" when
    /// too many nodes have come and gone since; "open" when it was not known in time. Raises Gone.
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

    /// Ask the server of a lazy node for what there is.
    fn pull(&self, py: Python<'_>) -> PyResult<()> {
        let node = self.joined.node(py)?;
        py.detach(move || node.pull());
        Ok(())
    }

    /// Leave: all that was committed is durable at the server, and the node's files are removed. Leaving
    /// twice does nothing.
    ///
    /// Raises BufferError while views (arrays, memoryviews) look into its memory, BusyError while
    /// transactions or readers are open; the node then stays. Raises Gone when it could not leave in peace;
    /// it has ended then.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        self.joined.end(py, false)
    }

    /// End the node without a word, as a crash would. Raises BufferError, BusyError as leave does.
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
            // What the program was about to say matters more.
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
