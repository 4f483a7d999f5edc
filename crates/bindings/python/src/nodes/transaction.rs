//! Transactions on shared memory: locks, ranges, commit, abort.

use std::sync::{Arc, Mutex};

use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::Txn;
use netram_shared::node::{TxnCommit, TxnCommitError};
use netram_shared_machine::{LockId, LockMode};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyInt};

use super::error;
use super::heap::NodeHeap;
use super::memory::NodeMemory;
use super::session::{NodeMemoryPart, NodeSession};
use crate::locks::lock;
use crate::region::OffsetArgument;
use crate::slot::{ExclusiveSlot, ExclusiveSlotError};
use crate::sys;
use crate::transaction::bytes_of;

/// A transaction on shared memory: acquire locks, change the bytes they cover, commit. As a context manager
/// it commits at the end, and aborts after an exception. Its locks are held until then.
///
/// Any thread may use it, one at a time (BusyError otherwise).
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct NodeTransaction {
    joined: Arc<NodeSession>,
    inner: ExclusiveSlot<Txn<'static>>,
    result: Mutex<Option<NodeCommit>>,
}

/// The result of a successful commit.
#[pyclass(frozen, get_all, eq, module = "netram._netram")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeCommit {
    /// Node and number of its record, for Node.outcome; None if nothing was written.
    record: Option<(u64, u64)>,
    /// Number of lenders that had acknowledged it.
    lenders: u8,
    /// Whether they satisfied the commit rule; if not, the server had it on its disk.
    rule: bool,
}

#[pymethods]
impl NodeCommit {
    fn __repr__(&self) -> String {
        let record = match self.record {
            Some((node, number)) => format!("({node}, {number})"),
            None => "None".to_owned(),
        };
        let rule = if self.rule { "True" } else { "False" };
        format!(
            "netram.shared.NodeCommit(record={record}, lenders={}, rule={rule})",
            self.lenders
        )
    }
}

impl NodeCommit {
    fn of(commit: TxnCommit) -> NodeCommit {
        NodeCommit {
            record: commit.record.map(|(node, number)| (node.0, number.0)),
            lenders: commit.votes.members,
            rule: commit.votes.rule,
        }
    }
}

impl NodeTransaction {
    pub(super) fn begin(
        py: Python<'_>,
        joined: &Arc<NodeSession>,
        restore: bool,
    ) -> PyResult<NodeTransaction> {
        let node = joined.node(py)?;
        let mode = if restore {
            RestoreMode::Restore
        } else {
            RestoreMode::NoRestore
        };
        let inner = py.detach(move || node.begin_owned(mode));
        Ok(NodeTransaction {
            joined: joined.clone(),
            inner: ExclusiveSlot::new(inner.map_err(|why| error::gone(py, &why))?),
            result: Mutex::new(None),
        })
    }

    /// Calls `then` with the open transaction and the interpreter released.
    pub(super) fn with<R: Send>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&mut Txn<'static>) -> R + Send,
    ) -> PyResult<R> {
        self.joined.check_process(py)?;
        py.detach(|| self.inner.with(then)).map_err(|why| ended(py, why))
    }

    fn declare(&self, py: Python<'_>, offset: usize, length: usize) -> PyResult<()> {
        self.with(py, |txn| txn.set_range(offset, length))?
            .map_err(|cause| error::declare(py, &cause))
    }

    /// Declared memory, for writing.
    fn writable(&self, py: Python<'_>, offset: usize, length: usize) -> PyResult<Py<NodeMemory>> {
        self.declare(py, offset, length)?;
        NodeMemory::part(
            py,
            NodeMemoryPart {
                session: self.joined.clone(),
                offset,
                length,
                readonly: false,
            },
        )
    }

    /// A writable array like the given one, after declaring its bytes.
    fn twin<'py>(&self, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = array.py();
        let no_array = |cause: PyErr| {
            let what = "array takes an offset, or a NumPy array in the node's memory";
            PyTypeError::new_err(format!("{what}: {}", cause.value(py)))
        };
        let hull = sys::hull(array).map_err(no_array)?;
        let (start, length) = hull.unwrap_or((self.joined.address, 0));
        let offset = start.checked_sub(self.joined.address);
        let offset =
            offset.filter(|offset| *offset <= self.joined.length && length <= self.joined.length - offset);
        let offset =
            offset.ok_or_else(|| crate::error::range_error(py, "the array is not in this node's memory"))?;
        let memory = self.writable(py, offset, length)?;
        let (shape, strides) = (
            array.getattr("shape").map_err(no_array)?,
            array.getattr("strides").map_err(no_array)?,
        );
        let first: usize = match length {
            0 => 0,
            _ => array.getattr("ctypes")?.getattr("data")?.extract::<usize>()? - start,
        };
        let options = PyDict::new(py);
        options.set_item("dtype", array.getattr("dtype").map_err(no_array)?)?;
        options.set_item("buffer", memory)?;
        options.set_item("offset", first)?;
        options.set_item("strides", strides)?;
        py.import("numpy")?
            .getattr("ndarray")?
            .call((shape,), Some(&options))
    }
}

#[pymethods]
impl NodeTransaction {
    /// Acquire a lock: hold="exclusive" to write the bytes it covers, "shared" to read them. It is held until
    /// the transaction ends.
    ///
    /// In ascending order the call waits for transactions that use the lock. Out of order it does not wait,
    /// and raises Died if one uses it: abort, and begin with that lock. Also raises TimedOut, LockError,
    /// Lost, Gone, and BusyError if stores are found by page and another transaction of the node has the
    /// memory. The transaction stays open after an error.
    #[pyo3(signature = (lock, hold = "exclusive"))]
    fn acquire(&self, py: Python<'_>, lock: u32, hold: &str) -> PyResult<()> {
        let hold = holding(hold)?;
        self.with(py, |txn| txn.acquire(LockId(lock), hold))?
            .map_err(|cause| error::acquire(py, &cause))
    }

    /// Acquire several locks in ascending order, whatever their order here: those in locks exclusively, those
    /// in shared for reading.
    #[pyo3(signature = (locks = Vec::new(), shared = Vec::new()))]
    #[pyo3(text_signature = "($self, locks=(), shared=())")]
    fn acquire_all(&self, py: Python<'_>, locks: Vec<u32>, shared: Vec<u32>) -> PyResult<()> {
        let exclusive = locks.into_iter().map(|lock| (LockId(lock), LockMode::Exclusive));
        let shared = shared.into_iter().map(|lock| (LockId(lock), LockMode::Shared));
        let all: Vec<_> = exclusive.chain(shared).collect();
        self.with(py, |txn| txn.acquire_all(&all))?
            .map_err(|cause| error::acquire(py, &cause))
    }

    /// Set how many seconds acquire waits for other transactions.
    fn set_timeout(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let timeout = super::seconds(seconds)?;
        self.with(py, |txn| txn.set_timeout(timeout))
    }

    /// A copy of length bytes from offset on. Their locks must be held. Raises NotHeld, RangeError.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: OffsetArgument,
        length: OffsetArgument,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if length.0 > self.joined.length {
            return Err(crate::error::range_error(
                py,
                "the bytes are not all in the region",
            ));
        }
        let mut bytes = vec![0; length.0];
        let copied = self.with(py, |txn| txn.read(offset.0, &mut bytes))?;
        copied.map_err(|cause| error::read(py, &cause))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Declare len(data) bytes at offset and store data there. Their locks must be held exclusively. data is
    /// any buffer.
    ///
    /// Raises NotHeld, RangeError.
    fn write(&self, py: Python<'_>, offset: OffsetArgument, data: &Bound<'_, PyAny>) -> PyResult<()> {
        self.joined.check_process(py)?;
        let data = bytes_of(data)?;
        let bytes = data.as_bytes();
        self.with(py, |txn| txn.write(offset.0, bytes))?
            .map_err(|cause| error::declare(py, &cause))
    }

    /// Declare length bytes from offset on, for memory that is written in another way, such as by its
    /// address.
    fn set_range(&self, py: Python<'_>, offset: OffsetArgument, length: OffsetArgument) -> PyResult<()> {
        self.declare(py, offset.0, length.0)
    }

    /// Declare length bytes from offset on; returns them as memory that can be written until the transaction
    /// ends.
    ///
    /// Later stores to it are not prevented, but other nodes never see them.
    fn memory(
        &self,
        py: Python<'_>,
        offset: OffsetArgument,
        length: OffsetArgument,
    ) -> PyResult<Py<NodeMemory>> {
        self.writable(py, offset.0, length.0)
    }

    /// Declare bytes; returns them as a NumPy array that can be written until the transaction ends.
    ///
    /// array(view) declares the bytes of view, a NumPy array in Node.memory, including gaps of its strides,
    /// and returns an array like it. array(offset, count, dtype) declares count items from offset on.
    #[pyo3(signature = (target, count = OffsetArgument::ONE, dtype = None))]
    #[pyo3(text_signature = "($self, target, count=1, dtype=None)")]
    fn array<'py>(
        &self,
        target: &Bound<'py, PyAny>,
        count: OffsetArgument,
        dtype: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = target.py();
        if !target.is_instance_of::<PyInt>() {
            return match dtype {
                None => self.twin(target),
                Some(_) => Err(PyTypeError::new_err(
                    "dtype is only allowed with an offset; a view has its own",
                )),
            };
        }
        let numpy = py.import("numpy")?;
        let dtype = dtype.map_or_else(|| numpy.getattr("int64"), Ok)?;
        let dtype = numpy.getattr("dtype")?.call1((dtype,))?;
        let item: usize = dtype.getattr("itemsize")?.extract()?;
        let length = item.saturating_mul(count.0);
        let memory = self.writable(py, target.extract::<OffsetArgument>()?.0, length)?;
        numpy.getattr("ndarray")?.call1(((count.0,), dtype, memory))
    }

    /// Make an empty heap in the bytes that a lock covers, replacing their content, within this transaction.
    /// The heap can be used from the next transaction on.
    ///
    /// Raises HeapError if the space is too small (3 pages), NotHeld, and BusyError if this transaction has
    /// written there.
    fn format_heap(&self, py: Python<'_>, lock: u32) -> PyResult<()> {
        self.with(py, |txn| txn.format_heap(LockId(lock)))?
            .map_err(|cause| error::heap(py, &cause))
    }

    /// The heap under a lock, which the transaction must hold at least shared. Later transactions may use it
    /// too.
    ///
    /// Raises NoHeap if there is none, HeapError if it is damaged or has another version, NotHeld, LockError.
    fn heap(&self, py: Python<'_>, lock: u32) -> PyResult<NodeHeap> {
        let found = self.with(py, |txn| txn.heap(LockId(lock)))?;
        let heap = found.map_err(|cause| error::heap(py, &cause))?;
        Ok(NodeHeap::of(&self.joined, lock, &heap))
    }

    /// Commit: wait until the lenders hold the declared bytes with their present values, then release the
    /// locks.
    ///
    /// The transaction ends in any case. Raises Unknown if the outcome is unknown: query it with Node.outcome
    /// after joining again. Raises Lost, Gone, Stray (stores outside the locks) and CommitError if the
    /// transaction was aborted.
    fn commit(&self, py: Python<'_>) -> PyResult<NodeCommit> {
        self.joined.check_process(py)?;
        let commit = |txn: Txn<'static>| {
            let commit = NodeCommit::of(txn.commit(Durability::Remote)?);
            *lock(&self.result) = Some(commit.clone());
            Ok(commit)
        };
        let committed = py.detach(|| self.inner.end(commit));
        committed
            .map_err(|why| ended(py, why))?
            .map_err(|cause: TxnCommitError| error::commit(py, &cause))
    }

    /// End the transaction without writing anything, and release its locks. Aborting one that has ended
    /// raises ClosedError.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.joined.check_process(py)?;
        py.detach(|| self.inner.end(drop)).map_err(|why| ended(py, why))
    }

    /// Whether the transaction is neither committed nor aborted.
    #[getter]
    fn open(&self) -> bool {
        self.inner.is_open()
    }

    /// Result of the commit; None before it, and after an abort.
    #[getter]
    fn result(&self, py: Python<'_>) -> PyResult<Option<NodeCommit>> {
        self.joined.check_process(py)?;
        Ok(lock(&self.result).clone())
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
        self.joined.check_process(py)?;
        match (self.inner.is_open(), exception_type) {
            (false, _) => Ok(()),
            (true, Some(_)) => self.abort(py),
            (true, None) => self.commit(py).map(drop),
        }
    }

    fn __repr__(&self) -> String {
        let state = match self.inner.is_open() {
            _ if self.joined.is_inherited() => "of the parent process",
            true => "open",
            false if lock(&self.result).is_some() => "committed",
            false => "ended",
        };
        format!("<netram.shared.NodeTransaction, {state}>")
    }
}

impl Drop for NodeTransaction {
    fn drop(&mut self) {
        if self.joined.is_inherited() {
            self.inner.never_drop();
        }
    }
}

fn ended(py: Python<'_>, why: ExclusiveSlotError) -> PyErr {
    why.raise(py, "transaction")
}

fn holding(hold: &str) -> PyResult<LockMode> {
    match hold {
        "exclusive" => Ok(LockMode::Exclusive),
        "shared" => Ok(LockMode::Shared),
        other => Err(PyValueError::new_err(format!(
            "hold is \"exclusive\" or \"shared\", not {other:?}"
        ))),
    }
}
