//! Figures and tables of LND as pictures. Colour shows the network, dashes the protocol that waits for any
//! lender, hollow marks the paper.

use super::facts::LndFacts;
use super::system::{LenderNetwork, LndSystem};
use super::{LndFigure, LndReport};
use crate::plot::{
    BarGroup, BarPlot, BarRow, CurvePlot, CurveStyle, PlotColour, PlotCurve, PlotFigure, PointMark,
};

/// Figures 3 to 6.
pub(super) fn picture(figure: &LndFigure) -> PlotFigure {
    let curve = |system: LndSystem| PlotCurve {
        label: system.label().to_owned(),
        style: style_of(system),
        points: figure
            .points
            .iter()
            .filter(|point| point.system == system)
            .map(|point| (point.x, point.written.kb_per_second))
            .collect(),
    };
    PlotFigure::Curves(CurvePlot {
        title: format!("LND, figure {}: {}", figure.number, figure.title),
        across: figure.axis.to_owned(),
        upwards: "KB a second written".to_owned(),
        curves: figure.systems().into_iter().map(curve).collect(),
    })
}

fn style_of(system: LndSystem) -> CurveStyle {
    let (dashed, mark) = match system {
        LndSystem::Disk => (false, PointMark::Dot),
        LndSystem::Modelled => (true, PointMark::Triangle),
        LndSystem::InProgram => (true, PointMark::Square),
        LndSystem::Volume(kept) if kept.all => (false, PointMark::Dot),
        LndSystem::Volume(_) => (true, PointMark::Triangle),
    };
    CurveStyle {
        colour: colour(system),
        dashed,
        mark,
    }
}

fn colour(system: LndSystem) -> PlotColour {
    match system {
        LndSystem::Disk | LndSystem::Modelled => PlotColour::Vermilion,
        LndSystem::InProgram => PlotColour::Ink,
        LndSystem::Volume(kept) => match (kept.network, kept.twice) {
            (LenderNetwork::Tcp, false) => PlotColour::Blue,
            (LenderNetwork::Tcp, true) => PlotColour::Gold,
            (LenderNetwork::Multicast, _) => PlotColour::Green,
            (LenderNetwork::Link, _) => PlotColour::Purple,
        },
    }
}

/// A group for each of the operations, which are columns of the rows.
fn bars(title: String, operations: &[(&str, usize)], rows: &[(LndSystem, [f64; 4])]) -> BarPlot {
    let row = |(system, values): &(LndSystem, [f64; 4]), column: usize| BarRow {
        label: system.label().to_owned(),
        colour: colour(*system),
        value: Some(values[column]),
        mark: None,
    };
    let group = |&(name, column): &(&str, usize)| BarGroup {
        name: name.to_owned(),
        rows: rows.iter().map(|each| row(each, column)).collect(),
    };
    BarPlot {
        title,
        across: "operations a second".to_owned(),
        key: None,
        groups: operations.iter().map(group).collect(),
    }
}

/// Table 2, with the paper's devices below those of here.
pub(super) fn table(report: &LndReport, facts: &LndFacts) -> PlotFigure {
    let operations = [
        ("insert", 0),
        ("create table", 1),
        ("drop table", 2),
        ("create and drop", 3),
    ];
    let rows: Vec<(LndSystem, [f64; 4])> = { report.table.iter() }
        .map(|(system, done)| (*system, done.all()))
        .collect();
    let version = report.database.as_deref().unwrap_or("a database");
    let mut plot = bars(format!("LND, table 2: {version} on ext4"), &operations, &rows);
    let words = "LND, table 2, on the paper's machines".to_owned();
    plot.key = Some((PointMark::Diamond, PlotColour::Stated, words));
    for (group, (_, column)) in plot.groups.iter_mut().zip(operations) {
        group.rows.extend(facts.table.iter().map(|stated| BarRow {
            label: format!("the paper: {}", stated.name),
            colour: PlotColour::Stated,
            value: None,
            mark: Some(stated.per_second[column]),
        }));
    }
    PlotFigure::Bars(plot)
}

/// PostgreSQL's transactions.
pub(super) fn postgres(report: &LndReport) -> PlotFigure {
    let rows: Vec<(LndSystem, [f64; 4])> = { report.transactions.iter() }
        .map(|(system, done)| (*system, done.all()))
        .collect();
    let version = report.postgres.as_deref().unwrap_or_default();
    let title = format!("Not in the paper: pgbench on {version} on ext4");
    let clients = [("one client", 0), ("eight clients", 2)];
    let plot = bars(title, &clients, &rows);
    PlotFigure::Bars(BarPlot {
        across: "transactions a second".to_owned(),
        ..plot
    })
}
