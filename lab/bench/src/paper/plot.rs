//! A figure as a picture: SVG without an embedded font, and PNG.
//!
//! X values are evenly spaced, because the papers roughly double them. Throughput is on a logarithmic axis,
//! because the paper's systems and today's are three decades apart. Colour shows the link, dashes the
//! modelled disk, crosses the paper.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::facts::Tr190Facts;
use super::raster::RasterImage;
use super::system::{FloorKind, MemberLink, Tr190Disk, Tr190Series};
use super::{Tr190Axis, Tr190Figure};
use crate::error::{BenchError, ErrorContext};

const WIDTH: u32 = 1080;
const HEIGHT: u32 = 520;
/// Width in pixels of the legend on the right.
const LEGEND: u32 = 360;
/// PNG pixels for each SVG pixel: dotted letters need them.
const PNG_SCALE: u32 = 2;
const TEXT_PIXELS: u32 = 15;
const TITLE_PIXELS: u32 = 19;
/// Height in pixels of a line of the legend.
const LEGEND_LINE: u32 = 22;

/// Input of a drawing.
pub(crate) struct CurvePlot {
    pub(crate) title: String,
    /// Labels of the axes, with units.
    pub(crate) across: String,
    pub(crate) upwards: String,
    pub(crate) curves: Vec<PlotCurve>,
}

/// A curve, measured or the paper's.
pub(crate) struct PlotCurve {
    pub(crate) label: String,
    pub(crate) style: CurveStyle,
    pub(crate) points: Vec<(u64, f64)>,
}

/// Style of a curve.
#[derive(Clone, Copy)]
pub(crate) struct CurveStyle {
    pub(crate) colour: RGBColor,
    pub(crate) dashed: bool,
    pub(crate) mark: PointMark,
}

/// Mark of a curve's points.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PointMark {
    Dot,
    Triangle,
    Cross,
    None,
}

/// The figure as SVG, a whole `<svg>` element.
///
/// # Errors
///
/// Fails if the drawing does.
pub fn svg(figure: &Tr190Figure, facts: &Tr190Facts) -> Result<String, BenchError> {
    picture(figure, facts).svg()
}

/// The drawing's input for a figure.
pub(crate) fn picture(figure: &Tr190Figure, facts: &Tr190Facts) -> CurvePlot {
    CurvePlot {
        title: format!("Figure {}: {}", figure.number, figure.title),
        across: figure.axis.name().to_owned(),
        upwards: "transactions a second".to_owned(),
        curves: curves(figure, facts),
    }
}

impl CurvePlot {
    pub(crate) fn svg(&self) -> Result<String, BenchError> {
        let mut text = String::new();
        draw(
            SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area(),
            self,
            1,
        )?;
        Ok(text)
    }

    pub(crate) fn png(&self) -> Result<Vec<u8>, BenchError> {
        let mut raster = RasterImage::new(WIDTH * PNG_SCALE, HEIGHT * PNG_SCALE);
        draw((&mut raster).into_drawing_area(), self, PNG_SCALE)?;
        raster.png()
    }
}

fn draw<B: DrawingBackend>(
    area: DrawingArea<B, Shift>,
    picture: &CurvePlot,
    scale: u32,
) -> Result<(), BenchError>
where
    B::ErrorType: 'static,
{
    let what = format_args!("draw {}", picture.title);
    area.fill(&WHITE).context(what)?;
    let (left, right) = area.split_horizontally(((WIDTH - LEGEND) * scale) as i32);
    draw_curves(&left, picture, scale).context(what)?;
    draw_legend(&right, &picture.curves, scale).context(what)?;
    area.present().context(what)
}

type DrawError<B> = DrawingAreaErrorKind<<B as DrawingBackend>::ErrorType>;

fn draw_curves<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    picture: &CurvePlot,
    scale: u32,
) -> Result<(), DrawError<B>> {
    let curves = &picture.curves[..];
    let places = x_values(curves);
    let last = places.len().saturating_sub(1) as i32;
    let (least, most) = decades(curves);
    let mut chart = ChartBuilder::on(area)
        .margin(12 * scale)
        .caption(&picture.title, ("sans-serif", TITLE_PIXELS * scale))
        .x_label_area_size(44 * scale)
        .y_label_area_size(76 * scale)
        .build_cartesian_2d(-0.4..f64::from(last) + 0.4, (least..most).log_scale())?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(0)
        .y_desc(&picture.upwards)
        .y_label_formatter(&|tps| thousands(*tps))
        .label_style(("sans-serif", TEXT_PIXELS * scale))
        .axis_desc_style(("sans-serif", TEXT_PIXELS * scale))
        .light_line_style(RGBColor(238, 238, 238))
        .bold_line_style(RGBColor(205, 205, 205))
        .draw()?;
    let at = |place: u64| places.partition_point(|known| *known < place) as f64;
    for curve in curves {
        let points: Vec<(f64, f64)> = curve.points.iter().map(|&(x, tps)| (at(x), tps)).collect();
        let style = curve.style.colour.stroke_width(2 * scale);
        if curve.style.dashed {
            let line = DashedLineSeries::new(points.iter().copied(), 6 * scale, 4 * scale, style);
            chart.draw_series(line)?;
        } else {
            chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        }
        for point in points {
            let (x, y) = chart.backend_coord(&point);
            let (left, top) = area.get_base_pixel();
            draw_mark(area, (x - left, y - top), curve.style, scale)?;
        }
    }
    let style = ("sans-serif", TEXT_PIXELS * scale)
        .into_text_style(area)
        .pos(Pos::new(HPos::Center, VPos::Top));
    let (left, top) = area.get_base_pixel();
    for (index, place) in places.iter().enumerate() {
        let (x, y) = chart.backend_coord(&(index as f64, least));
        let text = thousands(*place as f64);
        area.draw_text(&text, &style, (x - left, y - top + 6 * scale as i32))?;
    }
    let (x, y) = chart.backend_coord(&(f64::from(last) / 2.0, least));
    let below = y - top + 26 * scale as i32;
    area.draw_text(&picture.across, &style, (x - left, below))
}

fn draw_legend<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    curves: &[PlotCurve],
    scale: u32,
) -> Result<(), DrawError<B>> {
    let style = ("sans-serif", TEXT_PIXELS * scale)
        .into_text_style(area)
        .pos(Pos::new(HPos::Left, VPos::Center));
    let line = |at: usize| ((48 + at as u32 * LEGEND_LINE) * scale) as i32;
    let pixel = |x: u32| (x * scale) as i32;
    for (index, curve) in curves.iter().enumerate() {
        let y = line(index);
        let stroke = curve.style.colour.stroke_width(2 * scale);
        let pieces: &[(u32, u32)] = match (curve.style.mark, curve.style.dashed) {
            (PointMark::Cross, _) => &[],
            (_, true) => &[(0, 8), (12, 20), (24, 30)],
            (_, false) => &[(0, 30)],
        };
        for &(from, to) in pieces {
            area.draw(&PathElement::new(vec![(pixel(from), y), (pixel(to), y)], stroke))?;
        }
        draw_mark(area, (pixel(15), y), curve.style, scale)?;
        area.draw_text(&curve.label, &style, (pixel(38), y))?;
    }
    Ok(())
}

fn draw_mark<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    at: (i32, i32),
    look: CurveStyle,
    scale: u32,
) -> Result<(), DrawError<B>> {
    match look.mark {
        PointMark::Dot => area.draw(&Circle::new(at, 3 * scale, look.colour.filled())),
        PointMark::Triangle => area.draw(&TriangleMarker::new(at, 5 * scale, look.colour.filled())),
        PointMark::Cross => area.draw(&Cross::new(at, 5 * scale, look.colour.stroke_width(2 * scale))),
        PointMark::None => Ok(()),
    }
}

/// Measured curves, then the paper's.
fn curves(figure: &Tr190Figure, facts: &Tr190Facts) -> Vec<PlotCurve> {
    let ours = figure.series().into_iter().map(|series| PlotCurve {
        label: series.label(),
        style: style_of(series),
        points: figure
            .points
            .iter()
            .filter(|point| point.series == series)
            .map(|point| (point.x, point.tps))
            .collect(),
    });
    const PAPERS: [RGBColor; 3] = [
        RGBColor(110, 70, 30),
        RGBColor(170, 110, 40),
        RGBColor(215, 165, 90),
    ];
    let papers = facts
        .series(figure.number)
        .zip(PAPERS)
        .map(|(stated, colour)| PlotCurve {
            label: format!("TR-190: {}", stated.name),
            style: CurveStyle {
                colour,
                dashed: true,
                mark: PointMark::Cross,
            },
            points: stated.points().collect(),
        });
    ours.chain(papers).collect()
}

fn style_of(series: Tr190Series) -> CurveStyle {
    let (colour, dashed, mark) = match series {
        Tr190Series::Floor(FloorKind::Sync) => (RGBColor(120, 120, 120), true, PointMark::None),
        Tr190Series::Floor(FloorKind::Exchange) => (RGBColor(60, 60, 60), true, PointMark::None),
        Tr190Series::System(system) => {
            let colour = match system.link {
                MemberLink::Disk => RGBColor(200, 40, 40),
                MemberLink::Unix => RGBColor(40, 140, 60),
                MemberLink::Tcp => RGBColor(30, 90, 200),
                MemberLink::Namespaces => RGBColor(130, 50, 170),
                MemberLink::Longer(us) => RGBColor(20, 150 - us.min(100) as u8, 170),
            };
            let modelled = system.disk == Tr190Disk::Modelled;
            (
                colour,
                modelled,
                if modelled {
                    PointMark::Triangle
                } else {
                    PointMark::Dot
                },
            )
        }
    };
    CurveStyle { colour, dashed, mark }
}

/// Every x value of any curve, in order.
fn x_values(curves: &[PlotCurve]) -> Vec<u64> {
    let points = curves.iter().flat_map(|curve| &curve.points);
    let mut places: Vec<u64> = points.map(|(x, _)| *x).collect();
    places.sort_unstable();
    places.dedup();
    places
}

/// Whole powers of ten around all throughputs.
fn decades(curves: &[PlotCurve]) -> (f64, f64) {
    let tps = || curves.iter().flat_map(|curve| &curve.points).map(|(_, tps)| *tps);
    let least = tps().fold(f64::INFINITY, f64::min).max(1e-3);
    let most = tps().fold(0.0, f64::max).max(least);
    (
        10_f64.powf(least.log10().floor()),
        10_f64.powf(most.log10().floor() + 1.0),
    )
}

/// A whole number with separated thousands.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value);
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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

    fn figure() -> Tr190Figure {
        let rvm = Tr190Series::System(Tr190System::RVM);
        let tcp = Tr190Series::System(Tr190System::RVM.over(MemberLink::Tcp).on(Tr190Disk::Modelled));
        let curve: &[(u64, f64)] = &[(32, 9_000.0), (1024, 5_000.0)];
        synthetic_figure(9, &[(rvm, curve), (tcp, &[(32, 80_000.0), (1024, 79_000.0)])])
    }

    #[test]
    fn the_svg_names_every_curve_and_x_value() {
        let svg = svg(&figure(), &Tr190Facts::tr190().unwrap()).unwrap();
        assert!(
            svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"),
            "{svg}"
        );
        for text in [
            "RVM",
            "RRVM, TCP, MODELLED disk",
            "TR-190: RRVM, FDDI",
            "1,024",
            "512",
            "Figure 9",
        ] {
            assert!(svg.contains(text), "{text}");
        }
        // Two measured curves as marks, three of the paper.
        assert!(svg.matches("<circle").count() >= 2);
    }

    #[test]
    fn the_png_has_its_size_and_is_not_empty() {
        let bytes = picture(&figure(), &Tr190Facts::tr190().unwrap()).png().unwrap();
        let mut reader = png_reader(&bytes);
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((frame.width, frame.height), (2160, 1040));
        let red = pixels.chunks(3).filter(|pixel| **pixel == [200, 40, 40]).count();
        assert!(red > 100, "RVM's curve is there: {red}");
    }

    fn png_reader(bytes: &[u8]) -> ::png::Reader<std::io::Cursor<&[u8]>> {
        ::png::Decoder::new(std::io::Cursor::new(bytes))
            .read_info()
            .unwrap()
    }

    #[test]
    fn the_axis_spans_whole_decades_around_every_point() {
        let curves = curves(&figure(), &Tr190Facts::tr190().unwrap());
        assert_eq!(decades(&curves), (10.0, 100_000.0));
        assert_eq!(x_values(&curves), [32, 128, 512, 1024]);
        assert_eq!(thousands(1_234_567.0), "1,234,567");
    }
}
