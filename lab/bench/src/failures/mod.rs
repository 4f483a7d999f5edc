//! The failures of LND's Table 1, injected into real processes under a file system that fio writes to and
//! verifies. Measured are reliability, continued service, speed, and recovery time.
//!
//! A missing acknowledged write, or a volume that opens silently without it, is an error
//! ([`FailureReport::wrong`]), not a row. Needs root, FUSE, loop devices and fio.

mod load;
mod scenarios;
mod testbed;

use std::time::Duration;

use serde::Serialize;

use crate::error::BenchError;
use crate::histogram::median;
use crate::testbed::Testbed;

/// The failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LndFailure {
    /// A member's process is killed and its memory is lost.
    LenderKilled,
    /// A member stops answering with its connections open.
    LenderStopped,
    /// The data lender's process is killed and restarted on its disk.
    DataLenderKilled,
    /// All lenders are killed and their memory is lost.
    LendersKilled,
    /// The network between client and lenders drops all packets.
    SwitchLost,
    /// The client's processes are killed.
    ClientKilled,
    /// The client's processes are killed and its disk is lost.
    ClientDiskLost,
    /// The client loses power, and all lenders lose their memory.
    AllLost,
}

/// A line of the paper's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PaperRow {
    /// Column "Failure type".
    pub failure: &'static str,
    /// Column "Reliable".
    pub reliable: &'static str,
    /// Column "Continue working".
    pub continues: &'static str,
    /// Column "Performance".
    pub performance: &'static str,
    /// Column "Recovery time".
    pub recovery: &'static str,
}

/// State of the acknowledged writes after recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reliability {
    /// All acknowledged writes are there.
    Yes,
    /// The volume was not opened, and the error named the missing members.
    Refused {
        /// Whether writes were really missing after the loss was accepted; `None` if that was not checked.
        lost: Option<bool>,
    },
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct FailureRow {
    /// A stable short name.
    pub id: &'static str,
    /// The failure in words.
    pub failure: &'static str,
    /// State of the acknowledged writes after recovery.
    pub reliable: Reliability,
    /// Whether writes went on.
    pub continues: bool,
    /// The median synchronous write of 4 KiB on ext4 before the failure, in µs.
    pub before_us: f64,
    /// The same during the failure.
    pub during_us: Option<f64>,
    /// The longest write during the failure, in ms.
    pub stall_ms: Option<f64>,
    /// Number of blocks acknowledged at the failure; all of them were verified if [`Reliability::Yes`].
    pub acked: Option<u64>,
    /// Duration of recovery, in ms.
    pub recovery_ms: Option<f64>,
    /// The time span that `recovery_ms` covers.
    pub recovery: &'static str,
    /// Time until the client's new disk had every block, in ms, if blocks were fetched.
    pub copied_ms: Option<f64>,
    /// Number of runs: figures are medians, the longest write the longest of all.
    pub runs: usize,
    /// The paper's row.
    pub paper: PaperRow,
}

/// The table, in the paper's order.
#[derive(Debug, Default, Serialize)]
pub struct FailureReport {
    /// Rows in the paper's order.
    pub rows: Vec<FailureRow>,
    /// Failures that this machine cannot inject, each with the reason.
    pub skipped: Vec<String>,
    /// Failures without a row, and why: acknowledged data was missing, or could not be checked.
    pub wrong: Vec<FailedScenario>,
}

/// A scenario that failed.
#[derive(Debug, Serialize)]
pub struct FailedScenario {
    /// Short name of the failure.
    pub id: &'static str,
    /// The error.
    pub why: String,
}

/// Durations for which writes are watched.
#[derive(Clone, Copy, Debug)]
struct WatchTimes {
    before: Duration,
    during: Duration,
    /// Whether to check what an accepted loss leaves. The volume then waits again for members that will not
    /// come.
    accept_loss: bool,
}

impl LndFailure {
    /// All failures, in the paper's order.
    pub const ALL: [LndFailure; 8] = [
        LndFailure::LenderKilled,
        LndFailure::LenderStopped,
        LndFailure::DataLenderKilled,
        LndFailure::LendersKilled,
        LndFailure::SwitchLost,
        LndFailure::ClientKilled,
        LndFailure::ClientDiskLost,
        LndFailure::AllLost,
    ];

    /// A stable short name.
    pub fn id(self) -> &'static str {
        match self {
            LndFailure::LenderKilled => "lender-killed",
            LndFailure::LenderStopped => "lender-stopped",
            LndFailure::DataLenderKilled => "data-lender-killed",
            LndFailure::LendersKilled => "lenders-killed",
            LndFailure::SwitchLost => "switch-lost",
            LndFailure::ClientKilled => "client-killed",
            LndFailure::ClientDiskLost => "client-disk-lost",
            LndFailure::AllLost => "all-lost",
        }
    }

    /// The failure in words.
    pub fn what(self) -> &'static str {
        match self {
            LndFailure::LenderKilled => "a lender crashes (SIGKILL, memory gone)",
            LndFailure::LenderStopped => "a lender falls silent (SIGSTOP)",
            LndFailure::DataLenderKilled => "the data lender crashes (SIGKILL)",
            LndFailure::LendersKilled => "all lenders crash (SIGKILL, memory gone)",
            LndFailure::SwitchLost => "the switch fails (all frames dropped)",
            LndFailure::ClientKilled => "the client crashes (SIGKILL)",
            LndFailure::ClientDiskLost => "the client crashes and its disk is gone",
            LndFailure::AllLost => "client (power cut) and all lenders crash",
        }
    }

    fn paper(self) -> PaperRow {
        let paper = |failure, [reliable, continues, performance, recovery]: [&'static str; 4]| PaperRow {
            failure,
            reliable,
            continues,
            performance,
            recovery,
        };
        match self {
            LndFailure::LenderKilled | LndFailure::LenderStopped => {
                paper("Cache Server Crash", ["Yes", "Yes", "No Influence", "0"])
            }
            LndFailure::DataLenderKilled => paper(
                "Data Server Crash",
                ["Yes", "Yes", "No Influence", "Lost stages transfer time"],
            ),
            LndFailure::LendersKilled | LndFailure::SwitchLost => paper(
                "All Servers Crash or Switch Failure",
                [
                    "Yes",
                    "Yes",
                    "Degrade to magnetic disks",
                    "Transfer time of lost stages in the data server",
                ],
            ),
            LndFailure::ClientKilled => {
                paper("Client Crash", ["Yes", "No", "N/A", "One Stage Transfer Time"])
            }
            LndFailure::ClientDiskLost => paper(
                "Client Disk Corruption",
                ["Yes", "No", "N/A", "Transfer Time of All Blocks"],
            ),
            LndFailure::AllLost => paper("All workstations crash", ["No", "No", "N/A", "N/A"]),
        }
    }
}

impl FailureRow {
    /// A row with writes of `before_us` before the failure, and no harm known yet.
    fn new(failure: LndFailure, before_us: f64) -> FailureRow {
        FailureRow {
            id: failure.id(),
            failure: failure.what(),
            reliable: Reliability::Yes,
            continues: false,
            before_us,
            during_us: None,
            stall_ms: None,
            acked: None,
            recovery_ms: None,
            recovery: "",
            copied_ms: None,
            runs: 1,
            paper: failure.paper(),
        }
    }

    /// Combines the runs of a failure into one row; `None` without runs.
    fn of(runs: Vec<FailureRow>) -> Option<FailureRow> {
        let field = |of: fn(&FailureRow) -> Option<f64>| {
            let values: Vec<f64> = runs.iter().filter_map(of).collect();
            (!values.is_empty()).then(|| median(values))
        };
        let lost = |run: &FailureRow| match run.reliable {
            Reliability::Refused { lost } => lost,
            Reliability::Yes => None,
        };
        let first = runs.first()?.clone();
        Some(FailureRow {
            reliable: match first.reliable {
                Reliability::Yes => Reliability::Yes,
                Reliability::Refused { .. } => Reliability::Refused {
                    lost: runs.iter().filter_map(lost).reduce(|one, other| one || other),
                },
            },
            continues: runs.iter().all(|run| run.continues),
            before_us: field(|run| Some(run.before_us))?,
            during_us: field(|run| run.during_us),
            stall_ms: runs.iter().filter_map(|run| run.stall_ms).reduce(f64::max),
            acked: runs
                .iter()
                .filter_map(|run| run.acked)
                .reduce(|one, other| one + other),
            recovery_ms: field(|run| run.recovery_ms),
            copied_ms: field(|run| run.copied_ms),
            runs: runs.len(),
            ..first
        })
    }

    /// Speed during the failure relative to before, from the medians of writes.
    pub fn speed(&self) -> Option<f64> {
        self.during_us.map(|during| self.before_us / during)
    }
}

impl FailureReport {
    /// Adds one failure's runs, or its error. The other failures' rows are kept.
    fn add_runs(&mut self, failure: LndFailure, runs: Result<Vec<FailureRow>, BenchError>) {
        match runs {
            Ok(runs) => self.rows.extend(FailureRow::of(runs)),
            Err(error) => self.wrong.push(FailedScenario {
                id: failure.id(),
                why: error.to_string(),
            }),
        }
    }
}

/// Injects each of `failures` at `site` `repeat` times, and reports progress.
///
/// # Errors
///
/// Fails if the testbed cannot be set up for any failure.
pub fn measure(
    site: &Testbed,
    failures: &[LndFailure],
    quick: bool,
    repeat: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<FailureReport, BenchError> {
    let spans = WatchTimes {
        before: Duration::from_millis(if quick { 700 } else { 3_000 }),
        during: Duration::from_millis(if quick { 1_500 } else { 5_000 }),
        accept_loss: !quick,
    };
    let mut report = FailureReport::default();
    if let Some(lacking) = scenarios::lacking() {
        report.skipped.push(lacking);
        return Ok(report);
    }
    for failure in failures {
        if let Some(lacking) = scenarios::lacking_for(*failure) {
            report.skipped.push(format!("{}: {lacking}", failure.id()));
            continue;
        }
        let run = |number| {
            match repeat {
                1 => progress(failure.what()),
                _ => progress(&format!("{}, {number} of {repeat}", failure.what())),
            }
            scenarios::run_scenario(site, *failure, &spans)
        };
        let runs: Result<Vec<FailureRow>, BenchError> = (1..=repeat).map(run).collect();
        report.add_runs(*failure, runs);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(before_us: f64, stall_ms: f64, continues: bool) -> FailureRow {
        FailureRow {
            continues,
            stall_ms: Some(stall_ms),
            acked: Some(10),
            ..FailureRow::new(LndFailure::LenderKilled, before_us)
        }
    }

    #[test]
    fn several_runs_give_medians_and_the_worst_stall() {
        let row = FailureRow::of(vec![
            run(100.0, 9.0, true),
            run(300.0, 7.0, false),
            run(200.0, 8.0, true),
        ])
        .unwrap();
        assert_eq!((row.before_us, row.stall_ms, row.runs), (200.0, Some(9.0), 3));
        assert_eq!((row.continues, row.acked, row.during_us), (false, Some(30), None));
        assert!(FailureRow::of(Vec::new()).is_none());
    }

    /// An error in one scenario discarded the rows of all others.
    #[test]
    fn a_failed_scenario_keeps_the_rows_of_the_others() {
        let mut report = FailureReport::default();
        report.add_runs(LndFailure::LenderKilled, Ok(vec![run(1.0, 1.0, true)]));
        let failed = BenchError::InvalidRequest("fio failed".to_owned());
        report.add_runs(LndFailure::SwitchLost, Err(failed));
        report.add_runs(LndFailure::LenderKilled, Ok(vec![run(2.0, 1.0, true)]));
        assert_eq!(report.rows.len(), 2);
        assert_eq!(report.wrong.len(), 1);
        assert_eq!(
            (report.wrong[0].id, report.wrong[0].why.as_str()),
            ("switch-lost", "fio failed")
        );
    }

    #[test]
    fn a_loss_in_one_run_is_a_loss() {
        let refused = |lost| FailureRow {
            reliable: Reliability::Refused { lost },
            ..FailureRow::new(LndFailure::AllLost, 1.0)
        };
        let lost = |runs: [Option<bool>; 2]| FailureRow::of(runs.map(refused).to_vec()).unwrap().reliable;
        assert_eq!(
            lost([Some(false), Some(true)]),
            Reliability::Refused { lost: Some(true) }
        );
        assert_eq!(lost([None, None]), Reliability::Refused { lost: None });
    }
}
