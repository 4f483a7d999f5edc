//! What an opening may choose.

use std::time::Duration;

use netram_proto::id::JournalId;
use netram_proto::planted::FaultSwitch;

use crate::limit::BATCH_BYTES;

/// Choices at [`crate::Rvm::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RvmOptions {
    /// The journal behind the log. The segment table beside it must name the same one.
    pub journal: JournalId,
    /// Who applies the log to the segments, and so decides how long its records are kept.
    pub truncation: TruncationPolicy,
    /// Truncation begins when the log is fuller than this, in percent (1 to 95).
    pub truncation_threshold_percent: u8,
    /// Bytes of values that truncation reads before it merges and writes them: at most this, and one record.
    pub truncation_batch_bytes: usize,
    /// Bytes of lazy commits that are kept in memory to be merged, instead of being logged one by one; zero
    /// is off. No more than one record carries, and than a quarter of the log. See `Rvm::set_spool_bytes`.
    pub spool_bytes: usize,
    /// Accept segment files whose identity is not the recorded one (restored from a copy), and those that
    /// another log, or another copy of this one, has changed since; make them this log's. What the other log
    /// has for them is given up, and this log's records are applied over whatever they hold.
    pub adopt_segments: bool,
    /// A fault, for the simulator.
    pub planted: FaultSwitch,
}

impl RvmOptions {
    /// The usual choices for the log of `journal`: truncation at 50 %, no spool, replaced segments refused.
    pub fn new(journal: JournalId) -> RvmOptions {
        RvmOptions {
            journal,
            truncation: TruncationPolicy::Here,
            truncation_threshold_percent: 50,
            truncation_batch_bytes: BATCH_BYTES,
            spool_bytes: 0,
            adopt_segments: false,
            planted: FaultSwitch::NONE,
        }
    }
}

/// Who applies the log to the segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TruncationPolicy {
    /// This `Rvm`: all of it when it opens, and the older part when the log is full.
    #[default]
    Here,
    /// Somebody else, who reads the records and says how far with `Rvm::trim`. Segment files are never
    /// written here and nothing is applied to them: they are what is mapped, a state that somebody else has
    /// put there, and lack what the log has.
    Elsewhere {
        /// How long a commit that finds the log full waits for `Rvm::trim`. Zero: it fails at once.
        patience: Duration,
    },
}

/// Whether a transaction can be undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestoreMode {
    /// Old values are kept when a range is declared and put back by an abort.
    #[default]
    Restore,
    /// Nothing is kept. An abort forgets the ranges and leaves memory as it is.
    NoRestore,
}
