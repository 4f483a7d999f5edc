//! The experiments of "Using Remote Memory to avoid Disk Thrashing: A Simulation Study" (MASCOTS'96): its
//! figures 1 to 4, and figure 1 with today's machines. One of those is this one, whose times for a page and a
//! word over a network are measured in the same run.
//!
//! Each program runs once with all policies; the figures are different costs of the same events. Differences
//! from the paper: `docs/results/mascots96.md`.
//!
//! | module | does |
//! |---|---|
//! | [`programs`] | runs of the paper's programs; VERILOG in the emulator |
//! | [`machines`] | times of today's machines, and of this one |
//! | [`claims`] | statements of the text, judged by the results |
//! | [`facts`] | statements of the text in its words |
//! | [`output`] | files for programs and people |

pub mod claims;
pub mod facts;
pub mod machines;
pub mod output;
mod plot;
pub mod programs;

use netram_far_machine::paging::PolicyKind;
use netram_pagesim::MachineCosts;
use serde::Serialize;

use crate::curves::CurvePoint;
use crate::error::BenchError;
use crate::machine::MachineInfo;
use crate::progress::ProgressEvent;
use crate::testbed::Testbed;
use claims::MascotsClaim;
use machines::{AccessTimes, TodayRow};
use programs::{MascotsWorkload, WorkloadResult};

/// Numbers of the figures.
pub const FIGURES: [u8; 4] = [1, 2, 3, 4];
/// Rates of figure 2, in Mbytes per second.
const RATES: [u64; 7] = [1, 2, 5, 10, 25, 50, 100];

/// Extent of a run.
#[derive(Clone, Debug, Serialize)]
pub struct MascotsPlan {
    /// Numbers of the figures; empty for all.
    pub figures: Vec<u8>,
    /// Whether VERILOG is left out and fewer counters are tried.
    pub quick: bool,
}

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct MascotsReport {
    /// The measuring machine.
    pub machine: MachineInfo,
    /// Extent of the run.
    pub plan: MascotsPlan,
    /// Skipped parts, each with its reason.
    pub skipped: Vec<String>,
    /// The programs that were run.
    pub programs: Vec<WorkloadResult>,
    /// The figures.
    pub figures: Vec<MascotsFigure>,
    /// Measured times of this machine.
    pub measured: AccessTimes,
    /// Figure 1 on today's machines.
    pub today: Vec<TodayRow>,
    /// Statements of the text.
    pub claims: Vec<MascotsClaim>,
}

/// A figure's points.
#[derive(Clone, Debug, Serialize)]
pub struct MascotsFigure {
    /// The paper's number.
    pub number: u8,
    /// Title of the figure.
    pub title: &'static str,
    /// Label of the x axis.
    pub axis: &'static str,
    /// The points.
    pub points: Vec<MascotsPoint>,
}

/// A point: the cost in cycles of an average reference.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MascotsPoint {
    /// The program.
    pub workload: MascotsWorkload,
    /// The policy.
    pub policy: MascotsPolicy,
    /// The point's x value.
    pub x: u64,
    /// Cycles of an average reference.
    pub cycles: f64,
}

/// Identity of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum MascotsCurve {
    /// A policy's curve, over programs or rates.
    Of(MascotsPolicy),
    /// A program's curve, over counters.
    With(MascotsWorkload),
}

impl MascotsCurve {
    /// A name for people.
    pub fn label(self) -> &'static str {
        match self {
            MascotsCurve::Of(policy) => policy.label(),
            MascotsCurve::With(workload) => workload.name(),
        }
    }
}

impl CurvePoint for MascotsPoint {
    type Curve = MascotsCurve;

    fn curve(&self) -> MascotsCurve {
        match self.policy {
            MascotsPolicy::CountersOf => MascotsCurve::With(self.workload),
            policy => MascotsCurve::Of(policy),
        }
    }

    fn x(&self) -> u64 {
        self.x
    }
}

/// The policies, by the paper's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MascotsPolicy {
    /// Pages that do not fit are on the disk.
    Disk,
    /// Whole pages go to remote memory and back.
    RamDisk,
    /// Remote memory is accessed word by word.
    RemoteMain,
    /// Remote memory is accessed word by word until the page's counter is spent.
    Counters,
    /// COUNTERS with words that software fetches.
    SoftwareCounters,
    /// COUNTERS with the initial counter given by the x axis.
    CountersOf,
}

impl MascotsPolicy {
    /// Policies of figures 1 and 2.
    pub const HARDWARE: [MascotsPolicy; 4] = [
        MascotsPolicy::Disk,
        MascotsPolicy::RamDisk,
        MascotsPolicy::RemoteMain,
        MascotsPolicy::Counters,
    ];
    /// Policies of figure 4.
    pub const SOFTWARE: [MascotsPolicy; 4] = [
        MascotsPolicy::Disk,
        MascotsPolicy::RamDisk,
        MascotsPolicy::Counters,
        MascotsPolicy::SoftwareCounters,
    ];

    /// Name in the paper.
    pub fn label(self) -> &'static str {
        match self {
            MascotsPolicy::Disk => "DISK",
            MascotsPolicy::RamDisk => "RAM_DISK",
            MascotsPolicy::RemoteMain => "REMOTE_MAIN",
            MascotsPolicy::Counters | MascotsPolicy::CountersOf => "COUNTERS",
            MascotsPolicy::SoftwareCounters => "SOFTWARE_COUNTERS",
        }
    }

    /// The simulated policy whose events this one uses.
    pub fn kind(self, initial: u32) -> PolicyKind {
        match self {
            MascotsPolicy::Disk => PolicyKind::Disk,
            MascotsPolicy::RamDisk => PolicyKind::RamDisk,
            MascotsPolicy::RemoteMain => PolicyKind::RemoteMain,
            MascotsPolicy::Counters | MascotsPolicy::CountersOf | MascotsPolicy::SoftwareCounters => {
                PolicyKind::Counters { initial }
            }
        }
    }
}

/// Runs what `plan` describes.
///
/// # Errors
///
/// Fails if a program fails, or this machine's times cannot be measured.
pub fn measure(
    site: &Testbed,
    plan: &MascotsPlan,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<MascotsReport, BenchError> {
    if let Some(unknown) = plan.figures.iter().find(|number| !FIGURES.contains(number)) {
        return Err(BenchError::InvalidRequest(format!(
            "MASCOTS'96 has no figure {unknown}; choose among 1 to 4"
        )));
    }
    let mut skipped = Vec::new();
    let mut ran = Vec::new();
    for workload in MascotsWorkload::ALL {
        tell(ProgressEvent::Next(workload.name()));
        match programs::run(site, workload, plan.quick)? {
            Ok(one) => ran.push(one),
            Err(reason) => skipped.push(reason),
        }
    }
    tell(ProgressEvent::Next(
        "a page and a word over this machine's network, and its disk",
    ));
    let measured = machines::measure(site, plan.quick)?;
    let wants = |number: &u8| plan.figures.is_empty() || plan.figures.contains(number);
    let figures = FIGURES
        .into_iter()
        .filter(wants)
        .map(|number| figure(number, &ran));
    let figures = figures.collect();
    for reason in &skipped {
        tell(ProgressEvent::Skipped(reason));
    }
    Ok(MascotsReport {
        machine: MachineInfo::probe(),
        plan: plan.clone(),
        skipped,
        figures,
        today: machines::today(&ran, &measured),
        claims: claims::judge(&ran),
        measured,
        programs: ran,
    })
}

fn figure(number: u8, ran: &[WorkloadResult]) -> MascotsFigure {
    let costs = MachineCosts::MASCOTS96;
    let mut points = Vec::new();
    let (title, axis) = match number {
        1 => ("paging policies", "program"),
        2 => ("GAUSS over networks of other throughput", "network, MB/s"),
        3 => ("the initial counter of COUNTERS", "initial counter"),
        _ => ("counters in software", "program"),
    };
    for one in ran {
        let mut add = |policy, x, cycles| {
            points.push(MascotsPoint {
                workload: one.workload,
                policy,
                x,
                cycles,
            });
        };
        let place = one.workload.x();
        match number {
            1 => MascotsPolicy::HARDWARE
                .iter()
                .for_each(|&policy| add(policy, place, one.cycles(policy, &costs))),
            2 if one.workload == MascotsWorkload::Gauss => {
                for (rate, policy) in RATES
                    .iter()
                    .flat_map(|rate| MascotsPolicy::HARDWARE.map(|policy| (*rate, policy)))
                {
                    let costs = costs.with_network_rate(rate as f64 * 1e6);
                    add(policy, rate, one.cycles(policy, &costs));
                }
            }
            2 => {}
            3 => {
                for initial in one.initials() {
                    let cycles = one.cycles_of(MascotsPolicy::CountersOf.kind(initial), &costs);
                    add(MascotsPolicy::CountersOf, initial.into(), cycles);
                }
            }
            _ => MascotsPolicy::SOFTWARE
                .iter()
                .for_each(|&policy| add(policy, place, one.cycles(policy, &costs))),
        }
    }
    MascotsFigure {
        number,
        title,
        axis,
        points,
    }
}
