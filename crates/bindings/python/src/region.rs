//! Mapped memory in Python, and finding the region that contains an array.

use std::convert::Infallible;
use std::sync::Arc;

use netram_rvm::UnmapError;
use pyo3::exceptions::{PyBufferError, PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error;
use crate::key::BufferKey;
use crate::open_log::StoreLog;
use crate::sys::{self, PyMemory};
use crate::window::{MappedWindow, RegionWindow, looking, unmapped};

/// A count of bytes from Python. Numbers out of range raise RangeError, not OverflowError.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OffsetArgument(pub(crate) usize);

impl OffsetArgument {
    pub(crate) const ZERO: OffsetArgument = OffsetArgument(0);
    pub(crate) const ONE: OffsetArgument = OffsetArgument(1);
}

impl<'py> FromPyObject<'_, 'py> for OffsetArgument {
    type Error = PyErr;

    fn extract(number: Borrowed<'_, 'py, PyAny>) -> PyResult<OffsetArgument> {
        let py = number.py();
        match number.extract::<usize>() {
            Ok(count) => Ok(OffsetArgument(count)),
            Err(cause) if cause.is_instance_of::<PyOverflowError>(py) => {
                let sentence = format!(
                    "{} is not an offset or length in memory; both are at least 0",
                    &*number
                );
                Err(error::range_error(py, sentence))
            }
            Err(cause) => Err(cause),
        }
    }
}

impl<'py> IntoPyObject<'py> for OffsetArgument {
    type Target = pyo3::types::PyInt;
    type Output = Bound<'py, Self::Target>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        self.0.into_pyobject(py)
    }
}

/// A mapped part of a segment: a writable buffer of bytes whose committed changes survive crashes.
///
/// memoryview(region) and numpy.frombuffer(region, dtype=...) access the memory itself, without a copy.
/// Declare bytes with Transaction.set_range before you store to them, or change them with Transaction.write.
/// Reading a slice copies. While a view exists the region cannot be unmapped, nor its store closed
/// (BufferError).
#[pyclass(frozen, extends = PyMemory, module = "netram._netram")]
pub(crate) struct Region {
    window: Arc<RegionWindow>,
}

impl Region {
    pub(crate) fn new(py: Python<'_>, window: Arc<RegionWindow>) -> PyResult<Py<Region>> {
        let memory = PyMemory {
            viewed: window.clone(),
        };
        Py::new(
            py,
            PyClassInitializer::from(memory).add_subclass(Region { window }),
        )
    }
}

/// The window behind a region object.
pub(crate) fn window<'a>(region: &'a Bound<'_, Region>) -> &'a Arc<RegionWindow> {
    &region.get().window
}

#[pymethods]
impl Region {
    fn __len__(slf: &Bound<'_, Self>) -> usize {
        window(slf).len()
    }

    /// A byte as a number, or a slice as a copy.
    fn __getitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, window) = (slf.py(), window(slf));
        match BufferKey::of(key, window.len(), "region")? {
            BufferKey::Slice { start, length } => Ok(copy(py, window, start, length)?.into_any()),
            BufferKey::Byte(place) => Ok(copy(py, window, place, 1)?.as_bytes()[0]
                .into_pyobject(py)?
                .into_any()),
        }
    }

    /// Unmap the region. Committed bytes are safe; stores that were not declared are lost.
    ///
    /// Raises BufferError while views (arrays, memoryviews) of the memory exist, BusyError while open
    /// transactions have ranges in it. Unmapping twice has no effect.
    fn unmap(slf: &Bound<'_, Self>) -> PyResult<()> {
        let (py, window) = (slf.py(), window(slf));
        window.log.check_process(py)?;
        // Without a store the region was already unmapped when that closed.
        let outcome = match window.log.waiting(py, |memory| unmap(memory, window)) {
            Ok(outcome) => outcome,
            Err(_) if !window.is_mapped(py) => return Ok(()),
            Err(cause) => return Err(cause),
        };
        outcome.map_err(|why| match why {
            CannotUnmap::Views(views) => PyBufferError::new_err(format!(
                "cannot unmap the region: {} into it; delete what is no longer used first",
                looking(views)
            )),
            CannotUnmap::Transactions(cause) => error::busy(py, cause),
        })
    }

    /// Path of the segment.
    #[getter]
    fn path(slf: &Bound<'_, Self>) -> PyResult<String> {
        window(slf).use_region(slf.py(), |region| region.segment_path().to_owned())
    }

    /// Offset in the segment at which the region begins.
    #[getter]
    fn offset(slf: &Bound<'_, Self>) -> PyResult<u64> {
        window(slf).use_region(slf.py(), |region| region.segment_offset())
    }

    /// Address of the first byte, for example for ctypes. It differs in each mapping.
    #[getter]
    fn address(slf: &Bound<'_, Self>) -> PyResult<usize> {
        window(slf).use_region(slf.py(), |region| region.as_ptr().addr())
    }

    /// Whether the region is unmapped.
    #[getter]
    fn closed(slf: &Bound<'_, Self>) -> bool {
        !window(slf).is_mapped(slf.py())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (exception_type, exception = None, traceback = None))]
    fn __exit__(
        slf: &Bound<'_, Self>,
        exception_type: Option<&Bound<'_, PyAny>>,
        exception: Option<&Bound<'_, PyAny>>,
        traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let _ = (exception, traceback);
        match (Region::unmap(slf), exception_type) {
            // The exception in progress is more important, and its frames may hold the views in the way.
            (Err(_), Some(_)) => Ok(()),
            (unmapped, _) => unmapped,
        }
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let described = window(slf).use_region(slf.py(), |region| {
            format!(
                "<netram.Region of {:?}, {} bytes from {}>",
                region.segment_path(),
                region.len(),
                region.segment_offset()
            )
        });
        described.unwrap_or_else(|_unmapped| "<netram.Region, unmapped>".to_owned())
    }
}

/// Why a region stays mapped.
enum CannotUnmap {
    Views(usize),
    Transactions(UnmapError),
}

fn unmap(memory: &netram_store::JournaledRvm, window: &RegionWindow) -> Result<(), CannotUnmap> {
    let mut held = window.hold();
    match held.views() {
        0 => {}
        views => return Err(CannotUnmap::Views(views)),
    }
    let Some(mapped) = held.take() else { return Ok(()) };
    // Checked before the heap is dropped, which knows the changes of open transactions. New ranges need the
    // window, which is held.
    let transactions = open_transactions(memory, &mapped.region);
    if transactions > 0 {
        held.put(mapped);
        return Err(CannotUnmap::Transactions(UnmapError::Uncommitted {
            transactions,
        }));
    }
    let MappedWindow { region, heap } = mapped;
    drop(heap);
    let stays = match Arc::try_unwrap(region) {
        Ok(region) => match region.unmap() {
            Ok(()) => {
                window.log.forget_window(window);
                return Ok(());
            }
            Err((cause, region)) => (cause, Arc::new(region)),
        },
        // A transaction that has ended releases the heap shortly after it stops counting as open.
        Err(region) => (UnmapError::Uncommitted { transactions: 1 }, region),
    };
    held.put(MappedWindow {
        region: stays.1,
        heap: None,
    });
    Err(CannotUnmap::Transactions(stays.0))
}

/// Open transactions with ranges in the region.
pub(crate) fn open_transactions(memory: &netram_store::JournaledRvm, region: &netram_rvm::Region) -> usize {
    let regions = memory.query().regions.into_iter();
    regions
        .filter(|info| info.offset == region.segment_offset() && info.path == region.segment_path())
        .map(|info| info.transactions)
        .sum()
}

fn copy<'py>(
    py: Python<'py>,
    window: &RegionWindow,
    start: usize,
    length: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let end = start + length;
    window.use_region(py, |region| sys::copy(py, region, start..end))?
}

/// Region and byte range of an array or another buffer, from its first byte to its last, including gaps of
/// its strides. `None` if it has no bytes.
pub(crate) fn find(
    log: &StoreLog,
    buffer: &Bound<'_, PyAny>,
) -> PyResult<Option<(Arc<RegionWindow>, usize, usize)>> {
    let py = buffer.py();
    let hull = sys::hull(buffer).map_err(|cause| {
        let what = "set_range takes a Region, or a buffer (array, memoryview) in one";
        PyTypeError::new_err(format!("{what}: {}", cause.value(py)))
    })?;
    let Some((start, length)) = hull else {
        return Ok(None);
    };
    match log.find(start, length) {
        Some((window, offset)) => Ok(Some((window, offset, length))),
        None => Err(error::range_error(
            py,
            "the buffer is not in a region that this store has mapped",
        )),
    }
}

/// Window and range of a region object; a `length` of `None` means to its end.
pub(crate) fn part(
    region: &Bound<'_, Region>,
    offset: Option<OffsetArgument>,
    length: Option<OffsetArgument>,
) -> PyResult<(Arc<RegionWindow>, usize, usize)> {
    let window = window(region);
    let offset = offset.map_or(0, |offset| offset.0);
    let length = length.map_or_else(|| window.len().saturating_sub(offset), |length| length.0);
    match window.is_mapped(region.py()) {
        true => Ok((window.clone(), offset, length)),
        false => Err(unmapped(region.py())),
    }
}
