//! The experiments of "Integrating Coherency and Recoverability in Distributed Systems" (OSDI 1994): table 2,
//! what a page costs to copy, compare, send and catch; and figures 4 to 7, recorded updates (the paper's Log)
//! beside pages that are compared with twins (Cpy/Cmp) and pages that go whole (Page). The paper computes the
//! last two from table 2; here all three are measured, each by the library's own capture.
//!
//! Figures 1 to 3 and table 3 are traversals of OO7 between two nodes, figure 8 what coherency adds to
//! recoverability. What differs from the paper: `docs/paper-osdi94.md`.
//!
//! | module | does |
//! |---|---|
//! | `testbed` | recoverable memory over a log that keeps one record, and a peer that takes messages |
//! | [`costs`] | table 2 |
//! | `capture` | figures 4 and 7: by the page |
//! | `updates` | figures 5 and 6: by the update |
//! | [`recoverability`] | figure 8: coherency and logging, together and alone |
//! | [`traversals`] | figures 1 to 3, table 3: OO7 at one node, installed at another |
//! | [`facts`] | what the paper states |
//! | [`output`] | files for programs and people |

mod capture;
pub mod costs;
pub mod facts;
pub mod output;
pub mod recoverability;
mod testbed;
pub mod traversals;
mod updates;

use serde::Serialize;

use crate::curves::CurvePoint;
use crate::error::BenchError;
use crate::machine::MachineInfo;
use crate::progress::ProgressEvent;
use crate::testbed::Testbed;
use costs::OsdiCost;
use recoverability::OsdiColumn;
use traversals::OsdiBar;

/// Numbers of the figures.
pub const FIGURES: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
/// Stands for table 2, too.
pub const TABLE: u8 = 2;

/// How much is measured.
#[derive(Clone, Debug, Serialize)]
pub struct OsdiPlan {
    /// Numbers of the figures; 2 for table 2 as well, 1 to 3 for their rows of table 3; none: all.
    pub figures: Vec<u8>,
    /// Rounds; what is shown is their median.
    pub rounds: usize,
    /// Fewer places, less memory.
    pub quick: bool,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct OsdiReport {
    /// Where.
    pub machine: MachineInfo,
    /// How much.
    pub plan: OsdiPlan,
    /// What could not be measured, and why.
    pub skipped: Vec<String>,
    /// Table 2.
    pub costs: Vec<OsdiCost>,
    /// Figures 1 to 3, and what table 3 says of their traversals.
    pub bars: Vec<OsdiBar>,
    /// Figure 8.
    pub columns: Vec<OsdiColumn>,
    /// The other figures.
    pub figures: Vec<OsdiFigure>,
}

/// A figure's points.
#[derive(Clone, Debug, Serialize)]
pub struct OsdiFigure {
    /// The paper's number.
    pub number: u8,
    /// What is shown.
    pub title: &'static str,
    /// What is varied.
    pub axis: &'static str,
    /// What is measured, and in which unit.
    pub unit: &'static str,
    /// What was measured.
    pub points: Vec<OsdiPoint>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OsdiPoint {
    /// Whose curve.
    pub curve: OsdiCurve,
    /// Where.
    pub x: u64,
    /// What was measured there.
    pub value: f64,
}

impl CurvePoint for OsdiPoint {
    type MascotsCurve = OsdiCurve;

    fn curve(&self) -> OsdiCurve {
        self.curve
    }

    fn x(&self) -> u64 {
        self.x
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OsdiCurve {
    /// Updates are declared.
    Log,
    /// Pages that find out which way is cheapest for them.
    Adaptive,
    /// Pages are compared with twins; a signal says which.
    CompareTrap,
    /// The same; the kernel says which.
    CompareWatch,
    /// Pages go whole; a signal says which.
    PageTrap,
    /// The same; the kernel says which.
    PageWatch,
    /// Declared in no order.
    Unordered,
    /// Declared in the order of addresses.
    Ordered,
    /// Declared before, in the same transaction.
    Redundant,
}

impl OsdiCurve {
    /// For files.
    pub fn id(self) -> &'static str {
        match self {
            OsdiCurve::Log => "log",
            OsdiCurve::Adaptive => "adaptive",
            OsdiCurve::CompareTrap => "compare-trap",
            OsdiCurve::CompareWatch => "compare-watch",
            OsdiCurve::PageTrap => "page-trap",
            OsdiCurve::PageWatch => "page-watch",
            OsdiCurve::Unordered => "unordered",
            OsdiCurve::Ordered => "ordered",
            OsdiCurve::Redundant => "redundant",
        }
    }

    /// For people.
    pub fn label(self) -> &'static str {
        match self {
            OsdiCurve::Log => "Log",
            OsdiCurve::Adaptive => "adaptive",
            OsdiCurve::CompareTrap => "Cpy/Cmp, signal",
            OsdiCurve::CompareWatch => "Cpy/Cmp, kernel's notes",
            OsdiCurve::PageTrap => "Page, signal",
            OsdiCurve::PageWatch => "Page, kernel's notes",
            OsdiCurve::Unordered => "unordered",
            OsdiCurve::Ordered => "ordered",
            OsdiCurve::Redundant => "redundant",
        }
    }
}

/// Measures what `plan` asks for.
pub fn measure(
    site: &Testbed,
    plan: &OsdiPlan,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<OsdiReport, BenchError> {
    if let Some(unknown) = plan.figures.iter().find(|number| !FIGURES.contains(number)) {
        return Err(BenchError::InvalidRequest(format!(
            "OSDI 1994 has no measured figure {unknown} here; choose among 1 to 8"
        )));
    }
    let wants = |number: u8| plan.figures.is_empty() || plan.figures.contains(&number);
    let mut report = OsdiReport {
        machine: MachineInfo::probe(),
        plan: plan.clone(),
        skipped: Vec::new(),
        costs: Vec::new(),
        bars: Vec::new(),
        columns: Vec::new(),
        figures: Vec::new(),
    };
    if wants(TABLE) {
        report.costs = costs::measure(site, plan, &mut report.skipped, tell)?;
    }
    let traversed: Vec<u8> = [1, 2, 3].into_iter().filter(|number| wants(*number)).collect();
    if !traversed.is_empty() {
        report.bars = traversals::measure(site, plan, &traversed, &mut report.skipped, tell)?;
    }
    if wants(4) {
        tell(ProgressEvent::Next("figure 4"));
        report
            .figures
            .push(capture::by_bytes(site, plan, &mut report.skipped)?);
    }
    for number in [5, 6] {
        if wants(number) {
            tell(ProgressEvent::Next(&format!("figure {number}")));
            report.figures.push(updates::by_count(site, plan, number)?);
        }
    }
    if wants(7) {
        tell(ProgressEvent::Next("figure 7"));
        report
            .figures
            .push(capture::by_updates(site, plan, &mut report.skipped)?);
    }
    if wants(8) {
        report.columns = recoverability::measure(site, plan, tell)?;
    }
    for reason in &report.skipped {
        tell(ProgressEvent::Skipped(reason));
    }
    Ok(report)
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A generator of our own: the same program in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % bound
    }
}

/// The numbers below `count` in an order that no cache foresees.
fn shuffled(count: usize) -> Vec<usize> {
    let mut random = Random(94);
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        order.swap(at, random.below(at + 1));
    }
    order
}
