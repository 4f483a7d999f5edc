//! Checks whether the limits of a process allow far memory. Asked before a program starts, because a limit
//! reached later is hard to explain.

use rustix::process::{Resource, getrlimit};

use crate::run::RunSettings;

/// Bytes of addresses and data that a program may take beside its far memory.
const OTHER_BYTES: u64 = 1 << 30;
/// Files that an arena's threads have open, beside two per lender: standard ones, the `userfaultfd`, one for
/// each thread to wait on, the spill file, and briefly those for starting the cleanup process. Threads and
/// program count separately.
const FILES: u64 = 24;

/// Why a limit of this process leaves no room for far memory. Raise it, or use less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessLimitError {
    /// The arena's addresses exceed the limit on address space.
    #[error("the limit on addresses (ulimit -v) is {}: raise it, or choose a --size that leaves 1 GiB of it for the program's other memory", ByteSize(*limit))]
    Addresses {
        /// The limit in bytes.
        limit: u64,
    },
    /// The arena's size exceeds the limit on data, for which all of it counts, used or not.
    #[error("the limit on data (ulimit -d) is {}, and all of --size counts: raise it, or choose a --size that leaves 1 GiB of it for the program's other memory", ByteSize(*limit))]
    Data {
        /// The limit in bytes.
        limit: u64,
    },
    /// The threads that serve the arena need more open files.
    #[error(
        "the limit on open files (ulimit -n) is {limit}, but far memory needs {needed} with this many lenders: raise it"
    )]
    Files {
        /// The limit on open files.
        limit: u64,
        /// Number of files needed.
        needed: u64,
    },
}

/// Limits of a process; `None`: unlimited.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    addresses: Option<u64>,
    data: Option<u64>,
    files: Option<u64>,
}

/// Checks this process's limits.
///
/// # Errors
///
/// The first limit that is too low.
pub fn check(settings: &RunSettings) -> Result<(), ProcessLimitError> {
    let current = |resource| getrlimit(resource).current;
    let limits = Limits {
        addresses: current(Resource::As),
        data: current(Resource::Data),
        files: current(Resource::Nofile),
    };
    limits.allow(settings.size_bytes, settings.lenders.len() as u64)
}

impl Limits {
    fn allow(self, size_bytes: u64, lenders: u64) -> Result<(), ProcessLimitError> {
        let bytes = size_bytes.saturating_add(OTHER_BYTES);
        let needed = FILES + 2 * lenders;
        let below = |limit: Option<u64>, needed: u64| limit.filter(|limit| *limit < needed);
        if let Some(limit) = below(self.addresses, bytes) {
            return Err(ProcessLimitError::Addresses { limit });
        }
        if let Some(limit) = below(self.data, bytes) {
            return Err(ProcessLimitError::Data { limit });
        }
        match below(self.files, needed) {
            Some(limit) => Err(ProcessLimitError::Files { limit, needed }),
            None => Ok(()),
        }
    }
}

/// A number of bytes, displayed for people.
struct ByteSize(u64);

impl std::fmt::Display for ByteSize {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ByteSize(bytes) = self;
        let gib = *bytes as f64 / f64::from(1 << 30);
        match bytes {
            0..0x10_0000 => write!(out, "{bytes} bytes"),
            0x10_0000..0x4000_0000 => write!(out, "{} MiB", bytes >> 20),
            _ => write!(out, "{gib:.1} GiB"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_named_with_its_remedy() {
        let size = 8 << 30;
        let said = |limits: Limits| limits.allow(size, 2).map_err(|error| error.to_string());
        assert_eq!(said(Limits::default()), Ok(()));
        let enough = Limits {
            addresses: Some(size + OTHER_BYTES),
            data: Some(size + OTHER_BYTES),
            files: Some(FILES + 4),
        };
        assert_eq!(said(enough), Ok(()));
        let named = |limits: Limits, name: &str| {
            let said = said(limits).unwrap_err();
            assert!(said.contains(name) && said.contains("raise it"), "{said}");
        };
        let little = |limit: Option<u64>| limit.map(|limit| limit - 1);
        named(
            Limits {
                addresses: little(enough.addresses),
                ..enough
            },
            "(ulimit -v) is 9.0 GiB",
        );
        named(
            Limits {
                data: little(enough.data),
                ..enough
            },
            "(ulimit -d) is 9.0 GiB",
        );
        named(
            Limits {
                files: little(enough.files),
                ..enough
            },
            "(ulimit -n) is 27",
        );
    }
}
