//! Ends of curves: each has its label on the right, beside a sample of its line, joined to it by a leader.

use super::TEXT_PIXELS;
use super::canvas::{SvgCanvas, TextStyle};
use super::curves::{PADDING, PlotArea, PlotCurve, TOP};
use super::labels::{self, LabelWish};
use super::text::{width, wrapped};

/// Pixels from the plotted area to the labels, for the leaders.
const LEADER: f64 = 30.0;
/// Width in pixels of the line's sample before a label.
const SAMPLE: f64 = 30.0;
/// Longer labels have several lines.
const LABEL_PIXELS_MAX: f64 = 196.0;
const LABEL_LINE: f64 = 15.0;
/// Pixels between two labels.
const LABEL_GAP: f64 = 5.0;
/// Pixels between sample and label.
const GAP: f64 = 8.0;

/// A label in its lines, beside its curve.
pub(super) struct CurveEnd<'p> {
    curve: &'p PlotCurve,
    lines: Vec<String>,
    /// Last point of the curve, in pixels.
    end: (f64, f64),
    /// Middle of the label.
    middle: f64,
}

fn lines(curves: &[PlotCurve]) -> impl Iterator<Item = Vec<String>> {
    let lines = |curve: &PlotCurve| wrapped(&curve.label, TEXT_PIXELS, LABEL_PIXELS_MAX);
    curves.iter().map(lines)
}

fn height(lines: &[String]) -> f64 {
    lines.len() as f64 * LABEL_LINE + LABEL_GAP
}

/// Width and height in pixels that the labels of all curves need, with samples and leaders.
pub(super) fn size(curves: &[PlotCurve]) -> (f64, f64) {
    let widths = lines(curves).flatten().map(|line| width(&line, TEXT_PIXELS));
    let high = lines(curves).map(|lines| height(&lines)).sum();
    (LEADER + SAMPLE + GAP + widths.fold(0.0, f64::max).ceil(), high)
}

/// The labels where they stand. A curve without points has none.
pub(super) fn placed<'p>(curves: &'p [PlotCurve], area: &PlotArea) -> Vec<CurveEnd<'p>> {
    let mut ends: Vec<CurveEnd<'p>> = { curves.iter().zip(lines(curves)) }
        .filter_map(|(curve, lines)| {
            let end = area.place(*curve.points.iter().max_by_key(|(x, _)| *x)?);
            Some(CurveEnd {
                curve,
                lines,
                end,
                middle: end.1,
            })
        })
        .collect();
    let wish = |end: &CurveEnd<'_>| LabelWish {
        middle: end.middle,
        height: height(&end.lines),
    };
    let wishes: Vec<LabelWish> = ends.iter().map(wish).collect();
    let middles = labels::spread(&wishes, TOP - LABEL_LINE / 2.0, area.bottom + LABEL_LINE / 2.0);
    for (end, middle) in ends.iter_mut().zip(middles) {
        end.middle = middle;
    }
    ends
}

impl CurveEnd<'_> {
    pub(super) fn draw(&self, canvas: &mut SvgCanvas, area: &PlotArea) {
        let style = self.curve.style;
        let sample = area.right + LEADER;
        let (x, y) = self.end;
        // A curve that ends inside of the picture is found by its sample: a leader would cross the others.
        if x >= area.right - PADDING - 0.5 {
            let bend = area.right - PADDING + 10.0;
            let leader = [
                (bend, y),
                (bend + 6.0, y),
                (sample - 6.0, self.middle),
                (sample, self.middle),
            ];
            canvas.line(&leader, style.colour, 0.8, "");
        }
        if self.curve.points.len() > 1 {
            style.draw_line(canvas, &[(sample, self.middle), (sample + SAMPLE, self.middle)]);
        }
        canvas.mark(sample + SAMPLE / 2.0, self.middle, style.mark, style.colour);
        let above = (self.lines.len() - 1) as f64 * LABEL_LINE / 2.0;
        let text = TextStyle {
            italic: style.is_stated(),
            ..TextStyle::LABEL
        };
        for (index, words) in self.lines.iter().enumerate() {
            let y = self.middle - above + index as f64 * LABEL_LINE + 4.5;
            canvas.text(sample + SAMPLE + GAP, y, words, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::WIDTH;
    use super::super::curves::tests::{curve, plot};
    use super::super::palette::PlotColour;
    use super::*;

    #[test]
    fn labels_of_curves_that_end_together_do_not_overlap() {
        let same: Vec<PlotCurve> = (0..30)
            .map(|at| {
                curve(
                    &format!("RRVM, TCP, namespaces, MODELLED disk {at}"),
                    PlotColour::Blue,
                    &[(1, 3.0), (2, 5.0)],
                )
            })
            .collect();
        let plot = plot(same);
        let area = plot.area();
        let labels = placed(&plot.curves, &area);
        let mut spans: Vec<(f64, f64)> = { labels.iter() }
            .map(|label| {
                let half = height(&label.lines) / 2.0;
                (label.middle - half, label.middle + half)
            })
            .collect();
        spans.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert_eq!(spans.len(), 30);
        assert!(
            spans.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-6),
            "{spans:?}"
        );
        assert!(spans[29].1 <= area.bottom + LABEL_LINE, "within the picture");
    }

    #[test]
    fn labels_end_within_the_picture_and_take_less_than_a_third_of_it() {
        let plot = plot(vec![curve(
            "RRVM, TCP, namespaces, MODELLED disk",
            PlotColour::Blue,
            &[(1, 3.0)],
        )]);
        let area = plot.area();
        let start = area.right + LEADER + SAMPLE + GAP;
        for line in lines(&plot.curves).flatten() {
            assert!(start + width(&line, TEXT_PIXELS) <= WIDTH, "{line}");
        }
        assert!(area.right >= 0.7 * WIDTH, "{}", area.right);
    }
}
