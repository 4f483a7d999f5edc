//! `netram-lab bench far`: far memory beside swap, compressed memory and a mapped file.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::{Args, ValueEnum};
use netram_bench::far::output::{self as files, locals, programs, row, ways};
use netram_bench::far::programs::Program;
use netram_bench::far::{BYTES_MIN, Cell, LOCAL_BYTES_MIN, Report, Spec, Way, compare};
use netram_bench::paper::output::Run;
use netram_bench::step::Step;

use super::{Common, chosen};
use netram_cli::options::{Size, Span, Usage};
use netram_cli::output;

const BYTES: u64 = 18 << 20;
const BYTES_QUICK: u64 = 4 << 20;
const ROUNDS: usize = 3;

/// Compare far memory with swap, with compressed memory and with a mapped file
///
/// The same programs, each in a process of its own, with a part of their memory local:
/// all local; swap to a file; swap to a modelled disk that takes 1 ms more a request;
/// swap to compressed memory (zram); a mapped file; under netram run; on a FarVec; and
/// where there is such a form, by words of a FarVec (gather, scatter, get). Swap and
/// mapped files are limited by a control group. A program that finds something else
/// than with all memory local ends the comparison. What a kernel or a user's rights
/// do not allow is skipped, and said. While it runs as root it adds swap to this machine,
/// before what there is, and takes it away again, also when it is interrupted.
///
/// Times are of the program alone, its memory filled before; "late" took longer than
/// --patience, "killed" found no memory within its limit, "died" ended otherwise: what
/// it said is shown, the others go on, and the exit code is 1. Faults are those that waited.
/// About twenty minutes.
///
///   netram-lab bench far --quick
///   netram-lab bench far --programs gauss,trans --local 50,25 --ways swap,run,vec
///   netram-lab bench far --data 256MiB --dir /mnt --out results
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Far {
    #[command(flatten)]
    common: Common,
    /// Memory of each program; 2MiB at least [default: 18MiB, the paper's; quick: 4MiB]
    #[arg(long, value_name = "SIZE")]
    data: Option<Size>,
    /// How much of it may be local, in percent
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [75, 50, 25], value_parser = clap::value_parser!(u8).range(1..=99))]
    local: Vec<u8>,
    /// The programs [default: all]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    programs: Vec<ProgramName>,
    /// Where the rest of their memory is [default: all ways]
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    ways: Vec<WayName>,
    /// How often each is run; one that takes over 20 s once [default: 3; quick: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// How long a run may take
    #[arg(long, value_name = "TIME", default_value = "90s")]
    patience: Span,
    /// Lenders, each with a copy of every page: 1 or 2
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    copies: u8,
    /// Where tables, numbers and plots go; files of an earlier run are replaced [default: nowhere]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A program.
#[derive(Clone, Copy, Debug)]
struct ProgramName(Program);

impl ValueEnum for ProgramName {
    fn value_variants<'a>() -> &'a [ProgramName] {
        static ALL: [ProgramName; Program::ALL.len()] = {
            let mut all = [ProgramName(Program::Scan); Program::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = ProgramName(Program::ALL[at]);
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

/// A way.
#[derive(Clone, Copy, Debug)]
struct WayName(Way);

impl ValueEnum for WayName {
    fn value_variants<'a>() -> &'a [WayName] {
        static ALL: [WayName; Way::ALL.len()] = {
            let mut all = [WayName(Way::Local); Way::ALL.len()];
            let mut at = 0;
            while at < all.len() {
                all[at] = WayName(Way::ALL[at]);
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

impl Far {
    pub(super) fn run(self) -> Result<ExitCode> {
        let spec = self.spec()?;
        // Before twenty minutes are spent: the results must have a place.
        if let Some(out) = &self.out {
            std::fs::create_dir_all(out)
                .map_err(|error| Usage(format!("cannot make the folder {}: {error}", out.display())))?;
        }
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let run = Run {
            began: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
            disk: site
                .folder()
                .parent()
                .unwrap_or(site.folder())
                .display()
                .to_string(),
        };
        let report = compare(&site, &spec, &mut |step| match step {
            Step::Next(what) => output::remark(format_args!("{what} ...")),
            Step::Skipped(why) => output::remark(format_args!("SKIPPED: {why}")),
            Step::Failed(why) => output::remark(format_args!("FAILED: {why}")),
        })?;
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
                "{deaths} of the runs died, which is a defect: what they said is above"
            ));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }

    fn spec(&self) -> Result<Spec> {
        let quick = self.common.quick;
        let bytes = self
            .data
            .map_or(if quick { BYTES_QUICK } else { BYTES }, |size| size.0)
            / 8
            * 8;
        if bytes < BYTES_MIN {
            return Err(Usage(format!("--data must be {} at least", output::bytes(BYTES_MIN))).into());
        }
        if let Some(local) = self
            .local
            .iter()
            .find(|local| bytes / 100 * u64::from(**local) < LOCAL_BYTES_MIN)
        {
            let least = output::bytes(LOCAL_BYTES_MIN);
            return Err(Usage(format!(
                "{local} % of {} is less than {least}: raise --local, or --data",
                output::bytes(bytes)
            ))
            .into());
        }
        Ok(Spec {
            bytes,
            locals: self.local.clone(),
            programs: chosen(&self.programs, |name| name.0, &Program::ALL),
            ways: chosen(&self.ways, |name| name.0, &Way::ALL),
            rounds: self.rounds.map_or(if quick { 1 } else { ROUNDS }, usize::from),
            patience: self.patience.0,
            copies: usize::from(self.copies),
        })
    }
}

fn show(report: &Report) -> Result<()> {
    output::line("seconds")?;
    table(report, Cell::shown)?;
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

fn table(report: &Report, shown: impl Fn(&Cell) -> String) -> Result<()> {
    let names = ways(report).into_iter().map(Way::name);
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
