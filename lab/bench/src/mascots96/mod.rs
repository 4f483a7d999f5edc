//! The experiments of "Using Remote Memory to avoid Disk Thrashing: A Simulation Study" (MASCOTS'96): its figures 1 to 4, and figure 1 anew with machines of
//! today, one of them this one, whose page and word over a network are measured in the same run.
//!
//! Each program runs once before all policies; a figure is other costs for the same events. What differs from the paper: `docs/paper-mascots96.md`.
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

use netram_far_machine::paging::Kind;
use netram_pagesim::Costs;
use serde::Serialize;

use crate::curves::OnCurve;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::site::Site;
use crate::step::Step;
use claims::Claim;
use machines::{Measured, Today};
use programs::{Ran, Workload};

/// Numbers of the figures.
pub const FIGURES: [u8; 4] = [1, 2, 3, 4];
/// Mbytes a second, in figure 2.
const RATES: [u64; 7] = [1, 2, 5, 10, 25, 50, 100];

/// How much is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Numbers of the figures; none: all.
    pub figures: Vec<u8>,
    /// Without VERILOG, and with fewer counters.
    pub quick: bool,
}

/// Everything that came out.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// How much.
    pub plan: Plan,
    /// What could not be done, and why.
    pub skipped: Vec<String>,
    /// What was run.
    pub programs: Vec<Ran>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// What was measured of this machine.
    pub measured: Measured,
    /// Figure 1 on machines of today.
    pub today: Vec<Today>,
    /// What the text states.
    pub claims: Vec<Claim>,
}

/// A figure's points.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The paper's number.
    pub number: u8,
    /// What is shown.
    pub title: &'static str,
    /// What is varied.
    pub axis: &'static str,
    /// What came out.
    pub points: Vec<Point>,
}

/// A point: cycles of an average reference.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Which program.
    pub workload: Workload,
    /// Under which policy.
    pub policy: Policy,
    /// Where on the axis.
    pub x: u64,
    /// Cycles.
    pub cycles: f64,
}

/// What tells curves apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Curve {
    /// A policy's, over programs or rates.
    Of(Policy),
    /// A program's, over counters.
    With(Workload),
}

impl Curve {
    /// For people.
    pub fn label(self) -> &'static str {
        match self {
            Curve::Of(policy) => policy.label(),
            Curve::With(workload) => workload.name(),
        }
    }
}

impl OnCurve for Point {
    type Curve = Curve;

    fn curve(&self) -> Curve {
        match self.policy {
            Policy::CountersOf => Curve::With(self.workload),
            policy => Curve::Of(policy),
        }
    }

    fn place(&self) -> u64 {
        self.x
    }
}

/// The policies, as the paper writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Policy {
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

impl Policy {
    /// Those of figures 1 and 2.
    pub const HARDWARE: [Policy; 4] = [
        Policy::Disk,
        Policy::RamDisk,
        Policy::RemoteMain,
        Policy::Counters,
    ];
    /// Those of figure 4.
    pub const SOFTWARE: [Policy; 4] = [
        Policy::Disk,
        Policy::RamDisk,
        Policy::Counters,
        Policy::SoftwareCounters,
    ];

    /// Its name in the paper.
    pub fn label(self) -> &'static str {
        match self {
            Policy::Disk => "DISK",
            Policy::RamDisk => "RAM_DISK",
            Policy::RemoteMain => "REMOTE_MAIN",
            Policy::Counters | Policy::CountersOf => "COUNTERS",
            Policy::SoftwareCounters => "SOFTWARE_COUNTERS",
        }
    }

    /// Whose events are its.
    pub fn kind(self, initial: u32) -> Kind {
        match self {
            Policy::Disk => Kind::Disk,
            Policy::RamDisk => Kind::RamDisk,
            Policy::RemoteMain => Kind::RemoteMain,
            Policy::Counters | Policy::CountersOf | Policy::SoftwareCounters => Kind::Counters { initial },
        }
    }
}

/// Runs what `plan` asks for.
pub fn measure(site: &Site, plan: &Plan, tell: &mut dyn FnMut(Step<'_>)) -> Result<Report, BenchError> {
    if let Some(unknown) = plan.figures.iter().find(|number| !FIGURES.contains(number)) {
        return Err(BenchError::Asked(format!(
            "MASCOTS'96 has no figure {unknown}; choose among 1 to 4"
        )));
    }
    let mut skipped = Vec::new();
    let mut ran = Vec::new();
    for workload in Workload::ALL {
        tell(Step::Next(workload.name()));
        match programs::run(site, workload, plan.quick)? {
            Ok(one) => ran.push(one),
            Err(reason) => skipped.push(reason),
        }
    }
    tell(Step::Next(
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
        tell(Step::Skipped(reason));
    }
    Ok(Report {
        machine: Machine::look(),
        plan: plan.clone(),
        skipped,
        figures,
        today: machines::today(&ran, &measured),
        claims: claims::judge(&ran),
        measured,
        programs: ran,
    })
}

fn figure(number: u8, ran: &[Ran]) -> Figure {
    let costs = Costs::MASCOTS96;
    let mut points = Vec::new();
    let (title, axis) = match number {
        1 => ("paging policies", "program"),
        2 => ("GAUSS over networks of other throughput", "network, MB/s"),
        3 => ("the initial counter of COUNTERS", "initial counter"),
        _ => ("counters in software", "program"),
    };
    for one in ran {
        let mut add = |policy, x, cycles| {
            points.push(Point {
                workload: one.workload,
                policy,
                x,
                cycles,
            });
        };
        let place = one.workload.place();
        match number {
            1 => Policy::HARDWARE
                .iter()
                .for_each(|&policy| add(policy, place, one.cycles(policy, &costs))),
            2 if one.workload == Workload::Gauss => {
                for (rate, policy) in RATES
                    .iter()
                    .flat_map(|rate| Policy::HARDWARE.map(|policy| (*rate, policy)))
                {
                    let costs = costs.with_network_rate(rate as f64 * 1e6);
                    add(policy, rate, one.cycles(policy, &costs));
                }
            }
            2 => {}
            3 => {
                for initial in one.initials() {
                    let cycles = one.cycles_of(Policy::CountersOf.kind(initial), &costs);
                    add(Policy::CountersOf, initial.into(), cycles);
                }
            }
            _ => Policy::SOFTWARE
                .iter()
                .for_each(|&policy| add(policy, place, one.cycles(policy, &costs))),
        }
    }
    Figure {
        number,
        title,
        axis,
        points,
    }
}
