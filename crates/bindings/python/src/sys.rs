//! The buffer protocol in both directions, and copies out of memory that Python code may be writing: the
//! crate's only unsafe code.
//!
//! [`PyMemory`] is the base class of `Region` and `NodeMemory`. Each buffer that Python takes counts as a
//! view of a [`BufferSource`], which keeps the memory mapped until the last view is released. Each buffer
//! also holds a reference to the object, which owns the source.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Arc;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Memory that Python can view.
pub(crate) trait BufferSource: Send + Sync {
    /// Counts one more view. Its bytes stay mapped until the view is released.
    fn view(&self, py: Python<'_>) -> PyResult<BufferView>;
    /// Counts the release of a view.
    fn end_view(&self);
}

/// Address and length of a view.
pub(crate) struct BufferView {
    pub(crate) address: *mut u8,
    pub(crate) length: usize,
    pub(crate) readonly: bool,
}

/// Memory as a buffer of bytes.
///
/// Base class of Region, NodeMemory and FarMemory; it cannot be instantiated.
#[pyclass(frozen, subclass, module = "netram._netram", name = "Memory")]
pub(crate) struct PyMemory {
    pub(crate) viewed: Arc<dyn BufferSource>,
}

#[pymethods]
impl PyMemory {
    /// # Safety
    ///
    /// `view` is null, or a structure of the interpreter to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("the pointer to the view is null"));
        }
        let py = slf.py();
        let viewed = &slf.get().viewed;
        let BufferView {
            address,
            length,
            readonly,
        } = viewed.view(py)?;
        let length = ffi::Py_ssize_t::try_from(length).map_err(|_| {
            viewed.end_view();
            PyBufferError::new_err("the region is longer than the largest Py_ssize_t")
        })?;
        let (address, readonly) = (address.cast(), c_int::from(readonly));
        // SAFETY: the caller guarantees `view`. `address` has `length` bytes until the counted view is
        // released, because a `BufferSource` unmaps nothing before. The view keeps a reference to `slf`.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, length, readonly, flags) };
        if filled != 0 {
            viewed.end_view();
            return Err(PyErr::fetch(py));
        }
        Ok(())
    }

    /// # Safety
    ///
    /// `_view` was filled by `__getbuffer__` and is released once: the interpreter ensures both.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.viewed.end_view();
    }
}

/// Copies bytes of a mapped region to a new `bytes` object, as a `memoryview` of it would.
///
/// No reference to the region's bytes is formed: Python code may be writing them through a view on another
/// thread. A read during a write returns a mixture of both.
pub(crate) fn copy<'py>(
    py: Python<'py>,
    region: &netram_rvm::Region,
    span: Range<usize>,
) -> PyResult<Bound<'py, PyBytes>> {
    assert!(span.start <= span.end);
    assert!(span.end <= region.len());
    PyBytes::new_with(py, span.len(), |target| {
        assert_eq!(target.len(), span.len());
        // SAFETY: the assertions keep the offset inside the bytes that `region` has mapped.
        let source = unsafe { region.as_ptr().add(span.start) };
        // SAFETY: `target.len()` bytes remain at `source`; `target` is new, so they are disjoint; the region
        // is borrowed, so it stays mapped.
        unsafe { source.copy_to_nonoverlapping(target.as_mut_ptr(), target.len()) };
        Ok(())
    })
}

/// Address of a buffer's lowest byte, and length to its highest, including gaps of its strides. `None` if it
/// has no bytes.
pub(crate) fn hull(buffer: &Bound<'_, PyAny>) -> PyResult<Option<(usize, usize)>> {
    let mut view = ffi::Py_buffer::new();
    // SAFETY: `buffer` is a live object, `view` is a structure to be filled, and the interpreter is held.
    let refused = unsafe { ffi::PyObject_GetBuffer(buffer.as_ptr(), &mut view, ffi::PyBUF_FULL_RO) };
    if refused != 0 {
        return Err(PyErr::fetch(buffer.py()));
    }
    let found = spread(&view);
    // SAFETY: the view was filled above, was not moved, and is released once.
    unsafe { ffi::PyBuffer_Release(&mut view) };
    found
}

fn spread(view: &ffi::Py_buffer) -> PyResult<Option<(usize, usize)>> {
    if !view.suboffsets.is_null() {
        return Err(PyBufferError::new_err(
            "a buffer of pointers is not contiguous in memory",
        ));
    }
    let dimensions = usize::try_from(view.ndim).unwrap_or(0);
    if dimensions > 0 && view.strides.is_null() {
        // An exporter may give no strides for an array without gaps, as ctypes does.
        let length = view.len.unsigned_abs();
        return Ok((length > 0).then(|| (view.buf.addr(), length)));
    }
    if dimensions > 0 && view.shape.is_null() {
        return Err(PyBufferError::new_err("the buffer has strides but no shape"));
    }
    let (mut before, mut after) = (0usize, view.itemsize.unsigned_abs());
    for dimension in 0..dimensions {
        // SAFETY: the shape is not null, so it has `ndim` entries.
        let count = unsafe { view.shape.add(dimension) };
        // SAFETY: as above.
        let count = unsafe { count.read() }.unsigned_abs();
        // SAFETY: the strides are not null, so there are `ndim` of them.
        let stride = unsafe { view.strides.add(dimension) };
        // SAFETY: as above.
        let stride = unsafe { stride.read() };
        if count == 0 {
            return Ok(None);
        }
        // Saturating: a valid buffer fits the address space, and an invalid one is found in no region.
        let reach = (count - 1).saturating_mul(stride.unsigned_abs());
        match stride < 0 {
            true => before = before.saturating_add(reach),
            false => after = after.saturating_add(reach),
        }
    }
    let length = before.saturating_add(after);
    Ok((length > 0).then(|| (view.buf.addr().wrapping_sub(before), length)))
}
