//! `netram bench figures`: the scoreboard.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_bench::figures::{self, Scoreboard};

use super::Common;
use crate::output;

/// Print the scoreboard: every figure that netram holds itself to
///
///   netram bench figures --quick
///   netram bench figures --json > figures.json
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Figures {
    #[command(flatten)]
    common: Common,
}

impl Figures {
    pub(super) fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let scoreboard = figures::measure(&site, self.common.quick, &mut |what| {
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
    output::line(table)
}
