//! A raster image that a plot can be drawn on, and its PNG. Letters come from [`super::glyphs`].

use std::convert::Infallible;

use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{BackendColor, BackendCoord, BackendTextStyle, DrawingBackend, DrawingErrorKind};

use super::glyphs;
use crate::error::{BenchError, ErrorContext};

/// Text of this height is drawn with dots of one pixel; larger text with larger dots.
const PIXELS_A_DOT: f64 = 13.0;
const CHANNELS: usize = 3;

/// An image, initially white.
pub struct RasterImage {
    width: u32,
    height: u32,
    pixels: Vec<u8>,
}

impl RasterImage {
    /// A white image.
    pub fn new(width: u32, height: u32) -> RasterImage {
        RasterImage {
            width,
            height,
            pixels: vec![u8::MAX; width as usize * height as usize * CHANNELS],
        }
    }

    /// The image as a PNG file.
    ///
    /// # Errors
    ///
    /// Fails if the encoder does.
    pub fn png(&self) -> Result<Vec<u8>, BenchError> {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header().context("begin a PNG")?;
        writer.write_image_data(&self.pixels).context("write a PNG")?;
        writer.finish().context("end a PNG")?;
        Ok(bytes)
    }
}

/// Pixels of a dot at a text size.
fn dot(size: f64) -> i32 {
    (size / PIXELS_A_DOT).round().max(1.0) as i32
}

fn extent(text: &str, dot: i32) -> (i32, i32) {
    let count = text.chars().count() as i32;
    let gap = (glyphs::ADVANCE - glyphs::WIDTH) as i32;
    (
        (count * glyphs::ADVANCE as i32 - gap).max(0) * dot,
        glyphs::HEIGHT as i32 * dot,
    )
}

type DrawResult = Result<(), DrawingErrorKind<Infallible>>;

impl DrawingBackend for &mut RasterImage {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn ensure_prepared(&mut self) -> DrawResult {
        Ok(())
    }

    fn present(&mut self) -> DrawResult {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, color: BackendColor) -> DrawResult {
        let inside = |at: i32, size: u32| u32::try_from(at).ok().filter(|at| *at < size);
        let (Some(x), Some(y)) = (inside(x, self.width), inside(y, self.height)) else {
            // Lines may end outside the image.
            return Ok(());
        };
        let at = (y as usize * self.width as usize + x as usize) * CHANNELS;
        let (red, green, blue) = color.rgb;
        for (pixel, new) in self.pixels[at..at + CHANNELS].iter_mut().zip([red, green, blue]) {
            *pixel = (f64::from(*pixel) * (1.0 - color.alpha) + f64::from(new) * color.alpha).round() as u8;
        }
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(&mut self, text: &str, style: &S, at: BackendCoord) -> DrawResult {
        let dot = dot(style.size());
        let (width, height) = extent(text, dot);
        let anchor = style.anchor();
        let left = match anchor.h_pos {
            HPos::Left => 0,
            HPos::Center => -width / 2,
            HPos::Right => -width,
        };
        let top = match anchor.v_pos {
            VPos::Top => 0,
            VPos::Center => -height / 2,
            VPos::Bottom => -height,
        };
        for (index, letter) in text.chars().enumerate() {
            let start = left + index as i32 * glyphs::ADVANCE as i32 * dot;
            for (column, row) in glyphs::dots(letter) {
                for (dx, dy) in (0..dot * dot).map(|pixel| (pixel % dot, pixel / dot)) {
                    let x = start + column as i32 * dot + dx;
                    let y = top + row as i32 * dot + dy;
                    let (x, y) = style.transform().transform(x, y);
                    self.draw_pixel((at.0 + x, at.1 + y), style.color())?;
                }
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let (width, height) = extent(text, dot(style.size()));
        Ok((width as u32, height as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plotters::prelude::*;
    use plotters::style::IntoTextStyle;

    fn dark(raster: &RasterImage) -> usize {
        raster
            .pixels
            .chunks(CHANNELS)
            .filter(|pixel| **pixel == [0, 0, 0])
            .count()
    }

    #[test]
    fn a_text_has_its_dots_and_more_pixels_when_larger() {
        let count = |size: i32| {
            let mut raster = RasterImage::new(200, 100);
            {
                let area = (&mut raster).into_drawing_area();
                let style = ("sans-serif", size).into_text_style(&area);
                area.draw_text("1,0", &style, (10, 10)).unwrap();
            }
            dark(&raster)
        };
        let dots: usize = "1,0".chars().map(|letter| glyphs::dots(letter).count()).sum();
        assert_eq!(count(13), dots);
        assert_eq!(count(26), 4 * dots);
    }

    #[test]
    fn the_png_decodes_to_the_same_pixels() {
        let mut raster = RasterImage::new(7, 5);
        (&mut raster)
            .draw_pixel(
                (3, 2),
                BackendColor {
                    alpha: 1.0,
                    rgb: (10, 20, 30),
                },
            )
            .unwrap();
        (&mut raster)
            .draw_pixel(
                (-1, 99),
                BackendColor {
                    alpha: 1.0,
                    rgb: (0, 0, 0),
                },
            )
            .unwrap();
        let bytes = raster.png().unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let frame = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((frame.width, frame.height), (7, 5));
        assert_eq!(pixels, raster.pixels);
        assert_eq!(pixels[(2 * 7 + 3) * CHANNELS..][..CHANNELS], [10, 20, 30]);
    }
}
