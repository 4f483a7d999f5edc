//! The limit of open files of a service.
//!
//! Shells and service managers give a process a soft limit of 1,024 descriptors, and a hard limit that is far
//! higher. The soft limit is there for programs that call `select`, whose sets end at 1,024. This program
//! calls `epoll` and `poll` only, so a service raises its soft limit to the hard one.
//!
//! Programs that netram starts for others (`netram run -- program`, compilers, databases in a measurement)
//! may call `select`. They inherit limits, so the commands that start them leave the limit alone. The
//! libraries (C, Python, SQLite) run in other programs' processes and never change it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Highest limit that is set: what Linux allows a process by default (`fs.nr_open`). With a higher one,
/// programs that walk over all descriptors would take too long.
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
    // Only a system that forbids the call altogether refuses this. Then the old limit holds, and a lack of
    // descriptors is reported where it occurs.
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, wanted, "the limit of open files could not be raised");
    }
}
