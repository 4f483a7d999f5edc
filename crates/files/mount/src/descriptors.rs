//! Number of files of a directory that may be open at a time.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors reserved for other uses: the journal and its connections, standard input and output, the
/// catalog's two files, and a directory being listed or synced.
const OTHERS: u64 = 48;
/// Upper bound: each checkpoint syncs every open dirty file.
const FILES_MAX: u64 = 1 << 16;
/// Lower bound; a mount cannot work with fewer.
const FILES_MIN: u64 = 16;

/// Raises the process's descriptor limit as far as allowed. Returns the number of descriptors left for files
/// by threads that need `threads` for themselves.
pub(crate) fn for_files(threads: usize) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = rustix::process::Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit = raised,
            Err(error) => tracing::warn!(%error, "the limit on open files could not be raised"),
        }
    }
    let all = limit.current.unwrap_or(u64::MAX);
    let left = all.saturating_sub(OTHERS + threads as u64);
    left.clamp(FILES_MIN, FILES_MAX) as usize
}
