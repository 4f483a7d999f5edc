//! Distinguishing a child process from the one that opened an object.
//!
//! A child created by `fork` has copies of everything except the threads: its store would write to the log
//! and sockets of its parent. So objects record the generation of the process that created them, and are
//! refused in a later one.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::pyfunction;

/// Number of forks between this process and the one that loaded the module.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// The generation of the process that created an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    /// The generation of this process.
    pub(crate) fn now() -> Generation {
        Generation(GENERATION.load(Ordering::Relaxed))
    }

    /// Whether the object was created before a fork that led to this process. Costs one load, cheap enough
    /// for every call.
    pub(crate) fn is_past(self) -> bool {
        self != Generation::now()
    }
}

/// Called in a child process after `fork`, through `os.register_at_fork`.
#[pyfunction]
#[pyo3(name = "_inherited")]
pub(crate) fn inherited() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}
