//! `netram-lab bench paper`: the experiments of the papers, with all figures.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use netram_bench::curves::{self, CurvePoint};
use netram_bench::lnd;
use netram_bench::lnd::system::LndSystem;
use netram_bench::machine::MachineInfo;
use netram_bench::mascots96;
use netram_bench::osdi94;
use netram_bench::paper::claims::ClaimSource;
use netram_bench::paper::experiment::Tr190Effort;
use netram_bench::paper::output::{self as files, RunInfo};
use netram_bench::paper::system::Tr190Series;
use netram_bench::paper::{self, Tr190Plan, Tr190Progress, Tr190Report};
use netram_bench::progress;
use netram_bench::testbed::Testbed;
use serde::Serialize;
use serde_json::json;

use netram_cli::options::DurationArg;
use netram_cli::output;

/// Run the experiments of a paper: every figure as CSV, as a plot and in a table
///
/// tr190: RVM, whose commits wait for the disk, beside RRVM, whose commits wait for a
/// member's memory: over a Unix socket, over TCP, and over TCP between two network
/// namespaces (root only), each on the local disk and on a modelled one whose syncs take 8
/// ms. Figure 12 is OO7 in SQLite and Berkeley DB, with their files on a disk and on remote
/// memory. The page shows the paper's figures beside these, and the differences. A full run
/// takes about an hour, with --cap 2s two thirds of that.
///
/// lnd: synchronous writes by fio to the local disk, to a modelled one whose syncs take 1
/// ms, and to volumes, also with a data lender and over a link of 1 Gbit/s: by stage
/// threshold (figure 3), by block size on the bare device, on ext4 and on XFS (4 to 6);
/// MariaDB (2, for table 2) and PostgreSQL (7). Needs root, FUSE, loop devices and fio.
/// Takes about twelve minutes.
///
/// osdi94: log-based coherency: the cost of copying, comparing and sending a page, and of
/// catching a store to it (2, for table 2); recorded updates beside pages that are compared
/// or sent whole, by modified bytes (4) and by updates (7), and one update by their number
/// (5, 6); traversals of OO7 at one node until another has their changes (1 to 3, with
/// table 3); coherency and logging together and alone (8). Takes a minute or two, and 600
/// MB of memory.
///
/// mascots96: paging policies with the paper's programs (1), over other networks (2), with
/// other counters (3), in software (4); figure 1 also on machines of today, and on this one
/// with its own network and disk, which are measured. VERILOG needs iverilog and qemu-user.
/// Takes about a minute.
///
///   netram-lab bench paper --quick                      # about a minute
///   netram-lab bench paper --figures 1,9-11 --dir /mnt  # some figures, another disk
///   netram-lab bench paper --png --out results
///   netram-lab bench paper --only lnd --figures 2,4
///   netram-lab bench paper --only osdi94
///   netram-lab bench paper --only mascots96
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchPaper {
    /// The paper
    #[arg(long, value_enum, default_value_t = PaperName::Tr190)]
    only: PaperName,
    /// Figures, as 1,4,9-11 [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    figures: Vec<FigureRange>,
    /// One short round with fewer x values
    #[arg(long)]
    quick: bool,
    /// A cell ends after this time, or (tr190) after 10,000 transactions [default: 5s, lnd
    /// 300ms; quick: 120ms, lnd 200ms]
    #[arg(long, value_name = "TIME")]
    cap: Option<DurationArg>,
    /// Small data files and banks (tr190): every curve is measured and drawn, but its height
    /// means nothing
    #[arg(long, hide = true)]
    small: bool,
    /// Directory for the results; replaces files of an earlier run
    #[arg(long, value_name = "DIR", default_value = "netram-paper")]
    out: PathBuf,
    /// Write plots as PNG too: each on white, and on black as NAME-dark.png
    #[arg(long)]
    png: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Directory for logs and data files during the measurement; choose the disk of interest
    /// [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Papers whose experiments are here.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PaperName {
    /// On using Network Memory to Improve the Performance of Transaction-Based Systems
    Tr190,
    /// LND: A Reliable Multi-Tier Storage Device in NOW
    Lnd,
    /// Integrating Coherency and Recoverability in Distributed Systems
    Osdi94,
    /// Using Remote Memory to avoid Disk Thrashing: A Simulation Study
    Mascots96,
}

/// One figure, or a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FigureRange {
    first: u8,
    last: u8,
}

impl FromStr for FigureRange {
    type Err = String;

    fn from_str(text: &str) -> Result<FigureRange, String> {
        let number = |text: &str| text.trim().parse::<u8>().ok();
        let parsed = match text.split_once('-') {
            Some((first, last)) => number(first).zip(number(last)),
            None => number(text).map(|only| (only, only)),
        };
        match parsed {
            Some((first, last)) if first <= last => Ok(FigureRange { first, last }),
            _ => Err(format!("`{text}` is no figure; write figures as 1,4,9-11")),
        }
    }
}

impl BenchPaper {
    pub(super) fn run(self) -> Result<ExitCode> {
        super::make_directory(&self.out)?;
        let site = super::testbed(self.dir.as_deref())?;
        let introduction = super::introduction(&MachineInfo::probe(), site.directory());
        if !self.json {
            output::line(&introduction)?;
        }
        let run = super::run_info(super::file_system(super::place(&site)));
        match self.only {
            PaperName::Tr190 => self.tr190(&site, &run),
            PaperName::Lnd => self.lnd(&site, &run),
            PaperName::Osdi94 => self.osdi94(&site, &run),
            PaperName::Mascots96 => self.mascots96(&site, &run),
        }
    }

    fn tr190(&self, site: &Testbed, run: &RunInfo) -> Result<ExitCode> {
        let mut progress = Progress::new();
        let report = paper::measure(site, &self.plan(), &mut |step| progress.step(&step))?;
        progress.end();
        let written = files::write(&report, run, &self.out, self.png)?;
        self.tell(run, &report, &written, files::PAGE, show)
    }

    fn lnd(&self, site: &Testbed, run: &RunInfo) -> Result<ExitCode> {
        let cap = Duration::from_millis(if self.quick { 200 } else { 300 });
        let plan = lnd::LndPlan {
            figures: self.numbers(),
            rounds: if self.quick { 1 } else { 3 },
            cap: self.cap.map_or(cap, |cap| cap.0),
            quick: self.quick,
        };
        let bar = ProgressBar::new_spinner();
        let report = lnd::measure(site, &plan, &mut |next| say(&bar, &next))?;
        bar.finish_and_clear();
        let written = lnd::output::write(&report, run, &self.out, self.png)?;
        self.tell(run, &report, &written, lnd::output::TABLES, show_lnd)
    }

    fn osdi94(&self, site: &Testbed, run: &RunInfo) -> Result<ExitCode> {
        let plan = osdi94::OsdiPlan {
            figures: self.numbers(),
            rounds: if self.quick { 1 } else { 9 },
            quick: self.quick,
        };
        let bar = ProgressBar::new_spinner();
        let report = osdi94::measure(site, &plan, &mut |next| say(&bar, &next))?;
        bar.finish_and_clear();
        let written = osdi94::output::write(&report, run, &self.out, self.png)?;
        self.tell(run, &report, &written, osdi94::output::TABLES, show_osdi94)
    }

    fn mascots96(&self, site: &Testbed, run: &RunInfo) -> Result<ExitCode> {
        let plan = mascots96::MascotsPlan {
            figures: self.numbers(),
            quick: self.quick,
        };
        let bar = ProgressBar::new_spinner();
        let report = mascots96::measure(site, &plan, &mut |next| say(&bar, &next))?;
        bar.finish_and_clear();
        let written = mascots96::output::write(&report, run, &self.out, self.png)?;
        self.tell(run, &report, &written, mascots96::output::TABLES, show_mascots96)
    }

    /// Prints what was measured, and where the results are.
    fn tell<R: Serialize>(
        &self,
        run: &RunInfo,
        report: &R,
        written: &[PathBuf],
        first: &str,
        show: impl FnOnce(&R) -> Result<()>,
    ) -> Result<ExitCode> {
        if self.json {
            output::json(&json!({
                "run": { "began": run.began, "command": run.command, "files_on": run.disk },
                "report": report,
                "files": written,
            }))?;
        } else {
            show(report)?;
            let (directory, first) = (self.out.display(), self.out.join(first));
            output::line(format_args!(
                "{} files in {directory}; open {}",
                written.len(),
                first.display()
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn numbers(&self) -> Vec<u8> {
        let ranges = self.figures.iter();
        let numbers: BTreeSet<u8> = ranges.flat_map(|range| range.first..=range.last).collect();
        numbers.into_iter().collect()
    }

    fn plan(&self) -> Tr190Plan {
        let effort = if self.quick {
            Tr190Effort::QUICK
        } else {
            Tr190Effort::FULL
        };
        Tr190Plan {
            figures: self.numbers(),
            effort: Tr190Effort {
                cap: self.cap.map_or(effort.cap, |cap| cap.0),
                small: self.small,
                ..effort
            },
        }
    }
}

/// Prints the next measurement or a skipped one, to the progress bar or a log file.
fn say(bar: &ProgressBar, next: &progress::ProgressEvent<'_>) {
    match next {
        progress::ProgressEvent::Next(what) if output::is_watched() => {
            bar.set_message((*what).to_owned());
            bar.tick();
        }
        progress::ProgressEvent::Next(what) => output::remark(format_args!("measuring {what} ...")),
        progress::ProgressEvent::Skipped(what) => output::remark(format_args!("SKIPPED: {what}")),
        progress::ProgressEvent::Failed(what) => output::remark(format_args!("FAILED: {what}")),
    }
}

/// A progress bar on a terminal; a line for each figure in a file.
struct Progress {
    bar: ProgressBar,
    figure: Option<u8>,
}

impl Progress {
    fn new() -> Progress {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        let style =
            ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} (about {eta} left) {wide_msg}");
        Progress {
            bar: bar.with_style(style.expect("a constant template")),
            figure: None,
        }
    }

    fn step(&mut self, step: &Tr190Progress<'_>) {
        match step {
            Tr190Progress::Cells(count) => self.bar.set_length(*count as u64),
            Tr190Progress::Skipped(what) => output::remark(format_args!("SKIPPED: {what}")),
            Tr190Progress::Cell { figure, what } => {
                let name = match figure {
                    0 => String::new(),
                    number => format!("figure {number}: "),
                };
                if self.figure.is_some() {
                    self.bar.inc(1);
                }
                self.bar.set_message(format!("{name}{what}"));
                if !output::is_watched() && self.figure != Some(*figure) {
                    output::remark(format_args!("measuring {name}{what} and what follows ..."));
                }
                self.figure = Some(*figure);
            }
        }
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn show(report: &Tr190Report) -> Result<()> {
    for figure in &report.figures {
        let title = format!("figure {}: {}", figure.number, figure.title);
        let label = |series: Tr190Series| series.label();
        show_curves(title, &figure.points, label, |point| point.tps)?;
    }
    if let Some(oo7) = &report.oo7 {
        output::line(format_args!(
            "\nfigure {}: {}",
            paper::oo7::NUMBER,
            paper::oo7::TITLE
        ))?;
        super::oo7::on::show(oo7)?;
    }
    let mut table = output::table(&["what", "measured", "unit", "hold", "met"], 1);
    let aims = report
        .claims
        .iter()
        .filter(|claim| claim.by == ClaimSource::Netram);
    for claim in aims {
        table.add_row([
            claim.what.clone(),
            output::number(claim.value),
            claim.unit.to_owned(),
            claim.hold.map(|hold| hold.to_string()).unwrap_or_default(),
            match claim.met {
                Some(true) => "yes".to_owned(),
                Some(false) => "NO".to_owned(),
                None => String::new(),
            },
        ]);
    }
    output::line(table)?;
    for skipped in &report.skipped {
        output::line(format_args!("SKIPPED: {skipped}"))?;
    }
    Ok(())
}

fn show_lnd(report: &lnd::LndReport) -> Result<()> {
    for figure in &report.figures {
        let title = format!("figure {}: {}, KB/s", figure.number, figure.title);
        let label = |system: LndSystem| system.label().to_owned();
        show_curves(title, &figure.points, label, |point| point.written.kb_per_second)?;
    }
    if !report.table.is_empty() {
        let header = ["table 2, a second", "insert", "create", "drop", "create and drop"];
        let mut table = output::table(&header, 1);
        for (system, done) in &report.table {
            let mut row = vec![system.label().to_owned()];
            row.extend(done.all().map(output::number));
            table.add_row(row);
        }
        output::line(table)?;
    }
    if !report.transactions.is_empty() {
        let header = ["PostgreSQL, a second", "one client", "ms", "eight clients", "ms"];
        let mut table = output::table(&header, 1);
        for (system, done) in &report.transactions {
            let mut row = vec![system.label().to_owned()];
            row.extend(done.all().map(output::number));
            table.add_row(row);
        }
        output::line(table)?;
    }
    for skipped in &report.skipped {
        output::line(format_args!("SKIPPED: {skipped}"))?;
    }
    Ok(())
}

/// Figures 1 to 3 and table 3 in one table.
fn show_bars(bars: &[osdi94::traversals::OsdiBar]) -> Result<()> {
    if bars.is_empty() {
        return Ok(());
    }
    let header = [
        "figure",
        "traversal",
        "way",
        "detect us",
        "collect us",
        "send us",
        "apply us",
        "all us",
        "updates",
        "ranges",
        "bytes",
        "message B",
        "4K pages",
    ];
    let mut table = output::table(&header, 3);
    for bar in bars {
        let words = [
            bar.figure.to_string(),
            bar.operation.to_string(),
            bar.curve.label().to_owned(),
        ];
        let costs = [
            bar.detect_us,
            bar.collect_us,
            bar.send_us,
            bar.apply_us,
            bar.all_us(),
        ];
        let sent = bar.sent;
        let counts = [
            sent.updates,
            sent.ranges,
            sent.bytes,
            sent.message_bytes,
            sent.pages_4k,
        ];
        let counts = counts.map(|count| output::thousands(i64::try_from(count).unwrap_or(i64::MAX)));
        table.add_row(words.into_iter().chain(costs.map(output::number)).chain(counts));
    }
    output::line(table)
}

fn show_osdi94(report: &osdi94::OsdiReport) -> Result<()> {
    if !report.costs.is_empty() {
        let mut table = output::table(&["table 2, us a page", "4 KiB", "8 KiB"], 1);
        for cost in &report.costs {
            let mut row = vec![cost.what.to_owned()];
            row.extend(
                cost.us
                    .map(|us| us.map(|us| format!("{us:.3}")).unwrap_or_default()),
            );
            table.add_row(row);
        }
        output::line(table)?;
    }
    show_bars(&report.bars)?;
    if !report.columns.is_empty() {
        let mut table = output::table(&["figure 8: overhead of t12a", "us"], 1);
        for column in &report.columns {
            table.add_row([column.what.to_owned(), output::number(column.overhead_us)]);
        }
        output::line(table)?;
    }
    for figure in &report.figures {
        let title = format!("figure {}: {}, {}", figure.number, figure.title, figure.unit);
        let label = |curve: osdi94::OsdiCurve| curve.label().to_owned();
        show_curves(title, &figure.points, label, |point| point.value)?;
    }
    for skipped in &report.skipped {
        output::line(format_args!("SKIPPED: {skipped}"))?;
    }
    Ok(())
}

fn show_mascots96(report: &mascots96::MascotsReport) -> Result<()> {
    for figure in &report.figures {
        let title = format!("figure {}: cycles by {}", figure.number, figure.axis);
        let label = |curve: mascots96::MascotsCurve| curve.label().to_owned();
        show_curves(title, &figure.points, label, |point| point.cycles)?;
    }
    let mut table = output::table(&["the text", "paper", "here", "holds"], 1);
    for claim in &report.claims {
        table.add_row([
            claim.what.clone(),
            claim.paper.map(output::number).unwrap_or_default(),
            output::number(claim.ours),
            if claim.holds { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    output::line(table)
}

/// A figure as a table with one row for each curve and one column for each x value.
fn show_curves<P: CurvePoint>(
    title: String,
    points: &[P],
    label: impl Fn(P::Curve) -> String,
    value: impl Fn(&P) -> f64,
) -> Result<()> {
    let places = curves::x_values(points);
    let mut header = vec![title];
    header.extend(places.iter().map(|place| output::thousands(*place as i64)));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = output::table(&header, 1);
    for curve in curves::curves(points) {
        let mut row = vec![label(curve)];
        row.extend(places.iter().map(|&place| {
            let point = curves::at(points, curve, place);
            point
                .map(|point| output::number(value(point)))
                .unwrap_or_default()
        }));
        table.add_row(row);
    }
    output::line(table)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_ranges_are_parsed() {
        assert_eq!("4".parse(), Ok(FigureRange { first: 4, last: 4 }));
        assert_eq!("9-11".parse(), Ok(FigureRange { first: 9, last: 11 }));
        for text in ["", "x", "11-9", "1-", "300"] {
            assert!(text.parse::<FigureRange>().is_err(), "{text}");
        }
    }
}
