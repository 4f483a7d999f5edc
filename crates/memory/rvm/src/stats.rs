//! Counters. Kept with relaxed atomics: each is right on its own, together they are a moment's blur.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper bounds of the classes of lengths in bytes, the last class is "more".
pub const LENGTH_CLASSES: [u64; 12] = [0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
/// Upper bounds of the classes of counts, the last class is "more".
pub const COUNT_CLASSES: [u64; 5] = [0, 5, 10, 50, 100];

macro_rules! counters {
    (
        $($(#[$doc:meta])* $name:ident),* $(,)?;
        $($(#[$class_doc:meta])* $class_name:ident: $classes:expr),* $(,)?
    ) => {
        /// What happened since the opening.
        ///
        /// Ranges and bytes count at three places. *Declared*: what `set_range` and its kin were given by
        /// transactions that committed. *Committed*: after duplicate, overlapping and adjacent ranges of one
        /// transaction were merged. *Logged*: what records carry, after the spool dropped what later commits
        /// replaced.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
            $($(#[$class_doc])* pub $class_name: [u64; $classes.len() + 1],)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            $(pub(crate) $class_name: [AtomicU64; $classes.len() + 1],)*
        }

        impl Counters {
            pub(crate) fn read(&self) -> Statistics {
                Statistics {
                    $($name: self.$name.load(Relaxed),)*
                    $($class_name: std::array::from_fn(|class| self.$class_name[class].load(Relaxed)),)*
                }
            }
        }
    };
}

counters! {
    /// Transactions begun.
    begun,
    /// Commits that waited for safety.
    flush_commits,
    /// Commits that did not wait (lazy), spooled ones too.
    lazy_commits,
    /// Commits without a range: nothing was logged.
    empty_commits,
    /// Transactions aborted.
    aborts,
    /// Commits whose outcome stayed unknown.
    unknown_commits,
    /// Ranges declared by transactions that committed.
    ranges_declared,
    /// Bytes of those ranges, duplicates and overlaps counted each time.
    bytes_declared,
    /// Declared ranges that merging within their transaction made part of another:
    /// `ranges_declared` less those committed.
    ranges_merged,
    /// Bytes of committed ranges: each byte of a transaction once.
    bytes_committed,
    /// Bytes that merging within transactions kept out of records: duplicates, overlaps, and the 4 bytes that
    /// a header of each merged range would have had at least.
    bytes_saved_within,
    /// Lazy commits that were spooled.
    spooled_commits,
    /// Records that carried spooled commits.
    spool_records,
    /// Spooled commits that took no record of their own: those logged so far less `spool_records`.
    commits_merged,
    /// Ranges of spooled commits that later ones replaced, or that became part of another.
    ranges_dropped,
    /// Bytes that merging spooled commits kept out of records: replaced values, and the headers of ranges
    /// and payloads. The header of each record that was never made comes on top.
    bytes_saved_between,
    /// Times that a full spool was sorted and merged to make room in it.
    spool_compactions,
    /// Ranges that records carry.
    ranges_logged,
    /// Payload bytes of records: values, and headers of ranges and payloads.
    bytes_logged,
    /// Calls of `Rvm::flush`.
    flush_calls,
    /// Calls of `Rvm::truncate`.
    truncate_calls,
    /// Truncations by the thread in the background.
    background_truncations,
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
    /// Transactions read back from the log by truncation; spooled commits that share a record are one.
    transactions_applied,
    /// Bytes of ranges read back from the log by truncation.
    bytes_read,
    /// Bytes written to segments: less than `bytes_read` when later values replaced earlier ones.
    bytes_applied;

    /// Lengths of committed ranges, by [`LENGTH_CLASSES`].
    range_lengths: LENGTH_CLASSES,
    /// Ranges merged within a transaction, of transactions that had any to merge, by [`COUNT_CLASSES`].
    merged_within: COUNT_CLASSES,
    /// Bytes saved within a transaction, of the same ones, by [`LENGTH_CLASSES`].
    saved_within: LENGTH_CLASSES,
    /// Spooled commits in a record, by [`COUNT_CLASSES`].
    record_commits: COUNT_CLASSES,
    /// Ranges dropped between the commits of one record, by [`COUNT_CLASSES`].
    dropped_between: COUNT_CLASSES,
    /// Bytes saved between the commits of one record, by [`LENGTH_CLASSES`].
    saved_between: LENGTH_CLASSES,
}

pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Relaxed);
}

fn count(histogram: &[AtomicU64], bounds: &[u64], value: u64) {
    add(&histogram[bounds.partition_point(|bound| *bound < value)], 1);
}

/// Bytes of a range's header in a record, at least: most have no more.
const RANGE_HEADER_BYTES: u64 = crate::record::RANGE_HEADER_BYTES_MIN as u64;

impl Counters {
    /// A transaction committed. `lengths` are its merged ranges; about 10 ns and 2 ns a range.
    pub(crate) fn commit(&self, declared: u64, declared_bytes: u64, lengths: impl Iterator<Item = u32>) {
        let (mut ranges, mut bytes) = (0, 0);
        let mut classes = [0u64; LENGTH_CLASSES.len() + 1];
        for length in lengths {
            ranges += 1;
            bytes += u64::from(length);
            classes[length_class(length)] += 1;
        }
        for (class, count) in classes.iter().enumerate().filter(|(_, count)| **count > 0) {
            add(&self.range_lengths[class], *count);
        }
        add(&self.ranges_declared, declared);
        add(&self.bytes_declared, declared_bytes);
        add(&self.bytes_committed, bytes);
        if declared > ranges {
            let merged = declared - ranges;
            let saved = declared_bytes - bytes + merged * RANGE_HEADER_BYTES;
            add(&self.ranges_merged, merged);
            add(&self.bytes_saved_within, saved);
            count(&self.merged_within, &COUNT_CLASSES, merged);
            count(&self.saved_within, &LENGTH_CLASSES, saved);
        }
    }

    /// A record with `commits` spooled commits was logged.
    pub(crate) fn spool_logged(&self, commits: u64, dropped: u64, saved: u64) {
        add(&self.spool_records, 1);
        add(&self.commits_merged, commits - 1);
        add(&self.ranges_dropped, dropped);
        add(&self.bytes_saved_between, saved);
        count(&self.record_commits, &COUNT_CLASSES, commits);
        count(&self.dropped_between, &COUNT_CLASSES, dropped);
        count(&self.saved_between, &LENGTH_CLASSES, saved);
    }
}

/// The class of a length: powers of two, so that a loop over many ranges need not search.
fn length_class(length: u32) -> usize {
    match length {
        0 => 0,
        1..=4 => 1,
        length => (u32::BITS - (length - 1).leading_zeros()) as usize - 1,
    }
    .min(LENGTH_CLASSES.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_classed_as_a_search_would() {
        for length in (0..10_000).chain([u32::MAX - 1, u32::MAX]) {
            let searched = LENGTH_CLASSES.partition_point(|bound| *bound < u64::from(length));
            assert_eq!(length_class(length), searched, "{length}");
        }
    }

    #[test]
    fn merged_ranges_count_as_saved_with_their_headers() {
        let counters = Counters::default();
        counters.commit(3, 24, [16].into_iter());
        counters.commit(2, 16, [8, 8].into_iter());
        let read = counters.read();
        assert_eq!((read.ranges_declared, read.bytes_declared), (5, 40));
        assert_eq!((read.ranges_merged, read.bytes_committed), (2, 32));
        assert_eq!(read.bytes_saved_within, 8 + 8);
        assert_eq!(read.range_lengths[2..4], [2, 1]);
        assert_eq!((read.merged_within[1], read.saved_within[3]), (1, 1));
    }
}
