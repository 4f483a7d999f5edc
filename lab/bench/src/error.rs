//! Errors of measurements.

use std::error::Error;
use std::fmt::Display;
use std::path::PathBuf;

/// A failed measurement. The caller's reaction to every variant is to report it; they differ in the message.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The environment refused something: a file, a socket, a process.
    #[error("cannot {what}: {why}")]
    Setup {
        /// The operation that failed.
        what: String,
        /// Error of the system or the library.
        why: Box<dyn Error + Send + Sync>,
    },
    /// A child process ended before it was ready, or printed something unexpected.
    #[error("the {role} process (pid {pid}) failed: {why}")]
    Child {
        /// Role of the process.
        role: &'static str,
        /// Its process id.
        pid: u32,
        /// Its failure.
        why: String,
    },
    /// The requested measurement is impossible or inconsistent.
    #[error("{0}")]
    InvalidRequest(String),
    /// Data that was read back differs from what was acknowledged: a defect, never noise.
    #[error("the data in {} is wrong: {why}", place.display())]
    WrongData {
        /// File or directory that was read.
        place: PathBuf,
        /// The contradiction that was found.
        why: String,
    },
}

/// Adds the failed operation to an error.
pub trait ErrorContext<T> {
    /// Turns the error into a [`BenchError::Setup`].
    ///
    /// # Errors
    ///
    /// Returns every error it is called on, with the failed operation.
    fn context(self, what: impl Display) -> Result<T, BenchError>;
}

impl<T, E: Error + Send + Sync + 'static> ErrorContext<T> for Result<T, E> {
    fn context(self, what: impl Display) -> Result<T, BenchError> {
        self.map_err(|why| BenchError::Setup {
            what: what.to_string(),
            why: why.into(),
        })
    }
}
