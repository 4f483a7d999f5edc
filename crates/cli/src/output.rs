//! What people and programs see: tables, JSON, and complaints.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use serde::Serialize;

use crate::log;

/// A rule below the header and around the whole, none between rows.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// A line on standard output.
pub fn line(text: impl std::fmt::Display) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// A line on standard output that a service goes on without: whoever started it may listen no longer.
pub fn announce(text: impl std::fmt::Display) {
    log::announce(&format!("{text}\n"));
}

/// A value as JSON on standard output.
pub fn json(value: &impl Serialize) -> Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// An error on standard error: what, why, and the remedy if there is one.
pub fn complain(error: &anyhow::Error) {
    log::say(&format!("netram: {}", sentence(error)));
}

/// An error and its causes in one line. Libraries name the cause in their own sentence already; it is not
/// said twice.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if said.is_empty() {
            said = cause;
        } else if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

/// Text that others have made, such as a node's name: control characters are escaped, so that a terminal does
/// nothing but show it.
pub fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => plain.extend(letter.escape_debug()),
            false => plain.push(letter),
        }
    }
    plain
}

/// Something worth knowing that is no result, on standard error.
pub fn remark(text: impl std::fmt::Display) {
    log::say(&text.to_string());
}

/// Whether a person watches the progress.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// A table with a header; columns after the first `left` are numbers.
pub fn table(header: &[&str], left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(STYLE);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.iter().copied());
    for column in left..header.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Bytes for people.
pub fn bytes(count: u64) -> String {
    bytesize::ByteSize(count).display().iec().to_string()
}

/// A length of time for people, its small parts left out.
pub fn age(span: Duration) -> String {
    let kept = match span {
        span if span < Duration::from_secs(1) => Duration::from_millis(span.as_millis() as u64),
        span if span < Duration::from_secs(60) => Duration::from_millis(span.as_millis() as u64 / 100 * 100),
        span => Duration::from_secs(span.as_secs()),
    };
    humantime::format_duration(kept).to_string()
}

/// A number with as many digits as mean something.
pub fn number(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 1000.0 => format!("{value:.1}"),
        _ => thousands(value.round() as i64),
    }
}

/// An integer with its thousands apart.
pub fn thousands(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0 { format!("-{text}") } else { text }
}

/// A number of things, whose name takes an `s` when there are several.
pub fn count(number: u64, thing: &str) -> String {
    counted(number, thing, &format!("{thing}s"))
}

/// A number of things whose name has another plural.
pub fn counted(number: u64, one: &str, several: &str) -> String {
    let digits = thousands(i64::try_from(number).unwrap_or(i64::MAX));
    match number {
        1 => format!("{digits} {one}"),
        _ => format!("{digits} {several}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_mean_something() {
        assert_eq!(number(1.234), "1.23");
        assert_eq!(number(123.45), "123.5");
        assert_eq!(number(1_234_567.8), "1,234,568");
        assert_eq!(thousands(-1000), "-1,000");
        assert_eq!(thousands(999), "999");
        assert_eq!(
            (count(1, "log"), count(2000, "log")),
            ("1 log".into(), "2,000 logs".into())
        );
    }

    #[test]
    fn a_cause_is_named_once() {
        let cause = || io::Error::other("no such thing");
        let twice = anyhow::Error::new(cause()).context(format!("cannot do it: {}", cause()));
        assert_eq!(sentence(&twice), "cannot do it: no such thing");
        assert_eq!(
            sentence(&anyhow::Error::new(cause()).context("doing it")),
            "doing it: no such thing"
        );
    }

    #[test]
    fn ages_lose_their_small_parts() {
        assert_eq!(age(Duration::from_micros(1_234_567)), "1s 200ms");
        assert_eq!(age(Duration::from_millis(61_900)), "1m 1s");
    }
}
