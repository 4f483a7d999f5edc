//! Counters. Kept with relaxed atomics: each is right on its own, together they are a moment's blur.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What happened since the opening, recovery included.
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
    /// Reads.
    reads,
    /// Bytes read.
    read_bytes,
    /// Writes.
    writes,
    /// Bytes written.
    written_bytes,
    /// Write-zeroes and discards.
    zeros,
    /// Flushes.
    flushes,
    /// Requests that waited because too much was not in the image yet.
    stalls,
    /// Stages applied to the image.
    stages,
    /// Blocks written to the image.
    blocks,
    /// Blocks made holes of.
    holes,
    /// Blocks read from the image because only a part of them was written.
    bases,
    /// Steps that failed, and were or will be tried again.
    failures,
    /// Reads that met a block that did not match its checksum.
    corrupt_reads,
    /// Blocks of which only a part was written, on a base that did not match its checksum: they stay
    /// unreadable.
    corrupt_bases,
    /// Blocks taken from the data lender because the image's were damaged, and written back.
    mended,
    /// Blocks taken from the data lender because the image did not have them yet.
    copied,
    /// Blocks that the image did not have yet, and that are damaged at the data lender: unreadable until they
    /// are written.
    lost_blocks,
    /// Blocks that were asked of the data lender and did not come.
    fetch_failures,
    /// Bytes of journal given up that the data lender did not have: their blocks were marked dirty.
    given_up_bytes,
    /// Times that marking failed: the data lender will be sent everything, should it lack some of it.
    mark_failures,
    /// The same in recovery, where the crash may have torn the base: taken as they were found.
    unverified_bases,
}

pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Relaxed);
}
