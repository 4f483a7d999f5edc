//! The key in `memory[...]`.

use pyo3::exceptions::{PyIndexError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::PySlice;

/// An index or slice in a buffer of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BufferKey {
    Byte(usize),
    Slice { start: usize, length: usize },
}

impl BufferKey {
    /// Converts a key for a buffer of `length` bytes; `what` is the buffer's name in messages.
    pub(crate) fn of(key: &Bound<'_, PyAny>, length: usize, what: &str) -> PyResult<BufferKey> {
        if let Ok(slice) = key.cast::<PySlice>() {
            let signed = isize::try_from(length);
            let signed = signed.map_err(|_| PyIndexError::new_err(format!("the {what} is too large")))?;
            let slice = slice.indices(signed)?;
            if slice.step != 1 {
                return Err(PyIndexError::new_err(format!(
                    "a {what} is sliced in steps of 1; use memoryview({what}) for others"
                )));
            }
            // With step 1 `start` is at least 0, and `slicelength` bytes follow it.
            return Ok(BufferKey::Slice {
                start: slice.start.unsigned_abs(),
                length: slice.slicelength,
            });
        }
        let outside = || PyIndexError::new_err(format!("the index is outside the {what}"));
        let index = match key.extract::<isize>() {
            Err(cause) if cause.is_instance_of::<PyOverflowError>(key.py()) => return Err(outside()),
            index => index?,
        };
        let place = match index < 0 {
            true => length.checked_sub(index.unsigned_abs()),
            false => Some(index.unsigned_abs()).filter(|place| *place < length),
        };
        place.map(BufferKey::Byte).ok_or_else(outside)
    }
}
