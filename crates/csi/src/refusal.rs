//! Refusals: sorted by what the orchestrator does next.

use std::path::PathBuf;

/// A request that was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeRefusal {
    /// The request cannot be carried out as it is: repeating it is of no use.
    #[error("{0}")]
    Invalid(String),
    /// The volume does not exist on this machine.
    #[error("there is no volume {0} on this machine; `netram volume list DIRECTORY` shows those that exist")]
    NotFound(String),
    /// Another volume has the name, or the volume is published in another way.
    #[error("{0}")]
    Exists(String),
    /// The size cannot be had.
    #[error("{0}")]
    OutOfRange(String),
    /// Another machine is asked for.
    #[error("{0}")]
    Elsewhere(String),
    /// Something must be done first, as unmounting.
    #[error("{0}")]
    Precondition(String),
    /// The same volume is worked on by another request.
    #[error("volume {0} is worked on by another request; repeat this one when that is done")]
    Busy(String),
    /// A list cannot be continued from there.
    #[error("{0}")]
    Restart(String),
    /// A program failed; the sentence is its own.
    #[error("{0}")]
    Failed(String),
    /// A file of the driver failed.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Error from the operating system.
        source: std::io::Error,
    },
}

/// Returns a conversion of an error of `path`.
pub(crate) fn failed(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> VolumeRefusal {
    let path = path.into();
    move |source| VolumeRefusal::File { path, source }
}
