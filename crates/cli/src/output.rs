//! Output for people and programs: tables, JSON, and errors.

use std::io::{self, IsTerminal, Write};

use anyhow::Result;
use comfy_table::{CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};
pub use netram_watch::words::{age, bytes, count, counted, plain, thousands};
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
    log::say(tracing::Level::ERROR, &format!("netram: {}", sentence(error)));
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

/// Writes something worth knowing that is not a result to standard error.
pub fn remark(text: impl std::fmt::Display) {
    log::say(tracing::Level::INFO, &text.to_string());
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

/// Returns a number with its significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.2}"),
        middle if middle < 1000.0 => format!("{value:.1}"),
        _ => thousands(value.round() as i64),
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
}
