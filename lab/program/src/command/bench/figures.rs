//! `netram-lab bench figures`: the scoreboard.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use netram_bench::figures::{self, Part, Scoreboard};

use super::Common;
use netram_cli::output;

/// Print the scoreboard: every figure that netram holds itself to
///
///   netram-lab bench figures --quick
///   netram-lab bench figures --json > figures.json
///   netram-lab bench figures --only volumes
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Figures {
    #[command(flatten)]
    common: Common,
    /// A part of them, or several separated by commas [default: all]
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    only: Vec<Which>,
}

/// A part of the scoreboard.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Which {
    /// Commits, and what they stand on
    Commits,
    /// Recoverable memory
    Memory,
    /// What crashes cost
    Crashes,
    /// Volumes
    Volumes,
    /// Files on a mount
    Mounts,
    /// Shared memory
    Shared,
    /// Far memory: the study of paging
    Far,
}

impl Which {
    fn part(self) -> Part {
        match self {
            Which::Commits => Part::Commits,
            Which::Memory => Part::Memory,
            Which::Crashes => Part::Crashes,
            Which::Volumes => Part::Volumes,
            Which::Mounts => Part::Mounts,
            Which::Shared => Part::Shared,
            Which::Far => Part::Far,
        }
    }
}

impl Figures {
    pub(super) fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let asked: Vec<Part> = self.only.iter().map(|which| which.part()).collect();
        let parts = if asked.is_empty() { &Part::ALL[..] } else { &asked };
        let scoreboard = figures::measure(&site, parts, self.common.quick, &mut |what| {
            output::remark(format_args!("measuring {what} ..."));
        })?;
        if self.common.json {
            output::json(&scoreboard)?;
        } else {
            show_figures(&scoreboard)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn show_figures(scoreboard: &Scoreboard) -> Result<()> {
    let mut table = output::table(
        &["figure", "what", "value", "unit", "floor", "ratio", "hold", "met"],
        2,
    );
    for figure in &scoreboard.figures {
        table.add_row([
            figure.id.to_owned(),
            figure.what.clone(),
            output::number(figure.value),
            figure.unit.to_owned(),
            figure.floor.map(output::number).unwrap_or_default(),
            output::number(figure.ratio),
            figure.hold.to_string(),
            if figure.met { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    output::line(table)?;
    for skipped in &scoreboard.skipped {
        output::line(format_args!("SKIPPED: {skipped}"))?;
    }
    Ok(())
}
