//! Counters with relaxed atomics: each is exact on its own, but a snapshot of several is not consistent.

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
        /// Counters since the opening.
        ///
        /// Ranges and bytes are counted at three points. *Declared*: ranges given to `set_range` and similar
        /// calls by transactions that committed. *Committed*: after duplicate, overlapping and adjacent
        /// ranges of one transaction were merged. *Logged*: ranges in records, after the spool dropped those
        /// that later commits replaced.
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
    /// Bytes that merging within transactions kept out of records: duplicates, overlaps, and at least 4 bytes
    /// of header for each merged range.
    bytes_saved_within,
    /// Lazy commits that were spooled.
    spooled_commits,
    /// Records that carried spooled commits.
    spool_records,
    /// Spooled commits that needed no record of their own: those logged so far minus `spool_records`.
    commits_merged,
    /// Ranges of spooled commits that later ones replaced, or that were merged into another.
    ranges_dropped,
    /// Bytes that merging spooled commits kept out of records: replaced values, and the headers of ranges and
    /// payloads. Headers of the records that were never made are not included.
    bytes_saved_between,
    /// Number of times that a full spool was sorted and merged to make room in it.
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
    /// Commits that found the log full and waited for truncation.
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
    /// Bytes saved within a transaction, of the same transactions, by [`LENGTH_CLASSES`].
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

/// Smallest header of a range in a record, in bytes; most have this size.
const RANGE_HEADER_BYTES: u64 = crate::record::RANGE_HEADER_BYTES_MIN as u64;

impl Counters {
    /// Counts a committed transaction. `lengths` are its merged ranges. Costs about 10 ns, and 2 ns per
    /// range.
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

    /// Counts a logged record with `commits` spooled commits.
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

/// Class of a length: the bounds are powers of two, so no search is needed.
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
