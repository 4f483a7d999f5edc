//! `netram-lab bench figures`: the scoreboard.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use netram_bench::figures::{self, Scoreboard, ScoreboardPart};

use super::CommonArgs;
use netram_cli::output;

/// Print the scoreboard: every figure with a bound
///
///   netram-lab bench figures --quick
///   netram-lab bench figures --json > figures.json
///   netram-lab bench figures --only volumes
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchFigures {
    #[command(flatten)]
    common: CommonArgs,
    /// Parts of it, separated by commas [default: all]
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',')]
    only: Vec<PartArgument>,
}

/// A part of the scoreboard.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PartArgument {
    /// Commits and their floors
    Commits,
    /// Recoverable memory
    Memory,
    /// Crashes and recovery
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

impl PartArgument {
    fn part(self) -> ScoreboardPart {
        match self {
            PartArgument::Commits => ScoreboardPart::Commits,
            PartArgument::Memory => ScoreboardPart::Memory,
            PartArgument::Crashes => ScoreboardPart::Crashes,
            PartArgument::Volumes => ScoreboardPart::Volumes,
            PartArgument::Mounts => ScoreboardPart::Mounts,
            PartArgument::Shared => ScoreboardPart::Shared,
            PartArgument::Far => ScoreboardPart::Far,
        }
    }
}

impl BenchFigures {
    pub(super) fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let asked: Vec<ScoreboardPart> = self.only.iter().map(|which| which.part()).collect();
        let parts = if asked.is_empty() {
            &ScoreboardPart::ALL[..]
        } else {
            &asked
        };
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
