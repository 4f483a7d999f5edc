//! Groups of bars, one group for each category. Bars lie, so that names are read without turning one's head,
//! and each has its name and its value beside it.

use super::axis::PlotAxis;
use super::canvas::{PointMark, SvgCanvas, TextAnchor, TextStyle};
use super::palette::{PlotColour, PlotTheme};
use super::text::{measured, stated, tick, width};
use super::{MARGIN, TEXT_PIXELS, WIDTH};

/// Upper edge of the first group, below the title.
const TOP: f64 = 56.0;
/// Pixels of a line of the key below the title.
const KEY_LINE: f64 = 22.0;
/// Pixels below the last group: numbers and the axis label.
const BELOW: f64 = 62.0;
const ROW: f64 = 19.0;
const BAR: f64 = 13.0;
/// Pixels of a group's name, above its rows.
const HEADING: f64 = 24.0;
/// Pixels between two groups.
const GAP: f64 = 8.0;
const ROW_PIXELS: f64 = 12.5;
/// Pixels between a bar and its value.
const VALUE_GAP: f64 = 7.0;

/// Input of a drawing.
pub(crate) struct BarPlot {
    pub(crate) title: String,
    /// Label of the values, with their unit.
    pub(crate) across: String,
    /// Explanation of the marks; `None` if there are none.
    pub(crate) key: Option<(PointMark, PlotColour, String)>,
    pub(crate) groups: Vec<BarGroup>,
}

/// A category.
pub(crate) struct BarGroup {
    pub(crate) name: String,
    pub(crate) rows: Vec<BarRow>,
}

/// A bar, a mark beside it, or both.
pub(crate) struct BarRow {
    pub(crate) label: String,
    pub(crate) colour: PlotColour,
    /// Length of the bar.
    pub(crate) value: Option<f64>,
    /// Place of the mark that the key explains.
    pub(crate) mark: Option<f64>,
}

struct BarArea {
    top: f64,
    left: f64,
    right: f64,
    bottom: f64,
    axis: PlotAxis,
}

impl BarArea {
    fn x(&self, value: f64) -> f64 {
        self.left + self.axis.part(value) * (self.right - self.left)
    }
}

impl BarPlot {
    pub(super) fn drawn(&self, theme: PlotTheme) -> String {
        let area = self.area();
        let mut canvas = SvgCanvas::new(theme, area.bottom + BELOW, &self.title);
        if let Some((mark, colour, words)) = &self.key {
            canvas.mark(MARGIN + 6.0, TOP - 1.0, *mark, *colour);
            let style = TextStyle {
                italic: *colour == PlotColour::Stated,
                ..TextStyle::LABEL
            };
            canvas.text(MARGIN + 20.0, TOP + 3.5, words, style);
        }
        self.draw_axis(&mut canvas, &area);
        let mut y = area.top;
        for group in &self.groups {
            let style = TextStyle {
                bold: true,
                ..TextStyle::LABEL
            };
            canvas.text(MARGIN, y + HEADING - 8.0, &group.name, style);
            y += HEADING;
            for row in &group.rows {
                canvas.begin("bar", &format!("{}, {}", group.name, row.label));
                self.draw_row(&mut canvas, &area, row, y);
                canvas.end();
                y += ROW;
            }
            y += GAP;
        }
        canvas.finish()
    }

    fn rows(&self) -> impl Iterator<Item = &BarRow> {
        self.groups.iter().flat_map(|group| &group.rows)
    }

    fn area(&self) -> BarArea {
        let values = self.rows().flat_map(|row| [row.value, row.mark]).flatten();
        let axis = PlotAxis::for_bars(values.filter(|value| *value > 0.0));
        let names = self.rows().map(|row| width(&row.label, ROW_PIXELS));
        let values = self.rows().map(|row| width(&self.row_text(row), ROW_PIXELS));
        let high: f64 = { self.groups.iter() }
            .map(|group| HEADING + GAP + ROW * group.rows.len() as f64)
            .sum();
        let top = TOP + if self.key.is_some() { KEY_LINE } else { 0.0 };
        BarArea {
            top,
            left: MARGIN + 14.0 + names.fold(0.0, f64::max).ceil() + 10.0,
            right: WIDTH - MARGIN - VALUE_GAP - values.fold(0.0, f64::max).ceil(),
            bottom: top + high,
            axis,
        }
    }

    fn draw_axis(&self, canvas: &mut SvgCanvas, area: &BarArea) {
        let centred = TextStyle {
            anchor: TextAnchor::Middle,
            ..TextStyle::MUTED
        };
        let mut free_from = f64::NEG_INFINITY;
        for at in area.axis.ticks() {
            let x = area.x(at.value);
            let thickness = if at.numbered { 1.2 } else { 0.6 };
            canvas.line(
                &[(x, area.top), (x, area.bottom)],
                PlotColour::Grid,
                thickness,
                "",
            );
            let number = tick(at.value);
            let half = width(&number, TEXT_PIXELS) / 2.0;
            if at.numbered && x - half >= free_from {
                canvas.text(x, area.bottom + 20.0, &number, centred);
                free_from = x + half + 8.0;
            }
        }
        let scale = if area.axis.logarithmic {
            ", logarithmic"
        } else {
            ""
        };
        let middle = f64::midpoint(area.left, area.right);
        canvas.text(
            middle,
            area.bottom + 44.0,
            &format!("{}{scale}", self.across),
            centred,
        );
    }

    fn draw_row(&self, canvas: &mut SvgCanvas, area: &BarArea, row: &BarRow, top: f64) {
        let middle = top + BAR / 2.0;
        let style = TextStyle {
            pixels: ROW_PIXELS,
            anchor: TextAnchor::End,
            italic: row.value.is_none(),
            ..TextStyle::LABEL
        };
        canvas.text(area.left - 10.0, middle + 4.5, &row.label, style);
        let bar_end = row.value.map_or(area.left, |value| area.x(value));
        if row.value.is_some() {
            let length = (bar_end - area.left).max(1.5);
            canvas.bar(area.left, top, length, BAR, row.colour);
        }
        let mut end = bar_end;
        if let (Some(value), Some((mark, colour, _))) = (row.mark, &self.key) {
            let x = area.x(value);
            if x > bar_end {
                canvas.line(&[(bar_end, middle), (x, middle)], *colour, 1.2, "1.5 4");
            }
            canvas.mark(x, middle, *mark, *colour);
            end = end.max(x + 6.0);
        }
        let style = TextStyle {
            anchor: TextAnchor::Start,
            ..style
        };
        canvas.text(end + VALUE_GAP, middle + 4.5, &self.row_text(row), style);
    }
    /// The row's values as text. What the paper states has the paper's digits.
    fn row_text(&self, row: &BarRow) -> String {
        let is_stated = { self.key.iter() }.any(|(_, colour, _)| *colour == PlotColour::Stated);
        let mark = row.mark.map(if is_stated { stated } else { measured });
        match (row.value.map(measured), mark) {
            (Some(value), Some(mark)) => format!("{value} ({mark})"),
            (value, mark) => value.or(mark).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(values: &[(&str, Option<f64>, Option<f64>)]) -> BarPlot {
        let row = |&(label, value, mark): &(&str, Option<f64>, Option<f64>)| BarRow {
            label: label.to_owned(),
            colour: PlotColour::Blue,
            value,
            mark,
        };
        BarPlot {
            title: "Bars".to_owned(),
            across: "cycles".to_owned(),
            key: Some((PointMark::Diamond, PlotColour::Stated, "the paper".to_owned())),
            groups: vec![BarGroup {
                name: "TRANS".to_owned(),
                rows: values.iter().map(row).collect(),
            }],
        }
    }

    #[test]
    fn every_row_has_its_name_its_bar_and_its_value() {
        let rows = [
            ("RAM_DISK", Some(24_282.0), Some(24_349.0)),
            ("COUNTERS", Some(65.6), None),
            ("SCSI disk", None, Some(67.5)),
        ];
        let text = plot(&rows).drawn(PlotTheme::Light);
        for label in [
            ">RAM_DISK<",
            ">TRANS<",
            ">24,282 (24,349)<",
            ">65.6<",
            ">67.5<",
            ">the paper<",
        ] {
            assert!(text.contains(label), "{label}: {text}");
        }
        assert_eq!(text.matches("rx=").count(), 2, "bars");
        assert_eq!(
            text.matches("<path").count(),
            3,
            "the paper's marks, and the key's"
        );
        assert!(text.contains("cycles, logarithmic"), "{text}");
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let area = plot(&[("one", Some(10.0), None), ("two", Some(5.0), None)]).area();
        let [whole, half] = [10.0, 5.0].map(|value| area.x(value) - area.left);
        assert!((whole - 2.0 * half).abs() < 1e-6);
    }

    #[test]
    fn values_end_within_the_picture() {
        let plot = plot(&[("one", Some(9_999_999.0), Some(9_999_998.0))]);
        let area = plot.area();
        for row in plot.rows() {
            assert!(area.right + VALUE_GAP + width(&plot.row_text(row), ROW_PIXELS) <= WIDTH);
        }
    }
}
