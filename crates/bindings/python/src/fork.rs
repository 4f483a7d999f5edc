//! Telling a child process from the one that opened.
//!
//! A child made by `fork` has copies of everything but the threads: its store would write the log and the
//! sockets that its parent writes. So objects remember the generation of processes that made them, and refuse
//! in a later one.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::pyfunction;

/// How many forks lie between this process and the one that loaded the module.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The generation that made something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    /// This process's.
    pub(crate) fn now() -> Generation {
        Generation(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether the thing was made before a fork that led to this process. One load: cheap enough for every
    /// call.
    pub(crate) fn is_past(self) -> bool {
        self != Generation::now()
    }
}

/// Called in a child process after `fork`, by `os.register_at_fork`.
#[pyfunction]
#[pyo3(name = "_inherited")]
pub(crate) fn inherited() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
