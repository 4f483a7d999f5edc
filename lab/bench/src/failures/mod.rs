//! The failures of LND's Table 1, each happening to real processes under a running file system that fio writes to and
//! verifies: what is reliable, what goes on, at what speed, and how long recovery takes.
//!
//! A write that was acknowledged and is not there, or a volume that is opened in silence without it, is an error
//! ([`Report::wrong`]), not a row. Needs root, FUSE, loop devices, fio.

mod disk;
mod load;
mod rig;
mod stories;

use std::time::Duration;

use serde::Serialize;

use crate::error::BenchError;
use crate::histogram::median;
use crate::site::Site;

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A member's process is killed and its memory gone.
    LenderKilled,
    /// A member falls silent, its connections open.
    LenderStopped,
    /// The data lender's process is killed; it comes back with its disk.
    DataLenderKilled,
    /// All lenders are killed, their memory is gone.
    LendersKilled,
    /// Nothing gets through between client and lenders.
    SwitchLost,
    /// The client's processes are killed.
    ClientKilled,
    /// The client's processes are killed and its disk is gone.
    ClientDiskLost,
    /// The client loses its power, all lenders their memory.
    AllLost,
}

/// A line of the paper's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Paper {
    /// Failure type.
    pub failure: &'static str,
    /// Reliable.
    pub reliable: &'static str,
    /// Continue working.
    pub continues: &'static str,
    /// Performance.
    pub performance: &'static str,
    /// Recovery time.
    pub recovery: &'static str,
}

/// What became of the writes that had been acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reliable {
    /// All are there.
    Yes,
    /// The volume is not opened, and it is said who is missing.
    Refused {
        /// Whether some were gone indeed, once the loss had been accepted; `None`: not looked at.
        lost: Option<bool>,
    },
}

/// A row of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// A short name that does not change.
    pub id: &'static str,
    /// What failed, and how.
    pub failure: &'static str,
    /// What became of the writes that had been acknowledged.
    pub reliable: Reliable,
    /// Whether writes went on.
    pub continues: bool,
    /// The median synchronous write of 4 KiB on ext4, before.
    pub before_us: f64,
    /// The same while the failure lasted.
    pub during_us: Option<f64>,
    /// The longest write of that time.
    pub stall_ms: Option<f64>,
    /// Blocks that had been acknowledged at the failures, all of them verified if [`Reliable::Yes`].
    pub acked: Option<u64>,
    /// How long recovery took.
    pub recovery_ms: Option<f64>,
    /// Of what.
    pub recovery: &'static str,
    /// How long until the client's new disk had every block, of so many that were fetched.
    pub copied_ms: Option<f64>,
    /// How often it happened: figures are medians, the longest write the longest of all.
    pub runs: usize,
    /// What the paper says.
    pub paper: Paper,
}

/// The table.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// In the paper's order.
    pub rows: Vec<Row>,
    /// What this machine cannot do.
    pub skipped: Vec<String>,
    /// Failures of which there is no row, and why: something acknowledged was gone, or could not be looked at.
    pub wrong: Vec<Wrong>,
}

/// A story that did not end.
#[derive(Debug, Serialize)]
pub struct Wrong {
    /// The failure's short name.
    pub id: &'static str,
    /// What was wrong.
    pub why: String,
}

/// For how long writes are watched.
#[derive(Clone, Copy, Debug)]
struct Spans {
    before: Duration,
    during: Duration,
    /// Whether to look at what an accepted loss leaves: the volume waits again for who will not come.
    accept_loss: bool,
}

impl Failure {
    /// All, in the paper's order.
    pub const ALL: [Failure; 8] = [
        Failure::LenderKilled,
        Failure::LenderStopped,
        Failure::DataLenderKilled,
        Failure::LendersKilled,
        Failure::SwitchLost,
        Failure::ClientKilled,
        Failure::ClientDiskLost,
        Failure::AllLost,
    ];

    /// A short name that does not change.
    pub fn id(self) -> &'static str {
        match self {
            Failure::LenderKilled => "lender-killed",
            Failure::LenderStopped => "lender-stopped",
            Failure::DataLenderKilled => "data-lender-killed",
            Failure::LendersKilled => "lenders-killed",
            Failure::SwitchLost => "switch-lost",
            Failure::ClientKilled => "client-killed",
            Failure::ClientDiskLost => "client-disk-lost",
            Failure::AllLost => "all-lost",
        }
    }

    /// What fails, and how.
    pub fn what(self) -> &'static str {
        match self {
            Failure::LenderKilled => "a lender crashes (SIGKILL, memory gone)",
            Failure::LenderStopped => "a lender falls silent (SIGSTOP)",
            Failure::DataLenderKilled => "the data lender crashes (SIGKILL)",
            Failure::LendersKilled => "all lenders crash (SIGKILL, memory gone)",
            Failure::SwitchLost => "the switch fails (all frames dropped)",
            Failure::ClientKilled => "the client crashes (SIGKILL)",
            Failure::ClientDiskLost => "the client crashes and its disk is gone",
            Failure::AllLost => "client (power cut) and all lenders crash",
        }
    }

    fn paper(self) -> Paper {
        let paper = |failure, [reliable, continues, performance, recovery]: [&'static str; 4]| Paper {
            failure,
            reliable,
            continues,
            performance,
            recovery,
        };
        match self {
            Failure::LenderKilled | Failure::LenderStopped => {
                paper("Cache Server Crash", ["Yes", "Yes", "No Influence", "0"])
            }
            Failure::DataLenderKilled => paper(
                "Data Server Crash",
                ["Yes", "Yes", "No Influence", "Lost stages transfer time"],
            ),
            Failure::LendersKilled | Failure::SwitchLost => paper(
                "All Servers Crash or Switch Failure",
                [
                    "Yes",
                    "Yes",
                    "Degrade to magnetic disks",
                    "Transfer time of lost stages in the data server",
                ],
            ),
            Failure::ClientKilled => paper("Client Crash", ["Yes", "No", "N/A", "One Stage Transfer Time"]),
            Failure::ClientDiskLost => paper(
                "Client Disk Corruption",
                ["Yes", "No", "N/A", "Transfer Time of All Blocks"],
            ),
            Failure::AllLost => paper("All workstations crash", ["No", "No", "N/A", "N/A"]),
        }
    }
}

impl Row {
    /// A row whose writes took `before_us` before the failure, and of which nothing bad is known.
    fn new(failure: Failure, before_us: f64) -> Row {
        Row {
            id: failure.id(),
            failure: failure.what(),
            reliable: Reliable::Yes,
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

    /// One row of several runs of a failure, of which there is at least one.
    fn of(runs: Vec<Row>) -> Option<Row> {
        let field = |of: fn(&Row) -> Option<f64>| {
            let values: Vec<f64> = runs.iter().filter_map(of).collect();
            (!values.is_empty()).then(|| median(values))
        };
        let lost = |run: &Row| match run.reliable {
            Reliable::Refused { lost } => lost,
            Reliable::Yes => None,
        };
        let first = runs.first()?.clone();
        Some(Row {
            reliable: match first.reliable {
                Reliable::Yes => Reliable::Yes,
                Reliable::Refused { .. } => Reliable::Refused {
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

    /// Speed during the failure, relative to before: the medians of writes.
    pub fn speed(&self) -> Option<f64> {
        self.during_us.map(|during| self.before_us / during)
    }
}

impl Report {
    /// One failure's runs, or why they did not end: the others' rows stand all the same.
    fn take(&mut self, failure: Failure, runs: Result<Vec<Row>, BenchError>) {
        match runs {
            Ok(runs) => self.rows.extend(Row::of(runs)),
            Err(error) => self.wrong.push(Wrong {
                id: failure.id(),
                why: error.to_string(),
            }),
        }
    }
}

/// Lets each of `failures` happen at `site`, `repeat` times, and tells `progress` which.
pub fn measure(
    site: &Site,
    failures: &[Failure],
    quick: bool,
    repeat: usize,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, BenchError> {
    let spans = Spans {
        before: Duration::from_millis(if quick { 700 } else { 3_000 }),
        during: Duration::from_millis(if quick { 1_500 } else { 5_000 }),
        accept_loss: !quick,
    };
    let mut report = Report::default();
    if let Some(lacking) = stories::lacking() {
        report.skipped.push(lacking);
        return Ok(report);
    }
    for failure in failures {
        if let Some(lacking) = stories::lacking_for(*failure) {
            report.skipped.push(format!("{}: {lacking}", failure.id()));
            continue;
        }
        let run = |number| {
            match repeat {
                1 => progress(failure.what()),
                _ => progress(&format!("{}, {number} of {repeat}", failure.what())),
            }
            stories::tell(site, *failure, &spans)
        };
        let runs: Result<Vec<Row>, BenchError> = (1..=repeat).map(run).collect();
        report.take(*failure, runs);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(before_us: f64, stall_ms: f64, continues: bool) -> Row {
        Row {
            continues,
            stall_ms: Some(stall_ms),
            acked: Some(10),
            ..Row::new(Failure::LenderKilled, before_us)
        }
    }

    #[test]
    fn several_runs_give_medians_and_what_was_worst() {
        let row = Row::of(vec![
            run(100.0, 9.0, true),
            run(300.0, 7.0, false),
            run(200.0, 8.0, true),
        ])
        .unwrap();
        assert_eq!((row.before_us, row.stall_ms, row.runs), (200.0, Some(9.0), 3));
        assert_eq!((row.continues, row.acked, row.during_us), (false, Some(30), None));
        assert!(Row::of(Vec::new()).is_none());
    }

    /// The rows of all others were lost with it.
    #[test]
    fn a_story_that_fails_leaves_the_rows_of_the_others() {
        let mut report = Report::default();
        report.take(Failure::LenderKilled, Ok(vec![run(1.0, 1.0, true)]));
        let failed = BenchError::Asked("fio failed".to_owned());
        report.take(Failure::SwitchLost, Err(failed));
        report.take(Failure::LenderKilled, Ok(vec![run(2.0, 1.0, true)]));
        assert_eq!(report.rows.len(), 2);
        assert_eq!(report.wrong.len(), 1);
        assert_eq!(
            (report.wrong[0].id, report.wrong[0].why.as_str()),
            ("switch-lost", "fio failed")
        );
    }

    #[test]
    fn a_loss_in_one_run_is_a_loss() {
        let refused = |lost| Row {
            reliable: Reliable::Refused { lost },
            ..Row::new(Failure::AllLost, 1.0)
        };
        let lost = |runs: [Option<bool>; 2]| Row::of(runs.map(refused).to_vec()).unwrap().reliable;
        assert_eq!(
            lost([Some(false), Some(true)]),
            Reliable::Refused { lost: Some(true) }
        );
        assert_eq!(lost([None, None]), Reliable::Refused { lost: None });
    }
}
