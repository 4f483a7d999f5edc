//! Colours of pictures. Those of data are Okabe and Ito's, which the colour-blind can tell apart, darker on
//! white and lighter on black. Dashes and marks differ too, so that no picture needs its colours.

use std::fmt::Write;

/// A role in a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlotColour {
    /// Background.
    Surface,
    /// Text.
    Ink,
    /// Axes, their numbers, notes.
    Muted,
    /// Gridlines.
    Grid,
    /// Data.
    Blue,
    /// Data.
    Vermilion,
    /// Data.
    Green,
    /// Data.
    Purple,
    /// Data.
    Gold,
    /// Data.
    Sky,
    /// Floors, and what is compared with everything else.
    Grey,
    /// Values that the paper states.
    Stated,
}

/// Background of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlotTheme {
    /// The reader's preference, by a style sheet; light where that is not understood.
    Adaptive,
    /// White.
    Light,
    /// Nearly black.
    Dark,
}

impl PlotColour {
    const ALL: [PlotColour; 12] = [
        PlotColour::Surface,
        PlotColour::Ink,
        PlotColour::Muted,
        PlotColour::Grid,
        PlotColour::Blue,
        PlotColour::Vermilion,
        PlotColour::Green,
        PlotColour::Purple,
        PlotColour::Gold,
        PlotColour::Sky,
        PlotColour::Grey,
        PlotColour::Stated,
    ];

    /// Name in the style sheet.
    pub(super) fn name(self) -> &'static str {
        self.names().0
    }

    /// The colour itself.
    pub(super) fn hex(self, theme: PlotTheme) -> &'static str {
        let (_, light, dark) = self.names();
        if theme == PlotTheme::Dark { dark } else { light }
    }

    /// Name, colour on light, colour on dark.
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            PlotColour::Surface => ("surface", "#ffffff", "#16191d"),
            PlotColour::Ink => ("ink", "#1b1f24", "#e8eaed"),
            PlotColour::Muted => ("muted", "#5a636e", "#a4adb8"),
            PlotColour::Grid => ("grid", "#e4e7eb", "#2e343b"),
            PlotColour::Blue => ("blue", "#0068ad", "#5db0f0"),
            PlotColour::Vermilion => ("vermilion", "#cf4a00", "#ff8548"),
            PlotColour::Green => ("green", "#008a63", "#37c99b"),
            PlotColour::Purple => ("purple", "#a5468c", "#e58fcd"),
            PlotColour::Gold => ("gold", "#b98100", "#f2c14e"),
            PlotColour::Sky => ("sky", "#2d9fd0", "#9adcf8"),
            PlotColour::Grey => ("grey", "#7d8590", "#8e97a2"),
            PlotColour::Stated => ("stated", "#6b3f12", "#e0b98c"),
        }
    }
}

/// Class of the `<svg>` element. A page holds many pictures, so nothing outside of one is styled.
pub(super) const CLASS: &str = "netram-plot";

/// Style sheet that replaces the colours in the elements' attributes, where style sheets and their variables
/// are understood.
pub(super) fn style_sheet() -> String {
    let variables = |theme| {
        let each = PlotColour::ALL.map(|colour| format!("--{}:{};", colour.name(), colour.hex(theme)));
        each.concat()
    };
    let mut text = format!(
        "<style>.{CLASS}{{{}}}@media (prefers-color-scheme:dark){{.{CLASS}{{{}}}}}",
        variables(PlotTheme::Light),
        variables(PlotTheme::Dark)
    );
    for name in PlotColour::ALL.map(PlotColour::name) {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            ".{CLASS} .f-{name}{{fill:var(--{name})}}.{CLASS} .s-{name}{{stroke:var(--{name})}}"
        );
    }
    text + "</style>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance by WCAG 2.
    fn luminance(hex: &str) -> f64 {
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.039_28 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
    }

    fn contrast(colour: PlotColour, theme: PlotTheme) -> f64 {
        let [one, other] = [colour, PlotColour::Surface].map(|colour| luminance(colour.hex(theme)) + 0.05);
        one.max(other) / one.min(other)
    }

    #[test]
    fn text_and_data_contrast_with_both_backgrounds() {
        for theme in [PlotTheme::Light, PlotTheme::Dark] {
            for colour in [PlotColour::Ink, PlotColour::Muted, PlotColour::Stated] {
                assert!(contrast(colour, theme) >= 4.5, "{colour:?} on {theme:?}");
            }
            for colour in &PlotColour::ALL[4..11] {
                let ratio = contrast(*colour, theme);
                assert!(ratio >= 2.9, "{colour:?} on {theme:?}: {ratio}");
            }
        }
    }

    #[test]
    fn the_style_sheet_has_both_themes() {
        let text = style_sheet();
        assert!(text.contains("prefers-color-scheme:dark"));
        for colour in PlotColour::ALL {
            assert!(
                text.contains(colour.hex(PlotTheme::Light)) && text.contains(colour.hex(PlotTheme::Dark))
            );
        }
    }
}
