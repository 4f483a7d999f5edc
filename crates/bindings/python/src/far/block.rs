//! A part of an arena in Python.

use std::sync::{Arc, PoisonError, RwLock};

use netram_far::{FarAccessError, FarVec};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::error;
use crate::fork::Generation;
use crate::sys::{BufferSource, BufferView, PyMemory};

/// Bytes of an arena. They keep the arena alive.
pub(super) struct FarBlock {
    /// Locked shared to gather, exclusively to scatter. Views need no lock: they use the address.
    bytes: RwLock<FarVec<u8>>,
    address: usize,
    length: usize,
    generation: Generation,
}

impl FarBlock {
    pub(super) fn new(bytes: FarVec<u8>) -> FarBlock {
        FarBlock {
            address: bytes.as_ptr().expose_provenance(),
            length: bytes.len(),
            bytes: RwLock::new(bytes),
            generation: Generation::now(),
        }
    }

    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        match self.generation.is_past() {
            false => Ok(()),
            true => Err(error::closed(
                py,
                "a forked child does not have its parent's far memory; open a new arena",
            )),
        }
    }

    /// Indexes of elements of `size` bytes, from eight bytes each.
    fn indices(&self, size: usize, indices: &[u8]) -> PyResult<Vec<usize>> {
        if size == 0 {
            return Err(PyValueError::new_err("an element has at least one byte"));
        }
        let (numbers, rest) = indices.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(PyValueError::new_err("an index has eight bytes"));
        }
        let length = self.length / size;
        let check = |number: &[u8; 8]| match u64::from_le_bytes(*number) {
            index if index < length as u64 => Ok(index as usize),
            index => Err(PyIndexError::new_err(format!(
                "index {index} is out of range: there are {length} elements"
            ))),
        };
        numbers.iter().map(check).collect()
    }
}

impl BufferSource for FarBlock {
    fn view(&self, py: Python<'_>) -> PyResult<BufferView> {
        self.check_process(py)?;
        Ok(BufferView {
            address: std::ptr::with_exposed_provenance_mut(self.address),
            length: self.length,
            readonly: false,
        })
    }

    /// Views are not counted: every view refers to the object, which owns the memory.
    fn end_view(&self) {}
}

/// Memory of an arena, as a buffer of bytes that are zeros at first.
///
/// memoryview(memory) and numpy.frombuffer(memory, dtype=...) access the memory itself. It is freed when the
/// last of these objects is gone.
#[pyclass(frozen, extends = PyMemory, module = "netram._netram")]
pub(crate) struct FarMemory {
    block: Arc<FarBlock>,
}

impl FarMemory {
    pub(super) fn new(py: Python<'_>, block: FarBlock) -> PyResult<Py<FarMemory>> {
        let block = Arc::new(block);
        let memory = PyMemory {
            viewed: block.clone(),
        };
        Py::new(
            py,
            PyClassInitializer::from(memory).add_subclass(FarMemory { block }),
        )
    }
}

#[pymethods]
impl FarMemory {
    fn __len__(&self) -> usize {
        self.block.length
    }

    /// Address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.block.address
    }

    fn __repr__(&self) -> String {
        format!("<netram.far.FarMemory, {} bytes>", self.block.length)
    }

    /// Elements of size bytes at these indexes, of eight bytes each. For arrays use netram.far.gather().
    fn gather<'py>(&self, py: Python<'py>, size: usize, indices: &[u8]) -> PyResult<Bound<'py, PyByteArray>> {
        self.block.check_process(py)?;
        let indices = self.block.indices(size, indices)?;
        let gathered = py.detach(|| {
            let bytes = self.block.bytes.read().unwrap_or_else(PoisonError::into_inner);
            let mut values = vec![0; indices.len() * size];
            bytes
                .gather_elements(size, &indices, &mut values)
                .map(|()| values)
        });
        gathered
            .map(|values| PyByteArray::new(py, &values))
            .map_err(|error| refused(py, &error))
    }

    /// Store elements of size bytes at these indexes, of eight bytes each. For arrays use
    /// netram.far.scatter().
    fn scatter(&self, py: Python<'_>, size: usize, indices: &[u8], values: &[u8]) -> PyResult<()> {
        self.block.check_process(py)?;
        let indices = self.block.indices(size, indices)?;
        if values.len() != indices.len() * size {
            return Err(PyValueError::new_err(
                "the number of values must equal the number of indexes",
            ));
        }
        let scattered = py.detach(|| {
            let mut bytes = self.block.bytes.write().unwrap_or_else(PoisonError::into_inner);
            bytes.scatter_elements(size, &indices, values)
        });
        scattered.map_err(|error| refused(py, &error))
    }
}

fn refused(py: Python<'_>, error: &FarAccessError) -> PyErr {
    match error {
        FarAccessError::Lost(_) => error::page_lost(py, error),
        FarAccessError::NoRoom { .. } => error::no_room(py, error),
    }
}
