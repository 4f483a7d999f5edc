//! Counters, kept with relaxed atomics: each is exact, but together they are no consistent snapshot.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters since the opening, recovery included.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        impl Statistics {
            /// The counters with their names, for reports.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }

        impl Counters {
            pub(crate) fn read(&self) -> Statistics {
                Statistics { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Number of reads.
    reads,
    /// Bytes read.
    read_bytes,
    /// Number of writes.
    writes,
    /// Bytes written.
    written_bytes,
    /// Number of write-zeroes and discards.
    zeros,
    /// Number of flushes.
    flushes,
    /// Number of requests that waited because too much was not in the image yet.
    stalls,
    /// Number of stages applied to the image.
    stages,
    /// Number of blocks written to the image.
    blocks,
    /// Number of blocks turned into holes.
    holes,
    /// Number of blocks read from the image because only a part of them was written.
    bases,
    /// Number of steps that failed, and were or will be tried again.
    failures,
    /// Number of reads of a block that did not match its checksum.
    corrupt_reads,
    /// Number of blocks of which only a part was written, on a base that did not match its checksum. They
    /// stay unreadable.
    corrupt_bases,
    /// Number of blocks fetched from the data lender because the image's were damaged, and written back.
    mended,
    /// Number of blocks fetched from the data lender because the image did not have them yet.
    copied,
    /// Number of blocks that the image did not have yet and that are damaged at the data lender. They stay
    /// unreadable until they are overwritten.
    lost_blocks,
    /// Number of blocks that were requested from the data lender and did not arrive.
    fetch_failures,
    /// Bytes of journal trimmed before the data lender had them. Their blocks were marked dirty.
    given_up_bytes,
    /// Number of times that marking failed. If the data lender lacks any of that journal, it will be sent
    /// every block.
    mark_failures,
    /// Number of blocks as in `corrupt_bases`, but in recovery, where the crash may have torn the base. The
    /// base was accepted as found.
    unverified_bases,
}

pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Relaxed);
}
