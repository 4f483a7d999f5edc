//! A figure of TR-190 as a picture. Colour shows the link, dashes the modelled disk, hollow marks the paper.

use super::facts::Tr190Facts;
use super::system::{FloorKind, MemberLink, Tr190Disk, Tr190Series};
use super::{Tr190Axis, Tr190Figure};
use crate::plot::{CurvePlot, CurveStyle, PlotColour, PlotCurve, PlotFigure, PointMark, thousands};

/// The drawing's input for a figure.
pub(crate) fn picture(figure: &Tr190Figure, facts: &Tr190Facts) -> PlotFigure {
    let upwards = match figure.axis {
        Tr190Axis::Pairs => "transactions a second, of each pair",
        Tr190Axis::Clients => "transactions a second, of all clients",
        _ => "transactions a second",
    };
    PlotFigure::Curves(CurvePlot {
        title: format!("TR-190, figure {}: {}", figure.number, figure.title),
        across: figure.axis.name().to_owned(),
        upwards: upwards.to_owned(),
        curves: curves(figure, facts),
    })
}

/// Measured curves, then the paper's.
fn curves(figure: &Tr190Figure, facts: &Tr190Facts) -> Vec<PlotCurve> {
    let ours = figure.series().into_iter().map(|series| PlotCurve {
        label: series.label().replace(" us ", " µs "),
        style: style_of(series),
        points: figure
            .points
            .iter()
            .filter(|point| point.series == series)
            .map(|point| (point.x, point.tps))
            .collect(),
    });
    let papers = { facts.series(figure.number).enumerate() }.map(|(index, stated)| PlotCurve {
        label: format!("TR-190: {}", stated.name),
        style: CurveStyle::stated(index),
        points: stated.points().collect(),
    });
    ours.chain(papers).collect()
}

fn style_of(series: Tr190Series) -> CurveStyle {
    let (colour, dashed, mark) = match series {
        Tr190Series::Floor(FloorKind::Sync) => (PlotColour::Grey, true, PointMark::None),
        Tr190Series::Floor(FloorKind::Exchange) => (PlotColour::Ink, true, PointMark::None),
        Tr190Series::System(system) => {
            let colour = match system.link {
                MemberLink::Disk => PlotColour::Vermilion,
                MemberLink::Unix => PlotColour::Green,
                MemberLink::Tcp => PlotColour::Blue,
                MemberLink::Namespaces => PlotColour::Purple,
                MemberLink::Longer(..50) => PlotColour::Sky,
                MemberLink::Longer(..100) => PlotColour::Gold,
                MemberLink::Longer(_) => PlotColour::Grey,
            };
            match system.disk {
                Tr190Disk::Local => (colour, false, PointMark::Dot),
                Tr190Disk::Modelled => (colour, true, PointMark::Triangle),
            }
        }
    };
    CurveStyle { colour, dashed, mark }
}

/// Label of an x value in tables.
pub(super) fn x_label(axis: Tr190Axis, x: u64) -> String {
    match axis {
        Tr190Axis::BlockBytes => format!("{} B", thousands(x as f64)),
        Tr190Axis::LogKb => format!("{} KB", thousands(x as f64)),
        Tr190Axis::Pairs | Tr190Axis::Clients => x.to_string(),
        Tr190Axis::AccountsK => format!("{} K", thousands(x as f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::system::Tr190System;
    use super::super::tests::synthetic_figure;
    use super::*;
    use crate::plot::PlotTheme;

    fn figure() -> Tr190Figure {
        let rvm = Tr190Series::System(Tr190System::RVM);
        let tcp = Tr190Series::System(Tr190System::RVM.over(MemberLink::Tcp).on(Tr190Disk::Modelled));
        let curve: &[(u64, f64)] = &[(32, 9_000.0), (1024, 5_000.0)];
        synthetic_figure(9, &[(rvm, curve), (tcp, &[(32, 80_000.0), (1024, 79_000.0)])])
    }

    #[test]
    fn the_svg_names_every_curve_and_x_value() {
        let svg = picture(&figure(), &Tr190Facts::tr190().unwrap()).svg();
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
            "{svg}"
        );
        for text in [
            ">RVM<",
            "RRVM, TCP, MODELLED disk",
            "TR-190: RRVM, FDDI",
            ">1,024<",
            ">512<",
            "figure 9",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        assert_eq!(
            svg.matches("class=\"curve\"").count(),
            2 + 3,
            "measured ones, the paper's"
        );
    }

    #[test]
    fn pngs_have_their_size_curves_and_both_themes() {
        let picture = picture(&figure(), &Tr190Facts::tr190().unwrap());
        let [light, dark] = [PlotTheme::Light, PlotTheme::Dark].map(|theme| {
            let bytes = picture.png(theme).unwrap();
            resvg::tiny_skia::Pixmap::decode_png(&bytes).unwrap()
        });
        assert_eq!((light.width(), light.height()), (2160, 1120));
        let count = |pixmap: &resvg::tiny_skia::Pixmap, [red, green, blue]: [u8; 3]| {
            let found = pixmap
                .data()
                .chunks(4)
                .filter(|pixel| **pixel == [red, green, blue, 255]);
            found.count()
        };
        assert!(count(&light, [0xcf, 0x4a, 0x00]) > 1000, "RVM's curve is there");
        assert!(count(&dark, [0xff, 0x85, 0x48]) > 1000, "RVM's curve is there");
        assert!(count(&light, [255; 3]) > count(&dark, [255; 3]));
    }
}
