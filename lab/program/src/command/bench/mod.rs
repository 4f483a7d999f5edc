//! `netram-lab bench`: measurements, each beside its floor.

mod commit;
mod databases;
mod failures;
mod far;
mod figures;
mod heap;
mod oo7;
mod paper;
mod peers;
mod share;
mod tpca;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::{Args, Subcommand};
use netram_bench::commit::CommitEffort;
use netram_bench::machine::MachineInfo;
use netram_bench::paper::output::RunInfo;
use netram_bench::progress::ProgressEvent;
use netram_bench::testbed::Testbed;
use serde::Serialize;
use serde_json::json;

use super::testbed::testbed;
use netram_cli::options::UsageError;
use netram_cli::output;
pub(crate) use peers::BenchPeers;

/// Measure netram beside its floors
///
/// Every number stands beside a measurement of the same machine without netram: a bare
/// exchange of the same bytes over the same kind of socket and cores, and fdatasync on the
/// same disk. Rounds alternate, and results are medians of rounds. Lenders run as processes
/// on this machine and end with the measurement.
///
///   netram-lab bench figures --quick        # the scoreboard, under two minutes
///   netram-lab bench commit --members 2     # one row of your own
///   netram-lab bench paper --quick          # the experiments of TR-190
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub(crate) enum BenchCommand {
    Figures(figures::BenchFigures),
    Commit(commit::BenchCommit),
    Databases(databases::BenchDatabases),
    Failures(failures::BenchFailures),
    Far(far::BenchFar),
    Tpca(tpca::BenchTpca),
    Lender(share::BenchLender),
    Heap(heap::BenchHeap),
    Oo7(oo7::BenchOo7),
    Paper(paper::BenchPaper),
}

/// Arguments of every measurement.
#[derive(Debug, Args)]
struct CommonArgs {
    /// Shorter rounds and fewer of them
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Directory for journals during the measurement; choose the disk of interest [default:
    /// /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl BenchCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            BenchCommand::Figures(figures) => figures.run(),
            BenchCommand::Commit(commit) => commit.run(),
            BenchCommand::Databases(databases) => databases.run(),
            BenchCommand::Failures(failures) => failures.run(),
            BenchCommand::Far(far) => far.run(),
            BenchCommand::Tpca(tpca) => tpca.run(),
            BenchCommand::Lender(share) => share.run(),
            BenchCommand::Heap(heap) => heap.run(),
            BenchCommand::Oo7(oo7) => oo7.run(),
            BenchCommand::Paper(paper) => paper.run(),
        }
    }
}

impl CommonArgs {
    fn site(&self) -> Result<Testbed> {
        testbed(self.dir.as_deref())
    }

    fn effort(&self) -> CommitEffort {
        if self.quick {
            CommitEffort::QUICK
        } else {
            CommitEffort::FULL
        }
    }

    /// Prints the machine and its load, without which a number means little.
    fn introduce(&self, site: &Testbed) -> Result<()> {
        if !self.json {
            output::line(introduction(&MachineInfo::probe(), site.directory()))?;
        }
        Ok(())
    }

    /// Prints the rows of a measurement as JSON, with the machine.
    fn json(&self, rows: &impl Serialize) -> Result<()> {
        output::json(&json!({ "machine": MachineInfo::probe(), "rows": rows }))
    }
}

fn introduction(machine: &MachineInfo, directory: &Path) -> String {
    let MachineInfo {
        processor,
        cores,
        kernel,
        load,
    } = machine;
    let disk = file_system(directory);
    format!("{processor}, {cores} cores, Linux {kernel}, load {load:.2}; files on {disk}")
}

/// Makes the directory of the results. Called before time is spent: they must have a place.
fn make_directory(out: &Path) -> Result<(), UsageError> {
    std::fs::create_dir_all(out)
        .map_err(|error| UsageError(format!("cannot make the directory {}: {error}", out.display())))
}

/// Directory in which a measurement's own directory is.
fn place(site: &Testbed) -> &Path {
    site.directory().parent().unwrap_or(site.directory())
}

/// A run of the command as typed, which begins now, with its files on `disk`.
fn run_info(disk: String) -> RunInfo {
    RunInfo {
        began: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        disk,
    }
}

/// Remarks on a measurement's progress.
fn remark(step: ProgressEvent<'_>) {
    match step {
        ProgressEvent::Next(what) => output::remark(format_args!("{what} ...")),
        ProgressEvent::Skipped(why) => output::remark(format_args!("SKIPPED: {why}")),
        ProgressEvent::Failed(why) => output::remark(format_args!("FAILED: {why}")),
    }
}

/// The kind of file system of `directory`, with a warning if its syncs mean nothing.
fn file_system(directory: &Path) -> String {
    const TMPFS: u64 = 0x0102_1994;
    let kind = rustix::fs::statfs(directory).map(|stat| stat.f_type as u64);
    match kind {
        Ok(TMPFS) => format!(
            "{} (MEMORY: fdatasync is free here; choose a disk with --dir)",
            directory.display()
        ),
        _ => directory.display().to_string(),
    }
}

/// The named values in the order of the tables; all if none is named.
fn chosen<N, T: Copy + PartialEq>(names: &[N], value: impl Fn(&N) -> T, all: &[T]) -> Vec<T> {
    let named: Vec<T> = names.iter().map(value).collect();
    all.iter()
        .copied()
        .filter(|value| named.is_empty() || named.contains(value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_named() {
        let error = testbed(Some(Path::new("/nowhere"))).map(drop).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere"));
    }
}
