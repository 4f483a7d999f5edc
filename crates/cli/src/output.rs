//! Output for people and programs: tables, JSON, and errors.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use anyhow::Result;
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
use serde::Serialize;

use crate::log;

/// Style of tables: rules around the table and below the header, none between rows.
const STYLE: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

/// Writes a line to standard output.
///
/// # Errors
///
/// Standard output is closed.
pub fn line(text: impl std::fmt::Display) -> Result<()> {
    Ok(writeln!(io::stdout().lock(), "{text}")?)
}

/// Writes a line of a service to standard output. The service goes on if it cannot be written.
pub fn announce(text: impl std::fmt::Display) {
    log::announce(&format!("{text}\n"));
}

/// Writes a value as JSON to standard output.
///
/// # Errors
///
/// Standard output is closed.
pub fn json(value: &impl Serialize) -> Result<()> {
    line(serde_json::to_string_pretty(value)?)
}

/// Writes an error to standard error.
pub fn complain(error: &anyhow::Error) {
    log::say(&format!("netram: {}", sentence(error)));
}

/// Returns an error and its causes in one line. A cause that is part of an earlier sentence is not repeated.
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

/// Returns foreign text, such as a node's name, with control characters escaped, so that a terminal only
/// shows it.
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

/// Writes something worth knowing that is not a result to standard error.
pub fn remark(text: impl std::fmt::Display) {
    log::say(&text.to_string());
}

/// Whether standard error is a terminal, so that progress can be shown.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Returns a table with a header. Columns after the first `left` are aligned as numbers.
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

/// Returns a number of bytes for people.
pub fn bytes(count: u64) -> String {
    bytesize::ByteSize(count).display().iec().to_string()
}

/// Returns a length of time for people, without its small parts.
pub fn age(span: Duration) -> String {
    let kept = match span {
        span if span < Duration::from_secs(1) => Duration::from_millis(span.as_millis() as u64),
        span if span < Duration::from_secs(60) => Duration::from_millis(span.as_millis() as u64 / 100 * 100),
        span => Duration::from_secs(span.as_secs()),
    };
    humantime::format_duration(kept).to_string()
}

/// Returns a number with its significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 1000.0 => format!("{value:.1}"),
        _ => thousands(value.round() as i64),
    }
}

/// Returns an integer with commas between thousands.
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

/// Returns a number of things, with an `s` for several.
pub fn count(number: u64, thing: &str) -> String {
    counted(number, thing, &format!("{thing}s"))
}

/// Returns a number of things whose plural is another word.
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
    fn numbers_keep_their_significant_digits() {
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
    fn lengths_of_time_lose_their_small_parts() {
        assert_eq!(age(Duration::from_micros(1_234_567)), "1s 200ms");
        assert_eq!(age(Duration::from_millis(61_900)), "1m 1s");
    }
}
