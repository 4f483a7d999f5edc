//! A snapshot of a journal's state, for programs.

use netram_proto::id::JournalId;
use netram_proto::journal::{DataAtRisk, JournalLenderStatus, WriterStatus};
use netram_proto::port::{IoError, LogState, RecordLog};

use crate::core::JournalState;
use crate::journal::Journal;
use crate::reason::{QuorumError, UncountedReason};

/// A snapshot of a journal's state.
#[derive(Clone, Debug)]
pub struct JournalStatus {
    /// The journal's id.
    pub journal: JournalId,
    /// Positions of the log.
    pub log: LogState,
    /// The epoch, the view and the lenders; `writer.blocked` says why commits wait for the disk, if they do.
    pub writer: WriterStatus,
    /// Why each of `writer.lenders` does not count, in the same order; `None` if it does.
    pub reasons: Vec<Option<UncountedReason>>,
    /// Data that would be lost if memory were lost now.
    pub at_risk: Vec<DataAtRisk>,
    /// The local disk's failure, if it was given up.
    pub disk_error: Option<IoError>,
    /// The error with which the system currently refuses to write a file of the journal (for example ENOSPC).
    /// The write is retried until it succeeds; commits wait once the members' window is full.
    pub disk_refused: Option<IoError>,
    /// Records appended in this epoch.
    pub records: u64,
    /// Syncs of the log file in this epoch.
    pub syncs: u64,
    /// Number of appends that waited for the disk because the window was full.
    pub window_stalls: u64,
}

impl JournalStatus {
    /// Why commits wait for the disk, and why each lender does not count; `None` if members acknowledge
    /// commits.
    pub fn quorum_error(&self) -> Option<QuorumError> {
        let lenders = self.writer.lenders.iter().zip(&self.reasons);
        let why = |(lender, reason): (&JournalLenderStatus, &Option<UncountedReason>)| {
            Some((lender.address.clone(), reason.clone()?))
        };
        self.writer.blocked.map(|blocked| QuorumError {
            blocked,
            configured: self.writer.lenders.len(),
            lenders: lenders.filter_map(why).collect(),
        })
    }
}

impl Journal {
    /// A snapshot of the journal's state. Allocates, so it is not meant for the commit path.
    pub fn status(&self) -> JournalStatus {
        let (writer, reasons, at_risk, disk_error) = {
            let core = self.shared.core();
            let writer = core.writer.status();
            let reasons = JournalState::reasons(&core, &writer);
            (
                writer,
                reasons,
                core.writer.at_risk(self.shared.now()),
                core.disk_error,
            )
        };
        let counters = &self.shared.counters;
        JournalStatus {
            journal: self.id(),
            log: self.state(),
            writer,
            reasons,
            at_risk,
            disk_error,
            disk_refused: disk_error.map_or_else(|| self.shared.refusals.any(), |_| None),
            records: counters.records.get(),
            syncs: counters.syncs.get(),
            window_stalls: counters.window_stalls.get(),
        }
    }
}
