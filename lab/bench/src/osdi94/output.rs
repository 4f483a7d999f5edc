//! The files of a run: a CSV and a picture for each figure, a CSV of the table, and everything as Markdown.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::facts::OsdiFacts;
use super::traversals::OsdiBar;
use super::{OsdiCurve, OsdiFigure, OsdiReport, plot};
use crate::curves;
use crate::error::BenchError;
use crate::paper::output::{ResultsDirectory, RunInfo};
use crate::paper::page::number;
use crate::plot::thousands;

/// The columns of a figure's file.
pub const HEADER: &str = "figure,curve,x,unit,value";
/// The columns of the table's file.
pub const TABLE_HEADER: &str = "operation,us_4096,us_8192,us_paper_8192";
/// The columns of the file of figures 1 to 3 and table 3.
pub const BARS_HEADER: &str = "figure,traversal,curve,detect_us,collect_us,send_us,apply_us,updates,ranges,bytes,message_bytes,\
                               pages_4k,pages_8k";
/// The document with all tables.
pub const TABLES: &str = "osdi94-results.md";

/// Writes all files into `directory`, which is created if missing. Returns the files written.
///
/// # Errors
///
/// Fails if a file cannot be written, or a picture not drawn.
pub fn write(
    report: &OsdiReport,
    run: &RunInfo,
    directory: &Path,
    png: bool,
) -> Result<Vec<PathBuf>, BenchError> {
    let facts = OsdiFacts::osdi94()?;
    let mut results = ResultsDirectory::new(directory)?;
    for figure in &report.figures {
        let name = format!("osdi94-fig{:02}", figure.number);
        results.save_figure(&name, &csv(figure), &plot::picture(figure), png)?;
    }
    if !report.costs.is_empty() {
        let csv = table_csv(report, &facts);
        results.save_figure("osdi94-table2", &csv, &plot::costs(report, &facts), png)?;
    }
    if !report.bars.is_empty() {
        results.save("osdi94-fig01-03.csv", bars_csv(&report.bars).as_bytes())?;
        for number in 1..=3 {
            if let Some(picture) = plot::traversals(&report.bars, number) {
                results.save_picture(&format!("osdi94-fig{number:02}"), &picture, png)?;
            }
        }
    }
    if !report.columns.is_empty() {
        let line =
            |column: &super::recoverability::OsdiColumn| format!("{},{:.2}\n", column.id, column.overhead_us);
        let lines: String = report.columns.iter().map(line).collect();
        let csv = format!("column,overhead_us\n{lines}");
        results.save_figure("osdi94-fig08", &csv, &plot::columns(report), png)?;
    }
    let title = "The experiments of log-based coherency: all tables";
    results.save_document(TABLES, title, "osdi94.md", &tables(report, &facts, run))?;
    Ok(results.files_written)
}

// Writing to a string cannot fail, here and below.

fn csv(figure: &OsdiFigure) -> String {
    let mut text = format!("{HEADER}\n");
    for point in &figure.points {
        let (id, x, value) = (point.curve.id(), point.x, point.value);
        let _ = writeln!(text, "{},{id},{x},{},{value:.4}", figure.number, figure.unit);
    }
    text
}

fn table_csv(report: &OsdiReport, facts: &OsdiFacts) -> String {
    let mut text = format!("{TABLE_HEADER}\n");
    let field = |us: Option<f64>| us.map(|us| format!("{us:.4}")).unwrap_or_default();
    for cost in &report.costs {
        let [small, large] = cost.us.map(field);
        let _ = writeln!(text, "{},{small},{large},{}", cost.id, field(facts.cost(cost.id)));
    }
    text
}

fn bars_csv(bars: &[OsdiBar]) -> String {
    let mut text = format!("{BARS_HEADER}\n");
    for bar in bars {
        let (operation, curve, sent) = (bar.operation, bar.curve.id(), bar.sent);
        let [detect, collect, send, apply] = [bar.detect_us, bar.collect_us, bar.send_us, bar.apply_us];
        let _ = write!(
            text,
            "{},{operation},{curve},{detect:.2},{collect:.2},{send:.2},{apply:.2},",
            bar.figure
        );
        let counts = [
            sent.updates,
            sent.ranges,
            sent.bytes,
            sent.message_bytes,
            sent.pages_4k,
            sent.pages_8k,
        ];
        let _ = writeln!(text, "{}", counts.map(|count| count.to_string()).join(","));
    }
    text
}

fn tables(report: &OsdiReport, facts: &OsdiFacts, run: &RunInfo) -> String {
    let mut text = format!(
        "Taken {}; medians of {} rounds and more. \
         All measured, nothing computed.\nThe paper's machines: {}.\n",
        run.on(&report.machine),
        report.plan.rounds,
        facts.hardware,
    );
    for skipped in &report.skipped {
        let _ = writeln!(text, "\nNot measured: {skipped}.");
    }
    costs(&mut text, report, facts);
    bars(&mut text, report, facts);
    record_sizes(&mut text, report, facts);
    columns(&mut text, report, facts);
    for figure in &report.figures {
        let _ = writeln!(text, "\n### Figure {}: {}\n", figure.number, figure.title);
        for said in facts.said.iter().filter(|said| said.figure == figure.number) {
            let _ = writeln!(text, "The paper: {}.\n", said.text);
        }
        points(&mut text, figure);
        for (curve, from) in crossings(figure) {
            let from = match from {
                Some(from) => format!("from {} on", thousands(from)),
                None => "nowhere here".to_owned(),
            };
            let (axis, label) = (figure.axis, curve.label());
            let _ = writeln!(text, "\n{label} is cheaper than Log {from} ({axis}).");
        }
    }
    text
}

fn costs(text: &mut String, report: &OsdiReport, facts: &OsdiFacts) {
    if report.costs.is_empty() {
        return;
    }
    text.push_str(
        "\n### Table 2: microseconds a page\n\n| operation | 4 KiB | 8 KiB | Alpha, 8 KiB | times faster |\n",
    );
    text.push_str("|---|---:|---:|---:|---:|\n");
    for cost in &report.costs {
        let [small, large] = cost.us;
        let paper = facts.cost(cost.id);
        // A fault concerns one page, whatever its size.
        let ratio = paper.zip(large.or(small)).map(|(paper, ours)| paper / ours);
        let cell = |value: Option<f64>| value.map(fine).unwrap_or_default();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            cost.what,
            cell(small),
            cell(large),
            cell(paper),
            ratio.map(number).unwrap_or_default()
        );
    }
}

/// Figures 1 to 3: a row for each traversal and way of finding changes.
fn bars(text: &mut String, report: &OsdiReport, facts: &OsdiFacts) {
    for number in 1..=3 {
        let bars: Vec<&OsdiBar> = report.bars.iter().filter(|bar| bar.figure == number).collect();
        if bars.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "\n### Figure {number}: overhead of OO7's traversals, until the other node has the changes\n"
        );
        for said in facts.said.iter().filter(|said| said.figure == number) {
            let _ = writeln!(text, "The paper: {}.\n", said.text);
        }
        text.push_str(
            "| us | | detect | collect | send | apply | all |\n|---|---|---:|---:|---:|---:|---:|\n",
        );
        for bar in bars {
            let costs = [
                bar.detect_us,
                bar.collect_us,
                bar.send_us,
                bar.apply_us,
                bar.all_us(),
            ];
            let costs = costs.map(|us| format!("{us:.0}"));
            let (operation, label) = (bar.operation, bar.curve.label());
            let _ = writeln!(text, "| {operation} | {label} | {} |", costs.join(" | "));
        }
    }
}

/// Figure 8.
fn columns(text: &mut String, report: &OsdiReport, facts: &OsdiFacts) {
    if report.columns.is_empty() {
        return;
    }
    text.push_str("\n### Figure 8: coherency and recoverability, overhead of T12-A\n\n");
    for said in facts.said.iter().filter(|said| said.figure == 8) {
        let _ = writeln!(text, "The paper: {}.\n", said.text);
    }
    text.push_str("| | us |\n|---|---:|\n");
    for column in &report.columns {
        let _ = writeln!(text, "| {} | {:.0} |", column.what, column.overhead_us);
    }
}

/// Table 3: bytes that each traversal sends.
fn record_sizes(text: &mut String, report: &OsdiReport, facts: &OsdiFacts) {
    if report.bars.is_empty() {
        return;
    }
    text.push_str(
        "\n### Table 3: what is sent (with the paper's in brackets: updates, bytes, message, pages of 8 KiB)\n\n\
         | traversal | | updates | ranges | bytes | message | pages of 4 KiB | of 8 KiB |\n|---|---|---:|---:|---:|---:|---:|---:|\n",
    );
    for bar in &report.bars {
        let paper = facts
            .traversal(bar.operation.name())
            .filter(|_| bar.curve == OsdiCurve::Log);
        let cell = |count: u64, at: usize| {
            let stated = paper.map(|paper| format!(" ({})", thousands(paper[at] as f64)));
            format!("{}{}", thousands(count as f64), stated.unwrap_or_default())
        };
        let sent = bar.sent;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            bar.operation,
            bar.curve.label(),
            cell(sent.updates, 0),
            thousands(sent.ranges as f64),
            cell(sent.bytes, 1),
            cell(sent.message_bytes, 2),
            thousands(sent.pages_4k as f64),
            cell(sent.pages_8k, 3),
        );
    }
}

fn points(text: &mut String, figure: &OsdiFigure) {
    let places = curves::x_values(&figure.points);
    let _ = write!(text, "| {}; {} |", figure.unit, figure.axis);
    for &place in &places {
        let _ = write!(text, " {} |", thousands(place as f64));
    }
    let _ = writeln!(text, "\n|---|{}", "---:|".repeat(places.len()));
    for curve in curves::curves(&figure.points) {
        let _ = write!(text, "| {} |", curve.label());
        for &place in &places {
            let point = curves::at(&figure.points, curve, place);
            let _ = write!(
                text,
                " {} |",
                point.map(|point| fine(point.value)).unwrap_or_default()
            );
        }
        text.push('\n');
    }
}

/// A number with three significant digits.
fn fine(value: f64) -> String {
    match value {
        small if small < 1.0 => format!("{small:.3}"),
        other => number(other),
    }
}

/// X value from which each curve lies below Log's, interpolated between the two points where they cross.
fn crossings(figure: &OsdiFigure) -> Vec<(OsdiCurve, Option<f64>)> {
    // In figure 4 Log lacks the cost of its updates, so a crossing there means nothing.
    if figure.number != 7 {
        return Vec::new();
    }
    let others = curves::curves(&figure.points).into_iter();
    let others = others.filter(|curve| matches!(curve, OsdiCurve::CompareTrap | OsdiCurve::CompareWatch));
    others.map(|curve| (curve, crossing(figure, curve))).collect()
}

fn crossing(figure: &OsdiFigure, curve: OsdiCurve) -> Option<f64> {
    let mut before: Option<(f64, f64)> = None;
    for place in curves::x_values(&figure.points) {
        let log = curves::at(&figure.points, OsdiCurve::Log, place)?.value;
        let lead = log - curves::at(&figure.points, curve, place)?.value;
        let x = place as f64;
        match before {
            _ if lead < 0.0 => before = Some((x, lead)),
            None => return Some(x),
            Some((from, behind)) => return Some(from + (x - from) * -behind / (lead - behind)),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::OsdiPoint;
    use super::*;

    fn figure(log: &[(u64, f64)], compare: f64) -> OsdiFigure {
        let point = |curve, x, value| OsdiPoint { curve, x, value };
        let logs = log.iter().map(|(x, value)| point(OsdiCurve::Log, *x, *value));
        let flat = log
            .iter()
            .map(|(x, _)| point(OsdiCurve::CompareTrap, *x, compare));
        OsdiFigure {
            number: 7,
            title: "made up",
            axis: "updates",
            unit: "us a page",
            points: logs.chain(flat).collect(),
        }
    }

    #[test]
    fn curves_cross_between_the_x_values_where_they_change_sides() {
        let log = [(100, 1.0), (200, 2.0), (400, 4.0)];
        assert_eq!(crossing(&figure(&log, 3.0), OsdiCurve::CompareTrap), Some(300.0));
        assert_eq!(crossing(&figure(&log, 9.0), OsdiCurve::CompareTrap), None);
        assert_eq!(crossing(&figure(&log, 0.5), OsdiCurve::CompareTrap), Some(100.0));
    }

    #[test]
    fn a_figure_has_a_line_for_each_point_and_every_curve_in_its_picture() {
        let figure = figure(&[(1, 1.0), (2, 2.0)], 3.0);
        let text = csv(&figure);
        assert_eq!(text.lines().next(), Some(HEADER));
        assert_eq!(text.lines().count(), 5);
        let svg = plot::picture(&figure).svg();
        assert!(svg.contains("Cpy/Cmp, signal") && svg.contains("Log"));
    }
}
