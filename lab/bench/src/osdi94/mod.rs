//! The experiments of "Integrating Coherency and Recoverability in Distributed Systems" (OSDI 1994). Table 2
//! is the cost of copying, comparing and sending a page, and of catching a store. Figures 4 to 7 compare
//! recorded updates (the paper's Log), pages compared with twins (Cpy/Cmp), and whole pages (Page). The paper
//! computes the last two from table 2; here the library's own capture measures all three.
//!
//! Figures 1 to 3 and table 3 are traversals of OO7 between two nodes; figure 8 is the cost that coherency
//! adds to recoverability. Differences from the paper: `docs/results/osdi94.md`.
//!
//! | module | does |
//! |---|---|
//! | `testbed` | recoverable memory over a log that keeps one record, and a peer that takes messages |
//! | [`costs`] | table 2 |
//! | `capture` | figures 4 and 7: by the page |
//! | `updates` | figures 5 and 6: by the update |
//! | [`recoverability`] | figure 8: coherency and logging, together and alone |
//! | [`traversals`] | figures 1 to 3, table 3: OO7 at one node, applied at another |
//! | [`facts`] | statements of the paper |
//! | [`output`] | files for programs and people |

mod capture;
pub mod costs;
pub mod facts;
pub mod output;
mod plot;
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
/// Number that also stands for table 2.
pub const TABLE: u8 = 2;

/// Extent of a run.
#[derive(Clone, Debug, Serialize)]
pub struct OsdiPlan {
    /// Numbers of the figures. 2 includes table 2, 1 to 3 their rows of table 3; empty for all.
    pub figures: Vec<u8>,
    /// Number of rounds; results are their medians.
    pub rounds: usize,
    /// Whether fewer x values and less memory are used.
    pub quick: bool,
}

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct OsdiReport {
    /// The measuring machine.
    pub machine: MachineInfo,
    /// Extent of the run.
    pub plan: OsdiPlan,
    /// Skipped measurements, each with its reason.
    pub skipped: Vec<String>,
    /// Table 2.
    pub costs: Vec<OsdiCost>,
    /// Figures 1 to 3, and table 3's numbers for their traversals.
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
    /// Title of the figure.
    pub title: &'static str,
    /// Label of the x axis.
    pub axis: &'static str,
    /// Unit of the y axis.
    pub unit: &'static str,
    /// The measured points.
    pub points: Vec<OsdiPoint>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OsdiPoint {
    /// The curve of this point.
    pub curve: OsdiCurve,
    /// The point's x value.
    pub x: u64,
    /// The measured value.
    pub value: f64,
}

impl CurvePoint for OsdiPoint {
    type Curve = OsdiCurve;

    fn curve(&self) -> OsdiCurve {
        self.curve
    }

    fn x(&self) -> u64 {
        self.x
    }
}

/// Compared ways of finding changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OsdiCurve {
    /// Updates are declared.
    Log,
    /// Pages that adapt to the cheapest way for each.
    Adaptive,
    /// Pages compared with twins; a signal reports the first store.
    CompareTrap,
    /// The same; the kernel reports the first store.
    CompareWatch,
    /// Whole pages; a signal reports the first store.
    PageTrap,
    /// The same; the kernel reports the first store.
    PageWatch,
    /// Updates declared in random order.
    Unordered,
    /// Updates declared in the order of addresses.
    Ordered,
    /// Updates declared before in the same transaction.
    Redundant,
}

impl OsdiCurve {
    /// A name for files.
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

    /// A name for people.
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

/// Runs what `plan` describes.
///
/// # Errors
///
/// Fails if the testbed cannot be set up, or a measurement fails.
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

/// A random generator that is the same in every run.
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

/// The numbers below `count` in an order that no cache can predict.
fn shuffled(count: usize) -> Vec<usize> {
    let mut random = Random(94);
    let mut order: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        order.swap(at, random.below(at + 1));
    }
    order
}
