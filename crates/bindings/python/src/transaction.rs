//! Transactions on recoverable memory: ranges, commit, abort.

use std::sync::{Arc, Mutex};

use netram_proto::port::Durability;
use netram_rvm::{RangeError, RestoreMode, RvmCommitError};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::error;
use crate::locks::lock;
use crate::open_log::StoreLog;
use crate::region::{self, OffsetArgument, Region};
use crate::report::Commit;
use crate::slot::{ExclusiveSlot, ExclusiveSlotError};
use crate::window::{RegionWindow, unmapped};

/// A transaction: declare ranges, change memory, commit. As a context manager it commits at the end, and
/// aborts after an exception.
///
/// Any thread may use it, one at a time (BusyError otherwise).
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct Transaction {
    log: Arc<StoreLog>,
    durability: Durability,
    restore: bool,
    inner: ExclusiveSlot<netram_store::JournaledTransaction>,
    result: Mutex<Option<Commit>>,
}

/// Why a call on a transaction failed.
enum TransactionFailure {
    /// Another thread is using the transaction, or it has ended.
    Unusable(ExclusiveSlotError),
    /// The region is unmapped.
    Unmapped,
    /// The range was refused.
    Range(RangeError),
    /// The commit was refused, or its outcome is unknown.
    Commit(RvmCommitError),
}

impl TransactionFailure {
    fn raise(&self, py: Python<'_>) -> PyErr {
        match self {
            TransactionFailure::Unusable(why) => why.raise(py, "transaction"),
            TransactionFailure::Unmapped => unmapped(py),
            TransactionFailure::Range(cause) => error::range(py, cause),
            TransactionFailure::Commit(cause) => error::commit(py, cause),
        }
    }
}

impl From<ExclusiveSlotError> for TransactionFailure {
    fn from(why: ExclusiveSlotError) -> TransactionFailure {
        TransactionFailure::Unusable(why)
    }
}

impl Transaction {
    pub(crate) fn begin(
        py: Python<'_>,
        log: &Arc<StoreLog>,
        durability: Durability,
        restore: bool,
    ) -> PyResult<Transaction> {
        let mode = if restore {
            RestoreMode::Restore
        } else {
            RestoreMode::NoRestore
        };
        let inner = log.quickly(py, |memory| memory.begin(mode))?;
        Ok(Transaction {
            log: log.clone(),
            durability,
            restore,
            inner: ExclusiveSlot::new(inner),
            result: Mutex::new(None),
        })
    }

    /// Calls `then` with the open transaction and the interpreter released.
    pub(crate) fn change<R: Send>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&mut netram_store::JournaledTransaction) -> R + Send,
    ) -> PyResult<R> {
        self.log.check_process(py)?;
        py.detach(|| self.inner.with(then))
            .map_err(|why| why.raise(py, "transaction"))
    }

    /// Calls `then` with the open transaction and a mapped region.
    fn with(
        &self,
        window: &RegionWindow,
        then: impl FnOnce(&mut netram_store::JournaledTransaction, &netram_rvm::Region) -> Result<(), RangeError>,
    ) -> Result<(), TransactionFailure> {
        let done = self
            .inner
            .with(|inner| window.with(|region| then(inner, region)))?;
        done.ok_or(TransactionFailure::Unmapped)?
            .map_err(TransactionFailure::Range)
    }

    fn try_commit(&self, durability: Durability) -> Result<Commit, TransactionFailure> {
        let mut slot = self.inner.enter()?;
        let inner = slot.as_mut().ok_or(ExclusiveSlotError::Ended)?;
        match inner.try_commit(durability) {
            Ok(commit) => {
                *slot = None;
                let commit = Commit::of(commit);
                *lock(&self.result) = Some(commit.clone());
                Ok(commit)
            }
            Err(cause) => {
                if !inner.is_open() {
                    *slot = None;
                }
                Err(TransactionFailure::Commit(cause))
            }
        }
    }
}

#[pymethods]
impl Transaction {
    /// Declare bytes that will change: a part of a region, or the bytes of an array or memoryview.
    ///
    /// set_range(region, offset, length) declares length bytes from offset on; by default all of the rest.
    /// set_range(array) declares the bytes from the array's first to its last, including gaps of its strides.
    ///
    /// Call it before storing: with restore=True the old values are kept at this point, for an abort. The
    /// commit logs the values at that time. Raises RangeError, ClosedError.
    #[pyo3(signature = (target, offset = None, length = None))]
    fn set_range(
        &self,
        target: &Bound<'_, PyAny>,
        offset: Option<OffsetArgument>,
        length: Option<OffsetArgument>,
    ) -> PyResult<()> {
        let py = target.py();
        self.log.check_process(py)?;
        let (window, offset, length) = match target.cast::<Region>() {
            Ok(region) => region::part(region, offset, length)?,
            Err(_) if offset.is_some() || length.is_some() => {
                return Err(PyTypeError::new_err(
                    "offset and length are only allowed with a Region; of an array or memoryview pass the slice itself",
                ));
            }
            Err(_) => match region::find(&self.log, target)? {
                Some(place) => place,
                None => return self.check_open(py),
            },
        };
        // With the interpreter released, as in `write`.
        py.detach(|| self.with(&window, |inner, region| inner.set_range(region, offset, length)))
            .map_err(|failure| failure.raise(py))
    }

    /// Declare len(data) bytes at offset and store data there. data is bytes or another buffer.
    ///
    /// Raises RangeError, ClosedError.
    fn write(
        &self,
        region: &Bound<'_, Region>,
        offset: OffsetArgument,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = region.py();
        self.log.check_process(py)?;
        let data = bytes_of(data)?;
        let (window, bytes) = (region::window(region), data.as_bytes());
        // With the interpreter released: a commit of another thread may hold the region while it waits for
        // the disk.
        py.detach(|| self.with(window, |inner, region| inner.write(region, offset.0, bytes)))
            .map_err(|failure| failure.raise(py))
    }

    /// Commit: log the declared bytes with their present values, and wait until they are as safe as
    /// requested.
    ///
    /// durability overrides the transaction's own. Raises CommitError. If its `unknown` is false the
    /// transaction is still open, to be retried or aborted. If true it has ended, and only the next opening
    /// of the log shows the outcome.
    #[pyo3(signature = (durability = None))]
    fn commit(&self, py: Python<'_>, durability: Option<&str>) -> PyResult<Commit> {
        self.log.check_process(py)?;
        let durability = durability.map_or(Ok(self.durability), self::durability)?;
        py.detach(|| self.try_commit(durability))
            .map_err(|failure| failure.raise(py))
    }

    /// End the transaction without logging anything. With restore=True memory is as it was before each range
    /// was declared.
    ///
    /// Aborting a transaction that has ended raises ClosedError.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.log.check_process(py)?;
        py.detach(|| self.inner.end(drop))
            .map_err(|why| why.raise(py, "transaction"))
    }

    /// Whether the transaction is neither committed nor aborted.
    #[getter]
    fn open(&self) -> bool {
        self.inner.is_open()
    }

    /// Number of ranges declared so far; neighbours declared in succession count as one. 0 after the end.
    #[getter]
    fn ranges(&self, py: Python<'_>) -> PyResult<usize> {
        self.log.check_process(py)?;
        match self.inner.with(|inner| inner.ranges()) {
            Err(why @ ExclusiveSlotError::Busy) => Err(why.raise(py, "transaction")),
            ranges => Ok(ranges.unwrap_or(0)),
        }
    }

    /// Result of the commit; None before it, and after an abort.
    #[getter]
    fn result(&self, py: Python<'_>) -> PyResult<Option<Commit>> {
        self.log.check_process(py)?;
        Ok(lock(&self.result).clone())
    }

    /// How safe the commit must be before it returns: "remote", "disk", "both" or "lazy".
    #[getter]
    fn durability(&self) -> &'static str {
        match self.durability {
            Durability::Remote => "remote",
            Durability::Disk => "disk",
            Durability::Both => "both",
            Durability::Lazy => "lazy",
        }
    }

    /// Whether an abort restores old values.
    #[getter]
    fn restore(&self) -> bool {
        self.restore
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
        self.log.check_process(py)?;
        if !self.inner.is_open() {
            return Ok(());
        }
        if exception_type.is_some() {
            return self.abort(py);
        }
        let committed = self.commit(py, None).map(drop);
        if committed.is_err() && self.inner.is_open() {
            self.abort(py)?;
        }
        committed
    }

    fn __repr__(&self) -> String {
        let state = match self.inner.is_open() {
            _ if self.log.is_inherited() => "of the parent process",
            true => "open",
            false if lock(&self.result).is_some() => "committed",
            false => "ended",
        };
        format!("<netram.Transaction, {state}>")
    }
}

impl Transaction {
    fn check_open(&self, py: Python<'_>) -> PyResult<()> {
        match self.inner.is_open() {
            true => Ok(()),
            false => Err(error::ended(py)),
        }
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.log.is_inherited() {
            self.inner.never_drop();
        }
    }
}

/// The bytes of any buffer. A writable buffer is copied: it may lie in the region that is written, and other
/// threads run during the call.
pub(crate) fn bytes_of<'py>(data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    match data.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.clone()),
        Err(_) => Ok(PyMemoryView::from(data)?
            .call_method0("tobytes")?
            .cast_into::<PyBytes>()?),
    }
}

/// Parses a durability.
pub(crate) fn durability(name: &str) -> PyResult<Durability> {
    match name {
        "remote" => Ok(Durability::Remote),
        "disk" => Ok(Durability::Disk),
        "both" => Ok(Durability::Both),
        "lazy" => Ok(Durability::Lazy),
        other => Err(PyValueError::new_err(format!(
            "durability {other:?} does not exist; choose \"remote\", \"disk\", \"both\" or \"lazy\""
        ))),
    }
}
