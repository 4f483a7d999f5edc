//! `netram-lab bench`: measurements, each beside its floor.

mod commit;
mod databases;
mod failures;
mod far;
mod figures;
mod heap;
mod oo7;
mod paper;
mod share;
mod tpca;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use netram_bench::commit::Effort;
use netram_bench::machine::Machine;
use netram_bench::site::Site;
use serde::Serialize;
use serde_json::json;

use super::site::site;
use netram_cli::output;

/// Measure netram beside its floors
///
/// Every number stands beside what the same machine does without netram: a bare
/// exchange of the same bytes over the same kind of socket and cores, and
/// fdatasync on the same disk. Rounds alternate and medians of rounds are shown.
/// Lenders run as processes on this machine and end with the measurement.
///
///   netram-lab bench figures --quick        # the scoreboard, under two minutes
///   netram-lab bench commit --members 2     # one row of your own
///   netram-lab bench paper --quick          # the experiments of TR-190
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub(crate) enum Bench {
    Figures(figures::Figures),
    Commit(commit::Commit),
    Databases(databases::Databases),
    Failures(failures::Failures),
    Far(far::Far),
    Tpca(tpca::Tpca),
    Lender(share::Share),
    Heap(heap::Heap),
    Oo7(oo7::Oo7),
    Paper(paper::Paper),
}

/// What every measurement knows.
#[derive(Debug, Args)]
struct Common {
    /// Shorter rounds and fewer of them
    #[arg(long)]
    quick: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Where journals are kept while measuring; choose the disk that is of interest [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Bench {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Bench::Figures(figures) => figures.run(),
            Bench::Commit(commit) => commit.run(),
            Bench::Databases(databases) => databases.run(),
            Bench::Failures(failures) => failures.run(),
            Bench::Far(far) => far.run(),
            Bench::Tpca(tpca) => tpca.run(),
            Bench::Lender(share) => share.run(),
            Bench::Heap(heap) => heap.run(),
            Bench::Oo7(oo7) => oo7.run(),
            Bench::Paper(paper) => paper.run(),
        }
    }
}

impl Common {
    fn site(&self) -> Result<Site> {
        site(self.dir.as_deref())
    }

    fn effort(&self) -> Effort {
        if self.quick { Effort::QUICK } else { Effort::FULL }
    }

    /// Where and under what load: a number without it is not to be believed.
    fn introduce(&self, site: &Site) -> Result<()> {
        if !self.json {
            output::line(introduction(&Machine::look(), site.folder()))?;
        }
        Ok(())
    }

    /// Rows of a measurement as JSON, with where they were taken.
    fn json(&self, rows: &impl Serialize) -> Result<()> {
        output::json(&json!({ "machine": Machine::look(), "rows": rows }))
    }
}

fn introduction(machine: &Machine, folder: &Path) -> String {
    let Machine {
        processor,
        cores,
        kernel,
        load,
    } = machine;
    let disk = file_system(folder);
    format!("{processor}, {cores} cores, Linux {kernel}, load {load:.2}; files on {disk}")
}

/// The kind of file system below `folder`, and a warning if its syncs mean nothing.
fn file_system(folder: &Path) -> String {
    const TMPFS: u64 = 0x0102_1994;
    let kind = rustix::fs::statfs(folder).map(|stat| stat.f_type as u64);
    match kind {
        Ok(TMPFS) => format!(
            "{} (MEMORY: fdatasync is free here; choose a disk with --dir)",
            folder.display()
        ),
        _ => folder.display().to_string(),
    }
}

/// Those that are named, in the order of the tables; all if none is.
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
    fn a_folder_that_is_not_there_is_named() {
        let error = site(Some(Path::new("/nowhere"))).map(drop).unwrap_err();
        assert!(format!("{error:#}").contains("/nowhere"));
    }
}
