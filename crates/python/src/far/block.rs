//! A part of an arena as Python sees it.

use std::sync::Arc;

use netram_far::FarVec;
use pyo3::prelude::*;

use crate::error;
use crate::fork::Generation;
use crate::sys::{Memory, View, Viewed};

/// Bytes of an arena. The arena lives as long as they do.
pub(super) struct Block {
    bytes: FarVec<u8>,
    generation: Generation,
}

impl Block {
    pub(super) fn new(bytes: FarVec<u8>) -> Block {
        Block {
            bytes,
            generation: Generation::now(),
        }
    }
}

impl Viewed for Block {
    fn view(&self, py: Python<'_>) -> PyResult<View> {
        if self.generation.is_past() {
            return Err(error::closed(
                py,
                "a child of fork has none of its parent's far memory; open an arena of its own",
            ));
        }
        Ok(View {
            address: self.bytes.as_ptr(),
            length: self.bytes.len(),
            readonly: false,
        })
    }

    /// Nothing counts them: every view holds the object, and the object the memory.
    fn end_view(&self) {}
}

/// Memory of an arena, as a buffer of bytes: zeros at first.
///
/// memoryview(memory) and numpy.frombuffer(memory, dtype=...) are the memory itself. It is given back when the last of them is gone.
#[pyclass(frozen, extends = Memory, module = "netram._netram")]
pub(crate) struct FarMemory {
    block: Arc<Block>,
}

impl FarMemory {
    pub(super) fn new(py: Python<'_>, block: Block) -> PyResult<Py<FarMemory>> {
        let block = Arc::new(block);
        let memory = Memory {
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
        self.block.bytes.len()
    }

    /// The address of its first byte.
    #[getter]
    fn address(&self) -> usize {
        self.block.bytes.as_ptr().addr()
    }

    fn __repr__(&self) -> String {
        format!("<netram.far.FarMemory, {} bytes>", self.block.bytes.len())
    }
}
