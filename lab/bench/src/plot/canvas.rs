//! SVG elements as text. Each has its light colour in an attribute, for programs without style sheets, and a
//! class by which the style sheet replaces it.

use std::fmt::Write;

use super::palette::{self, PlotColour, PlotTheme};
use super::text::{escaped, width};
use super::{MARGIN, TEXT_PIXELS, TITLE_PIXELS, TITLE_Y, WIDTH};

/// Families in the order of preference. The first is what PNGs are drawn with.
pub(super) const FONTS: &str = "DejaVu Sans,Verdana,Segoe UI,Helvetica,Arial,sans-serif";

/// Mark of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PointMark {
    Dot,
    Triangle,
    Square,
    /// The following ones are hollow: values that the paper states.
    Diamond,
    Cross,
    Box,
    /// Hollow too, for a second measurement on a bar.
    Delta,
    None,
}

/// Where a text's given place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextAnchor {
    Start,
    Middle,
    End,
}

/// Style of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextStyle {
    pub(super) pixels: f64,
    pub(super) colour: PlotColour,
    pub(super) anchor: TextAnchor,
    pub(super) bold: bool,
    pub(super) italic: bool,
}

impl TextStyle {
    pub(super) const LABEL: TextStyle = TextStyle {
        pixels: TEXT_PIXELS,
        colour: PlotColour::Ink,
        anchor: TextAnchor::Start,
        bold: false,
        italic: false,
    };
    pub(super) const MUTED: TextStyle = TextStyle {
        colour: PlotColour::Muted,
        ..TextStyle::LABEL
    };
}

/// A picture in the making.
pub(super) struct SvgCanvas {
    theme: PlotTheme,
    height: f64,
    body: String,
}

// Writing to a string cannot fail, here and below.
impl SvgCanvas {
    /// A picture with its background and title.
    pub(super) fn new(theme: PlotTheme, height: f64, title: &str) -> SvgCanvas {
        let mut canvas = SvgCanvas {
            theme,
            height,
            body: String::new(),
        };
        let fill = canvas.paint("fill", PlotColour::Surface);
        let _ = writeln!(canvas.body, r#"<rect width="{WIDTH}" height="{height}"{fill}/>"#);
        let mut pixels = TITLE_PIXELS;
        while width(title, pixels) * 1.1 > WIDTH - 2.0 * MARGIN && pixels > TEXT_PIXELS {
            pixels -= 1.0;
        }
        let style = TextStyle {
            pixels,
            bold: true,
            ..TextStyle::LABEL
        };
        canvas.text(MARGIN, TITLE_Y, title, style);
        canvas
    }

    /// The picture as a whole `<svg>` element.
    pub(super) fn finish(self) -> String {
        let (class, height) = (palette::CLASS, self.height);
        let style = match self.theme {
            PlotTheme::Adaptive => palette::style_sheet(),
            PlotTheme::Light | PlotTheme::Dark => String::new(),
        };
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{class}\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" font-family=\"{FONTS}\" role=\"img\">\n{style}{}</svg>\n",
            self.body
        )
    }

    /// Begins a group that shows this text under the pointer.
    pub(super) fn begin(&mut self, class: &str, title: &str) {
        let _ = writeln!(
            self.body,
            r#"<g class="{class}"><title>{}</title>"#,
            escaped(title)
        );
    }

    /// Ends a group.
    pub(super) fn end(&mut self) {
        self.body.push_str("</g>\n");
    }

    fn paint(&self, attribute: &str, colour: PlotColour) -> String {
        let (initial, name) = (&attribute[..1], colour.name());
        format!(
            r#" {attribute}="{}" class="{initial}-{name}""#,
            colour.hex(self.theme)
        )
    }

    fn paint_both(&self, fill: PlotColour, stroke: PlotColour) -> String {
        let (filled, drawn) = (fill.hex(self.theme), stroke.hex(self.theme));
        let (fill, stroke) = (fill.name(), stroke.name());
        format!(r#" fill="{filled}" stroke="{drawn}" class="f-{fill} s-{stroke}""#)
    }

    pub(super) fn text(&mut self, x: f64, y: f64, text: &str, style: TextStyle) {
        let fill = self.paint("fill", style.colour);
        let anchor = match style.anchor {
            TextAnchor::Start => "",
            TextAnchor::Middle => r#" text-anchor="middle""#,
            TextAnchor::End => r#" text-anchor="end""#,
        };
        let weight = if style.bold { r#" font-weight="bold""# } else { "" };
        let slant = if style.italic {
            r#" font-style="italic""#
        } else {
            ""
        };
        let _ = writeln!(
            self.body,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{}"{anchor}{weight}{slant}{fill}>{}</text>"#,
            style.pixels,
            escaped(text)
        );
    }

    /// A line through these points, with a stroke's width and dashes.
    pub(super) fn line(&mut self, points: &[(f64, f64)], colour: PlotColour, thickness: f64, dashes: &str) {
        let stroke = self.paint("stroke", colour);
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let dashes = match dashes {
            "" => String::new(),
            dashes => format!(r#" stroke-dasharray="{dashes}""#),
        };
        let _ = writeln!(
            self.body,
            r#"<polyline points="{}" fill="none" stroke-width="{thickness}" stroke-linejoin="round"{dashes}{stroke}/>"#,
            points.join(" ")
        );
    }

    /// A bar.
    pub(super) fn bar(&mut self, x: f64, y: f64, length: f64, height: f64, colour: PlotColour) {
        let fill = self.paint("fill", colour);
        let _ = writeln!(
            self.body,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{length:.1}" height="{height:.1}" rx="1.5"{fill}/>"#
        );
    }

    /// A point's mark.
    pub(super) fn mark(&mut self, x: f64, y: f64, mark: PointMark, colour: PlotColour) {
        let filled = self.paint("fill", colour);
        let stroke = self.paint("stroke", colour);
        let hollow = self.paint_both(PlotColour::Surface, colour);
        let shape = match mark {
            PointMark::None => return,
            PointMark::Dot => format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.4"{filled}/>"#),
            PointMark::Triangle => format!(r#"<path d="M{x:.1} {:.1}l4.6 8h-9.2z"{filled}/>"#, y - 5.0),
            PointMark::Square => {
                format!(
                    r#"<rect x="{:.1}" y="{:.1}" width="7" height="7"{filled}/>"#,
                    x - 3.5,
                    y - 3.5
                )
            }
            PointMark::Diamond => format!(
                r#"<path d="M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z" stroke-width="1.8"{hollow}/>"#,
                y - 5.5
            ),
            PointMark::Delta => format!(
                r#"<path d="M{x:.1} {:.1}l6 10h-12z" stroke-width="1.8" stroke-linejoin="round"{hollow}/>"#,
                y - 6.5
            ),
            PointMark::Cross => format!(
                r#"<path d="M{:.1} {:.1}l9 9m0 -9l-9 9" fill="none" stroke-width="2"{stroke}/>"#,
                x - 4.5,
                y - 4.5
            ),
            PointMark::Box => format!(
                r#"<rect x="{:.1}" y="{:.1}" width="9" height="9" stroke-width="1.8"{hollow}/>"#,
                x - 4.5,
                y - 4.5
            ),
        };
        self.body.push_str(&shape);
        self.body.push('\n');
    }
}
