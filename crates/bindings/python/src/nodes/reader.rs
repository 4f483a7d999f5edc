//! Pinned readers.

use std::sync::Arc;

use netram_shared::RegionReader as Pinned;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::error;
use super::session::NodeSession;
use crate::region::OffsetArgument;
use crate::slot::ExclusiveSlot;

/// A pinned reader: the node's memory keeps the state between two commits until the reader accepts later
/// ones, or a transaction of this node acquires a lock. Commits of other nodes wait, in bounded memory.
///
/// As a context manager it ends the reader. One thread at a time may use it (BusyError otherwise).
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct Reader {
    joined: Arc<NodeSession>,
    inner: ExclusiveSlot<Pinned<'static>>,
}

impl Reader {
    pub(super) fn begin(py: Python<'_>, joined: &Arc<NodeSession>) -> PyResult<Reader> {
        let node = joined.node(py)?;
        let inner = py.detach(move || node.reader_owned());
        Ok(Reader {
            joined: joined.clone(),
            inner: ExclusiveSlot::new(inner.map_err(|why| error::gone(py, &why))?),
        })
    }

    fn with<R: Send>(
        &self,
        py: Python<'_>,
        then: impl FnOnce(&mut Pinned<'static>) -> R + Send,
    ) -> PyResult<R> {
        self.joined.check_process(py)?;
        py.detach(|| self.inner.with(then))
            .map_err(|why| why.raise(py, "reader"))
    }
}

#[pymethods]
impl Reader {
    /// A copy of length bytes from offset on, all of the same state. Raises Expired, RangeError.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: OffsetArgument,
        length: OffsetArgument,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (start, end) = (offset.0, offset.0.checked_add(length.0));
        let copied = self.with(py, |reader| {
            let guard = reader.read()?;
            Ok(end.and_then(|end| guard.get(start..end).map(<[u8]>::to_vec)))
        })?;
        match copied {
            Ok(Some(bytes)) => Ok(PyBytes::new(py, &bytes)),
            Ok(None) => Err(crate::error::range_error(
                py,
                "the bytes are not all in the region",
            )),
            Err(netram_shared::node::ReaderExpired) => Err(error::expired(py)),
        }
    }

    /// Move on to the newest state received. Raises Gone.
    fn accept(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |reader| reader.accept())?
            .map_err(|why| error::gone(py, &why))
    }

    /// How far the reader lags behind the server: number of records, and seconds since the oldest arrived.
    #[getter]
    fn age(&self, py: Python<'_>) -> PyResult<(u64, f64)> {
        let age = self.with(py, |reader| reader.age())?;
        Ok((age.positions, age.time.0 as f64 / 1e9))
    }

    /// Whether too many commits were held back, so that the pinned state was given up. accept() continues.
    #[getter]
    fn expired(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |reader| reader.is_expired())
    }

    /// End the reader: the memory follows the commits of other nodes again. Ending twice has no effect.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        self.joined.check_process(py)?;
        py.detach(|| drop(self.inner.take_after()));
        Ok(())
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
        let _ = (exception_type, exception, traceback);
        self.end(py)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if self.joined.is_inherited() {
            self.inner.never_drop();
        }
    }
}
