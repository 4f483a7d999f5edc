//! The files of a comparison: a CSV, a picture, and the tables as Markdown.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::{PeerReport, PeerRow, PeerWork};
use crate::error::BenchError;
use crate::paper::output::{ResultsDirectory, RunInfo};
use crate::plot::{BarGroup, BarPlot, BarRow, PlotColour, PlotFigure, PointMark, thousands};

/// The columns of the file with all figures.
pub const HEADER: &str = "peer,work,p50_us,p99_us,per_second,lowest_p50_us,highest_p50_us";
/// The document with the tables.
pub const TABLES: &str = "peers-results.md";

/// Writes all files into `directory`, which is created if missing. Returns the files written.
///
/// # Errors
///
/// Fails if a file cannot be written, or a PNG is wanted and the system has no font.
pub fn write(
    report: &PeerReport,
    run: &RunInfo,
    directory: &Path,
    png: bool,
) -> Result<Vec<PathBuf>, BenchError> {
    let mut results = ResultsDirectory::new(directory)?;
    results.save_figure("peers", &csv(report), &picture(report), png)?;
    let title = "netram beside its peers: all tables";
    results.save_document(TABLES, title, "peers.md", &tables(report, run))?;
    Ok(results.files_written)
}

/// The rows of one work.
pub fn rows(report: &PeerReport, work: PeerWork) -> impl Iterator<Item = &PeerRow> {
    report.rows.iter().filter(move |row| row.peer.work() == work)
}

/// Microseconds as they stand in tables.
pub fn microseconds(value: f64) -> String {
    match value {
        ..100.0 => format!("{value:.1}"),
        _ => thousands(value),
    }
}

// Writing to a string cannot fail, here and below.

fn csv(report: &PeerReport) -> String {
    let mut text = format!("{HEADER}\n");
    for row in &report.rows {
        let latency = &row.latency;
        let work = match row.peer.work() {
            PeerWork::Commit => "commit",
            PeerWork::Block => "block",
        };
        let _ = writeln!(
            text,
            "{},{work},{:.3},{:.3},{:.1},{:.3},{:.3}",
            row.peer.id(),
            latency.p50_us,
            latency.p99_us,
            latency.per_second,
            row.spread_us[0],
            row.spread_us[1]
        );
    }
    text
}

fn picture(report: &PeerReport) -> PlotFigure {
    let groups = PeerWork::ALL.map(|work| BarGroup {
        name: work.title().to_owned(),
        rows: { rows(report, work) }
            .map(|row| BarRow {
                label: row.peer.label().to_owned(),
                colour: match (row.peer.is_floor(), row.peer.is_netram()) {
                    (true, _) => PlotColour::Grey,
                    (_, true) => PlotColour::Blue,
                    _ => PlotColour::Vermilion,
                },
                value: Some(row.latency.p50_us),
                mark: Some(row.latency.p99_us),
            })
            .collect(),
    });
    PlotFigure::Bars(BarPlot {
        title: "One small write, one client, all in one run".to_owned(),
        across: "microseconds".to_owned(),
        key: Some((
            PointMark::Delta,
            PlotColour::Ink,
            "99th percentile (in brackets); bars: median".to_owned(),
        )),
        groups: groups
            .into_iter()
            .filter(|group| !group.rows.is_empty())
            .collect(),
    })
}

fn tables(report: &PeerReport, run: &RunInfo) -> String {
    let mut text = format!(
        "Run {}. All processes on this machine; medians of {} rounds in turns.\n",
        run.on(&report.machine),
        report.rounds,
    );
    for skipped in &report.skipped {
        let _ = writeln!(text, "\nNot run: {skipped}.");
    }
    for work in PeerWork::ALL {
        if rows(report, work).next().is_none() {
            continue;
        }
        let _ = writeln!(
            text,
            "\n| {} | p50 µs | rounds | p99 µs | a second | may lose if: its process is killed | its machine crashes | two machines lose power |\n\
             |---|---:|---:|---:|---:|---|---|---|",
            work.title()
        );
        for row in rows(report, work) {
            let [low, high] = row.spread_us.map(microseconds);
            let _ = writeln!(
                text,
                "| {} | {} | {low}–{high} | {} | {} | {} | {} | {} |",
                row.peer.label(),
                microseconds(row.latency.p50_us),
                microseconds(row.latency.p99_us),
                thousands(row.latency.per_second),
                row.losses.process,
                row.losses.machine,
                row.losses.both,
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::PeerKind;
    use super::*;
    use crate::histogram::LatencySummary;
    use crate::machine::MachineInfo;

    #[test]
    fn each_work_has_its_table_and_what_is_missing_is_told() {
        let row = |peer: PeerKind, p50_us| PeerRow {
            peer,
            latency: LatencySummary {
                p50_us,
                p99_us: 2.0 * p50_us,
                per_second: 1e6 / p50_us,
                ..LatencySummary::default()
            },
            spread_us: [p50_us, p50_us],
            losses: peer.losses(),
        };
        let report = PeerReport {
            machine: MachineInfo::probe(),
            rounds: 5,
            rows: vec![
                row(PeerKind::NetramOne, 12.5),
                row(PeerKind::Redis, 60.0),
                row(PeerKind::QemuNbd, 1234.0),
            ],
            skipped: vec!["etcd: there is no `etcd` (package etcd-server)".to_owned()],
        };
        let run = RunInfo {
            began: String::new(),
            command: "netram-lab peers".to_owned(),
            disk: String::new(),
        };
        let directory = tempfile::tempdir().unwrap();
        let written = write(&report, &run, directory.path(), false).unwrap();
        assert_eq!(written.len(), 3);
        let text = std::fs::read_to_string(directory.path().join(TABLES)).unwrap();
        assert!(
            text.contains("| netram, one member | 12.5 | 12.5–12.5 | 25.0 | 80,000 | nothing |"),
            "{text}"
        );
        assert!(text.contains("| qemu-nbd, FUA | 1,234 |"), "{text}");
        assert!(
            text.contains("Not run: etcd") && text.contains("written over NBD"),
            "{text}"
        );
        let picture = std::fs::read_to_string(directory.path().join("peers.svg")).unwrap();
        assert_eq!(picture.matches("class=\"bar\"").count(), 3);
    }
}
