//! The experiments of TR-190, "On using Network Memory to Improve the Performance of Transaction-Based
//! Systems", figures 1 to 12: recoverable memory whose commits wait for a disk (the paper's RVM), or for
//! another process's memory (its RRVM).
//!
//! Each figure is a table of cells: a system at an x value, measured in rounds. Within a round and an x value
//! the systems take turns, so that a disturbance hits all of them. Setup, and differences from the paper:
//! `docs/results/tr190.md`.
//!
//! | module | does |
//! |---|---|
//! | [`experiment`] | the figures: parameters and loads |
//! | [`system`] | the systems and floors compared |
//! | [`testbed`], [`crate::namespaces`], [`modelled`] | lenders, files, the network in between, the slow disk
//! |
//! | [`cell`], [`floor`], [`lazy`] | one measurement |
//! | [`oo7`] | figure 12: OO7 in databases on a disk, and on remote memory |
//! | [`facts`] | statements of the paper |
//! | [`claims`], `originals` | claims of the paper, results of the original, bounds of netram, judged by the
//! measurements |
//! | [`output`], [`csv`], [`plot`], [`page`], [`commentary`], [`markdown`] | files for programs and people |

pub mod cell;
pub mod claims;
pub mod commentary;
pub mod csv;
mod document;
pub mod experiment;
pub mod facts;
pub mod floor;
pub mod lazy;
pub mod markdown;
pub mod modelled;
pub mod oo7;
mod originals;
pub mod output;
pub mod page;
pub mod plot;
pub mod system;
pub mod testbed;

use serde::Serialize;

use crate::curves::{self, CurvePoint};
use crate::error::BenchError;
use crate::machine::MachineInfo;
use crate::namespaces::NamespacePair;
use crate::sql_stores::SqlStoreReport;
use crate::testbed::Testbed;
use cell::Tr190Cell;
use claims::Tr190Claim;
use experiment::{TR190, Tr190Axis, Tr190Effort, Tr190Experiment};
use facts::Tr190Facts;
use floor::Tr190Floors;
use lazy::NoFlushRow;
use system::{FloorKind, MemberLink, Tr190Disk, Tr190Series};
use testbed::Tr190Testbed;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct Tr190Plan {
    /// Numbers of the figures; empty for all.
    pub figures: Vec<u8>,
    /// Extent of each figure.
    pub effort: Tr190Effort,
}

/// Progress of a run.
#[derive(Debug)]
pub enum Tr190Progress<'a> {
    /// Number of cells that will be measured.
    Cells(usize),
    /// The next cell.
    Cell {
        /// Number of the figure, 0 for no-flush commits.
        figure: u8,
        /// The cell in words.
        what: &'a str,
    },
    /// A measurement that is impossible here, with the reason.
    Skipped(&'a str),
}

/// Results of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Tr190Report {
    /// The measuring machine.
    pub machine: MachineInfo,
    /// Extent of the run.
    pub effort: Tr190Effort,
    /// Skipped measurements, each with its reason.
    pub skipped: Vec<String>,
    /// The figures but the last one.
    pub figures: Vec<Tr190Figure>,
    /// Figure 12, if it was asked for.
    pub oo7: Option<SqlStoreReport>,
    /// No-flush commits.
    pub no_flush: Vec<NoFlushRow>,
    /// Claims, and whether they hold.
    pub claims: Vec<Tr190Claim>,
}

/// A figure's points.
#[derive(Clone, Debug, Serialize)]
pub struct Tr190Figure {
    /// The paper's number.
    pub number: u8,
    /// Title of the figure.
    pub title: &'static str,
    /// Parameter on the x axis.
    pub axis: Tr190Axis,
    /// The measured points, by x value.
    pub points: Vec<Tr190Point>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tr190Point {
    /// The curve of this point.
    pub series: Tr190Series,
    /// The point's x value, in the axis's unit.
    pub x: u64,
    /// Transactions per second: of one pair if the axis is pairs, otherwise of all clients.
    pub tps: f64,
    /// Number of measured transactions, over all rounds.
    pub transactions: u64,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// The longest of any round, in microseconds.
    pub max_us: f64,
    /// Number of commits that waited because the log was full, over all rounds.
    pub full_stalls: u64,
    /// Median in microseconds of the series' floor, measured in the same rounds.
    pub floor_us: Option<f64>,
}

impl CurvePoint for Tr190Point {
    type Curve = Tr190Series;

    fn curve(&self) -> Tr190Series {
        self.series
    }

    fn x(&self) -> u64 {
        self.x
    }
}

impl Tr190Figure {
    /// The curves, in the order of measurement.
    pub fn series(&self) -> Vec<Tr190Series> {
        curves::curves(&self.points)
    }

    /// The x values in order.
    pub fn x_values(&self) -> Vec<u64> {
        curves::x_values(&self.points)
    }

    /// The point of a curve at `x`.
    pub fn at(&self, series: Tr190Series, x: u64) -> Option<&Tr190Point> {
        curves::at(&self.points, series, x)
    }
}

/// Runs what `plan` describes; `tell` gets each cell before it is measured.
///
/// # Errors
///
/// Fails if there is no such figure, or a measurement fails.
pub fn measure(
    site: &Testbed,
    plan: &Tr190Plan,
    tell: &mut dyn FnMut(Tr190Progress<'_>),
) -> Result<Tr190Report, BenchError> {
    let facts = Tr190Facts::tr190()?;
    let machine = MachineInfo::probe();
    let wanted = experiments(&plan.figures)?;
    let mut skipped = Vec::new();
    let network = match NamespacePair::new() {
        Ok(network) => Some(network),
        Err(error) => {
            skipped.push(format!(
                "TCP between network namespaces is not measured: {error}. It needs root and iproute2"
            ));
            None
        }
    };
    for reason in &skipped {
        tell(Tr190Progress::Skipped(reason));
    }
    let namespaces = network.is_some();
    let cells = wanted
        .iter()
        .map(|experiment| cells_of(experiment, namespaces, plan.effort));
    let with_oo7 = plan.figures.is_empty() || plan.figures.contains(&oo7::NUMBER);
    let oo7_cells = if with_oo7 { oo7::cells(plan.effort) } else { 0 };
    tell(Tr190Progress::Cells(
        cells.sum::<usize>() + oo7_cells + lazy::CELLS,
    ));
    let mut figures = Vec::new();
    for experiment in &wanted {
        figures.push(measure_figure(
            site,
            network.as_ref(),
            experiment,
            plan.effort,
            tell,
        )?);
    }
    let oo7 = with_oo7
        .then(|| oo7::measure(site, plan.effort, tell))
        .transpose()?;
    let no_flush = lazy::measure(Tr190Testbed::new(site, None), plan.effort, tell)?;
    let mut claims = claims::judge(&facts, &figures, &no_flush);
    claims.extend(oo7.iter().flat_map(|report| oo7::claims(report, &facts)));
    Ok(Tr190Report {
        machine,
        effort: plan.effort,
        skipped,
        figures,
        oo7,
        no_flush,
        claims,
    })
}

fn experiments(numbers: &[u8]) -> Result<Vec<Tr190Experiment>, BenchError> {
    if let Some(unknown) = numbers
        .iter()
        .find(|number| **number != oo7::NUMBER && !TR190.iter().any(|known| known.number == **number))
    {
        return Err(BenchError::InvalidRequest(format!(
            "figure {unknown} of TR-190 is not measured; choose among 1 to {}",
            oo7::NUMBER
        )));
    }
    let chosen = TR190
        .iter()
        .filter(|known| numbers.is_empty() || numbers.contains(&known.number));
    Ok(chosen.copied().collect())
}

fn cells_of(experiment: &Tr190Experiment, namespaces: bool, effort: Tr190Effort) -> usize {
    let series = experiment.series(namespaces, effort.quick).len();
    series * experiment.measured_x_values(effort).len() * effort.rounds
}

fn measure_figure(
    site: &Testbed,
    network: Option<&NamespacePair>,
    experiment: &Tr190Experiment,
    effort: Tr190Effort,
    tell: &mut dyn FnMut(Tr190Progress<'_>),
) -> Result<Tr190Figure, BenchError> {
    let mut stage = Tr190Testbed::new(site, network);
    let mut floors = Tr190Floors::new(site);
    let all = experiment.series(network.is_some(), effort.quick);
    let places = experiment.measured_x_values(effort);
    let measured = curves::interleaved(effort.rounds, places, all.len(), |turn| {
        let series = all[turn.curve];
        let what = format!(
            "{} {}, {}, round {} of {}",
            experiment.axis.unit(),
            turn.x,
            series.label(),
            turn.round + 1,
            effort.rounds
        );
        tell(Tr190Progress::Cell {
            figure: experiment.number,
            what: &what,
        });
        match series {
            Tr190Series::System(system) => cell::measure(&mut stage, system, experiment.load(turn.x), effort),
            Tr190Series::Floor(floor) => floors.measure(floor, turn.x, effort),
        }
    })?;
    let points = measured.into_iter().map(|point| {
        let cell = Tr190Cell::median(&point.cells);
        self::point(experiment.axis, all[point.curve], point.x, cell)
    });
    let mut figure = Tr190Figure {
        number: experiment.number,
        title: experiment.title,
        axis: experiment.axis,
        points: points.collect(),
    };
    add_floors(&mut figure);
    Ok(figure)
}

fn point(axis: Tr190Axis, series: Tr190Series, x: u64, cell: Tr190Cell) -> Tr190Point {
    let each = if axis == Tr190Axis::Pairs { x as f64 } else { 1.0 };
    Tr190Point {
        series,
        x,
        tps: cell.tps / each,
        transactions: cell.transactions,
        p50_us: cell.p50_us,
        p99_us: cell.p99_us,
        max_us: cell.max_us,
        full_stalls: cell.full_stalls,
        floor_us: None,
    }
}

/// Adds the floor of its commits to each point, where the figure has it.
fn add_floors(figure: &mut Tr190Figure) {
    let floors: Vec<Tr190Point> = figure
        .points
        .iter()
        .filter(|point| matches!(point.series, Tr190Series::Floor(_)))
        .copied()
        .collect();
    for point in &mut figure.points {
        let Tr190Series::System(system) = point.series else {
            continue;
        };
        let (floor, added_us) = match (system.link, system.disk) {
            (MemberLink::Disk, Tr190Disk::Local) => (FloorKind::Sync, 0.0),
            (MemberLink::Disk, Tr190Disk::Modelled) => {
                (FloorKind::Sync, system.sync_delay().as_secs_f64() * 1e6)
            }
            (MemberLink::Tcp | MemberLink::Namespaces, _) => (FloorKind::Exchange, 0.0),
            // The floor was measured over another kind of wire.
            (MemberLink::Unix | MemberLink::Longer(_), _) => continue,
        };
        let below = floors
            .iter()
            .find(|found| found.series == Tr190Series::Floor(floor) && found.x == point.x);
        point.floor_us = below.map(|found| found.p50_us + added_us);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::system::Tr190System;
    use super::*;

    /// A figure whose curves have the given throughputs at the x values.
    pub(crate) fn synthetic_figure(number: u8, curves: &[(Tr190Series, &[(u64, f64)])]) -> Tr190Figure {
        let experiment = TR190[usize::from(number) - 1];
        let points = curves.iter().flat_map(|(series, points)| {
            points.iter().map(|&(x, tps)| Tr190Point {
                series: *series,
                x,
                tps,
                transactions: 100,
                p50_us: 1e6 / tps,
                p99_us: 2e6 / tps,
                max_us: 3e6 / tps,
                full_stalls: 0,
                floor_us: None,
            })
        });
        Tr190Figure {
            number,
            title: experiment.title,
            axis: experiment.axis,
            points: points.collect(),
        }
    }

    #[test]
    fn a_point_gets_the_floor_of_its_own_kind() {
        let rvm = Tr190Series::System(Tr190System::RVM);
        let slow = Tr190Series::System(Tr190System::RVM.on(Tr190Disk::Modelled));
        let tcp = Tr190Series::System(Tr190System::RVM.over(MemberLink::Tcp));
        let unix = Tr190Series::System(Tr190System::RVM.over(MemberLink::Unix));
        let mut figure = synthetic_figure(
            1,
            &[
                (rvm, &[(32, 5_000.0)]),
                (slow, &[(32, 100.0)]),
                (tcp, &[(32, 80_000.0)]),
                (unix, &[(32, 90_000.0)]),
                (Tr190Series::Floor(FloorKind::Sync), &[(32, 10_000.0)]),
                (Tr190Series::Floor(FloorKind::Exchange), &[(32, 100_000.0)]),
            ],
        );
        add_floors(&mut figure);
        let floor = |series| figure.at(series, 32).unwrap().floor_us;
        assert_eq!(floor(rvm), Some(100.0));
        assert_eq!(floor(slow), Some(8_100.0));
        assert_eq!(floor(tcp), Some(10.0));
        assert_eq!(floor(unix), None);
    }

    #[test]
    fn pairs_show_each_pair_and_clients_the_total() {
        let series = Tr190Series::System(Tr190System::RVM);
        let cell = Tr190Cell {
            tps: 400.0,
            ..Tr190Cell::default()
        };
        assert_eq!(point(Tr190Axis::Pairs, series, 4, cell).tps, 100.0);
        assert_eq!(point(Tr190Axis::Clients, series, 4, cell).tps, 400.0);
    }

    #[test]
    fn an_unknown_figure_is_refused_by_number() {
        assert!(
            experiments(&[1, 13])
                .unwrap_err()
                .to_string()
                .contains("figure 13")
        );
        assert_eq!(experiments(&[]).unwrap().len(), 11);
        assert_eq!(experiments(&[9, 4]).unwrap()[0].number, 4);
        assert!(
            experiments(&[oo7::NUMBER]).unwrap().is_empty(),
            "it is measured apart"
        );
    }
}
