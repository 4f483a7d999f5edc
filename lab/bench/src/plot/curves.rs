//! Curves over a numeric axis. Each has its label at its end, on the right, beside a sample of its line.

use super::axis::PlotAxis;
use super::canvas::{PointMark, SvgCanvas, TextAnchor, TextStyle};
use super::ends;
use super::palette::{PlotColour, PlotTheme};
use super::text::{tick, width};
use super::{MARGIN, TEXT_PIXELS, WIDTH};

const HEIGHT_MIN: f64 = 560.0;
/// Upper edge of the plotted area, below title and axis label.
pub(super) const TOP: f64 = 84.0;
/// Pixels below the plotted area: numbers and the axis label.
const BELOW: f64 = 62.0;
/// Pixels between the plotted area's edges and the first and last point.
pub(super) const PADDING: f64 = 16.0;
/// Pixels between two numbers of the x axis.
const NUMBER_GAP: f64 = 8.0;
const DASHES: &str = "6 4";
const DOTS: &str = "1.5 4";

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
    pub(crate) colour: PlotColour,
    pub(crate) dashed: bool,
    pub(crate) mark: PointMark,
}

impl CurveStyle {
    /// Style of the paper's `index`th curve: hollow marks, which a dotted line connects.
    pub(crate) fn stated(index: usize) -> CurveStyle {
        const MARKS: [PointMark; 3] = [PointMark::Diamond, PointMark::Cross, PointMark::Box];
        CurveStyle {
            colour: PlotColour::Stated,
            dashed: false,
            mark: MARKS[index % MARKS.len()],
        }
    }

    pub(super) fn is_stated(self) -> bool {
        self.colour == PlotColour::Stated
    }

    pub(super) fn draw_line(self, canvas: &mut SvgCanvas, points: &[(f64, f64)]) {
        match (self.is_stated(), self.dashed) {
            (true, _) => canvas.line(points, self.colour, 1.2, DOTS),
            (false, true) => canvas.line(points, self.colour, 2.0, DASHES),
            (false, false) => canvas.line(points, self.colour, 2.0, ""),
        }
    }
}

/// Axes, and the rectangle between them.
pub(super) struct PlotArea {
    left: f64,
    pub(super) right: f64,
    pub(super) bottom: f64,
    across: PlotAxis,
    upwards: PlotAxis,
}

impl PlotArea {
    pub(super) fn place(&self, (x, y): (u64, f64)) -> (f64, f64) {
        (self.x(x), self.y(y))
    }

    fn x(&self, value: u64) -> f64 {
        let inside = self.right - self.left - 2.0 * PADDING;
        self.left + PADDING + self.across.part(value as f64) * inside
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - self.upwards.part(value) * (self.bottom - TOP)
    }
}

impl CurvePlot {
    pub(super) fn drawn(&self, theme: PlotTheme) -> String {
        let area = self.area();
        let height = area.bottom + BELOW;
        let mut canvas = SvgCanvas::new(theme, height, &self.title);
        self.draw_axes(&mut canvas, &area);
        // What the paper states is drawn last, as its marks are few.
        let (stated, measured): (Vec<&PlotCurve>, Vec<&PlotCurve>) =
            self.curves.iter().partition(|curve| curve.style.is_stated());
        for curve in measured.into_iter().chain(stated) {
            canvas.begin("curve", &curve.label);
            draw_curve(&mut canvas, &area, curve);
            canvas.end();
        }
        for end in ends::placed(&self.curves, &area) {
            end.draw(&mut canvas, &area);
        }
        canvas.finish()
    }

    pub(super) fn area(&self) -> PlotArea {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let upwards = PlotAxis::around(points().map(|(_, y)| *y));
        let across = PlotAxis::spanning(points().map(|(x, _)| *x as f64));
        let numbers = { upwards.ticks().into_iter() }
            .filter(|tick| tick.numbered)
            .map(|at| width(&tick(at.value), TEXT_PIXELS));
        let (wide, high) = ends::size(&self.curves);
        PlotArea {
            left: MARGIN + numbers.fold(0.0, f64::max).ceil() + 10.0,
            right: WIDTH - MARGIN - wide,
            bottom: TOP + high.max(HEIGHT_MIN - TOP - BELOW),
            across,
            upwards,
        }
    }

    fn draw_axes(&self, canvas: &mut SvgCanvas, area: &PlotArea) {
        for at in area.upwards.ticks() {
            let y = area.y(at.value);
            let thickness = if at.numbered { 1.2 } else { 0.6 };
            canvas.line(
                &[(area.left, y), (area.right, y)],
                PlotColour::Grid,
                thickness,
                "",
            );
            if at.numbered {
                let style = TextStyle {
                    anchor: TextAnchor::End,
                    ..TextStyle::MUTED
                };
                canvas.text(area.left - 8.0, y + 4.5, &tick(at.value), style);
            }
        }
        let scale = |axis: PlotAxis| if axis.logarithmic { ", logarithmic" } else { "" };
        let upwards = format!("{}{}", self.upwards, scale(area.upwards));
        canvas.text(MARGIN, TOP - 18.0, &upwards, TextStyle::MUTED);
        let bottom = area.bottom;
        canvas.line(
            &[(area.left, bottom), (area.right, bottom)],
            PlotColour::Muted,
            1.0,
            "",
        );
        let centred = TextStyle {
            anchor: TextAnchor::Middle,
            ..TextStyle::MUTED
        };
        let values = self.x_values();
        for &value in &values {
            let x = area.x(value);
            canvas.line(&[(x, bottom), (x, bottom + 5.0)], PlotColour::Muted, 1.0, "");
        }
        for value in numbered(&values, area) {
            canvas.text(area.x(value), bottom + 20.0, &tick(value as f64), centred);
        }
        let across = format!("{}{}", self.across, scale(area.across));
        canvas.text(
            f64::midpoint(area.left, area.right),
            bottom + 44.0,
            &across,
            centred,
        );
    }

    /// Every x value of any curve, in order.
    fn x_values(&self) -> Vec<u64> {
        let points = self.curves.iter().flat_map(|curve| &curve.points);
        let mut values: Vec<u64> = points.map(|(x, _)| *x).collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}

/// Values whose numbers stand on the axis: the ends, and those between that touch none of the others.
fn numbered(values: &[u64], area: &PlotArea) -> Vec<u64> {
    let span = |value: u64| {
        let half = width(&tick(value as f64), TEXT_PIXELS) / 2.0 + NUMBER_GAP / 2.0;
        (area.x(value) - half, area.x(value) + half)
    };
    let [first, between @ .., last] = values else {
        return values.to_vec();
    };
    let mut chosen = vec![*first];
    for &value in between {
        let (start, end) = span(value);
        let free_from = chosen.last().map_or(f64::NEG_INFINITY, |before| span(*before).1);
        if start >= free_from && end <= span(*last).0 {
            chosen.push(value);
        }
    }
    chosen.push(*last);
    chosen
}

fn draw_curve(canvas: &mut SvgCanvas, area: &PlotArea, curve: &PlotCurve) {
    let style = curve.style;
    let points: Vec<(f64, f64)> = curve.points.iter().map(|point| area.place(*point)).collect();
    if points.len() > 1 {
        style.draw_line(canvas, &points);
    }
    for (x, y) in points {
        canvas.mark(x, y, style.mark, style.colour);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::plot) fn curve(label: &str, colour: PlotColour, points: &[(u64, f64)]) -> PlotCurve {
        PlotCurve {
            label: label.to_owned(),
            style: CurveStyle {
                colour,
                dashed: false,
                mark: PointMark::Dot,
            },
            points: points.to_vec(),
        }
    }

    pub(in crate::plot) fn plot(curves: Vec<PlotCurve>) -> CurvePlot {
        CurvePlot {
            title: "A <title>".to_owned(),
            across: "block, bytes".to_owned(),
            upwards: "transactions a second".to_owned(),
            curves,
        }
    }

    #[test]
    fn every_curve_has_its_whole_label_and_every_point_its_mark() {
        let text = plot(vec![
            curve("RAM_DISK", PlotColour::Blue, &[(1, 5.0), (64, 50_000.0)]),
            curve(
                "volume, one lender beyond 1 Gbit/s, on a MODELLED disk",
                PlotColour::Green,
                &[(1, 9.0)],
            ),
        ])
        .drawn(PlotTheme::Adaptive);
        assert!(text.contains(">RAM_DISK</text>"), "{text}");
        assert!(text.contains("<title>volume, one lender beyond 1 Gbit/s, on a MODELLED disk</title>"));
        assert!(text.contains("A &lt;title&gt;") && text.contains("transactions a second, logarithmic"));
        assert!(text.contains(">10,000</text>") && text.contains(">64</text>"));
        // Three points, and a sample for each label.
        assert_eq!(text.matches("<circle").count(), 3 + 2);
    }

    #[test]
    fn numbers_of_the_x_axis_do_not_touch_and_the_last_one_is_there() {
        let sizes = [8, 128, 512, 1024, 2048, 3072, 4096];
        let area = plot(vec![curve(
            "Log",
            PlotColour::Blue,
            &sizes.map(|size| (size, 1.0)),
        )])
        .area();
        assert_eq!(numbered(&sizes, &area), [8, 128, 512, 1024, 2048, 4096]);
        assert_eq!(numbered(&[7], &area), [7]);
    }

    #[test]
    fn the_papers_values_have_hollow_marks_of_their_own() {
        let stated = |index: usize| PlotCurve {
            label: format!("TR-190: {index}"),
            style: CurveStyle::stated(index),
            points: vec![(32, 44.0), (1024, 31.0)],
        };
        let text = plot((0..3).map(stated).collect()).drawn(PlotTheme::Light);
        let colour = PlotColour::Stated.hex(PlotTheme::Light);
        assert_eq!(text.matches("<path").count(), 2 * 3, "diamonds and crosses");
        assert_eq!(
            text.matches(&format!("stroke=\"{colour}\" class=\"f-surface"))
                .count(),
            2 * 3
        );
        assert_eq!(text.matches("font-style=\"italic\"").count(), 3);
    }
}
