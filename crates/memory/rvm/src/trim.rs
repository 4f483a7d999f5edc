//! A log whose records are applied elsewhere: it is trimmed when told, and a commit that finds it full waits
//! for that.

use std::sync::atomic::Ordering;
use std::time::Duration;

use netram_proto::id::Lsn;
use netram_proto::port::RecordLog;

use crate::error::TruncateError;
use crate::options::TruncationPolicy;
use crate::rvm::Rvm;
use crate::state::RvmState;
use crate::storage::SegmentStorage;
use crate::sync::lock;

impl<L: RecordLog, S: SegmentStorage> Rvm<L, S> {
    /// Gives up the log's records below `end`, where one ends: they have been applied elsewhere, for good
    /// ([`TruncationPolicy::Elsewhere`]). Wakes commits that wait for room. Returns where the log begins now.
    ///
    /// A log can be trimmed only as far as its own disk has it. What is beyond stays; call again.
    pub fn trim(&self, end: Lsn) -> Result<Lsn, TruncateError> {
        let shared = &*self.shared;
        if shared.truncation == TruncationPolicy::Here {
            return Err(TruncateError::Here);
        }
        // One at a time: the log is never told to begin earlier again.
        let alone = lock(&shared.truncator);
        let head = end.min(shared.log.state().stable);
        if head > shared.head() {
            shared.log.trim(head).map_err(TruncateError::Log)?;
            shared.head.fetch_max(head.0, Ordering::AcqRel);
        }
        drop(alone);
        shared.signal.progress();
        Ok(shared.head())
    }
}

impl<L: RecordLog, S: SegmentStorage> RvmState<L, S> {
    /// Refuses what writes segments where somebody else does.
    pub(crate) fn truncates_here(&self) -> Result<(), TruncateError> {
        match self.truncation {
            TruncationPolicy::Here => Ok(()),
            TruncationPolicy::Elsewhere { .. } => Err(TruncateError::Elsewhere),
        }
    }

    /// Refuses while the log has records, of whatever segment: which they name is not known here.
    pub(crate) fn check_trimmed(&self) -> Result<(), TruncateError> {
        let state = self.log.state();
        match state.head < state.tail {
            true => Err(TruncateError::Elsewhere),
            false => Ok(()),
        }
    }

    /// Waits until the log begins beyond `head`.
    pub(crate) fn wait_for_trim(&self, head: Lsn, patience: Duration) -> Result<(), TruncateError> {
        match self.signal.wait_until(patience, || self.head() > head) {
            true => Ok(()),
            false => Err(TruncateError::NotTrimmed {
                patience_ms: patience.as_millis(),
            }),
        }
    }
}
