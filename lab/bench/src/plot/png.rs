//! PNG from SVG, with the system's fonts.

use std::sync::{Arc, OnceLock};

use resvg::tiny_skia::{Pixmap, Transform};
use resvg::usvg::fontdb::{Database, Family, Query};
use resvg::usvg::{Options, Tree};

use crate::error::{BenchError, ErrorContext};

/// PNG pixels for each SVG pixel, for screens with small pixels.
const SCALE: f32 = 2.0;
/// Fonts in the order of preference; their widths are those that layouts assume, or less.
const FAMILIES: [&str; 6] = [
    "DejaVu Sans",
    "Verdana",
    "Liberation Sans",
    "Noto Sans",
    "Helvetica",
    "Arial",
];

/// The picture as a PNG file.
///
/// # Errors
///
/// Fails if the system has no font, or the SVG is invalid.
pub(super) fn rendered(svg: &str) -> Result<Vec<u8>, BenchError> {
    let fonts = system_fonts()?;
    let options = Options {
        font_family: "sans-serif".to_owned(),
        fontdb: fonts,
        ..Options::default()
    };
    let tree = Tree::from_str(svg, &options).context("read a plot's SVG")?;
    let size = tree.size();
    let [width, height] = [size.width(), size.height()].map(|pixels| (pixels * SCALE).ceil() as u32);
    let mut pixmap = Pixmap::new(width, height)
        .ok_or_else(|| BenchError::InvalidRequest(format!("a plot of {width} x {height} pixels")))?;
    resvg::render(&tree, Transform::from_scale(SCALE, SCALE), &mut pixmap.as_mut());
    pixmap.encode_png().context("write a PNG")
}

/// The system's fonts, read once.
fn system_fonts() -> Result<Arc<Database>, BenchError> {
    static FONTS: OnceLock<Option<Arc<Database>>> = OnceLock::new();
    let read = || {
        let mut fonts = Database::new();
        fonts.load_system_fonts();
        choose_sans_serif(&mut fonts).then(|| Arc::new(fonts))
    };
    FONTS.get_or_init(read).clone().ok_or_else(|| {
        BenchError::InvalidRequest(
            "cannot draw a PNG: this system has no font. Install one (Debian: fonts-dejavu-core), or leave out --png"
                .to_owned(),
        )
    })
}

/// Makes the best font the `sans-serif`. Returns whether there is any.
fn choose_sans_serif(fonts: &mut Database) -> bool {
    let has = |fonts: &Database, name: &str| {
        let query = Query {
            families: &[Family::Name(name)],
            ..Query::default()
        };
        fonts.query(&query).is_some()
    };
    let preferred = FAMILIES
        .into_iter()
        .find(|name| has(fonts, name))
        .map(str::to_owned);
    let any = || Some(fonts.faces().next()?.families.first()?.0.clone());
    let chosen = preferred.or_else(any);
    match chosen {
        Some(name) => {
            fonts.set_sans_serif_family(name);
            true
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::canvas::{SvgCanvas, TextStyle};
    use super::super::palette::PlotTheme;
    use super::super::text::width;
    use super::*;

    fn pixmap(theme: PlotTheme, text: &str) -> Pixmap {
        let mut canvas = SvgCanvas::new(theme, 100.0, "");
        canvas.text(24.0, 60.0, text, TextStyle::LABEL);
        let bytes = rendered(&canvas.finish()).unwrap();
        Pixmap::decode_png(&bytes).unwrap()
    }

    /// Columns with a pixel that is not the background's.
    fn columns(pixmap: &Pixmap) -> Vec<u32> {
        let background = pixmap.pixel(0, 0).unwrap();
        let differs = |x: u32| (0..pixmap.height()).any(|y| pixmap.pixel(x, y).unwrap() != background);
        (0..pixmap.width()).filter(|x| differs(*x)).collect()
    }

    #[test]
    fn letters_are_drawn_and_differ() {
        let [blank, low, high] = ["", "_", "R"].map(|text| pixmap(PlotTheme::Light, text));
        assert!(columns(&blank).is_empty());
        assert_eq!((high.width(), high.height()), (2160, 200));
        assert!(columns(&low).len() > 8 && columns(&high).len() > 8);
        assert_ne!(low.data(), high.data());
    }

    #[test]
    fn dark_has_a_dark_background_and_light_letters() {
        let [light, dark] = [PlotTheme::Light, PlotTheme::Dark].map(|theme| pixmap(theme, "RRVM"));
        let sum = |pixmap: &Pixmap| -> u64 { pixmap.data().iter().map(|byte| u64::from(*byte)).sum() };
        assert!(sum(&dark) * 2 < sum(&light));
        assert_eq!(columns(&light).len(), columns(&dark).len());
    }

    #[test]
    fn texts_are_as_wide_as_layouts_assume() {
        for text in [
            "RRVM, TCP, namespaces, MODELLED disk",
            "SOFTWARE_COUNTERS",
            "1,234,567",
            "Cpy/Cmp, kernel's notes",
        ] {
            let drawn = columns(&pixmap(PlotTheme::Light, text));
            let drawn = f64::from(drawn.last().unwrap() - drawn.first().unwrap() + 1) / f64::from(SCALE);
            let assumed = width(text, 13.0);
            assert!(drawn <= assumed * 1.03, "{text}: {drawn} of {assumed}");
            assert!(drawn >= assumed * 0.8, "{text}: {drawn} of {assumed}");
        }
    }

    #[test]
    fn a_system_without_fonts_has_no_sans_serif() {
        assert!(!choose_sans_serif(&mut Database::new()));
    }
}
