//! The files of a run: a CSV and a picture for each figure, CSVs of today's machines and of the statements,
//! and everything as Markdown.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::facts::MascotsFacts;
use super::programs::MascotsWorkload;
use super::{MascotsFigure, MascotsReport, plot};
use crate::curves;
use crate::error::BenchError;
use crate::paper::output::{ResultsDirectory, RunInfo};
use crate::plot::thousands;

/// The columns of a figure's file.
pub const HEADER: &str = "figure,program,policy,x,cycles";
/// The columns of the file of today's machines.
pub const TODAY_HEADER: &str = "machine,program,disk_ns,ram_disk_ns,remote_main_ns,counters_ns,initial";
/// The columns of the statements' file.
pub const CLAIMS_HEADER: &str = "figure,statement,paper,ours,holds";
/// The document with all tables.
pub const TABLES: &str = "mascots96-results.md";

/// Writes all files into `directory`, which is created if missing. Returns the files written.
///
/// # Errors
///
/// Fails if a file cannot be written, or a picture not drawn.
pub fn write(
    report: &MascotsReport,
    run: &RunInfo,
    directory: &Path,
    png: bool,
) -> Result<Vec<PathBuf>, BenchError> {
    let facts = MascotsFacts::mascots96()?;
    let mut results = ResultsDirectory::new(directory)?;
    for figure in &report.figures {
        let name = format!("mascots96-fig{:02}", figure.number);
        results.save_figure(&name, &csv(figure), &plot::picture(figure, &facts), png)?;
    }
    results.save("mascots96-today.csv", today_csv(report).as_bytes())?;
    results.save("mascots96-text.csv", claims_csv(report).as_bytes())?;
    let title = "The experiments of the paging study: all tables";
    results.save_document(TABLES, title, "mascots96.md", &tables(report, &facts, run))?;
    Ok(results.files_written)
}

// Writing to a string cannot fail, here and below.

fn csv(figure: &MascotsFigure) -> String {
    let mut text = format!("{HEADER}\n");
    for point in &figure.points {
        let (program, policy) = (point.workload.name(), point.policy.label());
        let _ = writeln!(
            text,
            "{},{program},{policy},{},{:.4}",
            figure.number, point.x, point.cycles
        );
    }
    text
}

fn today_csv(report: &MascotsReport) -> String {
    let mut text = format!("{TODAY_HEADER}\n");
    for row in &report.today {
        let [disk, ram_disk, remote_main, counters] = row.ns;
        let _ = writeln!(
            text,
            "{},{},{disk:.4},{ram_disk:.4},{remote_main:.4},{counters:.4},{}",
            row.machine,
            row.workload.name(),
            row.initial
        );
    }
    text
}

fn claims_csv(report: &MascotsReport) -> String {
    let mut text = format!("{CLAIMS_HEADER}\n");
    for claim in &report.claims {
        let paper = claim.paper.map(|paper| paper.to_string()).unwrap_or_default();
        let _ = writeln!(
            text,
            "{},\"{}\",{paper},{:.4},{}",
            claim.figure, claim.what, claim.ours, claim.holds
        );
    }
    text
}

fn tables(report: &MascotsReport, facts: &MascotsFacts, run: &RunInfo) -> String {
    let mut text = format!(
        "Run {}. Costs are computed from counted events; only the network and the disk of \
         \"this one\" are measured.\nThe paper: {}.\n",
        run.on(&report.machine),
        facts.hardware,
    );
    for skipped in &report.skipped {
        let _ = writeln!(text, "\nNot run: {skipped}.");
    }
    text.push_str("\n| program | references | MB |\n|---|---:|---:|\n");
    for ran in &report.programs {
        let references = thousands(ran.references as f64);
        let _ = writeln!(
            text,
            "| {} | {references} | {:.1} |",
            ran.workload.name(),
            ran.megabytes
        );
    }
    for figure in &report.figures {
        let _ = writeln!(text, "\n### Figure {}: {}\n", figure.number, figure.title);
        let _ = writeln!(text, "The paper: {}.\n", facts.of(figure.number));
        points(&mut text, figure);
    }
    today(&mut text, report);
    text.push_str("\n### What the text states\n\n| figure | statement | the paper | here | holds |\n|---:|---|---:|---:|---|\n");
    for claim in &report.claims {
        let paper = claim.paper.map(cycles).unwrap_or_default();
        let holds = if claim.holds { "yes" } else { "**no**" };
        let ours = cycles(claim.ours);
        let _ = writeln!(
            text,
            "| {} | {} | {paper} | {ours} | {holds} |",
            claim.figure, claim.what
        );
    }
    text
}

fn points(text: &mut String, figure: &MascotsFigure) {
    let points = &figure.points;
    let places = curves::x_values(points);
    let heading = |place: &u64| match figure.axis {
        "program" => MascotsWorkload::ALL
            .iter()
            .find(|one| one.x() == *place)
            .map_or("", |one| one.name())
            .to_owned(),
        _ => thousands(*place as f64),
    };
    let headings: Vec<String> = places.iter().map(heading).collect();
    let _ = writeln!(text, "| {} | {} |", figure.axis, headings.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(places.len()));
    for curve in curves::curves(points) {
        let cells: Vec<String> = places
            .iter()
            .map(|&place| {
                curves::at(points, curve, place)
                    .map(|point| cycles(point.cycles))
                    .unwrap_or_default()
            })
            .collect();
        let _ = writeln!(text, "| {} | {} |", curve.label(), cells.join(" | "));
    }
}

fn today(text: &mut String, report: &MascotsReport) {
    let measured = &report.measured;
    let _ = writeln!(
        text,
        "\n### Figure 1 today: nanoseconds of an average reference\n\nPages of 4 KiB, 4 MiB local memory (as many pages as the paper's machine had), 80 MiB remote memory, 3 GHz; COUNTERS with its best counter, which is \
         in brackets. \"This one\": a page {:.1} us, a word {:.1} us over TCP on the loopback, a page from the disk {:.1} us, a fault 7.6 us.\n",
        measured.page_us, measured.word_us, measured.disk_us
    );
    text.push_str(
        "| machine | program | DISK | RAM_DISK | REMOTE_MAIN | COUNTERS |\n|---|---|---:|---:|---:|---:|\n",
    );
    for row in &report.today {
        let best = row.ns.iter().copied().fold(f64::INFINITY, f64::min);
        let cells = row.ns.map(|ns| match ns <= best {
            true => format!("**{}**", cycles(ns)),
            false => cycles(ns),
        });
        let [disk, ram_disk, remote_main, counters] = cells;
        let (program, initial) = (row.workload.name(), row.initial);
        let _ = writeln!(
            text,
            "| {} | {program} | {disk} | {ram_disk} | {remote_main} | {counters} ({initial}) |",
            row.machine
        );
    }
}

/// A number with four digits.
pub fn cycles(value: f64) -> String {
    match value {
        value if value >= 1000.0 => thousands(value),
        value if value >= 100.0 => format!("{value:.1}"),
        value if value >= 10.0 => format!("{value:.2}"),
        value => format!("{value:.3}"),
    }
}
