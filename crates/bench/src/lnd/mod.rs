//! The experiments of LND ("A Reliable Multi-Tier Storage Device in NOW"): figures 3 to 6, synchronous writes by stage
//! threshold and by block size, on the bare device and on two file systems; and table 2, a database.
//!
//! Every system is a block device of this machine: a disk, a disk made slower, and volumes with two lenders, whose writes
//! are complete when both have them (the paper's SCP) or one has (its LCP), over TCP and over multicast. What is set up how, and
//! what differs from the paper: `docs/paper-lnd.md`.
//!
//! | module | does |
//! |---|---|
//! | [`system`] | the systems compared |
//! | [`device`] | block devices and file systems on them, taken away afterwards |
//! | [`fio`] | one measurement of writes |
//! | [`database`] | one of a database |
//! | [`facts`] | what the paper states |
//! | [`output`] | files for programs and people |

pub mod database;
pub mod device;
pub mod facts;
pub mod fio;
pub mod output;
pub mod system;

use std::time::Duration;

use netram_transport::WaitPolicy;
use serde::Serialize;

use crate::error::BenchError;
use crate::histogram::median;
use crate::machine::Machine;
use crate::site::{Lender, LenderSpec, Site, Wire};
use crate::volume::Place;
use database::{Database, Operations};
use device::{Attachment, Mounted};
use fio::Written;
use system::{Network, System};

/// Numbers of the figures, and of the table.
pub const FIGURES: [u8; 4] = [3, 4, 5, 6];
/// Table 2, among them.
pub const TABLE: u8 = 2;
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
const LENDERS: usize = 2;

/// How much is measured.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Numbers of the figures, and 2 for the table; none: all.
    pub figures: Vec<u8>,
    /// Rounds; what is shown is their median.
    pub rounds: usize,
    /// A cell writes for this long.
    pub cap: Duration,
    /// Fewer places.
    pub quick: bool,
}

/// What whoever watches is told: what is next, or what is skipped.
#[derive(Debug)]
pub enum Step<'a> {
    /// This is measured next.
    Next(&'a str),
    /// This cannot be measured here.
    Skipped(&'a str),
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

impl Figure {
    /// The curves, in the order of measurement.
    pub fn systems(&self) -> Vec<System> {
        let mut found = Vec::new();
        for point in &self.points {
            if !found.contains(&point.system) {
                found.push(point.system);
            }
        }
        found
    }

    /// The places, in order.
    pub fn places(&self) -> Vec<u64> {
        let mut places: Vec<u64> = self.points.iter().map(|point| point.x).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// A point of a curve.
    pub fn at(&self, system: System, x: u64) -> Option<&Point> {
        let mut points = self.points.iter();
        points.find(|point| point.system == system && point.x == x)
    }
}

/// What the devices stand on.
pub(crate) struct World<'s> {
    pub(crate) site: &'s Site,
    pub(crate) lenders: Vec<Lender>,
    /// Where appends are multicast, if that can be done here.
    pub(crate) group: Option<netram_transport::Group>,
}

impl<'s> World<'s> {
    fn new(site: &'s Site) -> Result<World<'s>, BenchError> {
        let group = crate::volume::free_group()?;
        let spec = LenderSpec {
            wire: Wire::Tcp,
            secure: true,
            wait: WaitPolicy::default(),
            core: None,
        };
        let start = |group| {
            (0..LENDERS)
                .map(move |_| site.lender_of_group(spec, group))
                .collect()
        };
        let lenders: Result<Vec<Lender>, BenchError> = start(&group);
        Ok(match lenders {
            Ok(lenders) => World {
                site,
                lenders,
                group: Some(group),
            },
            // No multicast on this machine's loopback.
            Err(_) => World {
                site,
                lenders: (0..LENDERS)
                    .map(|_| site.lender(spec))
                    .collect::<Result<_, _>>()?,
                group: None,
            },
        })
    }

    fn systems(&self) -> Vec<System> {
        let wanted = System::ALL.into_iter();
        wanted
            .filter(|system| system.network() != Some(Network::Multicast) || self.group.is_some())
            .collect()
    }
}

/// Measures what `plan` asks for.
pub fn measure(site: &Site, plan: &Plan, tell: &mut dyn FnMut(Step<'_>)) -> Result<Report, BenchError> {
    if let Some(unknown) = plan
        .figures
        .iter()
        .find(|number| **number != TABLE && !FIGURES.contains(number))
    {
        return Err(BenchError::Asked(format!(
            "LND has no measured figure {unknown}; choose among 3 to 6, and 2 for its table 2"
        )));
    }
    let mut report = Report {
        machine: Machine::look(),
        plan: plan.clone(),
        skipped: Vec::new(),
        figures: Vec::new(),
        table: Vec::new(),
        database: None,
    };
    let wants = |number| plan.figures.is_empty() || plan.figures.contains(&number);
    if let Err(missing) = device::possible() {
        report.skipped.push(format!("nothing is measured: {missing}"));
    } else {
        let world = World::new(site)?;
        if world.group.is_none() {
            report
                .skipped
                .push("volumes over multicast: loopback does not carry it here".to_owned());
        }
        if wants(3) {
            report.figures.push(stages(&world, plan, tell)?);
        }
        for (number, kind) in [(4, None), (5, Some("ext4")), (6, journaling())] {
            match kind {
                _ if !wants(number) => (),
                None if number == 6 => {
                    report
                        .skipped
                        .push("figure 6: neither mkfs.xfs nor mkfs.btrfs is here".to_owned());
                }
                kind => report.figures.push(blocks(&world, number, kind, plan, tell)?),
            }
        }
        if wants(TABLE) {
            match Database::found(site) {
                Ok(database) => {
                    report.database = Some(database.version().to_owned());
                    report.table = table(&world, &database, plan, tell)?;
                }
                Err(missing) => report.skipped.push(format!("table 2: {missing}")),
            }
        }
    }
    for reason in &report.skipped {
        tell(Step::Skipped(reason));
    }
    Ok(report)
}

/// A journaling file system in ReiserFS' place.
fn journaling() -> Option<&'static str> {
    ["xfs", "btrfs"]
        .into_iter()
        .find(|kind| device::is_here(&format!("mkfs.{kind}")))
}

/// Figure 3.
fn stages(world: &World<'_>, plan: &Plan, tell: &mut dyn FnMut(Step<'_>)) -> Result<Figure, BenchError> {
    let system = match world.group {
        Some(_) => System::Volume {
            all: false,
            network: Network::Multicast,
        },
        None => System::Volume {
            all: false,
            network: Network::Tcp,
        },
    };
    let places = if plan.quick {
        &STAGES_KB_QUICK[..]
    } else {
        &STAGES_KB
    };
    let mut points = Vec::new();
    for &x in places {
        tell(Step::Next(&format!("figure 3: stages of {x} KB")));
        let place = Place::new(world.site, DEVICE_BYTES, &world.holders(system, Some(x * 1024)))?;
        let attachment = Attachment::of_volume(world.site, &place)?;
        // The paper's 1 GB of writes as far as the time allows; stages must end several times.
        let cap = plan.cap * 2;
        let written = rounds(plan, || {
            fio::write(world.site, attachment.path(), STAGE_BLOCK, cap)
        })?;
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

fn rounds(
    plan: &Plan,
    mut measure: impl FnMut() -> Result<Written, BenchError>,
) -> Result<Written, BenchError> {
    let rounds: Result<Vec<Written>, BenchError> = (0..plan.rounds).map(|_| measure()).collect();
    Ok(Written::median(&rounds?))
}

/// A device under measurement, bare or with a file system on it. Fields go in this order.
struct Target {
    system: System,
    mounted: Option<Mounted>,
    attachment: Attachment,
    _place: Option<Place>,
}

impl World<'_> {
    fn target(&self, system: System, file_system: Option<&str>) -> Result<Target, BenchError> {
        let (attachment, place) = self.attach(system)?;
        let mounted = match file_system {
            None => None,
            Some(kind) => Some(Mounted::new(self.site, attachment.path(), kind)?),
        };
        Ok(Target {
            system,
            mounted,
            attachment,
            _place: place,
        })
    }
}

impl Target {
    fn end(self) -> Result<(), BenchError> {
        if let Some(mounted) = self.mounted {
            mounted.unmount()?;
        }
        self.attachment.release()
    }
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
    let targets: Result<Vec<Target>, BenchError> = world
        .systems()
        .into_iter()
        .map(|system| world.target(system, file_system))
        .collect();
    let targets = targets?;
    let places = if plan.quick { &BLOCKS_QUICK[..] } else { &BLOCKS };
    let mut cells = vec![Vec::new(); places.len() * targets.len()];
    for round in 0..plan.rounds {
        for (at, &block) in places.iter().enumerate() {
            tell(Step::Next(&format!(
                "figure {number}: blocks of {block} bytes on {on}, round {} of {}",
                round + 1,
                plan.rounds
            )));
            for (which, target) in targets.iter().enumerate() {
                let file = match &target.mounted {
                    Some(mounted) => mounted.file(FILE_BYTES)?,
                    None => target.attachment.path().to_path_buf(),
                };
                cells[at * targets.len() + which].push(fio::write(world.site, &file, block, plan.cap)?);
            }
        }
    }
    let mut points = Vec::new();
    for (at, &x) in places.iter().enumerate() {
        for (which, target) in targets.iter().enumerate() {
            points.push(Point {
                system: target.system,
                x,
                written: Written::median(&cells[at * targets.len() + which]),
            });
        }
    }
    targets.into_iter().try_for_each(Target::end)?;
    Ok(Figure {
        number,
        title: format!("Synchronous writes by block size, {on}"),
        axis: "block, bytes",
        points,
    })
}

/// Table 2, all of the database on ext4 on each device.
fn table(
    world: &World<'_>,
    database: &Database,
    plan: &Plan,
    tell: &mut dyn FnMut(Step<'_>),
) -> Result<Vec<(System, Operations)>, BenchError> {
    let mut rows = Vec::new();
    for system in world.systems() {
        tell(Step::Next(&format!("table 2: {}", system.label())));
        let target = world.target(system, Some("ext4"))?;
        if let Some(mounted) = &target.mounted {
            rows.push((system, database.measure(world.site, mounted.path(), plan.quick)?));
        }
        target.end()?;
    }
    Ok(rows)
}

impl Written {
    /// The median of each field over rounds.
    pub fn median(rounds: &[Written]) -> Written {
        let field = |of: fn(&Written) -> f64| median(rounds.iter().map(of).collect());
        Written {
            kb_per_second: field(|round| round.kb_per_second),
            writes: rounds.iter().map(|round| round.writes).sum(),
            p50_us: field(|round| round.p50_us),
            p99_us: field(|round| round.p99_us),
            max_us: field(|round| round.max_us),
        }
    }
}
