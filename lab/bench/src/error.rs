//! Why a measurement could not be made.

use std::error::Error;
use std::fmt::Display;
use std::path::PathBuf;

/// A failed measurement. All variants have one reaction, to tell the person who asked; they differ in what is
/// told.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The environment refused something: a file, a socket, a process.
    #[error("cannot {what}: {why}")]
    Setup {
        /// What was tried.
        what: String,
        /// What the system or the library said.
        why: Box<dyn Error + Send + Sync>,
    },
    /// A child process ended before it was ready, or said something else than expected.
    #[error("the {role} process (pid {pid}) failed: {why}")]
    Child {
        /// What it was started for.
        role: &'static str,
        /// Its process id.
        pid: u32,
        /// What it did.
        why: String,
    },
    /// What was asked for cannot be measured.
    #[error("{0}")]
    InvalidRequest(String),
    /// The data read back is not what was acknowledged: a defect, never noise.
    #[error("the data in {} is wrong: {why}", place.display())]
    WrongData {
        /// Where it was read.
        place: PathBuf,
        /// What contradicts what.
        why: String,
    },
}

/// Adds what was tried to an error.
pub trait ErrorContext<T> {
    /// Turns the error into a [`BenchError::Setup`].
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
