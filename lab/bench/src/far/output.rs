//! The files of a comparison: a CSV, one picture for each program, and the tables as Markdown.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::programs::FarProgram;
use super::{FarCell, FarMethod, FarReport, SLACK_BYTES, SLOW_DISK_US};
use crate::error::BenchError;
use crate::paper::output::{ResultsDirectory, RunInfo};
use crate::plot::{CurvePlot, CurveStyle, PlotColour, PlotCurve, PlotFigure, PointMark};

/// The columns of the file with all rounds' medians.
pub const HEADER: &str = "program,local_percent,way,outcome,seconds,faults,resident_bytes";
/// The document with all tables.
pub const TABLES: &str = "far-results.md";

/// Writes all files into `directory`, which is created if missing. Returns the files written.
///
/// # Errors
///
/// Fails if a file cannot be written, or a picture not drawn.
pub fn write(report: &FarReport, run: &RunInfo, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let mut results = ResultsDirectory::new(directory)?;
    results.save("far.csv", csv(report).as_bytes())?;
    let title = "Far memory: all tables";
    results.save_document(TABLES, title, "far.md", &tables(report, run))?;
    for program in programs(report) {
        let name = format!("far-{}.svg", program.name());
        results.save(&name, picture(report, program).svg().as_bytes())?;
    }
    Ok(results.files_written)
}

/// Programs that were run, in the order of the tables.
pub fn programs(report: &FarReport) -> impl Iterator<Item = FarProgram> {
    let has = |program: &FarProgram| report.cells.iter().any(|cell| cell.program == *program);
    FarProgram::ALL.into_iter().filter(has)
}

/// Methods that were run, in the order of the tables.
pub fn methods(report: &FarReport) -> Vec<FarMethod> {
    let gone = |way: &FarMethod| report.cells.iter().any(|cell| cell.way == *way);
    FarMethod::ALL.into_iter().filter(gone).collect()
}

/// Shares of local memory, greatest first.
pub fn locals(report: &FarReport) -> Vec<u8> {
    let mut locals: Vec<u8> = report
        .cells
        .iter()
        .map(|cell| cell.local)
        .filter(|local| *local < 100)
        .collect();
    locals.sort_unstable_by(|one, other| other.cmp(one));
    locals.dedup();
    locals
}

/// A table row: `shown` of each method's cell, and nothing where there is none.
pub fn row(
    report: &FarReport,
    program: FarProgram,
    local: u8,
    shown: impl Fn(&FarCell) -> String,
) -> impl Iterator<Item = String> {
    methods(report).into_iter().map(move |way| {
        let local = if way == FarMethod::Local { 100 } else { local };
        report.cell(program, local, way).map(&shown).unwrap_or_default()
    })
}

// Writing to a string cannot fail, here and below.

fn csv(report: &FarReport) -> String {
    let mut text = format!("{HEADER}\n");
    for cell in &report.cells {
        let number = |value: Option<f64>, digits: usize| {
            value.map(|value| format!("{value:.digits$}")).unwrap_or_default()
        };
        let outcome = match cell.seconds() {
            Some(_) => "done".to_owned(),
            None => cell.shown(),
        };
        let _ = writeln!(
            text,
            "{},{},{},{outcome},{},{},{}",
            cell.program.name(),
            cell.local,
            cell.way.name(),
            number(cell.seconds(), 6),
            number(cell.faults(), 0),
            number(cell.resident_bytes(), 0),
        );
    }
    text
}

fn tables(report: &FarReport, run: &RunInfo) -> String {
    let mut text = format!(
        "Run {}. Each program has {} MiB; {} lender(s) on this machine, over encrypted TCP. \
         A limited group may have {} MiB beside what is local. The slow disk is MODELLED: {} ms more a request.\n",
        run.on(&report.machine),
        report.bytes >> 20,
        report.copies,
        SLACK_BYTES >> 20,
        SLOW_DISK_US / 1000,
    );
    for skipped in &report.skipped {
        let _ = writeln!(text, "\nNot run: {skipped}.");
    }
    table(&mut text, report, "Seconds", FarCell::shown);
    let count = |value: Option<f64>| value.map(|value| format!("{value:.0}")).unwrap_or_default();
    table(&mut text, report, "Faults that waited", |cell| {
        count(cell.faults())
    });
    let mib = |value: Option<f64>| {
        value
            .map(|value| format!("{:.1}", value / f64::from(1 << 20)))
            .unwrap_or_default()
    };
    table(&mut text, report, "MiB of the process here at the most", |cell| {
        mib(cell.resident_bytes())
    });
    text
}

fn table(text: &mut String, report: &FarReport, title: &str, shown: impl Fn(&FarCell) -> String) {
    let ways = methods(report);
    let names: Vec<&str> = ways.iter().map(|way| way.name()).collect();
    let _ = writeln!(
        text,
        "\n### {title}\n\n| program | local % | {} |",
        names.join(" | ")
    );
    let _ = writeln!(text, "|---|---:|{}", "---:|".repeat(ways.len()));
    for program in programs(report) {
        for local in locals(report) {
            let cells: Vec<String> = row(report, program, local, &shown).collect();
            let _ = writeln!(text, "| {} | {local} | {} |", program.name(), cells.join(" | "));
        }
    }
}

fn picture(report: &FarReport, program: FarProgram) -> PlotFigure {
    let mut locals = locals(report);
    locals.reverse();
    let curve = |way: FarMethod| {
        let at = |local| {
            report
                .cell(program, if way == FarMethod::Local { 100 } else { local }, way)?
                .seconds()
        };
        PlotCurve {
            label: way.name().to_owned(),
            style: style_of(way),
            points: locals
                .iter()
                .filter_map(|&local| Some((u64::from(local), at(local)?)))
                .collect(),
        }
    };
    PlotFigure::Curves(CurvePlot {
        title: format!("Far memory: {} with {} MiB", program.name(), report.bytes >> 20),
        across: "part of its memory that is local, %".to_owned(),
        upwards: "seconds".to_owned(),
        curves: methods(report)
            .into_iter()
            .map(curve)
            .filter(|curve| !curve.points.is_empty())
            .collect(),
    })
}

fn style_of(way: FarMethod) -> CurveStyle {
    let (colour, dashed) = match way {
        FarMethod::Local => (PlotColour::Grey, true),
        FarMethod::Swap => (PlotColour::Vermilion, false),
        FarMethod::SlowSwap => (PlotColour::Vermilion, true),
        FarMethod::Zram => (PlotColour::Gold, false),
        FarMethod::File => (PlotColour::Purple, false),
        FarMethod::Run => (PlotColour::Blue, true),
        FarMethod::Vec => (PlotColour::Blue, false),
        FarMethod::Words => (PlotColour::Green, false),
    };
    let mark = match (way, dashed) {
        (FarMethod::Local, _) => PointMark::None,
        (_, true) => PointMark::Triangle,
        (_, false) => PointMark::Dot,
    };
    CurveStyle { colour, dashed, mark }
}
