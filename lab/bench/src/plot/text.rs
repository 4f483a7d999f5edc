//! Numbers as text, and the width of a text. Widths are DejaVu Sans's, which is wider than other sans-serif
//! fonts, so a text that fits by them fits.

/// A whole number with separated thousands.
pub(crate) fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A tick's number: with separated thousands, and without trailing zeros.
pub(super) fn tick(value: f64) -> String {
    if value.abs() >= 1000.0 || value.fract() == 0.0 {
        return thousands(value);
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A number as it is stated, with all of its digits.
pub(super) fn stated(value: f64) -> String {
    if value.fract() == 0.0 {
        thousands(value)
    } else {
        value.to_string()
    }
}

/// A measured number with three significant digits.
pub(super) fn measured(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        tiny if tiny < 1.0 => format!("{value:.3}"),
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 100.0 => format!("{value:.1}"),
        _ => thousands(value),
    }
}

/// Width in pixels of a text of this size.
pub(super) fn width(text: &str, pixels: f64) -> f64 {
    text.chars().map(advance).sum::<f64>() * pixels / 1000.0
}

/// Advance of a letter in thousandths of the font's size.
fn advance(letter: char) -> f64 {
    match letter {
        'i' | 'j' | 'l' => 278.0,
        ' ' | '.' | ',' | '\'' => 318.0,
        ':' | ';' | '/' | '|' => 337.0,
        'f' | '-' => 361.0,
        'r' | 't' | '(' | ')' | '[' | ']' => 411.0,
        '_' | 's' | 'z' => 525.0,
        'c' | 'v' | 'x' | 'y' | 'k' => 592.0,
        '+' | '=' | '<' | '>' | '×' | '~' => 838.0,
        'm' | 'w' | 'M' | 'W' | '%' => 989.0,
        upper if upper.is_ascii_uppercase() => 730.0,
        _ => 636.0,
    }
}

/// The text in lines of about the same width, at most this wide as far as its words allow.
pub(super) fn wrapped(text: &str, pixels: f64, width_max: f64) -> Vec<String> {
    let count = filled(text, pixels, width_max).len();
    // The narrowest lines that are no more: a last line of one word would look like an accident.
    let narrower = (1..=20).rev().map(|part| width_max * f64::from(part) / 20.0);
    let balanced = narrower
        .map(|width_max| filled(text, pixels, width_max))
        .take_while(|lines| lines.len() == count);
    balanced.last().unwrap_or_default()
}

/// The text in lines that are as long as possible.
fn filled(text: &str, pixels: f64, width_max: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if width(&format!("{line} {word}"), pixels) <= width_max => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Escapes text for SVG and HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separated_thousands_and_no_trailing_zeros() {
        assert_eq!(thousands(1_234_567.0), "1,234,567");
        assert_eq!(thousands(999.0), "999");
        let ticks = [0.0, 0.05, 2.5, 20.0, 100_000.0].map(tick);
        assert_eq!(ticks, ["0", "0.05", "2.5", "20", "100,000"]);
        let values = [0.1234, 2.345, 67.53, 24_349.2].map(measured);
        assert_eq!(values, ["0.123", "2.35", "67.5", "24,349"]);
    }

    #[test]
    fn a_long_text_is_wrapped_between_words_and_keeps_them_all() {
        let text = "volume, one lender beyond 1 Gbit/s, on a MODELLED disk";
        let lines = wrapped(text, 13.0, 200.0);
        assert!(lines.len() > 1, "{lines:?}");
        assert!(lines.iter().all(|line| width(line, 13.0) <= 200.0), "{lines:?}");
        assert_eq!(lines.join(" "), text);
        let short = wrapped("RRVM, TCP, MODELLED disk", 13.0, 160.0);
        assert_eq!(short, ["RRVM, TCP,", "MODELLED disk"], "balanced");
        assert_eq!(wrapped("SOFTWARE_COUNTERS", 13.0, 10.0), ["SOFTWARE_COUNTERS"]);
    }
}
