//! Figure 8: the cost that coherency adds to recoverability. It shows the overhead of T12-A without the
//! unchanged walk: with coherency alone, with both, and in recoverable memory alone.

use netram_oo7::{DatabaseSize, Oo7Parameters, Operation};
use netram_transport::WaitPolicy;
use serde::Serialize;

use super::OsdiPlan;
use super::traversals::{self, OsdiBar};
use crate::error::BenchError;
use crate::oo7::{self, Oo7Report, REPETITIONS_MIN};
use crate::progress::ProgressEvent;
use crate::shared;
use crate::testbed::Testbed;

/// A column of the figure.
#[derive(Clone, Debug, Serialize)]
pub struct OsdiColumn {
    /// Name in files.
    pub id: &'static str,
    /// The configuration in words.
    pub what: &'static str,
    /// Overhead in microseconds.
    pub overhead_us: f64,
}

/// Measures the columns.
pub(super) fn measure(
    site: &Testbed,
    plan: &OsdiPlan,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<Vec<OsdiColumn>, BenchError> {
    tell(ProgressEvent::Next("figure 8"));
    let bare = traversals::declared(site, plan, Operation::T12a)?;
    let mut columns = vec![OsdiColumn {
        id: "coherency",
        what: "coherency alone: no log, another node has it",
        overhead_us: OsdiBar::all_us(&bare),
    }];
    for (members, id, what) in [
        (
            0,
            "shared-disk",
            "coherency, logged to the server's disk: another node has it",
        ),
        (
            1,
            "shared-member",
            "coherency, logged to a member: another node has it",
        ),
    ] {
        let spec = shared::oo7::SharedOo7Spec {
            database: Oo7Parameters::of(DatabaseSize::Small, 3),
            operations: vec![Operation::T12a],
            rounds: plan.rounds,
            members,
            wait: WaitPolicy::default(),
        };
        let rows = shared::oo7::measure(site, &spec, &mut |_| ())?;
        columns.extend(rows.iter().map(|row| OsdiColumn {
            id,
            what,
            overhead_us: row.overhead_us,
        }));
    }
    for (members, id, what) in [
        (
            0,
            "rvm-disk",
            "recoverable memory alone, logged to the local disk",
        ),
        (1, "rvm-member", "recoverable memory alone, logged to a member"),
    ] {
        let spec = oo7::Oo7Spec {
            database: Oo7Parameters::of(DatabaseSize::Small, 3),
            operations: vec![Operation::T6, Operation::T12a],
            repetitions: plan.rounds.max(REPETITIONS_MIN),
            single: false,
            members,
            wait: WaitPolicy::default(),
        };
        let report = oo7::measure(site, &spec, &mut |_| ())?;
        columns.push(OsdiColumn {
            id,
            what,
            overhead_us: overhead_us(&report),
        });
    }
    Ok(columns)
}

/// Overhead of the last operation over the walk of the first, in microseconds.
fn overhead_us(report: &Oo7Report) -> f64 {
    let walk = report.rows.first().map_or(0.0, |row| row.hot_us);
    report
        .rows
        .last()
        .map_or(0.0, |row| row.hot_us + row.commit_us - walk)
}
