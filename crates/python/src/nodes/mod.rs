//! Shared regions: joining, and the node that is had then.
//!
//! | module | idea |
//! |---|---|
//! | `joined` | a node as its Python objects share it |
//! | `memory` | its memory as a buffer |
//! | `transaction` | locks, ranges, commit |
//! | `reader` | pinned readers |
//! | `error` | what can go wrong |

mod error;
mod joined;
mod memory;
mod reader;
mod transaction;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_proto::shared::message::Fate;
use netram_proto::shared::{LockId, NodeId, Number, RegionId, Version};
use netram_shared::server::Span;
use netram_shared::{Node as Joining, Options};
use netram_transport::{ClusterKey, Security};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use self::joined::Joined;
pub(crate) use self::memory::NodeMemory;
pub(crate) use self::reader::Reader;
pub(crate) use self::transaction::{NodeCommit, NodeTransaction};
use crate::open::{Size, interruptibly, parse};
use crate::region::Offset;

/// How often a wait looks for Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// A node: one joining of a shared region by this process, with all of the region in its memory.
///
/// Made by netram.shared.join. Threads may share it. As a context manager it leaves at the end. Dropped without leaving it is
/// as good as crashed: what it committed is safe, and its locks go on when the server has noticed.
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct Node {
    joined: Arc<Joined>,
}

/// Join the shared region of the server at an address: all of it is in memory when this returns.
///
/// directory is this process's alone, made if missing; what earlier processes left there is offered to the server. key_file
/// is the cluster's key; insecure=True goes without, on this machine only. Waits for a server that is not there yet, at most
/// patience seconds. lazy=True: what others commit comes before a lock is granted, or when pull() asks for it.
///
/// Raises JoinError; InUse, when a node that runs has the directory; Gone, when the server refuses this one.
#[pyfunction]
#[pyo3(signature = (server, directory, *, key_file = None, insecure = false, name = None, region = None, lazy = false,
    wait = None, log_size = None, pinned = None, lock_timeout = 10.0, patience = 30.0))]
#[allow(
    clippy::too_many_arguments,
    reason = "they are Python's keywords, each optional"
)]
pub(crate) fn join(
    py: Python<'_>,
    server: &str,
    directory: PathBuf,
    key_file: Option<PathBuf>,
    insecure: bool,
    name: Option<String>,
    region: Option<&str>,
    lazy: bool,
    wait: Option<&str>,
    log_size: Option<Size>,
    pinned: Option<Size>,
    lock_timeout: f64,
    patience: f64,
) -> PyResult<Node> {
    let security = security(py, key_file, insecure)?;
    let mut options = Options::new(parse("server", server)?, security, directory);
    options.name = name.unwrap_or(options.name);
    if let Some(id) = region {
        let number = u128::from_str_radix(id, 16);
        let number = number.map_err(|_| PyValueError::new_err(format!("{id:?} is no region's id")))?;
        options.region = Some(RegionId(number));
    }
    if let Some(wait) = wait {
        options.wait = parse("wait", wait)?;
    }
    options.log_bytes = log_size.map_or(options.log_bytes, |size| size.0);
    if let Some(Size(bytes)) = pinned {
        let bytes = usize::try_from(bytes);
        options.pinned_bytes_max = bytes.map_err(|_| PyValueError::new_err("too much to be pinned"))?;
    }
    options.lazy = lazy;
    options.lock_timeout = seconds(lock_timeout)?;
    options.patience = seconds(patience)?;
    let node = interruptibly(py, move || Joining::join(options))?;
    let node = node.map_err(|cause| error::join(py, &cause))?;
    Ok(Node {
        joined: Joined::new(node),
    })
}

fn security(py: Python<'_>, key_file: Option<PathBuf>, insecure: bool) -> PyResult<Security> {
    match (key_file, insecure) {
        (Some(file), false) => match ClusterKey::load(&file) {
            Ok(key) => Ok(Security::Key(key)),
            Err(cause) => Err(error::join_error(py, cause)),
        },
        (None, true) => Ok(Security::Insecure),
        (None, false) => Err(PyValueError::new_err(
            "name the cluster's key in key_file, or say insecure=True on this machine alone",
        )),
        (Some(_), true) => Err(PyValueError::new_err(
            "insecure=True contradicts key_file; drop one of them",
        )),
    }
}

/// Seconds from Python. An absurd number of them is as good as for ever.
fn seconds(count: f64) -> PyResult<Duration> {
    const FOR_EVER: f64 = 1e9;
    Duration::try_from_secs_f64(count.min(FOR_EVER))
        .map_err(|_| PyValueError::new_err(format!("{count} is no number of seconds")))
}

impl Node {
    /// Calls `look` with a time to wait, again and again, until it has found something or the time is over; between
    /// them Ctrl-C is heard.
    fn wait<R: Send>(
        &self,
        py: Python<'_>,
        timeout: f64,
        look: impl Fn(&Joining, Duration) -> Result<Option<R>, netram_shared::node::Gone> + Sync,
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
    /// Begin a transaction. With restore=False no old values are kept: locks must be acquired in ascending order, and an abort
    /// after a declaration ends the node. Raises Gone.
    #[pyo3(signature = (restore = true))]
    fn begin(&self, py: Python<'_>, restore: bool) -> PyResult<NodeTransaction> {
        NodeTransaction::begin(py, &self.joined, restore)
    }

    /// Pin the memory as it is, to be read without locks. Raises Gone.
    fn reader(&self, py: Python<'_>) -> PyResult<Reader> {
        Reader::begin(py, &self.joined)
    }

    /// The region's memory, to be read. What is read there is current, and stands still, under a lock that covers it.
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

    /// Directories of journals that earlier processes left, which are being offered to the server.
    #[getter]
    fn left_behind(&self, py: Python<'_>) -> PyResult<Vec<OsString>> {
        let left = self.joined.node(py)?.left_behind();
        Ok(left.into_iter().map(|left| left.path.into_os_string()).collect())
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
    fn span_at(&self, py: Python<'_>, offset: Offset) -> PyResult<Option<(u32, u64, u64)>> {
        let node = self.joined.node(py)?;
        let span = node.span_at(offset.0 as u64);
        Ok(span.map(|span| (span.lock.0, span.offset, span.length)))
    }

    /// How often what a lock covers has been written, in this copy or on its way there.
    fn version(&self, py: Python<'_>, lock: u32) -> PyResult<u64> {
        Ok(self.joined.node(py)?.version(LockId(lock)).0)
    }

    /// Wait until the memory here has this version of a lock, whoever wrote it. False: it did not come in time. Raises Gone.
    #[pyo3(signature = (lock, version, timeout = 10.0))]
    fn wait_version(&self, py: Python<'_>, lock: u32, version: u64, timeout: f64) -> PyResult<bool> {
        let come = self.wait(py, timeout, |node, slice| {
            let come = node.wait_version(LockId(lock), Version(version), slice)?;
            Ok(come.then_some(()))
        })?;
        Ok(come.is_some())
    }

    /// What became of a record, of any node, that Unknown has named: "committed", "aborted"; "forgotten" when too many nodes have
    /// come and gone since; "open" when it was not known in time. Raises Gone.
    #[pyo3(signature = (node, number, timeout = 10.0))]
    fn outcome(&self, py: Python<'_>, node: u64, number: u64, timeout: f64) -> PyResult<&'static str> {
        let known = self.wait(py, timeout, |joined, slice| {
            let fate = joined.outcome(NodeId(node), Number(number), slice)?;
            Ok((fate != Fate::Open).then_some(fate))
        })?;
        Ok(match known {
            Some(Fate::Committed) => "committed",
            Some(Fate::Aborted) => "aborted",
            Some(Fate::Forgotten) => "forgotten",
            Some(Fate::Open) | None => "open",
        })
    }

    /// Ask the server of a lazy node for what there is.
    fn pull(&self, py: Python<'_>) -> PyResult<()> {
        let node = self.joined.node(py)?;
        py.detach(move || node.pull());
        Ok(())
    }

    /// Leave: all that was committed is durable at the server, and the node's files are removed. Leaving twice does nothing.
    ///
    /// Raises BufferError while views (arrays, memoryviews) look into its memory, BusyError while transactions or readers are
    /// open; the node then stays. Raises Gone when it could not leave in peace; it has ended then.
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
