//! Figures of the paging study as pictures. Colour shows the policy, or in figure 3 the program; hollow marks
//! show the paper.

use super::facts::MascotsFacts;
use super::programs::MascotsWorkload;
use super::{MascotsCurve, MascotsFigure, MascotsPolicy};
use crate::curves::{self, CurvePoint};
use crate::plot::{
    BarGroup, BarPlot, BarRow, CurvePlot, CurveStyle, PlotColour, PlotCurve, PlotFigure, PointMark,
};

/// A figure: bars if its axis has programs.
pub(super) fn picture(figure: &MascotsFigure, facts: &MascotsFacts) -> PlotFigure {
    let title = format!("MASCOTS'96, figure {}: {}", figure.number, figure.title);
    let unit = "cycles of an average reference".to_owned();
    match figure.axis {
        "program" => PlotFigure::Bars(BarPlot {
            title,
            across: unit,
            key: facts.values(figure.number).next().map(|_| {
                let words = "MASCOTS'96, as its text states (in brackets)";
                (PointMark::Diamond, PlotColour::Stated, words.to_owned())
            }),
            groups: programs(figure, facts),
        }),
        axis => PlotFigure::Curves(CurvePlot {
            title,
            across: axis.to_owned(),
            upwards: unit,
            curves: curves(figure),
        }),
    }
}

/// A group for each program.
fn programs(figure: &MascotsFigure, facts: &MascotsFacts) -> Vec<BarGroup> {
    let group = |workload: MascotsWorkload| BarGroup {
        name: workload.name().to_owned(),
        rows: { figure.points.iter() }
            .filter(|point| point.workload == workload)
            .map(|point| BarRow {
                label: point.policy.label().to_owned(),
                colour: colour(point.curve()),
                value: Some(point.cycles),
                mark: facts.cycles(figure.number, workload.name(), point.policy.label()),
            })
            .collect(),
    };
    let groups = MascotsWorkload::ALL.into_iter().map(group);
    groups.filter(|group| !group.rows.is_empty()).collect()
}

fn curves(figure: &MascotsFigure) -> Vec<PlotCurve> {
    let points = &figure.points;
    let curve = |curve: MascotsCurve| PlotCurve {
        label: curve.label().to_owned(),
        style: CurveStyle {
            colour: colour(curve),
            dashed: false,
            mark: PointMark::Dot,
        },
        points: curves::x_values(points)
            .into_iter()
            .filter_map(|place| Some((place, curves::at(points, curve, place)?.cycles)))
            .collect(),
    };
    curves::curves(points).into_iter().map(curve).collect()
}

fn colour(curve: MascotsCurve) -> PlotColour {
    match curve {
        MascotsCurve::Of(MascotsPolicy::Disk) | MascotsCurve::With(MascotsWorkload::Trans) => {
            PlotColour::Vermilion
        }
        MascotsCurve::Of(MascotsPolicy::RamDisk) | MascotsCurve::With(MascotsWorkload::Mvec) => {
            PlotColour::Gold
        }
        MascotsCurve::Of(MascotsPolicy::RemoteMain) | MascotsCurve::With(MascotsWorkload::Gauss) => {
            PlotColour::Green
        }
        MascotsCurve::Of(MascotsPolicy::SoftwareCounters) | MascotsCurve::With(MascotsWorkload::Sort) => {
            PlotColour::Purple
        }
        MascotsCurve::Of(_) => PlotColour::Blue,
        MascotsCurve::With(MascotsWorkload::Verilog) => PlotColour::Grey,
    }
}
