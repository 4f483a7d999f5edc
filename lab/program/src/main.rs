//! `netram-lab`: measurements, the papers' experiments, the study of paging policies, and the demonstration.
//!
//! It also has the commands of `netram`, for the processes that a measurement starts: the measured code is
//! the one that ships.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "experiments"),
    allow(
        dead_code,
        reason = "the demonstration needs less of what it shares with the experiments"
    )
)]

mod command;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use netram_cli::Program;
use netram_cli::log::LogArgs;

use crate::command::Command;

// Costs one relaxed load for each allocation; `netram-lab bench figures` uses it to count a commit's
// allocations.
#[global_allocator]
static ALLOCATOR: netram_bench::CountingAllocator = netram_bench::CountingAllocator;

/// The laboratory of netram.
///
///   netram-lab demo                      # commits survive a killed lender
///   netram-lab bench figures --quick     # every figure beside its floor
///   netram-lab pagesim exec -- ./job     # would far memory help this program?
#[derive(Debug, Parser)]
#[command(
    name = "netram-lab",
    version,
    verbatim_doc_comment,
    max_term_width = 100,
    disable_help_subcommand = true
)]
struct Lab {
    #[command(flatten)]
    log: LogArgs,
    #[command(subcommand)]
    command: Command,
}

impl Program for Lab {
    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn is_quiet(&self) -> bool {
        !matches!(self.command, Command::Netram(_) | Command::Play(_))
    }

    fn is_service(&self) -> bool {
        matches!(&self.command, Command::Netram(command) if command.is_service())
    }

    fn run(self) -> Result<ExitCode> {
        let outcome = self.command.run();
        command::testbed::leave_to_signal();
        outcome
    }
}

fn main() -> ExitCode {
    netram_cli::main::<Lab>()
}
