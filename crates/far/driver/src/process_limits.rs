//! Whether the limits of a process leave far memory room: asked before a program is begun, for one that runs
//! out of them later is hard to explain.

use rustix::process::{Resource, getrlimit};

use crate::run::RunSettings;

/// What a program takes beside its far memory, of addresses and of data.
const OTHER_BYTES: u64 = 1 << 30;
/// Files that an arena's threads have open, beside two a lender: standard ones, what tells of faults, what
/// each thread waits on, the spill file, and for a moment those by which who gives back at the end is begun.
/// Threads and program count apart.
const FILES: u64 = 24;

/// A limit of this process leaves far memory no room. Raise it, or take less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProcessLimitError {
    /// The arena's addresses are more than it may have.
    #[error("the limit on addresses (ulimit -v) is {}: raise it, or give --size no more than it leaves beside 1 GiB for the program's other memory", ByteSize(*limit))]
    Addresses {
        /// Bytes.
        limit: u64,
    },
    /// All of an arena counts as data, used or not.
    #[error("the limit on data (ulimit -d) is {}, and all of --size counts: raise it, or give --size no more than it leaves beside 1 GiB for the program's other memory", ByteSize(*limit))]
    Data {
        /// Bytes.
        limit: u64,
    },
    /// The threads that serve the arena need more.
    #[error(
        "the limit on open files (ulimit -n) is {limit}, and far memory takes {needed} with so many lenders: raise it"
    )]
    Files {
        /// Files.
        limit: u64,
        /// How many there are to be.
        needed: u64,
    },
}

/// A limit: `None` is none.
#[derive(Clone, Copy, Debug, Default)]
struct Limits {
    addresses: Option<u64>,
    data: Option<u64>,
    files: Option<u64>,
}

/// Looks at this process's limits.
///
/// # Errors
/// The first of them that is too low.
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

/// Bytes, for people.
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
    fn a_limit_that_is_too_low_is_named_with_its_remedy_and_no_limit_is_none() {
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
