//! Figures and table 2 of log-based coherency as pictures. Colour shows the way of finding changes, dashes
//! the kernel's notes, hollow marks the paper.

use super::costs::OsdiCost;
use super::facts::OsdiFacts;
use super::recoverability::OsdiColumn;
use super::traversals::OsdiBar;
use super::{OsdiCurve, OsdiFigure, OsdiReport};
use crate::curves;
use crate::plot::{
    BarGroup, BarPlot, BarRow, CurvePlot, CurveStyle, PlotColour, PlotCurve, PlotFigure, PointMark,
};

/// Figures 4 to 7.
pub(super) fn picture(figure: &OsdiFigure) -> PlotFigure {
    let curve = |curve: OsdiCurve| PlotCurve {
        label: curve.label().to_owned(),
        style: style_of(curve),
        points: figure
            .points
            .iter()
            .filter(|point| point.curve == curve)
            .map(|point| (point.x, point.value))
            .collect(),
    };
    PlotFigure::Curves(CurvePlot {
        title: format!("OSDI 1994, figure {}: {}", figure.number, figure.title),
        across: figure.axis.to_owned(),
        upwards: figure.unit.replace("us ", "µs "),
        curves: curves::curves(&figure.points).into_iter().map(curve).collect(),
    })
}

fn style_of(curve: OsdiCurve) -> CurveStyle {
    let (dashed, mark) = match curve {
        OsdiCurve::Adaptive => (true, PointMark::None),
        OsdiCurve::CompareWatch | OsdiCurve::PageWatch => (true, PointMark::Triangle),
        _ => (false, PointMark::Dot),
    };
    CurveStyle {
        colour: colour(curve),
        dashed,
        mark,
    }
}

fn colour(curve: OsdiCurve) -> PlotColour {
    match curve {
        OsdiCurve::Log | OsdiCurve::Unordered => PlotColour::Blue,
        OsdiCurve::Ordered => PlotColour::Green,
        OsdiCurve::Redundant => PlotColour::Grey,
        OsdiCurve::Adaptive => PlotColour::Ink,
        OsdiCurve::CompareTrap | OsdiCurve::CompareWatch => PlotColour::Vermilion,
        OsdiCurve::PageTrap | OsdiCurve::PageWatch => PlotColour::Gold,
    }
}

/// Table 2: a group for each operation, and the paper's value beside the page of its size.
pub(super) fn costs(report: &OsdiReport, facts: &OsdiFacts) -> PlotFigure {
    let group = |cost: &OsdiCost| {
        let [small, large] = cost.us;
        let sized = small.is_some() && large.is_some();
        let stated = facts.cost(cost.id);
        let row = |label: &str, colour, value, mark| BarRow {
            label: label.to_owned(),
            colour,
            value,
            mark,
        };
        let rows = match sized {
            true => vec![
                row("4 KiB", PlotColour::Sky, small, None),
                row("8 KiB", PlotColour::Blue, large, stated),
            ],
            false => vec![row("any size", PlotColour::Blue, large.or(small), stated)],
        };
        BarGroup {
            name: cost.what.to_owned(),
            rows,
        }
    };
    PlotFigure::Bars(BarPlot {
        title: "OSDI 1994, table 2: cost of a page's operations".to_owned(),
        across: "µs".to_owned(),
        key: Some((
            PointMark::Diamond,
            PlotColour::Stated,
            "OSDI 1994, table 2, on an Alpha with pages of 8 KiB (in brackets)".to_owned(),
        )),
        groups: report.costs.iter().map(group).collect(),
    })
}

/// Figures 1 to 3: a group for each traversal.
pub(super) fn traversals(bars: &[OsdiBar], number: u8) -> Option<PlotFigure> {
    let mut groups: Vec<BarGroup> = Vec::new();
    for bar in bars.iter().filter(|bar| bar.figure == number) {
        let name = bar.operation.to_string();
        if groups.last().is_none_or(|group| group.name != name) {
            groups.push(BarGroup {
                name,
                rows: Vec::new(),
            });
        }
        let rows = groups.last_mut().map(|group| &mut group.rows)?;
        rows.push(BarRow {
            label: bar.curve.label().to_owned(),
            colour: colour(bar.curve),
            value: Some(bar.all_us()),
            mark: None,
        });
    }
    (!groups.is_empty()).then(|| {
        PlotFigure::Bars(BarPlot {
            title: format!("OSDI 1994, figure {number}: overhead of OO7's traversals at two nodes"),
            across: "µs to detect, collect, send and apply".to_owned(),
            key: None,
            groups,
        })
    })
}

/// Figure 8.
pub(super) fn columns(report: &OsdiReport) -> PlotFigure {
    let row = |column: &OsdiColumn| BarRow {
        label: column.what.to_owned(),
        colour: PlotColour::Blue,
        value: Some(column.overhead_us),
        mark: None,
    };
    PlotFigure::Bars(BarPlot {
        title: "OSDI 1994, figure 8: coherency and recoverability".to_owned(),
        across: "µs of overhead".to_owned(),
        key: None,
        groups: vec![BarGroup {
            name: "T12-A".to_owned(),
            rows: report.columns.iter().map(row).collect(),
        }],
    })
}
