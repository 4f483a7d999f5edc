//! A segment: the file behind mapped memory.

use std::sync::Arc;

use netram_rvm::{MapError, SegmentAllocation};
use pyo3::prelude::*;

use crate::error;
use crate::open_log::StoreLog;
use crate::region::{OffsetArgument, Region};
use crate::size::SizeArgument;

/// A segment: a file whose bytes can be mapped and changed by transactions.
#[pyclass(frozen, module = "netram._netram")]
pub(crate) struct Segment {
    log: Arc<StoreLog>,
    path: String,
}

/// Arguments of `PyStore.segment`.
pub(crate) struct SegmentRequest {
    pub(crate) path: String,
    pub(crate) size: Option<u64>,
    pub(crate) create: bool,
    pub(crate) sparse: bool,
}

impl Segment {
    /// The segment at `wanted.path`, created now if requested.
    pub(crate) fn find(py: Python<'_>, log: &Arc<StoreLog>, wanted: SegmentRequest) -> PyResult<Segment> {
        let SegmentRequest {
            path,
            size,
            create,
            sparse,
        } = wanted;
        // An absolute path: the program may change its working directory.
        let path = std::path::absolute(&path).map_or_else(
            |_| path.clone(),
            |absolute| absolute.to_string_lossy().into_owned(),
        );
        let found = std::fs::metadata(&path).ok();
        match (found, create, size) {
            (None, true, Some(size)) => {
                let allocation = if sparse {
                    SegmentAllocation::Sparse
                } else {
                    SegmentAllocation::Preallocated
                };
                let made = log.waiting(py, |memory| memory.create_segment(&path, size, allocation))?;
                made.map_err(|cause| error::segment(py, &cause))?;
            }
            (None, true, None) => {
                let sentence =
                    format!("a new segment needs a size: segment({path:?}, size=..., create=True)");
                return Err(error::segment_error(py, sentence));
            }
            (None, false, _) => {
                let sentence = format!(
                    "the segment {path} does not exist; create it with segment({path:?}, size=..., create=True)"
                );
                return Err(error::segment_error(py, sentence));
            }
            (Some(file), _, Some(size)) if file.len() != size => {
                let sentence = format!("the segment {path} has {} bytes, not {size}", file.len());
                return Err(error::segment_error(py, sentence));
            }
            (Some(_), ..) => log.quickly(py, |_| ())?,
        }
        Ok(Segment {
            log: log.clone(),
            path,
        })
    }
}

#[pymethods]
impl Segment {
    /// Map length bytes from offset on, a multiple of 4096; length 0 means up to the end.
    ///
    /// Pages are read when they are first touched, so a large segment is mapped at once. A byte can be mapped
    /// only once at a time. Raises RangeError, SegmentError, InUse.
    #[pyo3(signature = (offset = OffsetArgument::ZERO, length = OffsetArgument::ZERO))]
    #[pyo3(text_signature = "($self, offset=0, length=0)")]
    fn map(&self, py: Python<'_>, offset: OffsetArgument, length: OffsetArgument) -> PyResult<Py<Region>> {
        let (offset, length) = (offset.0 as u64, length.0 as u64);
        // The window is created before the memory's lock is released: otherwise a store closed in between
        // would miss it.
        let mapped = self.log.waiting(py, |memory| -> Result<_, MapError> {
            let region = memory.map(&self.path, offset, length)?;
            Ok(self.log.add_window(region))
        })?;
        let window = mapped.map_err(|cause| error::map(py, &cause))?;
        Region::new(py, window)
    }

    /// The segment's absolute path.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// Length of the segment in bytes.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<SizeArgument> {
        self.log.quickly(py, |_| ())?;
        match std::fs::metadata(&self.path) {
            Ok(file) => Ok(SizeArgument(file.len())),
            Err(cause) => Err(error::segment_error(
                py,
                format_args!("the segment {}: {cause}", self.path),
            )),
        }
    }

    fn __repr__(&self) -> String {
        format!("<netram.Segment {:?}>", self.path)
    }
}
