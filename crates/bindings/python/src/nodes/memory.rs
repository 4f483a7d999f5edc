//! A node's memory in Python.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::session::{NodeMemoryPart, NodeSession};
use crate::key::BufferKey;
use crate::sys::PyMemory;

/// A node's copy of its shared region, or a part of it: a buffer of bytes.
///
/// memoryview(memory) and numpy.frombuffer(memory, dtype=...) access the memory itself, without a copy, and
/// see it change. Node.memory is read-only unless the node finds stores by page; a transaction returns
/// writable parts that it has declared. Reading a slice copies. While a view exists the node cannot leave
/// (BufferError).
#[pyclass(frozen, extends = PyMemory, module = "netram._netram")]
pub(crate) struct NodeMemory {
    part: Arc<NodeMemoryPart>,
}

impl NodeMemory {
    /// The whole memory: readable, and writable if stores are found by page.
    pub(super) fn all(py: Python<'_>, joined: &Arc<NodeSession>) -> PyResult<Py<NodeMemory>> {
        joined.node(py)?;
        NodeMemory::part(
            py,
            NodeMemoryPart {
                session: joined.clone(),
                offset: 0,
                length: joined.length,
                readonly: !joined.finds_stores,
            },
        )
    }

    pub(super) fn part(py: Python<'_>, part: NodeMemoryPart) -> PyResult<Py<NodeMemory>> {
        let part = Arc::new(part);
        let memory = PyMemory { viewed: part.clone() };
        Py::new(
            py,
            PyClassInitializer::from(memory).add_subclass(NodeMemory { part }),
        )
    }
}

#[pymethods]
impl NodeMemory {
    fn __len__(&self) -> usize {
        self.part.length
    }

    /// A byte as a number, or a slice as a copy, taken between two records of other nodes.
    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match BufferKey::of(key, self.part.length, "memory")? {
            BufferKey::Slice { start, length } => {
                let copied = self.part.copy(py, start, length)?;
                Ok(PyBytes::new(py, &copied).into_any())
            }
            BufferKey::Byte(place) => Ok(self.part.copy(py, place, 1)?[0].into_pyobject(py)?.into_any()),
        }
    }

    /// Offset in the region.
    #[getter]
    fn offset(&self) -> usize {
        self.part.offset
    }

    /// Address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.part.session.address + self.part.offset
    }

    /// Whether views of it are read-only.
    #[getter]
    fn readonly(&self) -> bool {
        self.part.readonly
    }

    fn __repr__(&self) -> String {
        let NodeMemoryPart {
            offset,
            length,
            readonly,
            ..
        } = &*self.part;
        let kind = if *readonly { "read-only" } else { "writable" };
        format!("<netram.shared.NodeMemory, {length} bytes from {offset}, {kind}>")
    }
}
