//! Trimming a log whose records another program applies: only on request. A commit that finds the log full
//! waits for that.

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
    /// Trims the log's records below `end`, which must be the end of a record: another program has applied
    /// them durably ([`TruncationPolicy::Elsewhere`]). Wakes commits that wait for room. Returns the log's
    /// new head.
    ///
    /// A log can be trimmed only as far as its own disk has it. Records beyond stay; call again later.
    ///
    /// # Errors
    ///
    /// [`TruncateError::Here`] if this process applies the records; [`TruncateError::Log`] if the log cannot
    /// be trimmed.
    pub fn trim(&self, end: Lsn) -> Result<Lsn, TruncateError> {
        let shared = &*self.shared;
        if shared.truncation == TruncationPolicy::Here {
            return Err(TruncateError::Here);
        }
        // One caller at a time, so that the log's head never moves back.
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
    /// Fails where another program writes the segments.
    pub(crate) fn truncates_here(&self) -> Result<(), TruncateError> {
        match self.truncation {
            TruncationPolicy::Here => Ok(()),
            TruncationPolicy::Elsewhere { .. } => Err(TruncateError::Elsewhere),
        }
    }

    /// Fails while the log has records, of whatever segment: the segments that they change are not known
    /// here.
    pub(crate) fn check_trimmed(&self) -> Result<(), TruncateError> {
        let state = self.log.state();
        match state.head < state.tail {
            true => Err(TruncateError::Elsewhere),
            false => Ok(()),
        }
    }

    /// Waits until the log's head is beyond `head`.
    pub(crate) fn wait_for_trim(&self, head: Lsn, patience: Duration) -> Result<(), TruncateError> {
        match self.signal.wait_until(patience, || self.head() > head) {
            true => Ok(()),
            false => Err(TruncateError::NotTrimmed {
                patience_ms: patience.as_millis(),
            }),
        }
    }
}
