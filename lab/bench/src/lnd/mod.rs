//! The experiments of LND ("A Reliable Multi-Tier Storage Device in NOW"): figures 3 to 6, synchronous writes by stage
//! threshold and by block size, on the bare device and on two file systems; and table 2, a database. Beside it another
//! database, as an application of today.
//!
//! The systems are block devices of this machine: a disk, a disk made slower, and volumes with lenders, whose writes are
//! complete when all have them (the paper's SCP) or one has (its LCP), over TCP, over multicast, with a data lender, and over
//! a link; and a volume that is reached without a device. What is set up how, and what differs from the paper:
//! `docs/paper-lnd.md`.
//!
//! | module | does |
//! |---|---|
//! | [`system`] | the systems compared |
//! | `world` | what they stand on, and one of them set up |
//! | [`device`] | block devices and file systems on them, taken away afterwards |
//! | [`fio`] | one measurement of writes |
//! | [`transactions`] | one of PostgreSQL; MariaDB's is [`mariadb`] |
//! | [`facts`] | what the paper states |
//! | [`output`] | files for programs and people |

pub mod device;
pub mod facts;
pub mod fio;
pub mod output;
pub mod system;
pub mod transactions;
mod world;

use std::time::Duration;

use serde::Serialize;

use crate::curves::{self, OnCurve};
use crate::databases::mariadb::{self, Mariadb, Operations};
use crate::databases::postgres::Postgres;
use crate::error::BenchError;
use crate::machine::Machine;
use crate::site::Site;
use crate::step::Step;
use crate::volume::Place;
use crate::volume::serve::What;
use device::Attachment;
use fio::Written;
use system::{Kept, Network, System};
use transactions::Transactions;
use world::{Target, World};

/// Numbers of the figures.
pub const FIGURES: [u8; 4] = [3, 4, 5, 6];
/// Stands for table 2 among them.
pub const TABLE: u8 = 2;
/// Stands for PostgreSQL among them, which the paper has not.
pub const POSTGRES: u8 = 7;
/// Bytes of each device.
const DEVICE_BYTES: u64 = 512 << 20;
/// Bytes that are written over, again and again.
pub(crate) const FILE_BYTES: u64 = 32 << 20;
/// Stage thresholds in KB; the last is the paper's "infinite".
const STAGES_KB: [u64; 8] = [64, 256, 1_024, 2_500, 5_000, 10_000, 40_000, 200_000];
const STAGES_KB_QUICK: [u64; 2] = [64, 10_000];
const BLOCKS: [u64; 7] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const BLOCKS_QUICK: [u64; 2] = [4 << 10, 64 << 10];
const STAGE_BLOCK: u64 = 4096;

/// How much is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Numbers of the figures, 2 for the table, 7 for PostgreSQL; none: all.
    pub figures: Vec<u8>,
    /// Rounds; what is shown is their median.
    pub rounds: usize,
    /// A cell writes for this long.
    pub cap: Duration,
    /// Fewer places.
    pub quick: bool,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// How much.
    pub plan: Plan,
    /// What could not be measured, and why.
    pub skipped: Vec<String>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// Table 2: operations a second.
    pub table: Vec<(System, Operations)>,
    /// The database's version.
    pub database: Option<String>,
    /// PostgreSQL's transactions.
    pub transactions: Vec<(System, Transactions)>,
    /// Its version.
    pub postgres: Option<String>,
}

/// A figure's points.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The paper's number.
    pub number: u8,
    /// What is shown.
    pub title: String,
    /// What is varied, and in which unit.
    pub axis: &'static str,
    /// What was measured.
    pub points: Vec<Point>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Whose curve.
    pub system: System,
    /// Where.
    pub x: u64,
    /// What was measured there.
    #[serde(flatten)]
    pub written: Written,
}

impl OnCurve for Point {
    type Curve = System;

    fn curve(&self) -> System {
        self.system
    }

    fn place(&self) -> u64 {
        self.x
    }
}

impl Figure {
    /// The curves, in the order of measurement.
    pub fn systems(&self) -> Vec<System> {
        curves::curves(&self.points)
    }

    /// The places, in order.
    pub fn places(&self) -> Vec<u64> {
        curves::places(&self.points)
    }

    /// A point of a curve.
    pub fn at(&self, system: System, x: u64) -> Option<&Point> {
        curves::at(&self.points, system, x)
    }
}

/// Measures what `plan` asks for.
pub fn measure(site: &Site, plan: &Plan, tell: &mut dyn FnMut(Step<'_>)) -> Result<Report, BenchError> {
    let known = |number: &u8| [TABLE, POSTGRES].contains(number) || FIGURES.contains(number);
    if let Some(unknown) = plan.figures.iter().find(|number| !known(number)) {
        return Err(BenchError::Asked(format!(
            "LND has no measured figure {unknown}; choose among 3 to 6, 2 for its table 2, and 7 for PostgreSQL"
        )));
    }
    let mut report = Report {
        machine: Machine::look(),
        plan: plan.clone(),
        skipped: Vec::new(),
        figures: Vec::new(),
        table: Vec::new(),
        database: None,
        transactions: Vec::new(),
        postgres: None,
    };
    match device::possible() {
        Err(missing) => report.skipped.push(format!("nothing is measured: {missing}")),
        Ok(()) => {
            let world = World::new(site, &mut report.skipped)?;
            figures(&world, &mut report, tell)?;
            databases(&world, &mut report, tell)?;
        }
    }
    for reason in &report.skipped {
        tell(Step::Skipped(reason));
    }
    Ok(report)
}

impl Plan {
    fn wants(&self, number: u8) -> bool {
        self.figures.is_empty() || self.figures.contains(&number)
    }
}

fn figures(world: &World<'_>, report: &mut Report, tell: &mut dyn FnMut(Step<'_>)) -> Result<(), BenchError> {
    let plan = report.plan.clone();
    if plan.wants(3) {
        report.figures.push(stages(world, &plan, tell)?);
    }
    for (number, kind) in [(4, None), (5, Some("ext4")), (6, journaling())] {
        match kind {
            _ if !plan.wants(number) => (),
            None if number == 6 => {
                let missing = "figure 6: neither mkfs.xfs nor mkfs.btrfs is here";
                report.skipped.push(missing.to_owned());
            }
            kind => report.figures.push(blocks(world, number, kind, &plan, tell)?),
        }
    }
    Ok(())
}

/// Table 2 and PostgreSQL, all of the database on ext4 on each device.
fn databases(
    world: &World<'_>,
    report: &mut Report,
    tell: &mut dyn FnMut(Step<'_>),
) -> Result<(), BenchError> {
    let plan = report.plan.clone();
    if plan.wants(TABLE) {
        match Mariadb::found(world.site) {
            Ok(database) => {
                report.database = Some(database.version().to_owned());
                report.table = on_each(world, "table 2", tell, |mounted| {
                    mariadb::measure(&database, world.site, mounted, plan.quick)
                })?;
            }
            Err(missing) => report.skipped.push(format!("table 2: {missing}")),
        }
    }
    if plan.wants(POSTGRES) {
        match Postgres::found(world.site) {
            Ok(postgres) => {
                report.postgres = Some(postgres.version().to_owned());
                report.transactions = on_each(world, "PostgreSQL", tell, |mounted| {
                    transactions::measure(&postgres, world.site, mounted, &plan)
                })?;
            }
            Err(missing) => report.skipped.push(format!("PostgreSQL: {missing}")),
        }
    }
    Ok(())
}

/// Measures something on a fresh ext4 on each device, one after the other.
fn on_each<T>(
    world: &World<'_>,
    what: &str,
    tell: &mut dyn FnMut(Step<'_>),
    mut measure: impl FnMut(&std::path::Path) -> Result<T, BenchError>,
) -> Result<Vec<(System, T)>, BenchError> {
    let mut rows = Vec::new();
    for system in world.devices() {
        tell(Step::Next(&format!("{what}: {}", system.label())));
        let target = world.target(system, Some("ext4"))?;
        if let Some(mounted) = &target.mounted {
            rows.push((system, measure(mounted.path())?));
        }
        target.end()?;
    }
    Ok(rows)
}

/// A journaling file system in ReiserFS' place.
fn journaling() -> Option<&'static str> {
    ["xfs", "btrfs"]
        .into_iter()
        .find(|kind| device::is_here(&format!("mkfs.{kind}")))
}

/// Figure 3.
fn stages(world: &World<'_>, plan: &Plan, tell: &mut dyn FnMut(Step<'_>)) -> Result<Figure, BenchError> {
    let system = System::Volume(Kept {
        all: false,
        network: match world.group {
            Some(_) => Network::Multicast,
            None => Network::Tcp,
        },
        twice: false,
    });
    let places = if plan.quick {
        &STAGES_KB_QUICK[..]
    } else {
        &STAGES_KB
    };
    let mut points = Vec::new();
    for &x in places {
        tell(Step::Next(&format!("figure 3: stages of {x} KB")));
        let place = Place::new(world.site, DEVICE_BYTES, &world.holders(system, Some(x * 1024)))?;
        let path = place.path();
        let attachment = Attachment::of_volume(world.site, path, What::volume(path), None)?;
        // The paper's 1 GB of writes as far as the time allows; stages must end several times.
        let cap = plan.cap * 2;
        let rounds = (0..plan.rounds).map(|_| fio::write(world.site, attachment.path(), STAGE_BLOCK, cap));
        let rounds: Result<Vec<Written>, BenchError> = rounds.collect();
        let written = Written::median(&rounds?);
        points.push(Point { system, x, written });
        attachment.release()?;
    }
    Ok(Figure {
        number: 3,
        title: "Stage threshold, synchronous writes of 4 KB".to_owned(),
        axis: "stage threshold, KB",
        points,
    })
}

/// Figures 4 to 6.
fn blocks(
    world: &World<'_>,
    number: u8,
    file_system: Option<&str>,
    plan: &Plan,
    tell: &mut dyn FnMut(Step<'_>),
) -> Result<Figure, BenchError> {
    let on = file_system.unwrap_or("the bare device");
    tell(Step::Next(&format!("figure {number}: attaching devices")));
    let mut systems = world.devices();
    if file_system.is_none() {
        systems.push(System::InProgram);
    }
    let targets = systems.iter().map(|&system| world.target(system, file_system));
    let mut targets: Vec<Target> = targets.collect::<Result<_, BenchError>>()?;
    let places = if plan.quick { &BLOCKS_QUICK[..] } else { &BLOCKS };
    let measured = curves::in_turns(plan.rounds, places, targets.len(), |turn| {
        if turn.curve == 0 {
            tell(Step::Next(&format!(
                "figure {number}: blocks of {} bytes on {on}, round {} of {}",
                turn.place,
                turn.round + 1,
                plan.rounds
            )));
        }
        targets[turn.curve].write(world.site, turn.place, plan.cap)
    })?;
    let points = measured.into_iter().map(|point| Point {
        system: targets[point.curve].system,
        x: point.place,
        written: Written::median(&point.cells),
    });
    let points = points.collect();
    targets.into_iter().try_for_each(Target::end)?;
    Ok(Figure {
        number,
        title: format!("Synchronous writes by block size, {on}"),
        axis: "block, bytes",
        points,
    })
}
