//! `netram-lab bench failures`: the failures of LND's Table 1.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use netram_bench::failures::{self, FailedScenario, FailureReport, FailureRow, LndFailure, Reliability};
use netram_bench::machine::MachineInfo;
use serde_json::json;

use super::CommonArgs;
use netram_cli::output;

/// Inject every failure that a volume should survive, and print the table
///
/// Injects the failures of Table 1 of the LND paper, each with real lenders and a volume
/// attached as a device, while fio writes synchronously to ext4 on it and verifies. The
/// paper's words stand beside the measurements. Needs root, FUSE, loop devices and fio.
///
///   netram-lab bench failures --quick
///   netram-lab bench failures --only client-killed,all-lost --repeat 3
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchFailures {
    #[command(flatten)]
    common: CommonArgs,
    /// Inject only these failures
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = names())]
    only: Vec<LndFailure>,
    /// Number of runs of each failure; results are medians, and the longest write of all
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=50))]
    repeat: u8,
}

fn names() -> impl clap::builder::TypedValueParser<Value = LndFailure> {
    PossibleValuesParser::new(LndFailure::ALL.map(LndFailure::id)).try_map(|name| {
        let known = LndFailure::ALL.into_iter().find(|failure| failure.id() == name);
        known.ok_or("no such failure")
    })
}

impl BenchFailures {
    pub(super) fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let failures = match self.only.is_empty() {
            true => LndFailure::ALL.to_vec(),
            false => self.only.clone(),
        };
        let report = failures::measure(
            &site,
            &failures,
            self.common.quick,
            self.repeat.into(),
            &mut |what| output::remark(format_args!("{what} ...")),
        )?;
        if self.common.json {
            output::json(&json!({
                "machine": MachineInfo::probe(),
                "rows": report.rows,
                "skipped": report.skipped,
                "wrong": report.wrong,
            }))?;
            return Ok(exit(&report));
        }
        for skipped in &report.skipped {
            output::line(format_args!("SKIPPED: {skipped}"))?;
        }
        if !report.rows.is_empty() {
            show(&report.rows)?;
        }
        for FailedScenario { id, why } in &report.wrong {
            output::line(format_args!("WRONG: {id}: {why}"))?;
        }
        Ok(exit(&report))
    }
}

fn exit(report: &FailureReport) -> ExitCode {
    match report.wrong.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn show(rows: &[FailureRow]) -> Result<()> {
    let header = [
        "failure",
        "reliable",
        "goes on",
        "write before us",
        "during",
        "speed",
        "longest ms",
        "recovery ms",
    ];
    let mut table = output::table(&header, 3);
    for row in rows {
        let optional = |value: Option<f64>| value.map(output::number).unwrap_or_default();
        table.add_row([
            row.failure.to_owned(),
            reliable(row).to_owned(),
            if row.continues { "yes" } else { "no" }.to_owned(),
            output::number(row.before_us),
            optional(row.during_us),
            row.speed()
                .map(|speed| format!("{:.0} %", speed * 100.0))
                .unwrap_or_default(),
            optional(row.stall_ms),
            optional(row.recovery_ms),
        ]);
        let paper = &row.paper;
        table.add_row([
            format!("  in the paper: {}", paper.failure),
            paper.reliable.to_owned(),
            paper.continues.to_owned(),
            String::new(),
            String::new(),
            paper.performance.to_owned(),
            String::new(),
            paper.recovery.to_owned(),
        ]);
    }
    output::line(table)?;
    output::line("recovery:")?;
    for row in rows.iter().filter(|row| row.recovery_ms.is_some()) {
        let copied = row
            .copied_ms
            .map(|copied| format!("; {} ms until everything was copied", output::number(copied)));
        let copied = copied.unwrap_or_default();
        output::line(format_args!("  {}: {}{copied}", row.failure, row.recovery))?;
    }
    Ok(())
}

fn reliable(row: &FailureRow) -> &'static str {
    match row.reliable {
        Reliability::Yes => "yes",
        Reliability::Refused { lost: Some(false) } => {
            "refused, naming who is missing; nothing was gone this time"
        }
        Reliability::Refused { .. } => "no: refused, naming who is missing",
    }
}
