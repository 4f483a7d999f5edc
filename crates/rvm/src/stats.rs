//! Counters. Kept with relaxed atomics: each is right on its own, together they are a moment's blur.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What happened since the opening.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> Statistics {
                Statistics { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Transactions begun.
    begun,
    /// Commits that waited for safety.
    flush_commits,
    /// Commits that did not wait (lazy).
    lazy_commits,
    /// Commits without a range: nothing was logged.
    empty_commits,
    /// Transactions aborted.
    aborts,
    /// Commits whose outcome stayed unknown.
    unknown_commits,
    /// Ranges that were logged.
    ranges_logged,
    /// Ranges declared apart that merging made part of another before logging.
    ranges_merged,
    /// Payload bytes logged.
    bytes_logged,
    /// Commits that met a full log and waited for truncation.
    full_stalls,
    /// Nanoseconds spent in those waits.
    full_stall_ns,
    /// Rounds of truncation (each ends with a trimmed log), recovery's included.
    rounds,
    /// Nanoseconds spent in steps of truncation.
    truncation_ns,
    /// Steps of truncation that failed.
    truncation_failures,
    /// Transactions read back from the log by truncation.
    transactions_applied,
    /// Bytes of ranges read back from the log by truncation.
    bytes_read,
    /// Bytes written to segments: less than `bytes_read` when later values replaced earlier ones.
    bytes_applied,
}

pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Relaxed);
}
