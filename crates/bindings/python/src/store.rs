//! An open log in Python.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error;
use crate::open_log::StoreLog;
use crate::report::{Query, Recovered, Statistics, blocked};
use crate::segment::{Segment, SegmentRequest};
use crate::size::SizeArgument;
use crate::transaction::{Transaction, durability as by_name};

/// Interval at which a wait for lenders checks for Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// An open log: recoverable memory whose newest commits are in lenders' memory until the local disk has them.
///
/// Returned by open. Threads may share it. As a context manager it closes itself. Objects that use it
/// (segments, regions, transactions, arrays) keep it open.
#[pyclass(frozen, name = "Store", module = "netram._netram")]
pub(crate) struct PyStore {
    log: Arc<StoreLog>,
    recovered: Recovered,
}

impl PyStore {
    pub(crate) fn new(log: Arc<StoreLog>, recovered: Recovered) -> PyStore {
        PyStore { log, recovered }
    }
}

#[pymethods]
impl PyStore {
    /// The segment at path, which may be any file.
    ///
    /// create=True creates a file of size zeros if it does not exist. All its blocks are allocated at once,
    /// or with sparse=True when they are needed; a full disk then stops truncation, and after it commits,
    /// until there is room. If the file exists and a size is given, they must agree. Raises SegmentError,
    /// InUse.
    #[pyo3(signature = (path, *, size = None, create = false, sparse = false))]
    fn segment(
        &self,
        py: Python<'_>,
        path: PathBuf,
        size: Option<SizeArgument>,
        create: bool,
        sparse: bool,
    ) -> PyResult<Segment> {
        let path = utf8(py, path)?;
        let size = size.map(|size| size.0);
        let wanted = SegmentRequest {
            path,
            size,
            create,
            sparse,
        };
        Segment::find(py, &self.log, wanted)
    }

    /// Begin a transaction.
    ///
    /// durability is when its commit returns: "remote" when lenders hold it according to the commit rule or
    /// the local disk has it; "disk"; "both"; "lazy" at once. With restore=False no old values are kept, and
    /// an abort leaves memory as it is.
    #[pyo3(signature = (durability = "remote", restore = true))]
    fn transaction(&self, py: Python<'_>, durability: &str, restore: bool) -> PyResult<Transaction> {
        Transaction::begin(py, &self.log, by_name(durability)?, restore)
    }

    /// Wait until every commit so far, lazy ones too, is as safe as requested. Raises LogError.
    #[pyo3(signature = (durability = "disk"))]
    fn flush(&self, py: Python<'_>, durability: &str) -> PyResult<()> {
        let durability = by_name(durability)?;
        let flushed = self
            .log
            .waiting(py, |memory| memory.flush(durability).map(drop))?;
        flushed.map_err(|cause| error::flush(py, &cause))
    }

    /// Apply every commit so far to the segments and remove it from the log. A thread does the same in the
    /// background when the log exceeds its threshold. Raises LogError.
    fn truncate(&self, py: Python<'_>) -> PyResult<()> {
        let truncated = self.log.waiting(py, |memory| memory.truncate())?;
        truncated.map_err(|cause| error::truncate(py, &cause))
    }

    /// Remove a segment that is no longer used from the log's table; the file stays. Raises SegmentError.
    fn forget(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let path = utf8(py, path)?;
        let forgotten = self.log.waiting(py, |memory| memory.forget_segment(&path))?;
        forgotten.map_err(|cause| error::forget(py, &cause))
    }

    /// A snapshot of the log, segments, regions and lenders.
    fn query(&self, py: Python<'_>) -> PyResult<Query> {
        self.log.waiting(py, Query::of)
    }

    /// Counters since the opening.
    fn statistics(&self, py: Python<'_>) -> PyResult<Statistics> {
        self.log.quickly(py, |memory| Statistics::of(memory.statistics()))
    }

    /// Wait until lenders acknowledge commits, at most timeout seconds. Raises LendersMissing with the
    /// reasons.
    #[pyo3(signature = (timeout = 10.0))]
    fn wait_for_lenders(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let wrong = |_| PyValueError::new_err(format!("{timeout} is not a number of seconds to wait"));
        let deadline = Instant::now().checked_add(Duration::try_from_secs_f64(timeout).map_err(wrong)?);
        loop {
            let left = deadline.map_or(SIGNALS_EVERY, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            let slice = left.min(SIGNALS_EVERY);
            let waited = self.log.waiting(py, |memory| {
                let waited = memory.log().wait_for_members(slice);
                waited.map_err(|why| blocked(&why))
            })?;
            match waited {
                Ok(()) => return Ok(()),
                Err(why) if left.is_zero() => return Err(error::lenders_missing(py, why)),
                Err(_) => py.check_signals()?,
            }
        }
    }

    /// Write everything to the local disk, release the lenders and unmap all regions. Closing twice has no
    /// effect.
    ///
    /// Raises BufferError while views (arrays, memoryviews) of its regions exist, BusyError while
    /// transactions are open; the store then stays open and usable.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.log.close(py)
    }

    /// Report of the recovery at the opening.
    #[getter]
    fn recovered(&self) -> Recovered {
        self.recovered.clone()
    }

    /// Path of the log.
    #[getter]
    fn path(&self) -> &OsStr {
        self.log.path().as_os_str()
    }

    /// Whether the store is closed.
    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        self.log.is_closed(py)
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
        match (self.log.close(py), exception_type) {
            // The exception in progress is more important, and its frames may hold the arrays in the way.
            (Err(_), Some(_)) => Ok(()),
            (closed, _) => closed,
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let state = if self.log.is_closed(py) { "closed" } else { "open" };
        format!("<netram.Store {:?}, {state}>", self.log.path())
    }
}

/// The path in UTF-8, as the segment table requires.
fn utf8(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let text = path.into_os_string().into_string();
    text.map_err(|path| error::segment_error(py, format_args!("{path:?} is not UTF-8; choose another name")))
}
