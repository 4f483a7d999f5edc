//! The experiments of "Using Remote Memory to avoid Disk Thrashing: A Simulation Study" (MASCOTS'96): its
//! figures 1 to 4, and figure 1 anew with machines of today, one of them this one, whose page and word over a
//! network are measured in the same run.
//!
//! Each program runs once before all policies; a figure is other costs for the same events. What differs from
//! the paper: `docs/paper-mascots96.md`.
//!
//! | module | does |
//! |---|---|
//! | [`programs`] | runs the paper's programs; VERILOG in the emulator |
//! | [`machines`] | what today's machines take; what this one does |
//! | [`claims`] | what the text states, judged on what came out |
//! | [`facts`] | what the text states, in its words |
//! | [`output`] | files for programs and people |

pub mod claims;
pub mod facts;
pub mod machines;
pub mod output;
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
/// Mbytes a second, in figure 2.
const RATES: [u64; 7] = [1, 2, 5, 10, 25, 50, 100];

/// How much is measured.
#[derive(Clone, Debug, Serialize)]
pub struct MascotsPlan {
    /// Numbers of the figures; none: all.
    pub figures: Vec<u8>,
    /// Without VERILOG, and with fewer counters.
    pub quick: bool,
}

/// Everything that came out.
#[derive(Clone, Debug, Serialize)]
pub struct MascotsReport {
    /// Where.
    pub machine: MachineInfo,
    /// How much.
    pub plan: MascotsPlan,
    /// What could not be done, and why.
    pub skipped: Vec<String>,
    /// What was run.
    pub programs: Vec<WorkloadResult>,
    /// The figures.
    pub figures: Vec<MascotsFigure>,
    /// What was measured of this machine.
    pub measured: AccessTimes,
    /// Figure 1 on machines of today.
    pub today: Vec<TodayRow>,
    /// What the text states.
    pub claims: Vec<MascotsClaim>,
}

/// A figure's points.
#[derive(Clone, Debug, Serialize)]
pub struct MascotsFigure {
    /// The paper's number.
    pub number: u8,
    /// What is shown.
    pub title: &'static str,
    /// What is varied.
    pub axis: &'static str,
    /// What came out.
    pub points: Vec<MascotsPoint>,
}

/// A point: cycles of an average reference.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MascotsPoint {
    /// Which program.
    pub workload: MascotsWorkload,
    /// Under which policy.
    pub policy: MascotsPolicy,
    /// Where on the axis.
    pub x: u64,
    /// Cycles.
    pub cycles: f64,
}

/// What tells curves apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum MascotsCurve {
    /// A policy's, over programs or rates.
    Of(MascotsPolicy),
    /// A program's, over counters.
    With(MascotsWorkload),
}

impl MascotsCurve {
    /// For people.
    pub fn label(self) -> &'static str {
        match self {
            MascotsCurve::Of(policy) => policy.label(),
            MascotsCurve::With(workload) => workload.name(),
        }
    }
}

impl CurvePoint for MascotsPoint {
    type MascotsCurve = MascotsCurve;

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

/// The policies, as the paper writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum MascotsPolicy {
    /// What does not fit is on the disk.
    Disk,
    /// Whole pages go to remote memory and come back.
    RamDisk,
    /// Remote memory is referenced word by word.
    RemoteMain,
    /// Word by word, until the counter is spent.
    Counters,
    /// The same with words that software fetches.
    SoftwareCounters,
    /// COUNTERS with the counter that is the place on the axis.
    CountersOf,
}

impl MascotsPolicy {
    /// Those of figures 1 and 2.
    pub const HARDWARE: [MascotsPolicy; 4] = [
        MascotsPolicy::Disk,
        MascotsPolicy::RamDisk,
        MascotsPolicy::RemoteMain,
        MascotsPolicy::Counters,
    ];
    /// Those of figure 4.
    pub const SOFTWARE: [MascotsPolicy; 4] = [
        MascotsPolicy::Disk,
        MascotsPolicy::RamDisk,
        MascotsPolicy::Counters,
        MascotsPolicy::SoftwareCounters,
    ];

    /// Its name in the paper.
    pub fn label(self) -> &'static str {
        match self {
            MascotsPolicy::Disk => "DISK",
            MascotsPolicy::RamDisk => "RAM_DISK",
            MascotsPolicy::RemoteMain => "REMOTE_MAIN",
            MascotsPolicy::Counters | MascotsPolicy::CountersOf => "COUNTERS",
            MascotsPolicy::SoftwareCounters => "SOFTWARE_COUNTERS",
        }
    }

    /// Whose events are its.
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

/// Runs what `plan` asks for.
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
