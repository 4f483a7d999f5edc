//! `netram explain`.

mod closed;
mod explanation;
mod open;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use netram_journal::orders;
use serde_json::json;

use self::explanation::Explanation;
use super::journal::MembershipTarget;
use crate::output;

/// Say in sentences what state a journal is in, what changed lately, and what to type
///
/// PATH is a journal, a log, a volume, a database or a mounted directory. If a process has it
/// open, that process is asked; otherwise its files are read. Nothing is changed.
///
/// The middle part says how much acknowledged data would be gone if memory were lost now, of
/// this machine, of a power domain, of both, or of all machines. Disks outlive a power failure.
///
///   netram explain /srv/vm1
///
/// Exit code: 0 nothing is to be done, 1 a person is needed, 2 wrong usage.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ExplainJournal {
    /// Journal, log, volume, database or mounted directory
    path: PathBuf,
    /// Print JSON
    #[arg(long, conflicts_with = "metrics")]
    json: bool,
    /// Print the metrics of the process that has it open, in the text format of Prometheus
    #[arg(long)]
    metrics: bool,
}

impl ExplainJournal {
    pub(super) fn run(self) -> Result<ExitCode> {
        let target = MembershipTarget::of(&self.path)?;
        if self.metrics {
            return self.show_metrics(&target.journals);
        }
        let mut found = Vec::new();
        for journal in &target.journals {
            let report = orders::report(journal)
                .with_context(|| format!("asking the process that has {} open", journal.display()))?;
            let explanation = match &report {
                Some(report) => open::explain(&self.path, journal, report),
                None => closed::explain(&self.path, journal, journal == &self.path)?,
            };
            found.push((journal, report, explanation));
        }
        let is_needed = found.iter().any(|(_, _, said)| !said.todo.is_empty());
        if self.json {
            let journals = found.iter().map(|(journal, report, said)| {
                json!({"journal": journal, "report": report, "state": said.state, "todo": said.todo})
            });
            output::json(&journals.collect::<Vec<_>>())?;
        } else {
            for (_, _, said) in &found {
                show(said)?;
            }
        }
        Ok(match is_needed {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        })
    }
}

impl ExplainJournal {
    /// Prints the metrics of one process: journals that are open in the same one have one page.
    fn show_metrics(&self, journals: &[PathBuf]) -> Result<ExitCode> {
        for journal in journals {
            let text = orders::metrics(journal)
                .with_context(|| format!("asking the process that has {} open", journal.display()))?;
            if let Some(text) = text {
                output::line(text.trim_end())?;
                return Ok(ExitCode::SUCCESS);
            }
        }
        bail!(
            "no process has {} open, so there are no metrics",
            self.path.display()
        )
    }
}

fn show(said: &Explanation) -> Result<()> {
    for sentence in &said.state {
        output::line(sentence)?;
    }
    if !said.risks.is_empty() {
        output::line("\nIf memory were lost now, for example because power failed:")?;
        for (lost, outcome) in &said.risks {
            output::line(format_args!("  {lost}: {outcome}"))?;
        }
    }
    if !said.lately.is_empty() {
        output::line("\nLately:")?;
        for event in &said.lately {
            output::line(format_args!("  {event}"))?;
        }
    }
    output::line("\nTo do:")?;
    for advice in &said.todo {
        output::line(format_args!("  - {advice}"))?;
    }
    if said.todo.is_empty() {
        output::line("  nothing")?;
    }
    Ok(())
}
