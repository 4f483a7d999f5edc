//! The experiments of TR-190, "On using Network Memory to Improve the Performance of Transaction-Based Systems", figures
//! 1 to 11: recoverable memory whose commits wait for a disk (the paper's RVM), and whose commits wait for another
//! process's memory (its RRVM).
//!
//! Each figure is a table of cells: a system, a place on the x axis, measured in rounds. Within a round and a place the
//! systems take turns, so that a disturbance hits all of them. What is set up how, and what differs from the paper:
//! `docs/paper.md`.
//!
//! | module | does |
//! |---|---|
//! | [`experiment`] | the figures: what is varied, what is run |
//! | [`system`] | the systems and floors compared |
//! | [`stage`], [`namespaces`], [`modelled`] | lenders, files, the network in between, the slow disk |
//! | [`cell`], [`floor`], [`lazy`] | one measurement |
//! | [`facts`] | what the paper states |
//! | [`claims`], `originals` | what the paper claims, the original did and netram holds, judged on what was measured |
//! | [`output`], [`csv`], [`plot`], [`raster`], [`glyphs`], [`page`], [`words`], [`markdown`] | files for programs and people |

pub mod cell;
pub mod claims;
pub mod csv;
pub mod experiment;
pub mod facts;
pub mod floor;
pub mod glyphs;
pub mod lazy;
pub mod markdown;
pub mod modelled;
mod originals;
pub mod output;
pub mod page;
pub mod plot;
pub mod raster;
pub mod stage;
pub mod system;
pub mod words;

use serde::Serialize;

use crate::curves::{self, OnCurve};
use crate::error::BenchError;
use crate::machine::Machine;
use crate::namespaces::Namespaces;
use crate::site::Site;
use cell::Cell;
use claims::Claim;
use experiment::{Axis, Effort, Experiment, TR190};
use facts::Facts;
use floor::Floors;
use lazy::NoFlush;
use stage::Stage;
use system::{Disk, Floor, Link, Series};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Numbers of the figures; none: all.
    pub figures: Vec<u8>,
    /// How much of each.
    pub effort: Effort,
}

/// What whoever watches is told.
#[derive(Debug)]
pub enum Step<'a> {
    /// So many cells will be measured.
    Cells(usize),
    /// This one is next.
    Cell {
        /// The figure, 0 for commits that do not wait.
        figure: u8,
        /// What is measured.
        what: &'a str,
    },
    /// Something cannot be measured here.
    Skipped(&'a str),
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// How much.
    pub effort: Effort,
    /// What could not be measured, and why.
    pub skipped: Vec<String>,
    /// The figures.
    pub figures: Vec<Figure>,
    /// Commits that do not wait.
    pub no_flush: Vec<NoFlush>,
    /// What was claimed, and whether it holds.
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
    pub axis: Axis,
    /// What was measured, place by place.
    pub points: Vec<Point>,
}

/// A point of a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Whose curve.
    pub series: Series,
    /// Where, in the axis's unit.
    pub x: u64,
    /// Transactions a second: of each pair where the axis is pairs, of all together elsewhere.
    pub tps: f64,
    /// Transactions measured, over all rounds.
    pub transactions: u64,
    /// Half of them took at most this, in microseconds.
    pub p50_us: f64,
    /// 99 of 100 took at most this.
    pub p99_us: f64,
    /// The longest of a round.
    pub max_us: f64,
    /// Commits that waited because the log was full, over all rounds.
    pub full_stalls: u64,
    /// The median of the floor that belongs to the series, measured in the same rounds.
    pub floor_us: Option<f64>,
}

impl OnCurve for Point {
    type Curve = Series;

    fn curve(&self) -> Series {
        self.series
    }

    fn place(&self) -> u64 {
        self.x
    }
}

impl Figure {
    /// The curves, in the order of measurement.
    pub fn series(&self) -> Vec<Series> {
        curves::curves(&self.points)
    }

    /// The places, in order.
    pub fn places(&self) -> Vec<u64> {
        curves::places(&self.points)
    }

    /// A point of a curve.
    pub fn at(&self, series: Series, x: u64) -> Option<&Point> {
        curves::at(&self.points, series, x)
    }
}

/// Measures what `plan` asks for; `tell` hears of each cell before it is measured.
pub fn measure(site: &Site, plan: &Plan, tell: &mut dyn FnMut(Step<'_>)) -> Result<Report, BenchError> {
    let facts = Facts::tr190()?;
    let machine = Machine::look();
    let wanted = experiments(&plan.figures)?;
    let mut skipped = Vec::new();
    let network = match Namespaces::new() {
        Ok(network) => Some(network),
        Err(error) => {
            skipped.push(format!(
                "TCP between network namespaces is not measured: {error}. It needs root and iproute2"
            ));
            None
        }
    };
    for reason in &skipped {
        tell(Step::Skipped(reason));
    }
    let namespaces = network.is_some();
    let cells = wanted
        .iter()
        .map(|experiment| cells_of(experiment, namespaces, plan.effort));
    tell(Step::Cells(cells.sum::<usize>() + lazy::CELLS));
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
    let no_flush = lazy::measure(Stage::new(site, None), plan.effort, tell)?;
    let claims = claims::judge(&facts, &figures, &no_flush);
    Ok(Report {
        machine,
        effort: plan.effort,
        skipped,
        figures,
        no_flush,
        claims,
    })
}

fn experiments(numbers: &[u8]) -> Result<Vec<Experiment>, BenchError> {
    if let Some(unknown) = numbers
        .iter()
        .find(|number| !TR190.iter().any(|known| known.number == **number))
    {
        return Err(BenchError::Asked(format!(
            "figure {unknown} of TR-190 is not measured; choose among 1 to {}",
            TR190.len()
        )));
    }
    let chosen = TR190
        .iter()
        .filter(|known| numbers.is_empty() || numbers.contains(&known.number));
    Ok(chosen.copied().collect())
}

fn cells_of(experiment: &Experiment, namespaces: bool, effort: Effort) -> usize {
    let series = experiment.series(namespaces, effort.quick).len();
    series * experiment.measured(effort).len() * effort.rounds
}

fn measure_figure(
    site: &Site,
    network: Option<&Namespaces>,
    experiment: &Experiment,
    effort: Effort,
    tell: &mut dyn FnMut(Step<'_>),
) -> Result<Figure, BenchError> {
    let mut stage = Stage::new(site, network);
    let mut floors = Floors::new(site);
    let all = experiment.series(network.is_some(), effort.quick);
    let places = experiment.measured(effort);
    let measured = curves::in_turns(effort.rounds, places, all.len(), |turn| {
        let series = all[turn.curve];
        let what = format!(
            "{} {}, {}, round {} of {}",
            experiment.axis.unit(),
            turn.place,
            series.label(),
            turn.round + 1,
            effort.rounds
        );
        tell(Step::Cell {
            figure: experiment.number,
            what: &what,
        });
        match series {
            Series::System(system) => cell::measure(&mut stage, system, experiment.load(turn.place), effort),
            Series::Floor(floor) => floors.measure(floor, turn.place, effort),
        }
    })?;
    let points = measured.into_iter().map(|point| {
        let cell = Cell::median(&point.cells);
        self::point(experiment.axis, all[point.curve], point.place, cell)
    });
    let mut figure = Figure {
        number: experiment.number,
        title: experiment.title,
        axis: experiment.axis,
        points: points.collect(),
    };
    add_floors(&mut figure);
    Ok(figure)
}

fn point(axis: Axis, series: Series, x: u64, cell: Cell) -> Point {
    let each = if axis == Axis::Pairs { x as f64 } else { 1.0 };
    Point {
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

/// Puts beside each point the floor that its commits stand on, where the figure has it.
fn add_floors(figure: &mut Figure) {
    let floors: Vec<Point> = figure
        .points
        .iter()
        .filter(|point| matches!(point.series, Series::Floor(_)))
        .copied()
        .collect();
    for point in &mut figure.points {
        let Series::System(system) = point.series else {
            continue;
        };
        let (floor, added_us) = match (system.link, system.disk) {
            (Link::Disk, Disk::Local) => (Floor::Sync, 0.0),
            (Link::Disk, Disk::Modelled) => (Floor::Sync, system.sync_delay().as_secs_f64() * 1e6),
            (Link::Tcp | Link::Namespaces, _) => (Floor::Exchange, 0.0),
            // The floor was measured over another kind of wire.
            (Link::Unix | Link::Longer(_), _) => continue,
        };
        let below = floors
            .iter()
            .find(|found| found.series == Series::Floor(floor) && found.x == point.x);
        point.floor_us = below.map(|found| found.p50_us + added_us);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::system::System;
    use super::*;

    /// A figure whose curves have the given throughputs at the places.
    pub(crate) fn made_up(number: u8, curves: &[(Series, &[(u64, f64)])]) -> Figure {
        let experiment = TR190[usize::from(number) - 1];
        let points = curves.iter().flat_map(|(series, points)| {
            points.iter().map(|&(x, tps)| Point {
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
        Figure {
            number,
            title: experiment.title,
            axis: experiment.axis,
            points: points.collect(),
        }
    }

    #[test]
    fn a_point_stands_on_the_floor_of_its_own_kind() {
        let rvm = Series::System(System::RVM);
        let slow = Series::System(System::RVM.on(Disk::Modelled));
        let tcp = Series::System(System::RVM.over(Link::Tcp));
        let unix = Series::System(System::RVM.over(Link::Unix));
        let mut figure = made_up(
            1,
            &[
                (rvm, &[(32, 5_000.0)]),
                (slow, &[(32, 100.0)]),
                (tcp, &[(32, 80_000.0)]),
                (unix, &[(32, 90_000.0)]),
                (Series::Floor(Floor::Sync), &[(32, 10_000.0)]),
                (Series::Floor(Floor::Exchange), &[(32, 100_000.0)]),
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
        let series = Series::System(System::RVM);
        let cell = Cell {
            tps: 400.0,
            ..Cell::default()
        };
        assert_eq!(point(Axis::Pairs, series, 4, cell).tps, 100.0);
        assert_eq!(point(Axis::Clients, series, 4, cell).tps, 400.0);
    }

    #[test]
    fn a_figure_that_is_not_there_is_refused_by_number() {
        assert!(
            experiments(&[1, 12])
                .unwrap_err()
                .to_string()
                .contains("figure 12")
        );
        assert_eq!(experiments(&[]).unwrap().len(), 11);
        assert_eq!(experiments(&[9, 4]).unwrap()[0].number, 4);
    }
}
