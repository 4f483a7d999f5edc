//! `netram-lab bench far`: far memory beside swap, compressed memory and a mapped file.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use netram_bench::far::output::{self as files, locals, methods, programs, row};
use netram_bench::far::programs::FarProgram;
use netram_bench::far::{BYTES_MIN, FarCell, FarMethod, FarReport, FarSpec, LOCAL_BYTES_MIN, compare};

use super::{CommonArgs, chosen};
use netram_cli::options::{DurationArg, SizeArg, UsageError};
use netram_cli::output;

const BYTES: u64 = 18 << 20;
const BYTES_QUICK: u64 = 4 << 20;
const ROUNDS: usize = 3;

/// Compare far memory with swap, with compressed memory and with a mapped file
///
/// Runs the same programs, each in its own process, with a part of their memory local: all
/// local; swap to a file; swap to a modelled disk whose requests take 1 ms more; swap to
/// compressed memory (zram); a mapped file; under netram run; on a FarVec; and, if the
/// program has such a form, by words of a FarVec (gather, scatter, get). A control group
/// limits swap and mapped files. A program that computes another result than with all
/// memory local ends the comparison. Methods that the kernel or the user's rights do not
/// allow are skipped, with a message. As root it adds swap to this machine with a higher
/// priority than existing swap, and removes it again, even when interrupted.
///
/// Times are those of the program alone, with its memory filled before. "late" exceeded
/// --patience, "killed" exceeded its memory limit, "died" ended otherwise: its output is
/// shown, the others go on, and the exit code is 1. Faults are those that waited. Takes
/// about twenty minutes.
///
///   netram-lab bench far --quick
///   netram-lab bench far --programs gauss,trans --local 50,25 --ways swap,run,vec
///   netram-lab bench far --data 256MiB --dir /mnt --out results
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchFar {
    #[command(flatten)]
    common: CommonArgs,
    /// Memory of each program; 2MiB at least [default: 18MiB, the paper's; quick: 4MiB]
    #[arg(long, value_name = "SIZE")]
    data: Option<SizeArg>,
    /// Shares of it that may be local, in percent
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [75, 50, 25], value_parser = clap::value_parser!(u8).range(1..=99))]
    local: Vec<u8>,
    /// The programs [default: all]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    programs: Vec<ProgramName>,
    /// Methods for the rest of their memory [default: all]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    ways: Vec<MethodName>,
    /// Number of runs of each; a run of more than 20 s is not repeated [default: 3; quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Time limit of a run
    #[arg(long, value_name = "TIME", default_value = "90s")]
    patience: DurationArg,
    /// Lenders, each with a copy of every page: 1, or 2 as `netram run` has by default
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=2))]
    copies: u8,
    /// Directory for tables, numbers and plots; replaces files of an earlier run [default: none
    /// are written]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A program.
#[derive(Clone, Copy, Debug)]
struct ProgramName(FarProgram);

impl ValueEnum for ProgramName {
    fn value_variants<'a>() -> &'a [ProgramName] {
        static ALL: [ProgramName; FarProgram::ALL.len()] = {
            let mut all = [ProgramName(FarProgram::Scan); FarProgram::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = ProgramName(FarProgram::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.0.name().into())
    }
}

/// A method.
#[derive(Clone, Copy, Debug)]
struct MethodName(FarMethod);

impl ValueEnum for MethodName {
    fn value_variants<'a>() -> &'a [MethodName] {
        static ALL: [MethodName; FarMethod::ALL.len()] = {
            let mut all = [MethodName(FarMethod::Local); FarMethod::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = MethodName(FarMethod::ALL[at]);
                at += 1;
            }
            all
        };
        &ALL
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(self.0.name().into())
    }
}

impl BenchFar {
    pub(super) fn run(self) -> Result<ExitCode> {
        let spec = self.spec()?;
        if let Some(out) = &self.out {
            super::make_directory(out)?;
        }
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let run = super::run_info(super::place(&site).display().to_string());
        let report = compare(&site, &spec, &mut super::remark)?;
        if let Some(out) = &self.out {
            for file in files::write(&report, &run, out)? {
                output::remark(format_args!("wrote {}", file.display()));
            }
        }
        if self.common.json {
            output::json(&report)?;
        } else {
            show(&report)?;
        }
        let deaths: usize = report.cells.iter().map(|cell| cell.deaths().count()).sum();
        if deaths > 0 {
            output::remark(format_args!(
                "{deaths} of the runs died, which is a defect; their output is above"
            ));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn spec(&self) -> Result<FarSpec> {
        let quick = self.common.quick;
        let bytes = self
            .data
            .map_or(if quick { BYTES_QUICK } else { BYTES }, |size| size.0)
            / 8
            * 8;
        if bytes < BYTES_MIN {
            return Err(UsageError(format!("--data must be {} at least", output::bytes(BYTES_MIN))).into());
        }
        if let Some(local) = self
            .local
            .iter()
            .find(|local| bytes / 100 * u64::from(**local) < LOCAL_BYTES_MIN)
        {
            let least = output::bytes(LOCAL_BYTES_MIN);
            return Err(UsageError(format!(
                "{local} % of {} is less than {least}: raise --local, or --data",
                output::bytes(bytes)
            ))
            .into());
        }
        Ok(FarSpec {
            bytes,
            locals: self.local.clone(),
            programs: chosen(&self.programs, |name| name.0, &FarProgram::ALL),
            ways: chosen(&self.ways, |name| name.0, &FarMethod::ALL),
            rounds: self.rounds.map_or(if quick { 1 } else { ROUNDS }, usize::from),
            patience: self.patience.0,
            copies: usize::from(self.copies),
        })
    }
}

fn show(report: &FarReport) -> Result<()> {
    output::line("seconds")?;
    table(report, FarCell::shown)?;
    output::line("faults that waited")?;
    table(report, |cell| {
        let faults = cell.faults().map(|faults| output::thousands(faults as i64));
        faults.unwrap_or_default()
    })?;
    for skipped in &report.skipped {
        output::line(format_args!("SKIPPED: {skipped}"))?;
    }
    Ok(())
}

fn table(report: &FarReport, shown: impl Fn(&FarCell) -> String) -> Result<()> {
    let names = methods(report).into_iter().map(FarMethod::name);
    let header: Vec<&str> = ["program", "local %"].into_iter().chain(names).collect();
    let mut table = output::table(&header, 1);
    for program in programs(report) {
        for local in locals(report) {
            let first = [program.name().to_owned(), local.to_string()];
            table.add_row(first.into_iter().chain(row(report, program, local, &shown)));
        }
    }
    output::line(table)
}
