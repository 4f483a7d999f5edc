//! The experiments of LND ("A Reliable Multi-Tier Storage Device in NOW"). Figures 3 to 6 are synchronous
//! writes by stage threshold and by block size, on the bare device and on two file systems; table 2 is a
//! database. PostgreSQL is added as an application of today.
//!
//! The systems are block devices of this machine: a disk, a disk made slower, and volumes with lenders. A
//! volume's writes are complete when all lenders have them (the paper's SCP) or one has (its LCP), over TCP,
//! over multicast, with a data lender, and over a link. One more volume is reached without a device. Setup,
//! and differences from the paper: `docs/results/lnd.md`.
//!
//! | module | does |
//! |---|---|
//! | [`system`] | the systems compared |
//! | `testbed` | lenders and networks, and the setup of one system |
//! | [`device`] | block devices and file systems on them, removed afterwards |
//! | [`fio`] | one measurement of writes |
//! | [`transactions`] | one measurement of PostgreSQL; MariaDB's is [`mariadb`] |
//! | [`facts`] | statements of the paper |
//! | [`output`] | files for programs and people |

pub mod facts;
pub mod fio;
pub mod output;
mod plot;
pub mod system;
mod testbed;
pub mod transactions;

use std::time::Duration;

use serde::Serialize;

use crate::curves::{self, CurvePoint};
use crate::databases::mariadb::{self, MariadbRates, MariadbTemplate};
use crate::databases::postgres::PostgresTemplate;
use crate::device::{self, BlockDevice};
use crate::error::BenchError;
use crate::machine::MachineInfo;
use crate::progress::ProgressEvent;
use crate::testbed::Testbed;
use crate::volume::VolumeDirectory;
use crate::volume::serve::DeviceSource;
use fio::FioWrites;
use system::{LenderNetwork, LndRedundancy, LndSystem};
use testbed::{LndTarget, LndTestbed};
use transactions::PgbenchRates;

/// Numbers of the figures.
pub const FIGURES: [u8; 4] = [3, 4, 5, 6];
/// Number that stands for table 2 among them.
pub const TABLE: u8 = 2;
/// Number that stands for PostgreSQL among them, which the paper lacks.
pub const POSTGRES: u8 = 7;
/// Size of each device in bytes.
const DEVICE_BYTES: u64 = 512 << 20;
/// Size in bytes of the file that is overwritten repeatedly.
pub(crate) const FILE_BYTES: u64 = 32 << 20;
/// Stage thresholds in KB; the last is the paper's "infinite".
const STAGES_KB: [u64; 8] = [64, 256, 1_024, 2_500, 5_000, 10_000, 40_000, 200_000];
const STAGES_KB_QUICK: [u64; 2] = [64, 10_000];
const BLOCKS: [u64; 7] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const BLOCKS_QUICK: [u64; 2] = [4 << 10, 64 << 10];
const STAGE_BLOCK: u64 = 4096;
/// Stages that a round of figure 3 fills. A writer waits when four are full.
const STAGES_ROUND: u64 = 6;
/// The longest round of figure 3.
const STAGES_ROUND_MAX: Duration = Duration::from_secs(20);

/// Extent of a run.
#[derive(Clone, Debug, Serialize)]
pub struct LndPlan {
    /// Numbers of the figures, 2 for the table, 7 for PostgreSQL; empty for all.
    pub figures: Vec<u8>,
    /// Number of rounds; results are their medians.
    pub rounds: usize,
    /// Duration of a cell.
    pub cap: Duration,
    /// Whether only some x values are measured.
    pub quick: bool,
}

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct LndReport {
    /// The measuring machine.
    pub machine: MachineInfo,
    /// Extent of the run.
    pub plan: LndPlan,
    /// Skipped measurements, each with its reason.
    pub skipped: Vec<String>,
    /// The figures.
    pub figures: Vec<LndFigure>,
    /// Table 2, in operations per second.
    pub table: Vec<(LndSystem, MariadbRates)>,
    /// The database's version.
    pub database: Option<String>,
    /// PostgreSQL's transactions.
    pub transactions: Vec<(LndSystem, PgbenchRates)>,
    /// PostgreSQL's version.
    pub postgres: Option<String>,
}

/// A figure's points.
#[derive(Clone, Debug, Serialize)]
pub struct LndFigure {
    /// The paper's number.
    pub number: u8,
    /// Title of the figure.
    pub title: String,
    /// Label of the x axis, with its unit.
    pub axis: &'static str,
    /// The measured points.
    pub points: Vec<LndPoint>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LndPoint {
    /// The system, which identifies the curve.
    pub system: LndSystem,
    /// The point's x value.
    pub x: u64,
    /// The measured writes.
    #[serde(flatten)]
    pub written: FioWrites,
}

impl CurvePoint for LndPoint {
    type Curve = LndSystem;

    fn curve(&self) -> LndSystem {
        self.system
    }

    fn x(&self) -> u64 {
        self.x
    }
}

impl LndFigure {
    /// The curves, in the order of measurement.
    pub fn systems(&self) -> Vec<LndSystem> {
        curves::curves(&self.points)
    }

    /// The x values in order.
    pub fn x_values(&self) -> Vec<u64> {
        curves::x_values(&self.points)
    }

    /// The point of a system's curve at `x`.
    pub fn at(&self, system: LndSystem, x: u64) -> Option<&LndPoint> {
        curves::at(&self.points, system, x)
    }
}

/// Runs what `plan` describes.
///
/// # Errors
///
/// Fails if the testbed cannot be set up, or a measurement fails.
pub fn measure(
    site: &Testbed,
    plan: &LndPlan,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<LndReport, BenchError> {
    let known = |number: &u8| [TABLE, POSTGRES].contains(number) || FIGURES.contains(number);
    if let Some(unknown) = plan.figures.iter().find(|number| !known(number)) {
        return Err(BenchError::InvalidRequest(format!(
            "LND has no measured figure {unknown}; choose among 3 to 6, 2 for its table 2, and 7 for PostgreSQL"
        )));
    }
    let mut report = LndReport {
        machine: MachineInfo::probe(),
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
            let world = LndTestbed::new(site, &mut report.skipped)?;
            figures(&world, &mut report, tell)?;
            databases(&world, &mut report, tell)?;
        }
    }
    for reason in &report.skipped {
        tell(ProgressEvent::Skipped(reason));
    }
    Ok(report)
}

impl LndPlan {
    fn wants(&self, number: u8) -> bool {
        self.figures.is_empty() || self.figures.contains(&number)
    }
}

fn figures(
    world: &LndTestbed<'_>,
    report: &mut LndReport,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<(), BenchError> {
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

/// Table 2 and PostgreSQL, with the whole database on ext4 on each device.
fn databases(
    world: &LndTestbed<'_>,
    report: &mut LndReport,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<(), BenchError> {
    let plan = report.plan.clone();
    if plan.wants(TABLE) {
        match MariadbTemplate::prepare(world.site) {
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
        match PostgresTemplate::prepare(world.site) {
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

/// Runs a measurement on a new ext4 on each device, one after the other.
fn on_each<T>(
    world: &LndTestbed<'_>,
    what: &str,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
    mut measure: impl FnMut(&std::path::Path) -> Result<T, BenchError>,
) -> Result<Vec<(LndSystem, T)>, BenchError> {
    let mut rows = Vec::new();
    for system in world.devices() {
        tell(ProgressEvent::Next(&format!("{what}: {}", system.label())));
        let target = world.target(system, Some("ext4"))?;
        if let Some(mounted) = &target.mounted {
            rows.push((system, measure(mounted.path())?));
        }
        target.end()?;
    }
    Ok(rows)
}

/// A journaling file system in place of ReiserFS.
fn journaling() -> Option<&'static str> {
    ["xfs", "btrfs"]
        .into_iter()
        .find(|kind| device::is_here(&format!("mkfs.{kind}")))
}

/// Time of a round with stages of `stage_kb`. At the rate of a first round, so many stages end that a writer
/// can be made to wait for the disk; shorter rounds would show nothing of the threshold. The longest round is
/// too short for the threshold that stands for an endless stage.
fn stages_time(least: Duration, kb_per_second: f64, stage_kb: u64) -> Duration {
    let seconds = (STAGES_ROUND * stage_kb) as f64 * 1.024 / kb_per_second.max(1.0);
    Duration::from_secs_f64(seconds.min(STAGES_ROUND_MAX.as_secs_f64())).max(least)
}

/// Figure 3.
fn stages(
    world: &LndTestbed<'_>,
    plan: &LndPlan,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<LndFigure, BenchError> {
    let system = LndSystem::Volume(LndRedundancy {
        all: false,
        network: match world.group {
            Some(_) => LenderNetwork::Multicast,
            None => LenderNetwork::Tcp,
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
        tell(ProgressEvent::Next(&format!("figure 3: stages of {x} KB")));
        let place = VolumeDirectory::new(world.site, DEVICE_BYTES, &world.holders(system, Some(x * 1024)))?;
        let path = place.path();
        let attachment = BlockDevice::of_volume(world.site, path, DeviceSource::volume(path), None)?;
        // The paper wrote 1 GB; here it is as much as the time allows.
        let first = fio::write(world.site, attachment.path(), STAGE_BLOCK, plan.cap * 2)?;
        let time = stages_time(plan.cap * 2, first.kb_per_second, x);
        let rounds = (0..plan.rounds).map(|_| fio::write(world.site, attachment.path(), STAGE_BLOCK, time));
        let rounds: Result<Vec<FioWrites>, BenchError> = rounds.collect();
        let written = FioWrites::median(&rounds?);
        points.push(LndPoint { system, x, written });
        attachment.release()?;
    }
    Ok(LndFigure {
        number: 3,
        title: "Stage threshold, synchronous writes of 4 KB".to_owned(),
        axis: "stage threshold, KB",
        points,
    })
}

/// Figures 4 to 6.
fn blocks(
    world: &LndTestbed<'_>,
    number: u8,
    file_system: Option<&str>,
    plan: &LndPlan,
    tell: &mut dyn FnMut(ProgressEvent<'_>),
) -> Result<LndFigure, BenchError> {
    let on = file_system.unwrap_or("the bare device");
    tell(ProgressEvent::Next(&format!(
        "figure {number}: attaching devices"
    )));
    let mut systems = world.devices();
    if file_system.is_none() {
        systems.push(LndSystem::InProgram);
    }
    let targets = systems.iter().map(|&system| world.target(system, file_system));
    let mut targets: Vec<LndTarget> = targets.collect::<Result<_, BenchError>>()?;
    let places = if plan.quick { &BLOCKS_QUICK[..] } else { &BLOCKS };
    let measured = curves::interleaved(plan.rounds, places, targets.len(), |turn| {
        if turn.curve == 0 {
            tell(ProgressEvent::Next(&format!(
                "figure {number}: blocks of {} bytes on {on}, round {} of {}",
                turn.x,
                turn.round + 1,
                plan.rounds
            )));
        }
        targets[turn.curve].write(world.site, turn.x, plan.cap)
    })?;
    let points = measured.into_iter().map(|point| LndPoint {
        system: targets[point.curve].system,
        x: point.x,
        written: FioWrites::median(&point.cells),
    });
    let points = points.collect();
    targets.into_iter().try_for_each(LndTarget::end)?;
    Ok(LndFigure {
        number,
        title: format!("Synchronous writes by block size, {on}"),
        axis: "block, bytes",
        points,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_figure_3_are_long_enough_for_a_writer_to_wait() {
        let short = Duration::from_millis(600);
        let rate = 21_000.0;
        for stage_kb in STAGES_KB.into_iter().filter(|stage_kb| *stage_kb <= 40_000) {
            let written = stages_time(short, rate, stage_kb).as_secs_f64() * rate * 1e3;
            assert!(written > 4.0 * stage_kb as f64 * 1024.0, "{stage_kb} KB");
        }
        assert_eq!(stages_time(short, rate, 64), short);
        assert_eq!(stages_time(short, rate, 200_000), STAGES_ROUND_MAX);
    }
}
