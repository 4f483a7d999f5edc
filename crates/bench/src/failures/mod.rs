//! The failures of LND's Table 1, each happening to real processes under a running file system that fio writes to and
//! verifies: what is reliable, what goes on, at what speed, and how long recovery takes.
//!
//! A write that was acknowledged and is not there, or a volume that is opened in silence without it, is an error of the
//! measurement, not a row. Needs root, FUSE, loop devices, fio.

mod disk;
mod load;
mod rig;
mod stories;

use std::time::Duration;

use serde::Serialize;

use crate::error::BenchError;
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
    /// Blocks that had been acknowledged at the failure, all of them verified if [`Reliable::Yes`].
    pub acked: Option<u64>,
    /// How long recovery took.
    pub recovery_ms: Option<f64>,
    /// Of what.
    pub recovery: &'static str,
    /// How long until the client's new disk had every block, of so many that were fetched.
    pub copied_ms: Option<f64>,
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
            paper: failure.paper(),
        }
    }

    /// Speed during the failure, relative to before: the medians of writes.
    pub fn speed(&self) -> Option<f64> {
        self.during_us.map(|during| self.before_us / during)
    }
}

/// Lets each of `failures` happen at `site`, and tells `progress` which.
pub fn measure(
    site: &Site,
    failures: &[Failure],
    quick: bool,
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
        progress(failure.what());
        report.rows.push(stories::tell(site, *failure, &spans)?);
    }
    Ok(report)
}
