//! `netram`: one program for lenders, clients and whoever looks after them.
//!
//! Every subcommand is a file of [`command`]; its flags, help, man page and completions come from one table there.
#![deny(unsafe_code)]
#![cfg_attr(
    not(feature = "products"),
    allow(dead_code, reason = "the demo needs less of what the commands share")
)]

mod command;
mod descriptors;
mod log;
mod notify;
mod options;
mod output;
mod settings;

use std::io;
use std::process::ExitCode;

use clap::Parser;

use crate::command::Command;
use crate::options::Usage;

// Costs one relaxed load an allocation; `netram bench figures` counts with it what a commit allocates.
#[global_allocator]
static ALLOCATOR: netram_bench::CountingAllocator = netram_bench::CountingAllocator;

/// The exit code of a failed operation; clap's own for a command line that makes no sense is 2.
const FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Other machines' memory as durable, fast storage.
///
/// A commit is durable as soon as lenders (other machines that lend their RAM)
/// hold it; the local disk follows in the background. Start a lender on each of
/// two machines, then open journals with them:
///
///   netram key new cluster.key       # once; copy it to all machines
///   netram lend --listen tcp://0.0.0.0:7420 --key-file cluster.key --domain ups-1
///   netram status tcp://10.0.0.2:7420 --key-file cluster.key
///   netram demo                      # shows all of it on this machine
#[derive(Debug, Parser)]
#[command(
    name = "netram",
    version,
    verbatim_doc_comment,
    max_term_width = 100,
    disable_help_subcommand = true
)]
struct Netram {
    #[command(flatten)]
    log: log::LogArgs,
    #[command(subcommand)]
    command: Command,
}

fn main() -> ExitCode {
    let netram = Netram::parse();
    log::start(&netram.log, netram.command.is_quiet());
    if netram.command.is_service() {
        descriptors::raise();
    }
    let outcome = netram.command.run();
    command::site::leave_to_signal();
    match outcome {
        Ok(code) => code,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::from(if error.is::<Usage>() { USAGE } else { FAILED })
        }
    }
}

/// Whoever read our output has seen enough, as in `netram status ... | head -1`.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let closed = |cause: &io::Error| cause.kind() == io::ErrorKind::BrokenPipe;
    error.downcast_ref::<io::Error>().is_some_and(closed)
}
