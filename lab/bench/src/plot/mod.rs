//! Figures as pictures: SVG text that this module writes itself, and PNG drawn from it.
//!
//! | module | does |
//! |---|---|
//! | [`curves`] | curves over a numeric axis |
//! | [`ends`] | their labels, each at its curve's end |
//! | [`bars`] | groups of bars, for an axis of programs, systems or operations |
//! | [`axis`] | linear and logarithmic axes and their ticks |
//! | [`labels`] | labels moved apart until none overlaps |
//! | [`text`] | numbers as text, and the width of a text |
//! | [`palette`] | colours that the colour-blind can tell apart, on light and on dark |
//! | [`canvas`] | SVG elements |
//! | [`png`] | PNG, with the system's fonts |

mod axis;
mod bars;
mod canvas;
mod curves;
mod ends;
mod labels;
mod palette;
mod png;
mod text;

pub(crate) use bars::{BarGroup, BarPlot, BarRow};
pub(crate) use canvas::PointMark;
pub(crate) use curves::{CurvePlot, CurveStyle, PlotCurve};
pub(crate) use palette::{PlotColour, PlotTheme};
pub(crate) use text::{escaped, thousands};

use crate::error::BenchError;

/// Width in pixels of every picture.
const WIDTH: f64 = 1080.0;
/// Empty pixels at the left and right edges.
const MARGIN: f64 = 24.0;
const TITLE_PIXELS: f64 = 19.0;
const TEXT_PIXELS: f64 = 13.0;
/// Lower edge of the title's line.
const TITLE_Y: f64 = 34.0;

/// A figure that can be drawn.
pub(crate) enum PlotFigure {
    /// Values over a numeric axis.
    Curves(CurvePlot),
    /// Values of categories.
    Bars(BarPlot),
}

impl PlotFigure {
    /// The figure as SVG, a whole `<svg>` element that follows the reader's preference for light or dark.
    pub(crate) fn svg(&self) -> String {
        self.drawn(PlotTheme::Adaptive)
    }

    /// The figure as PNG.
    ///
    /// # Errors
    ///
    /// Fails if the system has no font.
    pub(crate) fn png(&self, theme: PlotTheme) -> Result<Vec<u8>, BenchError> {
        png::rendered(&self.drawn(theme))
    }

    fn drawn(&self, theme: PlotTheme) -> String {
        match self {
            PlotFigure::Curves(plot) => plot.drawn(theme),
            PlotFigure::Bars(plot) => plot.drawn(theme),
        }
    }
}
