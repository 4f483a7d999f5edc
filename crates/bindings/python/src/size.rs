//! Sizes given by Python programs.

use bytesize::ByteSize;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyInt, PyString};

/// A size from Python: a number of bytes, or text such as "64MiB".
#[derive(Clone, Copy, Debug)]
pub(crate) struct SizeArgument(pub(crate) u64);

impl<'py> FromPyObject<'_, 'py> for SizeArgument {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<SizeArgument> {
        if let Ok(text) = value.cast::<PyString>() {
            let text = text.to_str()?;
            return match text.parse::<ByteSize>() {
                Ok(size) => Ok(SizeArgument(size.as_u64())),
                Err(_) => Err(PyValueError::new_err(format!(
                    "{text:?} is not a size; write it as \"64MiB\", \"1.5GiB\" or 4096"
                ))),
            };
        }
        if !value.is_instance_of::<PyInt>() {
            return Err(PyTypeError::new_err(
                "a size is a number of bytes, or text such as \"64MiB\"",
            ));
        }
        match value.extract() {
            Ok(bytes) => Ok(SizeArgument(bytes)),
            Err(_) => Err(PyValueError::new_err(format!(
                "{} is not a number of bytes",
                &*value
            ))),
        }
    }
}

impl<'py> IntoPyObject<'py> for SizeArgument {
    type Target = PyInt;
    type Output = Bound<'py, PyInt>;
    type Error = std::convert::Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Self::Error> {
        self.0.into_pyobject(py)
    }
}
