//! How many files a service may have open.
//!
//! Shells and service managers give a process a soft limit of 1,024 descriptors, and a hard limit that is far
//! higher. The soft limit is there for programs that call `select`, whose sets end at 1,024. This program
//! calls `epoll` and `poll` only, so a service raises its soft limit to the hard one.
//!
//! Programs that netram starts for others (`netram run -- program`, compilers, databases in a measurement)
//! may call `select`. They inherit limits, so the commands that start them leave the limit alone. The
//! libraries (C, Python, SQLite) run in somebody else's process and never change it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most that is asked for: what Linux allows a process unless told otherwise (`fs.nr_open`). A hard limit
/// without a number would make whoever walks over all descriptors walk for ever.
const DESCRIPTORS_MAX: u64 = 1 << 20;

/// Raises the soft limit of this process to its hard limit.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let wanted = limit.maximum.unwrap_or(DESCRIPTORS_MAX).min(DESCRIPTORS_MAX);
    if limit.current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = Rlimit {
        current: Some(wanted),
        ..limit
    };
    // Refused only by a system that forbids the call altogether. Then the old limit holds, and what it lacks
    // is told where it lacks.
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, wanted, "the limit of open files could not be raised");
    }
}
