//! Options of an opening.

use std::time::Duration;

use netram_proto::id::JournalId;
use netram_proto::planted::FaultSwitch;

use crate::limit::BATCH_BYTES;

/// Options for [`crate::Rvm::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RvmOptions {
    /// The journal behind the log. The segment table beside it must name the same one.
    pub journal: JournalId,
    /// Which program applies the log to the segments, and so decides how long records are kept.
    pub truncation: TruncationPolicy,
    /// Truncation begins when the log is fuller than this, in percent (1 to 95).
    pub truncation_threshold_percent: u8,
    /// Bytes of values that truncation reads before it merges and writes them; the last record may exceed
    /// this.
    pub truncation_batch_bytes: usize,
    /// Bytes of lazy commits that are kept in memory and merged, instead of being logged one by one. Zero
    /// turns this off. Capped at one record and at a quarter of the log; see `Rvm::set_spool_bytes`.
    pub spool_bytes: usize,
    /// Makes segment files this log's even if they are not the recorded ones or another log has changed them
    /// since. Changes that the other log has not applied are lost. This log's records are applied over the
    /// files' contents.
    pub adopt_segments: bool,
    /// A planted fault, for the simulator.
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

/// Which program applies the log to the segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TruncationPolicy {
    /// This `Rvm` applies everything when it opens, and the older part when the log fills up.
    #[default]
    Here,
    /// Another program reads the records and calls `Rvm::trim` when it has applied them. This `Rvm` never
    /// writes segment files: they show the state that the other program last wrote, without the records still
    /// in the log.
    Elsewhere {
        /// How long a commit that finds the log full waits for `Rvm::trim`. With zero it fails at once.
        patience: Duration,
    },
}

/// Whether a transaction can be undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RestoreMode {
    /// Old values are kept when a range is declared and put back by an abort.
    #[default]
    Restore,
    /// No old values are kept. An abort forgets the ranges and leaves memory as it is.
    NoRestore,
}
