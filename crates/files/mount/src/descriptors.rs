//! How many files of a directory may be open at a time.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors that are needed beside those of files: of the journal and its links, of standard input and
/// output, of the catalog's two, and of a directory that is listed or synced.
const OTHERS: u64 = 48;
/// More are of no use: a checkpoint syncs each of them.
const FILES_MAX: u64 = 1 << 16;
/// With fewer nothing can be served.
const FILES_MIN: u64 = 16;

/// Raises this process's limit as far as it may, and returns how many of its descriptors are left for files.
pub(crate) fn for_files(threads: usize) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = rustix::process::Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        match setrlimit(Resource::Nofile, raised) {
            Ok(()) => limit = raised,
            Err(error) => tracing::warn!(%error, "the limit of open files could not be raised"),
        }
    }
    let all = limit.current.unwrap_or(u64::MAX);
    let left = all.saturating_sub(OTHERS + threads as u64);
    left.clamp(FILES_MIN, FILES_MAX) as usize
}
