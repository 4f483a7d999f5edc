//! The whole state of an open journal, for `netram explain` and for programs that watch.

use netram_proto::journal::DataAtRisk;
use serde::{Deserialize, Serialize};

use super::MembershipReport;
use crate::core::JournalState;
use crate::events::JournalEvent;

/// Acknowledged data that a loss of memory would take. See [`DataAtRisk`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RiskReport {
    /// The machines that lose their memory: "this machine", "domain NAME", "this machine and domain NAME" or
    /// "all".
    pub lost: String,
    /// Bytes that would be gone.
    pub bytes: u64,
    /// Time since the oldest of them was acknowledged, in microseconds.
    pub age_us: u64,
}

/// The state of an open journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JournalReport {
    /// The journal's id.
    pub journal: String,
    /// The journal's directory; empty from an earlier release.
    #[serde(default)]
    pub path: String,
    /// Lenders, rule and members.
    pub membership: MembershipReport,
    /// LSN of the oldest record that is kept.
    pub head: u64,
    /// LSN up to which the local disk has everything.
    pub stable: u64,
    /// LSN up to which everything is acknowledged.
    pub acked: u64,
    /// LSN of the next record.
    pub tail: u64,
    /// Bytes of the log.
    pub capacity: u64,
    /// Bytes of the window that each member lends.
    pub window_bytes: u64,
    /// Records appended since the journal was opened.
    pub records: u64,
    /// Number of commits by how long they waited, in the buckets of [`netram_telemetry::LatencySnapshot`];
    /// empty from an earlier release.
    #[serde(default)]
    pub commits: Vec<u64>,
    /// Syncs of the log file since the journal was opened.
    pub syncs: u64,
    /// Number of appends that waited for the disk because the window was full.
    pub window_stalls: u64,
    /// Why the local disk was given up; `None` if it serves.
    pub disk_error: Option<String>,
    /// With which error the system refuses to write now; `None` if it writes.
    pub disk_refused: Option<String>,
    /// Epoch of a newer writer that has fenced this one.
    pub fenced: Option<u32>,
    /// Whether commits wait for the disk because this machine is on battery.
    pub on_battery: bool,
    /// Data that would be lost if memory were lost now.
    pub at_risk: Vec<RiskReport>,
    /// The last events, the oldest first.
    pub events: Vec<JournalEvent>,
}

impl From<DataAtRisk> for RiskReport {
    fn from(risk: DataAtRisk) -> RiskReport {
        RiskReport {
            lost: risk.lost.to_string(),
            bytes: risk.bytes,
            age_us: risk.age.0 / 1000,
        }
    }
}

impl JournalReport {
    pub(super) fn of(shared: &JournalState, membership: MembershipReport) -> JournalReport {
        use std::sync::atomic::Ordering::Relaxed;

        let counters = &shared.counters;
        let (journal, positions, disk_error, fenced, at_risk) = {
            let core = shared.core();
            let writer = &core.writer;
            let positions = [writer.stable_for_good(), writer.acked(), writer.tail()];
            let at_risk = writer.at_risk(shared.now());
            (
                writer.journal(),
                positions,
                core.disk_error,
                writer.fenced(),
                at_risk,
            )
        };
        JournalReport {
            journal: journal.to_string(),
            path: shared.paths.root().display().to_string(),
            membership,
            head: shared.head.load(Relaxed),
            stable: positions[0].0,
            acked: positions[1].0,
            tail: positions[2].0,
            capacity: shared.log.capacity(),
            window_bytes: shared.config.window_bytes,
            records: counters.records.get(),
            commits: counters.commits_by_wait(),
            syncs: counters.syncs.get(),
            window_stalls: counters.window_stalls.get(),
            disk_error: disk_error.map(|error| error.to_string()),
            disk_refused: shared.refusals.any().map(|error| error.to_string()),
            fenced: fenced.map(|epoch| epoch.0),
            on_battery: shared.disk_required.load(Relaxed),
            at_risk: at_risk.into_iter().map(RiskReport::from).collect(),
            events: shared.events.list(),
        }
    }
}
